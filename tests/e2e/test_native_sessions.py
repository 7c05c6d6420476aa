"""The native runner says what llama.cpp says, token by token in exact mode, whoever else runs and
whatever happens to a sequence on the way.
"""

from dataclasses import replace

import pytest

from driven import Driven
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.native.load import open_model
from raw_loop import RawModel
from speakers import at_rest, drain, generation

EXACT = ModelSettings(
    kv_type="f32", flash_attention=False, threads=1, batch_threads=1, dtype="f32", context=1024
)
TOKENS = 40
NO_END = frozenset[int]()  # A raw loop knows of no end.
QUESTIONS = [
    "How do I download a model?",
    "Where are the settings?",
    "What is a context length? Explain it in a few short sentences, please.",
    "Tell me about quantization and what Q4_K_M means for my laptop",
    "hello",
    "Which models fit into eight gigabytes of memory, and how do I find out?",
    "1 2 3 4 5 6 7",
    "Is my data sent anywhere?",
    "The endpoint listens on",
    "naïve café 你好",
]
BEGINNINGS = ["", "Please: ", "Once upon a time. ", "In two words, ", "\n\n- "]


@pytest.fixture(scope="module")
def truth(guide_f32):
    """[(prompt, what a raw loop of llama.cpp says)] of fifty prompts."""
    loaded = open_model(ModelSpec(str(guide_f32), settings=EXACT))
    texts = [beginning + question for beginning in BEGINNINGS for question in QUESTIONS]
    prompts = [loaded.tokenizer.encode(text, special=False, add_bos=True) for text in texts]
    loaded.runner.close()
    raw = RawModel(guide_f32)
    try:
        return [(prompt, raw.greedy(prompt, TOKENS)) for prompt in prompts]
    finally:
        raw.close()


@pytest.fixture
def runner_of(guide_f32):
    """`runner_of(**settings)`: the f32 guide in exact mode, closed after the test."""
    opened = []

    def make(**changes):
        spec = ModelSpec(str(guide_f32), settings=replace(EXACT, **changes))
        opened.append(open_model(spec))
        return Driven(opened[-1].runner)

    yield make
    for loaded in opened:
        loaded.runner.close()


def ask_all(runner, prompts, tokens=TOKENS):
    """What each of `prompts` is answered when all are asked at once."""
    engine = runner.engine()
    heard = []
    for ident, prompt in enumerate(prompts):
        made, listener = generation(ident, prompt, runner, tokens=tokens, end_ids=NO_END)
        engine.submit(made)
        heard.append(listener)
    drain(engine, 100_000)
    assert at_rest(engine, runner)
    return [listener.ids for listener in heard], engine


def test_fifty_prompts_alone_are_answered_as_by_a_raw_loop_of_llama_cpp(truth, runner_of):
    runner = runner_of()
    alone = [ask_all(runner, [prompt])[0][0] for prompt, _ in truth]
    assert alone == [said for _, said in truth]


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_eight_at_once_say_the_same(truth, runner_of, chunk):
    some = truth[::3]
    runner = runner_of(max_sessions=8, max_batch_tokens=chunk)
    together, engine = ask_all(runner, [prompt for prompt, _ in some])
    assert together == [said for _, said in some]
    assert engine.stats().preemptions == 0


def test_when_put_aside_and_computed_again_they_say_the_same(truth, runner_of):
    some = truth[::3]
    token_bytes = runner_of().info.kv_bytes_per_token
    runner = runner_of(max_sessions=8, kv_budget_bytes=256 * token_bytes, context=256)
    together, engine = ask_all(runner, [prompt for prompt, _ in some])
    assert together == [said for _, said in some]
    assert engine.stats().preemptions > 0


def test_with_the_prefix_of_one_that_still_speaks_they_say_the_same(truth, runner_of):
    runner = runner_of(max_sessions=8)
    for prompt, said in truth[:6]:
        engine = runner.engine()
        donor, _ = generation(1, prompt, runner, tokens=200, end_ids=NO_END)
        engine.submit(donor)
        while donor.new_tokens < 20:
            engine.run_once()
        # What the donor has said so far, as a prompt: all but its last token is in the memory.
        heard = []
        for ident, length in enumerate((1, 10, 18), 2):
            made, listener = generation(
                ident, prompt + said[:length], runner, tokens=TOKENS - length, end_ids=NO_END
            )
            engine.submit(made)
            heard.append((length, made, listener))
        while not all(listener.over for _, _, listener in heard):
            engine.run_once()
        assert not donor.done
        for length, made, listener in heard:
            assert made.cached == len(prompt) + length - 1
            assert said[:length] + listener.ids == said
        engine.cancel(1)
        drain(engine)


def test_twelve_requests_in_a_small_pool_all_say_what_they_say_alone(runner_of):
    token_bytes = runner_of().info.kv_bytes_per_token
    prompts = [[(37 * n + k * k + k) % 4000 + 20 for k in range(100)] for n in range(12)]
    wide = runner_of(max_sessions=1)
    alone = [ask_all(wide, [prompt], 60)[0][0] for prompt in prompts]
    assert all(len(said) == 60 for said in alone)
    tight = runner_of(max_sessions=12, context=512, kv_budget_bytes=512 * token_bytes)
    assert tight.info.pool_tokens == 512
    together, engine = ask_all(tight, prompts, 60)
    assert together == alone
    assert engine.stats().live_tokens == 0
