"""Attention through block tables: on processors by a reference, on NVIDIA cards by a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.attention import varlen

from hearth.backends.contract.models import ModelSettings
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.errors import InternalError
from hearth.backends.native.plan import NativePlan, plan_memory
from hearth.backends.native.runner import NativeRunner
from hearth.backends.native.varlen_attention import (
    PAGE,
    can_read,
    has_varlen,
    reads_block_tables,
)
from hearth.quant.families.config import ModelConfig
from native_runners import runner_of
from paged_texts import LONG_STEPS, Texts
from tiny_checkpoints import VOCABULARY, tiny_checkpoint
from varlen_reference import varlen_reference

FAST = ModelSettings(kv_type="f32", context=1024, max_sessions=4, max_batch_tokens=512)
LONG: dict[str, Any] = {"page": PAGE, "window": 70, "lengths": (310, 320, 810), "width": 64}
TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 3e-3}
HALVES = pytest.mark.parametrize("dtype", list(TOLERANCES))


def config(**changes: Any) -> ModelConfig:
    return replace(Texts().config, **changes)


def planned(model: ModelConfig, *, varlen: bool = True, **settings: Any) -> NativePlan:
    return plan_memory(
        ModelSettings(**{"context": 1000} | settings),
        model,
        device=torch.device("cuda"),
        dtype=torch.bfloat16,
        compute_dtype=torch.bfloat16,
        weight_bytes=0,
        available_bytes=1 << 30,
        varlen=varlen,
    )


def test_the_reference_is_called_as_the_kernel_is() -> None:
    real, ours = (signature(one).parameters for one in (varlen.varlen_attn, varlen_reference))
    if "block_table" not in real:
        pytest.skip(f"torch {torch.__version__} has no block tables")
    assert [(name, one.kind, one.default) for name, one in real.items()] == [
        (name, one.kind, one.default) for name, one in ours.items()
    ]


def test_a_plan_has_larger_pages_where_a_kernel_reads_block_tables() -> None:
    gathered, read = planned(config(), varlen=False), planned(config())
    assert (gathered.attention, gathered.page) == ("gather", 16)
    assert (read.attention, read.page) == ("varlen", PAGE)
    assert (gathered.pool_tokens, read.pool_tokens) == (8 * 1008, 8 * 1024)
    for plan in (gathered, read):
        assert plan.blocks[0] * plan.page == plan.pool_tokens
        assert plan.start_blocks[0] <= plan.blocks[0]


@pytest.mark.parametrize(
    "changes", [{"attention_softcap": 30.0}, {"sinks": True}, {"head_dim": 264}, {"head_dim": 20}]
)
def test_models_with_more_than_the_kernel_knows_are_gathered(changes: dict[str, Any]) -> None:
    assert can_read(config())
    assert not can_read(config(**changes))
    assert planned(config(**changes)).attention == "gather"


@pytest.mark.parametrize(
    "settings", [{"deterministic": True}, {"flash_attention": False}, {"kv_type": "f32"}]
)
def test_settings_that_the_kernel_cannot_keep_are_gathered(settings: dict[str, Any]) -> None:
    assert planned(config(), **settings).attention == "gather"


def test_there_is_no_kernel_on_a_processor_or_for_single_precision() -> None:
    assert not has_varlen(torch.device("cpu"), torch.bfloat16)
    assert not has_varlen(torch.device("cuda"), torch.float32)


def fails(*arguments: torch.Tensor, **named: Any) -> torch.Tensor:
    raise RuntimeError("paged KV is not supported by this kernel")


def forgets(*arguments: torch.Tensor, **named: Any) -> torch.Tensor:
    """Reads the pages in their order, whatever the table says."""
    tables = named.pop("block_table")
    return varlen_reference(*arguments, block_table=torch.zeros_like(tables), **named)  # type: ignore[arg-type]


def old(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return query


@pytest.mark.parametrize(
    ("function", "is_there"),
    [(varlen_reference, True), (fails, False), (forgets, False), (old, False)],
)
def test_a_kernel_is_there_if_it_finds_a_token(
    function: Callable[..., torch.Tensor], is_there: bool
) -> None:
    function.__signature__ = signature(old if function is old else varlen_reference)  # type: ignore[attr-defined]
    assert reads_block_tables(function, torch.device("cpu"), torch.float32) == is_there


def test_a_pool_or_a_model_that_the_kernel_cannot_read_is_refused() -> None:
    texts = Texts()
    texts.attention = "varlen"
    with pytest.raises(InternalError, match="heads"):
        texts.step([(0, 0, 3)])
    texts = Texts(attention="varlen", softcap=3.0, function=varlen_reference)
    with pytest.raises(InternalError, match="cannot read"):
        texts.step([(0, 0, 3)])
    texts = Texts(attention="varlen", sinks=True, function=varlen_reference)
    with pytest.raises(InternalError, match="sinks"):
        texts.step([(0, 0, 3)])


def ends(runner: NativeRunner, slot: int, tokens: list[int]) -> NDArray[np.float32]:
    """Logits of the last tokens of `tokens`, at the end of `slot`, computed beside another row."""
    rows = []
    for at, new in ((1, [7]), (slot, tokens)):
        held = runner.cache.length(at)
        assert runner.cache.reserve(at, held + len(new))
        rows.append(Row(at, held, new, min(len(new), 16)))
    return runner.step(StepPlan(tuple(rows))).logits[slot].copy()


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "mixtral"])
def test_a_runner_says_the_same_through_block_tables(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(*arguments: torch.Tensor, **named: Any) -> torch.Tensor:
        calls.append(int(named["block_table"].shape[1]))
        return varlen_reference(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(varlen, "varlen_attn", counted)
    tiny_checkpoint(family, tmp_path, max_position_embeddings=1024)
    gathered, read = runner_of(tmp_path, FAST), runner_of(tmp_path, FAST, varlen=True)
    assert (gathered.plan.attention, read.plan.attention) == ("gather", "varlen")
    generator = np.random.default_rng(0)
    tokens = [int(token) for token in generator.integers(3, VOCABULARY, 700)]
    for start, end in ((0, 300), (300, 301), (301, 302), (302, 690), (690, 700)):
        found = [ends(runner, 0, tokens[start:end]) for runner in (gathered, read)]
        np.testing.assert_allclose(found[1], found[0], atol=2e-4)
    # A prefix that ends within a page is found, and its last page copied.
    begun = read.cache.open(2, tokens[:650])
    assert begun == 649
    ends(gathered, 2, tokens[:400])
    wanted = ends(gathered, 2, tokens[400:650])
    np.testing.assert_allclose(ends(read, 2, tokens[649:650]), wanted[-1:], atol=2e-4)
    read.cache.check_integrity()
    assert max(calls) == 3


@pytest.mark.cuda
@HALVES
def test_the_kernel_says_what_gathering_says(dtype: torch.dtype) -> None:
    if not has_varlen(torch.device("cuda"), dtype):
        pytest.skip(f"torch {torch.__version__} reads no block tables here")
    read = Texts(attention="varlen", dtype=dtype, device="cuda", **LONG)
    gathered = Texts(dtype=dtype, device="cuda", **LONG | {"page": 16})
    for rows in LONG_STEPS:
        for layer, (one, other) in enumerate(
            zip(read.step(rows), gathered.step(rows), strict=True)
        ):
            close = {"atol": TOLERANCES[dtype], "rtol": TOLERANCES[dtype]}
            torch.testing.assert_close(one, other, **close)
            torch.testing.assert_close(one.float(), read.expected(layer, rows), **close)


@pytest.mark.cuda
@HALVES
def test_the_kernel_gives_a_row_the_same_bits_in_any_company(dtype: torch.dtype) -> None:
    if not has_varlen(torch.device("cuda"), dtype):
        pytest.skip(f"torch {torch.__version__} reads no block tables here")
    together = Texts(attention="varlen", dtype=dtype, device="cuda", **LONG)
    alone = Texts(attention="varlen", dtype=dtype, device="cuda", **LONG)
    for rows in LONG_STEPS:
        found = together.step(rows)
        single: list[list[torch.Tensor]] = [alone.step([row]) for row in rows]
        for layer in range(2):
            assert torch.equal(found[layer], torch.cat([one[layer] for one in single]))
