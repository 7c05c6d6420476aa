"""Norms, positions, gates and keeping keys on NVIDIA cards, which triton interprets here without
one, next to what PyTorch computes.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton", minversion="3.9")

from hearth.backends.native.models.rope import apply_rope, cosine_and_sine
from hearth.kernels.cuda.elementwise import finish_heads, silu_up, store_tokens

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="there is a card, see test_cuda.py"
)
DTYPES = {torch.float32: 1e-6, torch.float16: 1e-3}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("size", "turned"), [(64, 64), (80, 80), (96, 48), (64, 0)])
def test_heads_are_normed_and_turned(
    size: int, turned: int, normed: bool, dtype: torch.dtype
) -> None:
    """As the layers do it one after the other; values, behind them, stay as they are."""
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(3, 7, size, generator=generator).to(dtype)
    weights = [1 + torch.randn(size, generator=generator) / 4 for _ in range(2)]
    rotary = None
    if turned:
        frequencies = 1e4 ** -(torch.arange(0, turned, 2) / turned)
        rotary = cosine_and_sine(torch.tensor([0, 5, 900]), frequencies, 1.2)
    wanted = qkv.clone()
    wide = wanted[:, :6].float()
    if normed:
        wide = functional.rms_norm(wide, (size,), None, 1e-5)
        wide[:, :4] *= weights[0]
        wide[:, 4:] *= weights[1]
    if rotary is not None:
        apply_rope(wide.clone(), *rotary, out=wide)
    wanted[:, :6] = wide.to(dtype)
    finish_heads(qkv[:, :6], 4, (weights[0], weights[1], 1e-5) if normed else None, rotary)
    torch.testing.assert_close(qkv, wanted, rtol=DTYPES[dtype], atol=2 * DTYPES[dtype])
    assert torch.equal(qkv[:, 6:], wanted[:, 6:])


@pytest.mark.parametrize("layout", ["heads", "pages"])
def test_what_is_kept_is_finite(layout: str) -> None:
    new = torch.randn(3, 9, 40)
    key_value = new[:, 3:].view(3, 2, 3, 40)
    key_value[0, 0, 1, 5], key_value[1, 1, 0, 0], key_value[2, 0, 0, 39] = (
        torch.nan,
        torch.inf,
        -torch.inf,
    )
    shape = (2, 3, 12, 40) if layout == "heads" else (2, 12, 3, 40)
    made = torch.full(shape, 7.0, dtype=torch.float16)
    pool = made.transpose(1, 2) if layout == "heads" else made
    slots = torch.tensor([11, 0, 6])
    store_tokens(pool[0], pool[1], slots, key_value, 65504.0)
    wanted = torch.nan_to_num(key_value, 0.0, 65504.0, -65504.0).half()
    assert torch.equal(pool[:, slots], wanted.transpose(0, 1))
    assert (pool[:, [1, 2, 3, 4, 5, 7, 8, 9, 10]] == 7).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gates(dtype: torch.dtype) -> None:
    both = (4 * torch.randn(3, 2 * 1100, generator=torch.Generator().manual_seed(0))).to(dtype)
    gate, up = both.float().chunk(2, -1)
    wanted = (functional.silu(gate) * up).to(dtype)
    torch.testing.assert_close(silu_up(both), wanted, rtol=2 * DTYPES[dtype], atol=1e-6)
    assert silu_up(both[:0]).shape == (0, 1100)
