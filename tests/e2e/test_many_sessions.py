"""Many sessions over llama.cpp: whatever else runs, and whatever happens to a sequence on the way,
its words are those of a bare loop.
"""

import threading

import numpy as np
import pytest

from driven import Driven
from guide_forms import guide_path
from guide_sessions import (
    NO_END,
    ask_all,
    check_prefixes_of_a_running_one,
    check_together,
    encoded,
    runners,
    said_by_a_raw_loop,
)
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.engine import background
from hearth.backends.engine.embedding import TextJob
from hearth.backends.engine.kv.manager import KvManager
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.llamacpp import embedder
from hearth.backends.llamacpp.load import open_model
from raw_loop import RawModel
from speakers import Listener, at_rest, drain, generation

EXACT = ModelSettings(kv_type="f32", flash_attention=False, threads=1, batch_threads=1)
TOKENS = 48
TEXTS = [
    "How do I download a model?",
    "Where are the settings?",
    "What is a context length? Explain it in a few short sentences, please.",
    "Tell me about quantization and what Q4_K_M means for my laptop",
    "hello",
    "Which models fit into eight gigabytes of memory, and how do I find out?",
    "1 2 3 4 5 6 7",
    "Is my data sent anywhere?",
    "The endpoint listens on",
    "stop",
    "How can I use my own GGUF file with Hearth? I have put it on a USB stick.",
    "A",
    "What does hearth doctor do, and when should I run it? It printed a warning today.",
    "naïve café 你好",
    "Write a very short story about a ship. Write a very short story about a ship.",
    "\n\n",
]


@pytest.fixture(scope="module")
def truth(guide_f32):
    """[(prompt, what a raw loop of llama.cpp says)] of sixteen prompts."""
    prompts = encoded(open_model, guide_f32, TEXTS)
    return said_by_a_raw_loop(guide_f32, prompts, TOKENS)


@pytest.fixture
def runner_of(guide_f32):
    """`runner_of(**settings)`: the f32 guide in exact mode, closed after the test."""
    with runners(open_model, guide_f32, EXACT) as make:
        yield make


def test_alone_they_say_what_a_raw_loop_says(truth, runner_of):
    runner = runner_of()
    for one in truth:
        check_together(runner, [one], preempted=False)


@pytest.mark.parametrize(
    "chunk", [*(pytest.param(size, marks=pytest.mark.slow) for size in (1, 64)), 7, 512]
)
def test_eight_at_once_say_the_same(truth, runner_of, chunk):
    runner = runner_of(max_sessions=8, max_batch_tokens=chunk)
    check_together(runner, truth, preempted=False)


def test_when_put_aside_and_brought_back_they_say_the_same(truth, runner_of):
    tokens_bytes = runner_of().info.kv_bytes_per_token
    runner = runner_of(max_sessions=8, kv_budget_bytes=256 * tokens_bytes, context=256)
    check_together(runner, truth, preempted=True)


def test_when_put_aside_without_a_copy_they_say_the_same(truth, runner_of, monkeypatch):
    tokens_bytes = runner_of().info.kv_bytes_per_token
    runner = runner_of(max_sessions=8, kv_budget_bytes=256 * tokens_bytes, context=256)
    monkeypatch.setattr(KvManager, "copy_out", lambda self, slot, grows: None)
    check_together(runner, truth, preempted=True)


def test_with_the_prefix_of_one_that_still_speaks_they_say_the_same(truth, runner_of):
    check_prefixes_of_a_running_one(runner_of(max_sessions=8), truth[:6])


@pytest.mark.parametrize("shared", [0, 30])
def test_when_computed_beside_the_steps_they_say_the_same(
    guide_f32, runner_of, monkeypatch, shared
):
    monkeypatch.setattr(background, "WORTH_STEPS", 0)
    prompts = [[(41 * n + k * k + 3 * k) % 4000 + 20 for k in range(700)] for n in range(3)]
    prompts = [prompts[0][:shared] + prompt[shared:] for prompt in prompts]
    expected = [said for _, said in said_by_a_raw_loop(guide_f32, prompts, TOKENS)]
    runner = runner_of(threads=2, batch_threads=2, context=2000)
    engine = runner.engine()
    streaming, _ = generation(9, prompts[0][:40], runner, tokens=1500, end_ids=NO_END)
    engine.submit(streaming)
    while streaming.new_tokens < 5:
        engine.run_once()
    heard = []
    for ident, prompt in enumerate(prompts):
        made, listener = generation(ident, prompt, runner, tokens=TOKENS, end_ids=NO_END)
        engine.submit(made)
        heard.append(listener)
        while not made.new_tokens:  # Steps would compute what waits for the background.
            engine.run_once()
    while not all(listener.over for listener in heard):
        engine.run_once()
    assert [listener.ids for listener in heard] == expected
    # All but the last token and what the streaming one holds.
    assert engine._background.computed_tokens == (699 - 40) + 2 * (699 - shared)
    engine.cancel(9)
    drain(engine)
    assert at_rest(engine, runner)


