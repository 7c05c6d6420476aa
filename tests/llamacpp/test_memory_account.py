"""The account of all memory of a runner for keys and values, and which of its parts are released
first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from driven import Driven
from hearth.backends.contract.models import ModelSettings
from hearth.backends.errors import PromptTooLong
from hearth.backends.llamacpp import embedder
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import plan_context
from hearth.backends.llamacpp.runner import LlamaRunner
from hearth.quant.gguf import preflight
from stepped import Stepped, advance

Make = Callable[..., LlamaRunner]
BUDGET = 600
"""Tokens that the KV budget holds."""


@pytest.fixture
def make(f32_model: Path) -> Iterator[Make]:
    """Makes runners whose pool begins with 256 cells and may have 512."""
    made: list[LlamaRunner] = []

    def make(budget_tokens: int | None = BUDGET, threads: int = 1) -> Driven:
        settings = ModelSettings(context=256, max_sessions=4, kv_type="f32", flash_attention=False)
        header = preflight.check(f32_model)
        plan = plan_context(settings, header, weight_bytes=0, available_bytes=1 << 40)
        budget = None if budget_tokens is None else budget_tokens * plan.kv_bytes_per_token
        plan = replace(plan, pool_tokens=512, first_tokens=256, kept_tokens=400)
        plan = replace(plan, kv_budget_bytes=budget, scratch_bytes_per_cell=0)
        made.append(
            Driven(LlamaRunner(LlamaModel.open(f32_model), plan, threads=threads, batch_threads=1))
        )
        return made[-1]

    yield make
    for runner in made:
        runner.close()


def offloaded_runner(runner: Driven) -> Stepped:
    """A running sequence, next to an offloaded prefix of 103 tokens."""
    advance(runner, [Stepped(runner, 0, [3] * 100)], 4)
    running = Stepped(runner, 1, [5] * 30)
    runner.cache.release(0, keep=True)
    advance(runner, [running], 2)
    assert runner.cache.stats().offloaded_tokens == 103
    return running


def test_offloaded_prefixes_have_what_the_rest_leaves_of_the_budget(make: Make) -> None:
    runner = make()
    token = runner.info.kv_bytes_per_token
    assert runner.store.most_offloaded_bytes == (BUDGET - 256) * token
    running = offloaded_runner(runner)
    filling = [Stepped(runner, slot, [slot] * 150) for slot in (2, 3)]
    advance(runner, [running, *filling], 2)
    assert runner.cache.stats().allocated_tokens == 512
    assert runner.store.most_offloaded_bytes == (BUDGET - 512) * token
    assert runner.cache.stats().offloaded_bytes <= (BUDGET - 512) * token


def test_without_a_budget_they_may_take_as_much_as_the_pool(make: Make) -> None:
    runner = make(None)
    running = offloaded_runner(runner)
    filling = [Stepped(runner, slot, [slot] * 150) for slot in (2, 3)]
    advance(runner, [running, *filling], 2)
    stats = runner.cache.stats()
    assert (stats.allocated_tokens, stats.offloaded_tokens) == (512, 103)
    runner.cache.release(3, keep=True)
    advance(runner, [running], 6)
    assert runner.cache.stats().offloaded_tokens == 103 + 151, "also once the pool is full"


def test_the_pool_grows_into_the_memory_of_offloaded_prefixes(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make(None)
    running = offloaded_runner(runner)

    def available() -> int:
        return 1000 if runner.cache.stats().offloaded_bytes else 1 << 40

    monkeypatch.setattr("hearth.backends.llamacpp.store.available_bytes", available)
    filling = [Stepped(runner, slot, [slot] * 150) for slot in (2, 3)]
    advance(runner, [running, *filling], 2)
    stats = runner.cache.stats()
    assert (stats.allocated_tokens, stats.offloaded_bytes) == (512, 0)


def test_a_prompt_in_the_background_is_in_the_account_and_in_the_budget(make: Make) -> None:
    runner = make(None, threads=2)
    token = runner.info.kv_bytes_per_token
    assert runner.beside([1] * 100) is not None
    taken = runner.beside_bytes
    assert taken > 200 * token, "the state, its copy, and what it is computed in"
    for short, fits in ((0, True), (1, False)):
        limited = make(256 + -(-taken // token) - short, threads=2)
        assert (limited.beside([1] * 100) is not None) == fits
        assert limited.beside_bytes == (taken if fits else 0)


def test_a_growing_pool_gets_the_memory_of_what_is_beside_it(make: Make) -> None:
    """The budget holds the larger pool and the copy, and nothing else meanwhile."""
    runner = make(512 + 256, threads=2)
    running = Stepped(runner, 0, [1] * 200)
    alone = runner.embed([[1, 2, 3]], "mean")
    assert runner.beside_bytes > 0
    advance(runner, [running, Stepped(runner, 1, [2] * 200)], 2)
    assert runner.store.allocated_tokens == 512
    assert runner.beside_bytes == 0
    assert (runner.embed([[1, 2, 3]], "mean") == alone).all(), "made again"


def test_a_prompt_in_the_background_gives_way_to_the_pool(make: Make) -> None:
    runner = make(512 + 256 + 100, threads=2)
    job = runner.background.begin([1] * 250, None, 0, lambda: None)
    assert job is not None and runner.beside_bytes > 100 * runner.info.kv_bytes_per_token
    advance(runner, [Stepped(runner, slot, [slot] * 200) for slot in (0, 1)], 2)
    assert runner.store.allocated_tokens == 512
    assert job.over and runner.beside_bytes == 0


def test_batches_of_texts_are_as_large_as_the_budget_allows(make: Make) -> None:
    texts = [[k % 50 for k in range(60)], [3] * 40]
    vectors, taken = [], []
    for budget in (None, 560):
        runner = make(budget)
        vectors.append(runner.embed(texts, "mean"))
        taken.append(runner.beside_bytes)
    assert taken[1] < taken[0]
    assert abs(vectors[0] - vectors[1]).max() < 1e-5


def test_a_text_beyond_the_budget_is_refused(make: Make) -> None:
    runner = make(None)
    plan = replace(runner.plan, text_tokens=256)
    texts = embedder.Embedder(runner.model, replace(plan, context=512), 1)
    with pytest.raises(PromptTooLong, match=r"257 tokens > 256 maximum.*kv_budget"):
        texts.embed([[1] * 257], "mean")
    texts.close()


def test_a_context_for_texts_is_in_the_account(make: Make) -> None:
    runner = make(None)
    assert runner.beside_bytes == 0
    runner.embed([[1, 2, 3]], "mean")
    assert runner.beside_bytes >= 3 * runner.info.kv_bytes_per_token


@pytest.mark.parametrize("quick_bytes", [1 << 40, 0])
def test_a_text_in_slices_is_in_the_account(
    make: Make, monkeypatch: pytest.MonkeyPatch, quick_bytes: int
) -> None:
    """In a context for several texts, and in a separate one."""
    monkeypatch.setattr(embedder, "QUICK_BYTES", quick_bytes)
    runner = make(None)
    ready = threading.Event()
    text = runner.begin_text([1] * 40, "mean", ready.set)
    assert text.is_ready or ready.wait(10)
    assert runner.beside_bytes >= 40 * runner.info.kv_bytes_per_token
    text.close()


def test_a_pool_that_was_full_once_shrinks_at_rest(make: Make) -> None:
    runner = make(520)
    filling = [Stepped(runner, slot, [slot] * 200) for slot in (0, 1)]
    advance(runner, filling, 2)
    kept = Stepped(runner, 2, [k % 50 for k in range(60)])
    advance(runner, [kept], 10)
    assert runner.store.allocated_tokens == 512
    for slot in (0, 1):
        runner.cache.release(slot, keep=False)
    runner.cache.tend()
    assert runner.store.allocated_tokens == 512, "somebody runs"
    runner.cache.release(2, keep=True)
    runner.cache.tend()
    assert runner.store.allocated_tokens == 256
    again = Stepped(runner, 0, kept.tokens[:65])
    assert again.found == 64
    advance(runner, [again], 5)
    assert again.tokens == kept.tokens[:70], "what it holds was moved with it"
    runner.cache.release(0, keep=False)
    running = Stepped(runner, 1, [9] * 30)
    advance(runner, [running], 4)
    stats = runner.cache.stats()
    assert (stats.kept_tokens, stats.offloaded_tokens) == (0, 69)


def test_a_pool_keeps_its_size_where_offloading_does_not_need_it(make: Make) -> None:
    for budget in (None, 720):
        runner = make(budget)
        advance(runner, [Stepped(runner, slot, [slot] * 200) for slot in (0, 1)], 2)
        for slot in (0, 1):
            runner.cache.release(slot, keep=slot == 0)
        runner.cache.tend()
        assert runner.store.allocated_tokens == 512


def test_a_pool_that_cannot_shrink_stays(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make(520)
    advance(runner, [Stepped(runner, slot, [slot] * 200) for slot in (0, 1)], 2)
    kept = Stepped(runner, 2, [k % 50 for k in range(60)])
    advance(runner, [kept], 10)
    runner.cache.release(0, keep=False)
    runner.cache.release(1, keep=False)
    runner.cache.release(2, keep=True)
    with monkeypatch.context() as patch:
        # The memory that a smaller pool releases is not free before the copy is made.
        patch.setattr("hearth.backends.llamacpp.store.available_bytes", lambda: -(1 << 30))
        runner.cache.tend()
    assert runner.store.allocated_tokens == 512
    again = Stepped(runner, 0, kept.tokens[:65])
    advance(runner, [again], 5)
    assert again.tokens == kept.tokens[:70]


@pytest.mark.parametrize("budget", [None, 256 + 512 + 256])
def test_a_larger_pool_is_made_while_steps_go_on(make: Make, budget: int | None) -> None:
    said = []
    for grows in (False, True):
        runner = make(budget)
        session = Stepped(runner, 0, [(7 * k) % 251 for k in range(100)])
        advance(runner, [session], 2)
        if grows:
            assert not runner.cache.has_memory(200) and runner.store.is_growing
            advance(runner, [session], 20)
            while not runner.cache.has_memory(200):
                assert runner.store.is_growing
            assert runner.store.allocated_tokens == 512 and not runner.store.is_growing
        advance(runner, [session], 40)
        runner.cache.check_integrity()
        said.append(session.new)
    assert said[0] == said[1]


def test_without_a_thread_to_make_a_larger_pool_in_it_is_made_when_it_is_needed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    runner = make(None)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert not runner.cache.has_memory(400) and not runner.store.is_growing
    advance(runner, [Stepped(runner, slot, [slot] * 200) for slot in (0, 1)], 2)
    assert runner.store.allocated_tokens == 512


def test_no_larger_pool_is_made_beside_the_old_one_beyond_the_budget(make: Make) -> None:
    runner = make(600)
    assert not runner.cache.has_memory(400) and not runner.store.is_growing
    running = Stepped(runner, 0, [1] * 200)
    other = Stepped(runner, 1, [2] * 200)
    advance(runner, [running, other], 2)
    assert runner.store.allocated_tokens == 512, "the old one makes way for it"
