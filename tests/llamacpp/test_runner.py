"""The runner's contract apart from exactness: reservations, invalid plans, its reports."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from driven import Driven
from gguf_builder import tiny_llama
from hearth.backends.contract.loaded import CacheStats
from hearth.backends.contract.models import ModelSettings
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.errors import Busy, HearthError, InternalError, InvalidParameter
from hearth.backends.llamacpp.context import ABORTED, Batch, LlamaContext
from hearth.backends.llamacpp.embedder import Embedder
from hearth.backends.llamacpp.load import Loaded
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import plan_context
from hearth.backends.llamacpp.runner import LlamaRunner
from hearth.quant.gguf import preflight

EXACT = ModelSettings(kv_type="f32", flash_attention=False)

Load = Callable[..., Loaded]


def step(runner: Driven, *rows: Row) -> dict[int, np.ndarray]:
    for row in rows:
        if 0 <= row.slot < runner.info.max_sequences and row.start == 0:
            runner.cache.reserve(row.slot, len(row.tokens))
    return runner.step(StepPlan(rows)).logits


def test_logits_come_for_the_rows_that_want_them(load: Load, f32_model: Path) -> None:
    runner = load(f32_model).runner
    logits = step(runner, Row(0, 0, [1, 2, 3], 1), Row(1, 0, [4], 0), Row(3, 0, [5], 1))
    assert sorted(logits) == [0, 3]
    for row in logits.values():
        assert row.shape == (1, 320) and row.dtype == np.float32
        assert np.isfinite(row).all()


@pytest.mark.parametrize("shape", ["f32_model", "hybrid_model", "window_model"])
def test_several_rows_of_logits_are_those_of_one_at_a_time(
    load: Load, shape: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(shape)
    runner, single = load(path).runner, load(path).runner
    texts = {0: [9, 8, 7, 6, 5], 1: [30, 31], 2: [40, 41, 42, 43]}
    wanted = {0: 3, 1: 2, 2: 0}
    rows = [Row(slot, 0, texts[slot], wanted[slot]) for slot in texts]
    found = step(runner, *rows)
    assert sorted(found) == [0, 1]
    for slot in found:
        tokens = texts[slot]
        assert found[slot].shape == (wanted[slot], runner.info.vocab_size)
        expected = [
            step(single, Row(slot, at, [token], 1))[slot][0].copy()
            for at, token in enumerate(tokens)
        ]
        np.testing.assert_allclose(found[slot], expected[-wanted[slot] :], atol=2e-3)


def test_logits_are_read_only(load: Load, f32_model: Path) -> None:
    logits = step(load(f32_model).runner, Row(0, 0, [1, 2, 3], 2))[0]
    with pytest.raises(ValueError, match="read-only"):
        logits[0, 0] = 1.0


def test_the_most_outputs_come_and_one_more_is_refused(load: Load, f32_model: Path) -> None:
    runner = load(f32_model).runner
    most = runner.info.max_outputs
    logits = step(runner, Row(0, 0, [1] * (most + 1), most))[0]
    assert logits.shape == (most, 320)
    with pytest.raises(HearthError, match=f"{most + 1} outputs"):
        step(runner, Row(1, 0, [1] * (most + 1), most + 1))


@pytest.mark.parametrize(
    "rows",
    [
        (Row(0, 1, [1], 1),),
        (Row(0, 0, [], 1),),
        (Row(0, 0, [1], 2),),
        (Row(0, 0, [1], -1),),
        (Row(0, 0, [1], 1), Row(0, 1, [2], 1)),
        (Row(8, 0, [1], 1),),
        (Row(-1, 0, [1], 1),),
        (Row(0, 0, [1] * 513, 1),),
        (Row(0, 0, [320], 1),),
        (Row(0, 0, [-1], 1),),
        (Row(0, 0, [1 << 40], 1),),
    ],
    ids=[
        "gap",
        "empty",
        "more outputs than tokens",
        "negative outputs",
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
    runner = load(f32_model, max_batch_tokens=1024).runner
    with pytest.raises(HearthError):
        step(runner, *rows)
    assert runner.cache.cells == 0
    assert 0 in step(runner, Row(0, 0, [1, 2], 1))


def test_a_slot_that_nobody_opened_is_refused(load: Load, f32_model: Path) -> None:
    runner = load(f32_model).runner
    with pytest.raises(HearthError, match="not opened"):
        runner.step(StepPlan((Row(0, 0, [1], 1),)))


def test_a_plan_over_the_most_tokens_is_refused(load: Load, f32_model: Path) -> None:
    runner = load(f32_model, max_batch_tokens=8).runner
    with pytest.raises(HearthError, match="9 tokens"):
        step(runner, Row(0, 0, [1] * 9, 1))


def test_a_prompt_in_the_background_that_is_cancelled_ends_within_its_call(
    load: Load,
    long_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, cancelled = threading.Event(), threading.Event()
    codes: list[int] = []

    def decode(context: LlamaContext, batch: Batch) -> int:
        begun.set()
        cancelled.wait(10)
        codes.append(whole(context, batch))
        return codes[-1]

    runner = load(long_model, threads=2, batch_threads=2).runner
    whole = LlamaContext.decode
    monkeypatch.setattr(LlamaContext, "decode", decode)
    side = runner.beside([5] * 3000)
    assert side is not None
    assert begun.wait(10)
    side.cancel()
    cancelled.set()
    side.wait()
    assert codes == [ABORTED]
    assert side.over and side.result() is None
    assert not [record for record in caplog.records if "background_prefill" in record.name]


@pytest.mark.parametrize("on_gpu", [True, False])
def test_nothing_is_computed_in_the_background_with_layers_on_a_gpu(
    f32_model: Path, on_gpu: bool
) -> None:
    plan = plan_context(EXACT, preflight.check(f32_model), weight_bytes=0, available_bytes=1 << 32)
    model = LlamaModel.open(f32_model)
    model.on_gpu = on_gpu  # As with a GPU; this build has none.
    runner = Driven(LlamaRunner(model, plan, threads=2, batch_threads=2))
    assert (runner.beside([5] * 300) is None) == on_gpu
    runner.close()


def test_an_empty_plan_gives_nothing(load: Load, f32_model: Path) -> None:
    assert step(load(f32_model).runner) == {}


def test_warming_up_leaves_nothing_behind(load: Load, f32_model: Path) -> None:
    runner = load(f32_model, threads=None, batch_threads=None).runner
    assert runner.cache.stats() == CacheStats(runner.store.allocated_tokens, 0, 0, 0)
    assert {runner.store.positions(i) for i in range(runner.store.sequences)} == {(-1, -1)}


def small_runner(path: Path, **changes: int) -> Driven:
    """A runner whose pool has a different size than planned."""
    plan = plan_context(EXACT, preflight.check(path), weight_bytes=0, available_bytes=1 << 32)
    return Driven(LlamaRunner(LlamaModel.open(path), replace(plan, **changes), threads=1))  # type: ignore[arg-type]


def test_a_full_pool_is_busy_and_harms_nobody(f32_model: Path) -> None:
    sizes = {"context": 300, "pool_tokens": 300, "first_tokens": 300, "kept_tokens": 0}
    runner = small_runner(f32_model, **sizes)
    step(runner, Row(0, 0, [1] * 299, 0))
    assert runner.store.allocated_tokens == 300, "what llama.cpp adds is not used"
    assert not runner.cache.reserve(1, 2)
    runner.cache.open(1, [2, 2])
    with pytest.raises(Busy):
        step(runner, Row(1, 0, [2, 2], 1))
    assert 0 in step(runner, Row(0, 299, [3], 1))
    runner.close()


def test_more_than_was_reserved_is_busy_and_takes_nothing_away(f32_model: Path) -> None:
    runner = small_runner(f32_model, context=512, pool_tokens=512, first_tokens=256)
    step(runner, Row(0, 0, [1] * 250, 0))
    runner.cache.open(1, [2])
    with pytest.raises(Busy):
        runner.step(StepPlan((Row(1, 0, [2] * 300, 1),)))
    assert runner.cache.reserve(0, 500)
    step(runner, Row(0, 250, [1] * 250, 0))
    assert runner.store.allocated_tokens == 512
    runner.close()


def test_a_static_pool_is_whole_from_the_start(load: Load, long_model: Path) -> None:
    runner = load(long_model, kv_pool="static", context=5000, max_sessions=2).runner
    assert runner.info.pool_tokens == 10000
    context = runner.store.context
    assert context.cells >= 10000
    for slot in range(2):
        for start in range(0, 4500, 500):
            runner.cache.reserve(slot, start + 500)
            runner.step(StepPlan((Row(slot, start, [slot + 1] * 500, 0),)))
    assert runner.store.context is context


def test_a_pool_has_a_batch_for_every_session(load: Load, f32_model: Path) -> None:
    runner = load(f32_model, context=256, max_sessions=200, max_batch_tokens=200).runner
    rows = [Row(slot, 0, [slot], 1) for slot in range(200)]
    assert len(step(runner, *rows)) == 200


def test_info_is_what_the_file_says(load: Load, f32_model: Path) -> None:
    loaded = load(f32_model)
    info, runner = loaded.info, loaded.runner.info
    assert (info.architecture, info.quantization, info.name) == ("llama", "F32", "f32")
    assert info.context == info.trained_context == runner.context == 512
    assert info.vocab_size == runner.vocab_size == 320
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert info.size_bytes == f32_model.stat().st_size
    assert info.has_chat_template and loaded.templates
    assert runner.end_ids == {269}
    assert runner.keeps_past
    assert runner.embedding_width == 64
    assert runner.max_sequences == 8 and runner.max_outputs >= 32
    assert "llama-cpp-python" in info.backend_version
    assert info.load_s > 0


def test_memories_without_a_past_are_recognised(
    load: Load, hybrid_model: Path, window_model: Path
) -> None:
    hybrid, window = load(hybrid_model).runner, load(window_model).runner
    assert hybrid.store.sequences == 16, "each costs a state"
    for runner in (hybrid, window):
        assert not (runner.info.keeps_past or runner.info.can_roll_back)


def test_a_template_of_the_settings_wins(load: Load, f32_model: Path) -> None:
    assert load(f32_model, chat_template="{{ messages }}").templates == {
        "default": "{{ messages }}"
    }


def test_threads_are_chosen_where_none_are_asked_for(load: Load, f32_model: Path) -> None:
    info = load(f32_model, threads=None, batch_threads=None).info
    assert info.threads >= 1 and info.batch_threads >= 1
    assert load(f32_model, threads=2, batch_threads=1).info.threads == 2


def test_a_closed_runner_refuses_to_step(load: Load, f32_model: Path) -> None:
    runner = load(f32_model).runner
    runner.close()
    runner.close()
    with pytest.raises(HearthError):
        step(runner, Row(0, 0, [1], 1))


def test_a_bad_token_type_is_refused(load: Load, f32_model: Path) -> None:
    with pytest.raises(InvalidParameter):
        step(load(f32_model).runner, Row(0, 0, [321, 1], 1))


def test_a_copy_that_llama_cpp_cannot_make_is_none_and_no_growth(
    f32_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def incomplete(*_: object) -> None:
        raise InternalError("llama.cpp wrote 0 of 9 bytes of a state.")

    runner = small_runner(f32_model, context=512, pool_tokens=512, first_tokens=256)
    step(runner, Row(0, 0, [1] * 250, 0))
    assert runner.cache.reserve(0, 300)
    with monkeypatch.context() as patch:
        patch.setattr(LlamaContext, "export_sequence", incomplete)
        patch.setattr(LlamaContext, "export", incomplete)
        assert runner.cache.save(0) is None
        with pytest.raises(Busy):
            runner.step(StepPlan((Row(0, 250, [1] * 50, 0),)))
    assert 0 in runner.step(StepPlan((Row(0, 250, [3], 1),))).logits
    runner.close()


def test_a_saved_state_is_taken_by_the_same_model_alone(load: Load, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "model.gguf", vocab=320)
    tokens = [5, 6, 7, 8]

    def runner(where: Path = path, **changes: object) -> Driven:
        return load(where, **changes).runner

    one = runner()
    step(one, Row(0, 0, tokens, 1))
    state = one.cache.save(0)
    assert state is not None
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(path.read_bytes())
    assert runner(copy).cache.restore(0, state, tokens)
    assert not runner(kv_type="f16").cache.restore(0, state, tokens)
    tiny_llama(tmp_path / "new.gguf", vocab=320, seed=1).replace(path)
    assert not runner().cache.restore(0, state, tokens), "an edited file under the same name"


def test_steps_leave_a_thread_to_what_makes_a_context_for_a_long_text(
    load: Load, f32_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load(f32_model, threads=2, batch_threads=2).runner
    runner.embed([[1, 2, 3]], "mean")  # The runner has an embedder from now on.
    used = []
    monkeypatch.setattr(LlamaContext, "set_threads", lambda _, *counts: used.append(counts))
    for at, is_making in enumerate([False, True, True, False, False]):
        monkeypatch.setattr(Embedder, "is_making_context", is_making)
        step(runner, Row(0, at, [5], 1))
    assert used == [(1, 1), (1, 1), (2, 2)]


def test_a_slice_of_a_long_text_shares_the_threads_with_steps_and_a_prompt(
    load: Load, f32_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load(f32_model, threads=6, batch_threads=8).runner
    used = []
    monkeypatch.setattr(LlamaContext, "set_threads", lambda _, *counts: used.append(counts))
    texts = runner._embedder
    assert runner.info.concurrent_text_tokens == texts.quick_tokens
    assert (texts._concurrent_slice_threads(), texts.concurrent_threads(True)) == (3, 8)
    assert texts._concurrent_slice_threads() == 8, "nothing else was computed"
    for at, taken in enumerate([3, 8, 0]):
        monkeypatch.setattr(Embedder, "slice_threads", taken)
        step(runner, Row(0, at, [5], 1))
    assert used == [(3, 5), (1, 1), (6, 8)]
    monkeypatch.setattr(Embedder, "slice_threads", 1)
    assert runner.background.threads_now(alone=False) == 2
    assert runner.background.threads_now(alone=True) == 7
    monkeypatch.setattr(type(runner.background), "is_busy", True)
    assert texts.concurrent_threads(True) == 1
    step(runner, Row(0, 3, [5], 1))
    assert texts.is_shared and used[3:] == [(3, 5)]


def test_a_runner_with_one_thread_computes_no_slice_next_to_steps(
    load: Load, f32_model: Path
) -> None:
    runner = load(f32_model, threads=1).runner
    assert runner._embedder.concurrent_threads is None
    assert runner.info.concurrent_text_tokens is None