def test_while_a_long_text_is_embedded_next_to_them_they_say_the_same(
    truth, runner_of, monkeypatch
):
    monkeypatch.setattr(embedder, "QUICK_BYTES", 0)  # Its slices are computed in a thread.
    text = [(7 * k * k + 3) % 4000 + 20 for k in range(700)]
    runner = runner_of(threads=2, batch_threads=2)
    expected = runner.embed([text], "mean")
    engine = runner.engine()
    got = Listener()
    engine.submit(TextJob(99, [text], "mean", got))
    heard = []
    for ident, (prompt, _) in enumerate(truth[:4]):
        made, listener = generation(ident, prompt, runner, tokens=TOKENS, end_ids=NO_END)
        engine.submit(made)
        heard.append(listener)
    while not (got.events and all(listener.over for listener in heard)):
        engine.run_once()
    assert [listener.ids for listener in heard] == [said for _, said in truth[:4]]
    np.testing.assert_allclose(got.last.vectors, expected, atol=1e-5)
    drain(engine)
    assert engine.stats().computed_tokens >= len(text)
    assert at_rest(engine, runner)


def test_a_runner_that_is_closed_meanwhile_waits_for_its_thread(runner_of, monkeypatch):
    done = threading.Event()
    runner = runner_of(threads=2, batch_threads=2)
    side = runner.beside(list(range(20, 1500)), done.set)
    assert side is not None
    assert runner.beside(list(range(20, 900)), done.set) is None, "one at a time"
    runner.close()
    assert side.over and done.is_set() and side.result() is None


def test_what_cannot_go_beside(runner_of):
    tokens = list(range(20, 900))
    one_thread = runner_of(threads=1)
    assert one_thread.beside(tokens) is None
    runner = runner_of(threads=2, max_sessions=1, context=512)
    assert runner.beside(tokens) is None, "the pool cannot hold it"
    assert runner.beside([5, 10**7]) is None, "no such token"


def test_after_save_and_restore_into_another_slot_they_say_the_same(truth, runner_of):
    runner = runner_of(max_sessions=4)
    cache = runner.cache
    for prompt, said in truth[:8]:
        known = prompt + said[:10]
        cache.open(0, prompt[:0])
        assert cache.reserve(0, len(known) + 1)
        runner.step(StepPlan((Row(0, 0, known, 0),)))
        state = cache.save(0)
        cache.release(0, keep=False)
        cache.clear()
        assert cache.reserve(3, len(known) + TOKENS)
        assert state is not None and cache.restore(3, state, known)
        tokens = list(known)
        next_token = said[10]
        found = []
        while len(found) < 20:
            result = runner.step(StepPlan((Row(3, len(tokens), [next_token], 1),)))
            tokens.append(next_token)
            next_token = int(result.logits[3][0].argmax())
            found.append(next_token)
        assert found == said[11:31]
        cache.release(3, keep=False)


def test_twelve_requests_in_a_pool_of_2048_cells_all_say_what_they_say_alone(runner_of):
    token_bytes = runner_of().info.kv_bytes_per_token
    prompts = [[(37 * n + k * k + k) % 4000 + 20 for k in range(180)] for n in range(12)]
    wide = runner_of(max_sessions=1)
    alone = [ask_all(wide, [prompt], 60)[0][0] for prompt in prompts]
    assert all(len(said) == 60 for said in alone)
    tight = runner_of(max_sessions=12, kv_budget_bytes=3072 * token_bytes)
    assert tight.info.pool_tokens == 2048
    together, engine = ask_all(tight, prompts, 60)
    assert together == alone
    assert engine.stats().allocated_tokens <= 2048
    assert engine.stats().preemptions > 0


def test_default_mode_stays_near_the_exact_logits(guide_f32, truth):
    """f16 keys and values, flash attention as llama.cpp likes it, threads as measured; sixteen
    sequences in mixed batches, fed the tokens of the raw loop.
    """
    raw = RawModel(guide_f32)
    loaded = open_model(ModelSpec(str(guide_path()), settings=ModelSettings(max_sessions=16)))
    runner = Driven(loaded.runner)
    worst = 0.0
    try:
        exact = []
        for prompt, said in truth:
            rows = []
            for at in range(24):
                raw.greedy(prompt + said[:at], 1)
                rows.append(raw.logits())
            exact.append(rows)
        for slot in range(16):
            runner.cache.open(slot, [])
            assert runner.cache.reserve(slot, len(truth[slot][0]) + 24)
        done = [0] * 16
        at = [0] * 16
        while min(at) < 24:
            rows = []
            for slot, (prompt, said) in enumerate(truth):
                tokens = prompt + said[:24]
                # One more sequence begins with each step, so that prefill meets decode.
                if at[slot] == 24 or (slot and at[slot] == 0 and at[slot - 1] == 0):
                    continue
                end = len(prompt) + at[slot]
                rows.append(Row(slot, done[slot], tokens[done[slot] : end], 1))
                done[slot] = end
            result = runner.step(StepPlan(tuple(rows)))
            for row in rows:
                difference = np.abs(result.logits[row.slot][0] - exact[row.slot][at[row.slot]])
                worst = max(worst, float(difference.max()))
                at[row.slot] += 1
    finally:
        raw.close()
        runner.close()
    assert worst <= 0.1
