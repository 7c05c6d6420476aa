"""The runner's contract beside exactness: reservations, bad plans, what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hearth.backends.contract import ModelSettings
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.errors import Busy, HearthError, InvalidParameter
from hearth.backends.llamacpp.load import Loaded
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import plan_context
from hearth.backends.llamacpp.runner import LlamaRunner
from hearth.quant.gguf import preflight

EXACT = ModelSettings(kv_type="f32", flash_attention=False)

Load = Callable[..., Loaded]


def step(runner: LlamaRunner, *rows: Row) -> dict[int, np.ndarray]:
    return runner.step(StepPlan(rows)).logits


def test_logits_come_for_the_rows_that_want_them(load: Load, f32_model: Path) -> None:
    runner = load(f32_model).runner
    logits = step(runner, Row(0, 0, [1, 2, 3], True), Row(1, 0, [4], False), Row(3, 0, [5], True))
    assert sorted(logits) == [0, 3]
    for row in logits.values():
        assert row.shape == (320,) and row.dtype == np.float32
        assert np.isfinite(row).all()


@pytest.mark.parametrize(
    "rows",
    [
        (Row(0, 1, [1], True),),
        (Row(0, 0, [], True),),
        (Row(0, 0, [1], True), Row(0, 1, [2], True)),
        (Row(4, 0, [1], True),),
        (Row(-1, 0, [1], True),),
        (Row(0, 0, [1] * 513, True),),
        (Row(0, 0, [320], True),),
        (Row(0, 0, [-1], True),),
        (Row(0, 0, [1 << 40], True),),
    ],
    ids=[
        "gap",
        "empty",
        "slot twice",
        "no such slot",
        "negative slot",
        "beyond context",
        "unknown token",
        "negative token",
        "huge token",
    ],
)
def test_a_bad_plan_is_refused_and_computes_nothing(
    load: Load, f32_model: Path, rows: tuple[Row, ...]
) -> None:
    runner = load(f32_model, chunk_tokens=1024).runner
    with pytest.raises(HearthError):
        runner.step(StepPlan(rows))
    assert runner.cache.used_tokens() == 0
    assert 0 in step(runner, Row(0, 0, [1, 2], True))


def test_a_plan_over_the_chunk_is_refused(load: Load, f32_model: Path) -> None:
    runner = load(f32_model, chunk_tokens=8).runner
    with pytest.raises(HearthError, match="9 tokens"):
        step(runner, Row(0, 0, [1] * 9, True))


def test_an_empty_plan_gives_nothing(load: Load, f32_model: Path) -> None:
    assert step(load(f32_model).runner) == {}


def test_reservations_count_against_the_pool(load: Load, f32_model: Path) -> None:
    cache = load(f32_model, context=256, max_sessions=2).runner.cache
    assert not cache.reserve(0, 257)
    assert cache.reserve(0, 256)
    assert cache.reserve(1, 256)
    cache.release(0)
    assert cache.reserve(0, 256)


def test_shared_tokens_are_counted_by_holder_and_reserved_once(load: Load, f32_model: Path) -> None:
    runner = load(f32_model, context=200, max_sessions=3).runner
    cache = runner.cache
    step(runner, Row(0, 0, [1] * 150, False))
    cache.fork(0, 1, 150)
    cache.fork(0, 2, 150)
    assert cache.used_tokens() == 450
    assert all(cache.reserve(slot, 200) for slot in range(3))


def test_a_full_pool_is_busy_and_harms_nobody(f32_model: Path) -> None:
    plan = plan_context(EXACT, preflight.check(f32_model), weight_bytes=0, available_bytes=1 << 32)
    runner = LlamaRunner(LlamaModel.open(f32_model), replace(plan, pool_tokens=300), threads=1)
    step(runner, Row(0, 0, [1] * 299, False))
    assert not runner.cache.reserve(1, 2)
    with pytest.raises(Busy):
        step(runner, Row(1, 0, [1, 2], True))
    assert 0 in step(runner, Row(0, 299, [3], True))
    runner.close()


def test_trim_and_release_free_what_they_say(load: Load, f32_model: Path) -> None:
    runner = load(f32_model).runner
    step(runner, Row(0, 0, [1] * 10, False), Row(1, 0, [1] * 5, False))
    assert runner.cache.trim(0, 4)
    assert runner.cache.trim(1, 9)
    assert runner.cache.used_tokens() == 9
    runner.cache.release(0)
    runner.cache.release(0)
    assert runner.cache.used_tokens() == 5


def test_a_fork_of_more_than_there_is_is_refused(load: Load, f32_model: Path) -> None:
    runner = load(f32_model).runner
    step(runner, Row(0, 0, [1] * 10, False))
    with pytest.raises(HearthError):
        runner.cache.fork(0, 1, 11)
    with pytest.raises(HearthError):
        runner.cache.fork(0, 0, 5)
    with pytest.raises(HearthError):
        runner.cache.fork(0, 9, 5)


def test_info_is_what_the_file_says(load: Load, f32_model: Path) -> None:
    loaded = load(f32_model)
    info, runner = loaded.info, loaded.runner.info
    assert (info.architecture, info.quantization, info.name) == ("llama", "F32", "f32")
    assert info.context == info.trained_context == runner.context == 512
    assert info.vocab_size == runner.vocab_size == 320
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert info.size_bytes == f32_model.stat().st_size
    assert info.has_chat_template and loaded.template
    assert runner.end_ids == {269}
    assert runner.can_roll_back and runner.can_fork
    assert "llama-cpp-python" in info.backend_version
    assert info.load_s > 0


def test_a_template_of_the_settings_wins(load: Load, f32_model: Path) -> None:
    assert load(f32_model, chat_template="{{ messages }}").template == "{{ messages }}"


def test_threads_are_chosen_where_none_are_asked_for(load: Load, f32_model: Path) -> None:
    info = load(f32_model, threads=None, batch_threads=None).info
    assert info.threads >= 1 and info.batch_threads >= 1
    assert load(f32_model, threads=2, batch_threads=1).info.threads == 2


def test_a_closed_runner_refuses_to_step(load: Load, f32_model: Path) -> None:
    runner = load(f32_model).runner
    runner.close()
    runner.close()
    with pytest.raises(HearthError):
        step(runner, Row(0, 0, [1], True))


def test_a_bad_token_type_is_refused(load: Load, f32_model: Path) -> None:
    with pytest.raises(InvalidParameter):
        step(load(f32_model).runner, Row(0, 0, [321, 1], True))
