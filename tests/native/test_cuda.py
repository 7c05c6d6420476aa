"""The native runner generates the same on an NVIDIA card as on a processor."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from driven import Driven
from guide_forms import guide_path
from hearth.backends.bench.engine_side import EngineSide
from hearth.backends.contract.models import KvType, ModelSettings, ModelSpec
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.engine.shortlist import ShortlistSpec
from hearth.backends.native.card_layers import CardLayers
from hearth.backends.native.graphs import CudaGraphs
from hearth.backends.native.load import open_model
from hearth.backends.native.runner import NativeRunner
from hearth.kernels.cuda.matrix import has_triton
from native_runners import loaded_of, runner_of, some_tokens
from tiny_checkpoints import FAMILIES, tiny_checkpoint

pytestmark = pytest.mark.cuda

CUDA = torch.device("cuda")
EXACT = ModelSettings(
    kv_type="f32", flash_attention=False, context=1024, max_sessions=8, max_batch_tokens=512
)
CUTS = (0, 20, 21, 22, 300, 301, 330)
DENSE = ("llama3", "qwen3", "gemma3", "phi3")
KINDS = ("qwen3", "gemma3", "mixtral", "gpt_oss")


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """Products of float32 are not rounded to TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def ends(runner: Driven, slot: int, tokens: list[int], *mates: Row) -> NDArray[np.float32]:
    """Logits of the last tokens of `tokens`, at the end of `slot`: [16 or fewer, vocabulary]."""
    row = runner.row(slot, tokens, min(len(tokens), 16))
    return runner.step(StepPlan((*mates, row))).logits[slot].copy()


def in_pieces(runner: Driven) -> NDArray[np.float32]:
    """Logits of a text that comes in chunks and single tokens, next to two others."""
    tokens = some_tokens(CUTS[-1])
    found = []
    for number, (start, end) in enumerate(pairwise(CUTS)):
        others = (runner.row(1, [7]), runner.row(2, some_tokens(1 + 5 * number, number)))
        found.append(ends(runner, 0, tokens[start:end], *others))
    runner.cache.check_integrity()
    return np.concatenate(found)


def written(loaded: Loaded, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
    """Prompts and `count` greedy tokens of each, through the whole engine, all at once."""
    side = EngineSide(loaded)
    side.start(list(prompts), max(map(len, prompts)) + count + 1)
    side.decode(count - 1)
    return side.histories()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_in_single_precision_are_those_of_a_processor(family: str, tmp_path: Path) -> None:
    tiny_checkpoint(family, tmp_path, max_position_embeddings=1024)
    wanted = in_pieces(runner_of(tmp_path, EXACT))
    found = in_pieces(runner_of(tmp_path, EXACT, device=CUDA))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * float(np.abs(wanted).max()))


@pytest.mark.parametrize("triton", [False, True], ids=["gathered", "pages"])
@pytest.mark.parametrize("family", DENSE)
def test_logits_in_half_precision_are_near(family: str, triton: bool, tmp_path: Path) -> None:
    if triton and not has_triton("cuda"):
        pytest.skip("triton does not work on this card")
    tiny_checkpoint(family, tmp_path, max_position_embeddings=1024)
    settings = ModelSettings(context=1024, max_sessions=8, max_batch_tokens=512)
    runner = runner_of(tmp_path, settings, device=CUDA, dtype=torch.bfloat16, triton=triton)
    assert runner.plan.splits_decode == triton
    assert runner.store.layer(0)[0].dtype == torch.bfloat16
    wanted, found = in_pieces(runner_of(tmp_path, EXACT)), in_pieces(runner)
    assert float(((found - wanted) ** 2).mean()) < 1e-2 * float((wanted**2).mean())


@pytest.mark.parametrize("family", KINDS)
def test_greedy_answers_through_the_engine_are_those_of_a_processor(
    family: str, tmp_path: Path
) -> None:
    tiny_checkpoint(family, tmp_path, max_position_embeddings=1024)
    prompts = [some_tokens(length, seed=length) for length in (3, 40, 17, 600)]
    wanted = written(loaded_of(runner_of(tmp_path, EXACT)), prompts, 48)
    runner = runner_of(tmp_path, EXACT, device=CUDA)
    assert runner.plan.has_shortlists
    assert written(loaded_of(runner), prompts, 48) == wanted


@pytest.mark.parametrize("triton", [False, True], ids=["gathered", "pages"])
def test_a_pool_grows_on_the_card_and_keeps_what_it_holds(triton: bool, tmp_path: Path) -> None:
    dtype, kv_type, near = torch.float32, "f32", 2e-3
    if triton:
        dtype, kv_type, near = torch.bfloat16, "f16", 0.2
        if not has_triton("cuda"):
            pytest.skip("triton does not work on this card")
    tiny_checkpoint("llama2", tmp_path, max_position_embeddings=8192)
    settings = ModelSettings(context=6000, kv_type=kv_type, max_sessions=2, max_batch_tokens=512)
    wanted_runner = runner_of(tmp_path, settings)
    runner = runner_of(tmp_path, settings, device=CUDA, dtype=dtype, triton=triton)
    tokens, before = some_tokens(5000), runner.store.capacity(0)
    for start in range(0, len(tokens), 500):
        wanted = ends(wanted_runner, 0, tokens[start : start + 500])
        found = ends(runner, 0, tokens[start : start + 500])
        error = np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean())
        assert error < near, start
    assert runner.store.capacity(0) > before
    runner.cache.check_integrity()


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
@pytest.mark.parametrize("family", KINDS)
def test_deterministic_logits_have_the_same_bits_in_any_company(
    family: str, kv_type: KvType, tmp_path: Path
) -> None:
    tiny_checkpoint(family, tmp_path)
    settings = ModelSettings(kv_type=kv_type, context=256, max_sessions=40, deterministic=True)
    tokens = some_tokens(40)
    alone = runner_of(tmp_path, settings, device=CUDA)
    whole = alone.step(StepPlan((alone.row(0, tokens, 40),))).logits[0].copy()
    runner = runner_of(tmp_path, settings, device=CUDA)
    found = []
    for number, (start, end) in enumerate(pairwise((0, 16, 17, 33, 34, 40))):
        other = runner.row(2, some_tokens(number * 3 + 1, seed=number))
        found.append(ends(runner, 0, tokens[start:end], other))
    np.testing.assert_array_equal(np.concatenate(found), whole)


