"""The native runner fulfils the contract of `hearth.backends.engine.runner.Runner`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hearth.backends.contract.models import KvType, ModelSettings
from hearth.backends.contract.requests import Pooling
from hearth.backends.engine.runner import Row, RunnerLost, StepPlan
from hearth.backends.errors import (
    Busy,
    DoesNotFit,
    InternalError,
    InvalidParameter,
    PromptTooLong,
    UnsupportedParameter,
)
from hearth.backends.machine.thread_pace import ThreadPace
from hearth.backends.native import text_pages
from hearth.backends.native.attention import Attend
from hearth.backends.native.models.decoder import Decoder
from native_decoders import decoder_of, logits_of
from native_runners import advance, runner_of, some_tokens
from tiny_checkpoints import FAMILIES, VOCABULARY, tiny_checkpoint

EXACT = ModelSettings(
    kv_type="f32", flash_attention=False, context=256, max_sessions=4, max_batch_tokens=64
)
KINDS = ("qwen3", "gemma3", "mixtral", "gpt_oss")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint("qwen3", tmp_path_factory.mktemp("qwen3"))


@pytest.mark.parametrize("family", FAMILIES)
def test_in_pages_and_pieces_it_says_what_the_decoder_says_of_the_whole_text(
    family: str, tmp_path: Path
) -> None:
    tokens = some_tokens(50)
    wanted = logits_of(decoder_of(tiny_checkpoint(family, tmp_path), context=256), tokens).numpy()
    runner = runner_of(tmp_path, EXACT)
    pieces = (tokens[:20], tokens[20:21], tokens[21:22], tokens[22:37], tokens[37:38], tokens[38:])
    found = []
    for piece in pieces:
        found.append(advance(runner, 0, piece, runner.row(1, [7])))
    np.testing.assert_allclose(np.concatenate(found), wanted, atol=2e-4)
    runner.cache.check_integrity()


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0"])
@pytest.mark.parametrize("family", KINDS)
def test_deterministic_logits_have_the_same_bits_however_they_are_computed(
    family: str, kv_type: KvType, tiled: bool, tmp_path: Path
) -> None:
    tiny_checkpoint(family, tmp_path, head_dim=32)
    dtype = torch.bfloat16 if tiled else torch.float32
    settings = ModelSettings(kv_type=kv_type, context=256, max_sessions=40, deterministic=True)
    tokens = some_tokens(40)
    whole = advance(runner_of(tmp_path, settings, dtype=dtype, tiled=tiled), 0, tokens)
    runner = runner_of(tmp_path, settings, dtype=dtype, tiled=tiled)
    pieces = (tokens[:17], tokens[17:18], tokens[18:33], tokens[33:34], tokens[34:])
    found = []
    for number, piece in enumerate(pieces):
        mates = some_tokens(number * 3 + 1, seed=number)
        found.append(advance(runner, 0, piece, runner.row(2, mates)))
    np.testing.assert_array_equal(np.concatenate(found), whole)
    hit = runner.cache.open(1, tokens)
    assert hit == len(tokens) - 1
    np.testing.assert_array_equal(advance(runner, 1, tokens[hit:]), whole[hit:])


def test_steps_have_as_many_threads_as_their_pace_says(folder: Path) -> None:
    """Prompts use at most as many, if that is fewer than at first."""
    driven = runner_of(folder, EXACT)
    runner: Any = driven.runner
    seen: list[int] = []
    runner._attend = functools.partial(_seeing, runner._attend, seen)
    pace = runner._pace = ThreadPace(2, 2)
    runner.threads = runner._batch_threads = 2
    advance(driven, 0, some_tokens(5))
    advance(driven, 0, [7])
    pace.threads = pace.chosen = 1
    advance(driven, 0, [8])
    advance(driven, 0, some_tokens(5))
    assert seen == [2, 2, 1, 1]
    assert pace._times, "steps that decode are measured"


def _seeing(attend: Callable[..., Attend], seen: list[int], *args: Any, **how: Any) -> Attend:
    seen.append(torch.get_num_threads())
    return attend(*args, **how)


def test_only_wanted_logits_are_given(folder: Path) -> None:
    runner = runner_of(folder, EXACT)
    tokens = some_tokens(12)
    rows = (runner.row(0, tokens), runner.row(1, tokens, 3), runner.row(2, tokens[:5], 1))
    logits = runner.step(StepPlan(rows)).logits
    assert {slot: found.shape for slot, found in logits.items()} == {
        1: (3, VOCABULARY),
        2: (1, VOCABULARY),
    }
    assert all(found.dtype == np.float32 for found in logits.values())
    wanted = logits_of(decoder_of(folder, context=256), tokens).numpy()
    np.testing.assert_allclose(logits[1], wanted[-3:], atol=2e-4)
    np.testing.assert_allclose(logits[2], wanted[4:5], atol=2e-4)


@pytest.mark.parametrize(
    "row",
    [
        Row(0, 1, [5], 1),
        Row(0, 0, [], 0),
        Row(0, 0, [5], 2),
        Row(0, 0, [5] * 257, 1),
        Row(9, 0, [5], 1),
    ],
    ids=["starts-late", "empty", "outputs", "context", "slot"],
)
def test_a_plan_that_does_not_continue_the_slots_is_refused(folder: Path, row: Row) -> None:
    runner = runner_of(folder, EXACT)
    assert runner.cache.reserve(0, 10)
    with pytest.raises(InternalError):
        runner.step(StepPlan((row,)))
    assert runner.cache.length(0) == 0


@pytest.mark.parametrize("token", [-1, VOCABULARY, 1 << 40])
def test_a_token_outside_of_the_vocabulary_is_refused_before_any_work(
    folder: Path, token: int
) -> None:
    runner = runner_of(folder, EXACT)
    assert runner.cache.reserve(0, 10)
    with pytest.raises(InvalidParameter, match="vocabulary"):
        runner.step(StepPlan((Row(0, 0, [5, token], 1),)))
    assert runner.cache.length(0) == 0
    runner.cache.check_integrity()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (RuntimeError("boom"), InternalError),
        (torch.OutOfMemoryError("full"), Busy),
        (
            torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
            RunnerLost,
        ),
    ],
)
def test_a_step_that_fails_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, error: type[Exception]
) -> None:
    runner = runner_of(folder, EXACT)
    tokens = some_tokens(30)
    before = advance(runner, 0, tokens[:20])

    def fail(*_: object) -> None:
        raise fault

    with monkeypatch.context() as patched:
        patched.setattr(Decoder, "by_layer", fail)
        with pytest.raises(error):
            advance(runner, 0, tokens[20:])
        with pytest.raises(error):
            runner.embed([tokens], "mean")
        with pytest.raises(error):
            runner.begin_text(tokens, "mean", lambda: None).compute(5)
    assert runner.cache.length(0) == 20
    runner.cache.check_integrity()
    after = advance(runner, 0, tokens[20:])
    wanted = logits_of(decoder_of(folder, context=256), tokens).numpy()
    np.testing.assert_allclose(np.concatenate([before, after]), wanted, atol=2e-4)


@pytest.mark.parametrize("pooling", ["mean", "last", "cls", "model"])
def test_vectors_are_pooled_and_of_length_one(folder: Path, pooling: str) -> None:
    runner = runner_of(folder, EXACT)
    texts = [some_tokens(count, seed=count) for count in (3, 40, 1)]
    found = runner.embed(texts, pooling)
    assert found.shape == (3, runner.info.embedding_width)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-5)
    alone = np.concatenate([runner.embed([text], pooling) for text in texts])
    np.testing.assert_allclose(found, alone, atol=1e-5)
    if pooling != "model":
        by_mean = runner.embed(texts, "mean")
        assert np.allclose(found[1], by_mean[1], atol=1e-3) == (pooling == "mean")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_in_slices_has_the_vector_that_it_has_at_once(family: str, tmp_path: Path) -> None:
    tiny_checkpoint(family, tmp_path)
    runner = runner_of(tmp_path, EXACT)
    text = some_tokens(80)
    poolings: tuple[Pooling, ...] = ("mean", "last", "cls", "model")
    for pooling in poolings if family == "qwen3" else poolings[:1]:
        for size in (1, 17, 64):
            sliced = runner.begin_text(text, pooling, lambda: None)
            counts = [0]
            while (found := sliced.compute(size)) is None:
                counts.append(sliced.computed)
                runner.embed([text[:3]], pooling)
            sliced.close()
            steps = np.diff([*counts, len(text)])
            assert min(steps) > 0 and (pooling == "cls" or max(steps) < 1.1 * size + 1)
            assert size < 64 or pooling == "cls" or counts[1] == 64, "a whole pass"
            np.testing.assert_allclose(found, runner.embed([text], pooling), atol=1e-5)


def test_texts_in_slices_are_checked_before_anything_is_computed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = runner_of(folder, EXACT)
    with pytest.raises(PromptTooLong):
        runner.begin_text([5] * 257, "mean", lambda: None)
    with pytest.raises(UnsupportedParameter, match="rank"):
        runner.begin_text([5], None, lambda: None)
    sliced = runner.begin_text([5, 6], "mean", lambda: None)
    sliced.close()
    sliced.close()
    with pytest.raises(InternalError, match="closed"):
        sliced.compute(1)
    monkeypatch.setattr(text_pages, "available_bytes", lambda: 1000)
    with pytest.raises(DoesNotFit):
        runner.begin_text([5] * 200, "mean", lambda: None)


def test_vectors_leave_the_sequences_alone(folder: Path) -> None:
    runner = runner_of(folder, EXACT)
    tokens = some_tokens(20)
    advance(runner, 0, tokens[:10])
    runner.embed([some_tokens(200)], "mean")
    found = advance(runner, 0, tokens[10:])
    wanted = logits_of(decoder_of(folder, context=256), tokens).numpy()
    np.testing.assert_allclose(found, wanted[10:], atol=2e-4)


def test_texts_that_cannot_be_embedded(folder: Path) -> None:
    runner = runner_of(folder, EXACT)
    with pytest.raises(InvalidParameter):
        runner.embed([[5], []], "mean")
    with pytest.raises(InvalidParameter):
        runner.embed([[VOCABULARY]], "mean")
    with pytest.raises(PromptTooLong):
        runner.embed([[5] * 257], "mean")
