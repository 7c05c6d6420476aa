"""The memory of keys and values of a loaded native model, as reported by the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from driven import Driven
from hearth.backends.contract.models import ModelSettings
from hearth.backends.engine.runner import StepPlan
from native_runners import runner_of, some_tokens
from speakers import ask, drain, generation
from tiny_checkpoints import tiny_checkpoint

EXACT = ModelSettings(
    kv_type="f32", flash_attention=False, context=480, max_sessions=2, max_batch_tokens=64
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        family: tiny_checkpoint(family, tmp_path_factory.mktemp(family))
        for family in ("qwen3", "gemma3")
    }


def feed(runner: Driven, slot: int, tokens: list[int]) -> NDArray[np.float32]:
    """Compute `tokens` at the end of `slot`; logits after the last one."""
    return runner.step(StepPlan((runner.row(slot, tokens, 1),))).logits[slot].copy()


def layer_token(runner: Driven) -> int:
    """Bytes of a token in a layer: keys and values in f32."""
    heads, _, _, width = runner.store.layer(0)[0].shape
    return 2 * heads * width * 4


def allocated(runner: Driven) -> tuple[int, int]:
    """Tokens, and bytes of layers with windows."""
    runner.cache.check_integrity()
    stats = runner.cache.stats()
    return stats.allocated_tokens, stats.window_bytes


def test_what_was_written_to_counts_and_nothing_else(folders: dict[str, Path]) -> None:
    runner = runner_of(folders["qwen3"], EXACT)
    assert allocated(runner) == (0, 0)
    feed(runner, 0, some_tokens(3))
    assert allocated(runner) == (16, 0)
    for _ in range(5):
        feed(runner, 0, some_tokens(60))
    assert allocated(runner) == (304, 0)
    assert runner.info.window_pool_bytes == 0
    runner.cache.release(0, keep=True)
    assert allocated(runner) == (304, 0), "it is kept"
    runner.cache.clear()
    assert allocated(runner) == (0, 0)


def test_a_model_takes_what_its_tokens_take(folders: dict[str, Path]) -> None:
    runner = runner_of(folders["qwen3"], EXACT)
    engine = runner.engine()
    made, _ = generation(1, some_tokens(20), runner, tokens=9, end_ids=frozenset())
    engine.submit(made)
    drain(engine)
    stats = engine.stats()
    layers = len(runner.store.group_of)
    assert (stats.allocated_tokens, stats.pool_tokens) == (32, 960)
    assert stats.allocated_bytes == 32 * layers * layer_token(runner)
    assert stats.pool_bytes == 960 * layers * layer_token(runner)
    assert stats.taken_bytes == stats.allocated_bytes


def test_windows_are_told_apart(folders: dict[str, Path]) -> None:
    runner = runner_of(folders["gemma3"], EXACT)
    engine = runner.engine()
    config = runner.plan
    assert len(config.blocks) == 2 and config.blocks[1] < config.blocks[0]
    full, windowed = (runner.store.group_of.count(group) for group in (0, 1))
    assert runner.info.kv_bytes_per_token == full * layer_token(runner)
    assert runner.info.window_pool_bytes == config.blocks[1] * 16 * windowed * layer_token(runner)
    for _ in range(7):
        feed(runner, 0, some_tokens(60))
    tokens, window_bytes = allocated(runner)
    assert tokens == 432
    assert 0 < window_bytes <= 8 * 16 * windowed * layer_token(runner)
    stats = engine._count()
    assert stats.allocated_bytes == 432 * full * layer_token(runner) + window_bytes
    assert stats.pool_bytes == 960 * full * layer_token(runner) + runner.info.window_pool_bytes
    runner.cache.release(0, keep=False)
    assert allocated(runner) == (0, 0)


def test_after_memory_was_given_back_the_same_is_said(folders: dict[str, Path]) -> None:
    for folder in folders.values():
        runner = runner_of(folder, EXACT)
        tokens = some_tokens(64)
        first = feed(runner, 0, tokens)
        runner.cache.release(0, keep=False)
        assert allocated(runner) == (0, 0)
        feed(runner, 1, some_tokens(30, seed=1))
        np.testing.assert_array_equal(feed(runner, 0, tokens), first)


def test_a_static_pool_takes_all_at_once(folders: dict[str, Path]) -> None:
    settings = ModelSettings(kv_type="f32", context=480, max_sessions=2, kv_pool="static")
    runner = runner_of(folders["gemma3"], settings)
    stats = runner.engine().stats()
    assert stats.allocated_tokens == stats.pool_tokens == 960
    assert stats.allocated_bytes == stats.pool_bytes
    feed(runner, 0, some_tokens(30))
    runner.cache.release(0, keep=False)
    assert runner.cache.stats().allocated_tokens == 960


@pytest.mark.parametrize(
    ("family", "changes"), [("mistral", {"sliding_window": 8}), ("gemma3", {})]
)
def test_many_in_few_blocks_say_what_each_says_alone(
    family: str, changes: dict[str, int], tmp_path: Path
) -> None:
    folder = tiny_checkpoint(family, tmp_path, **changes)
    settings = replace(EXACT, max_batch_tokens=16)
    prompts = [[*some_tokens(60), *some_tokens(40 + 30 * n, seed=n)] for n in range(6)]
    alone = [said_by(runner_of(folder, replace(settings, max_sessions=1)), [p])[0] for p in prompts]
    runner = runner_of(folder, settings)
    assert said_by(runner, prompts) == alone
    longest = max(map(len, prompts)) + 20
    windowed = len(runner.plan.blocks) - 1
    assert runner.plan.blocks[windowed] * runner.plan.page < longest
    assert runner.cache.match([*prompts[5], *alone[5], 7]) >= len(prompts[5]), "its window is kept"
    runner.cache.clear()
    assert allocated(runner) == (0, 0)


def said_by(runner: Driven, prompts: list[list[int]]) -> list[list[int]]:
    """The answers to `prompts`, all submitted at once."""
    engine = runner.engine()
    heard = ask(engine, runner, prompts, tokens=20, end_ids=frozenset())
    drain(engine)
    runner.cache.check_integrity()
    return [listener.ids for listener in heard]
