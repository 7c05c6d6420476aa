"""Attention of many tokens over pages by the kernel for NVIDIA cards, which triton interprets here,
compared with sums in float64.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", minversion="3.9")

from gpu_cases import LIMITS, Kinds
from hearth.backends.native.kv_rows import FP8, Q8_0
from hearth.kernels.cuda.attention import blocks_of
from prompt_cases import CASES, Prompts

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="there is a card, see test_cuda.py"
)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("case", CASES)
def test_attention_is_near(case: str, dtype: torch.dtype) -> None:
    prompts = Prompts(dtype=dtype, **CASES[case])
    found = prompts.found()
    assert found.dtype == dtype and found.shape == prompts.query.shape
    assert float((found.double() - prompts.wanted()).abs().max()) < LIMITS[dtype]


@pytest.mark.parametrize("kinds", [(Q8_0, Q8_0), (FP8, FP8), (None, FP8)])
@pytest.mark.parametrize("case", ["sinks", "a window", "heads of 96", "shared pages"])
def test_packed_keys_and_values_are_read_as_what_they_stand_for(case: str, kinds: Kinds) -> None:
    prompts = Prompts(dtype=torch.float32, kinds=kinds, **CASES[case])
    assert float((prompts.found() - prompts.wanted()).abs().max()) < LIMITS[torch.float32]


@pytest.mark.parametrize("window", [None, 30])
def test_a_text_has_the_same_bits_alone(window: int | None) -> None:
    prompts = Prompts(heads=4, kv_heads=2, window=window, dtype=torch.float32)
    whole, begin = prompts.found(rows=64), 0
    for text, count in enumerate(prompts.counts):
        alone = prompts.found(slice(text, text + 1), rows=64)
        assert torch.equal(alone, whole[begin : begin + count])
        begin += count
    for rows in (16, 128):  # The product may add up in another order.
        torch.testing.assert_close(prompts.found(rows=rows), whole, rtol=1e-5, atol=1e-6)


def test_a_token_has_the_same_bits_however_its_prompt_is_cut_up() -> None:
    options: dict[str, Any] = {"lengths": (150,), "heads": 2, "kv_heads": 1, "dtype": torch.float32}
    whole = Prompts((150,), **options)
    found = whole.found(rows=64)
    for count in (1, 2, 63, 149):
        part = Prompts((count,), **options)
        part.query = whole.query[150 - count :]
        assert torch.equal(part.found(rows=64), found[150 - count :]), count


def test_blocks_that_see_most_come_first() -> None:
    counts, begins = np.array([5, 1, 9], np.int32), np.array([0, 100, 7], np.int32)
    blocks = blocks_of(counts, begins, 4).tolist()
    assert blocks == [[1, 0], [2, 8], [2, 4], [2, 0], [0, 4], [0, 0]]