def test_the_bundled_model_says_the_same_on_a_card() -> None:
    def opened(gpu_layers: int | None) -> Loaded:
        settings = ModelSettings(
            dtype="f32",
            kv_type="f32",
            flash_attention=False,
            context=512,
            threads=1,
            batch_threads=1,
            gpu_layers=gpu_layers,
        )
        return open_model(ModelSpec(str(guide_path()), settings=settings))

    answers = []
    for gpu_layers in (0, None):
        loaded = opened(gpu_layers)
        question = "<|user|>How do I download a model?<|end|><|assistant|>"
        prompt = loaded.tokenizer.encode(question, special=True, add_bos=True)
        answers.append(written(loaded, [prompt], 40))
        loaded.runner.close()
    assert answers[0] == answers[1]


def test_a_card_chooses_half_precision_and_a_kernel_where_there_is_one() -> None:
    loaded = open_model(ModelSpec(str(guide_path()), settings=ModelSettings(context=512)))
    runner = loaded.runner
    assert isinstance(runner, NativeRunner)
    plan = runner.plan
    assert plan.device.type == "cuda"
    assert (plan.dtype,) * 2 == plan.kv_dtypes == runner.store.dtypes
    assert plan.splits_decode == has_triton("cuda")
    texts = written(loaded, [some_tokens(20), some_tokens(300, 1)], 20)
    assert [len(text) for text in texts] == [40, 320]
    runner.close()


@pytest.mark.skipif(not has_triton("cuda"), reason="triton does not work on this card")
@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_steps_by_graphs_are_those_without_and_wait_once(family: str, tmp_path: Path) -> None:
    tiny_checkpoint(family, tmp_path, max_position_embeddings=8192)
    settings = ModelSettings(context=6000, max_sessions=5, max_batch_tokens=512)
    runners = [
        runner_of(
            tmp_path, settings, device=CUDA, dtype=torch.bfloat16, triton=True, records=records
        )
        for records in (CudaGraphs(CUDA), None)
    ]
    tokens = some_tokens(5200)
    for length in (100, 4900):  # The pool grows for the second.
        for slot, count in ((0, length), (1, 40), (2, 7)):
            for runner in runners:
                held = runner.cache.length(slot)
                for at in range(held, held + count, 500):
                    part = tokens[at : min(at + 500, held + count)]
                    runner.step(StepPlan((runner.row(slot, part),)))
        for _ in range(4):
            found = []
            for runner in runners:
                rows = [runner.row(slot, [7 + slot], 1) for slot in range(3)]
                logits = runner.step(StepPlan(tuple(rows))).logits
                found.append(np.concatenate([logits[slot] for slot in range(3)]))
            # Rows are padded to four: PyTorch's products may round differently for them.
            assert float(((found[0] - found[1]) ** 2).mean()) < 1e-4 * float((found[1] ** 2).mean())
        assert runners[0].graphs is not None and len(runners[0].graphs) == 1
        assert runners[0].graphs.refused == ""
    (runner, _) = runners
    best = ShortlistSpec(1, np.array([], np.int64))
    tokens_of, was_ahead = [9, 10, 11], 0
    for _ in range(24):  # Greedy steps are started ahead.
        lists = []
        for one in runners:
            rows = [one.row(slot, [tokens_of[slot]], 1, shortlist=best) for slot in range(3)]
            lists.append(one.step(StepPlan(tuple(rows))).shortlists)
        was_ahead += runner.runner._ahead._ahead is not None  # type: ignore[attr-defined]
        found = [np.stack([some[slot].row() for slot in range(3)]) for some in lists]
        assert float(((found[0] - found[1]) ** 2).mean()) < 1e-4 * float((found[1] ** 2).mean())
        for slot in range(3):
            assert lists[0][slot].best == int(found[0][slot].argmax())
        tokens_of = [lists[0][slot].best for slot in range(3)]
    assert was_ahead >= 12  # Steps in which no session needs another block.
    spec = ShortlistSpec(1024, np.array([5, 6]))
    rows = [runner.row(slot, [9], 1, shortlist=spec) for slot in range(3)]
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        waits.clear()  # Setting the mode emits a warning itself.
        try:
            result = runner.step(StepPlan(tuple(rows)))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    said = [str(one.message) for one in waits if "prototype feature" not in str(one.message)]
    assert len(result.shortlists) == 3 and len(said) == 1, said


@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3"])
def test_layers_of_few_rows_are_near_those_of_many(family: str, tmp_path: Path) -> None:
    tiny_checkpoint(family, tmp_path)
    runner = runner_of(tmp_path, ModelSettings(), device=CUDA, dtype=torch.bfloat16, triton=True)
    assert isinstance(runner.decoder.fused, CardLayers)
    found = in_pieces(runner)
    for slot in range(3):
        runner.cache.release(slot, keep=False)
    runner.decoder.fused = None
    wanted = in_pieces(runner)
    off = float(((found - wanted) ** 2).mean()) / float((wanted**2).mean())
    assert 0 < off < 1e-3
