"""Kernels on an NVIDIA card give what they give on a processor, where others are compared with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from drawn_codes import drawn
from hearth.kernels.blocks import block_of, packings
from hearth.kernels.dequantize import dequantize
from hearth.kernels.packed import prepare
from hearth.kernels.packed_linear import packed_linear
from hearth.kernels.table import LINEAR, RMS_NORM, kernels, pick
from hearth.quant.stored import CODES, STAYS_PACKED

pytestmark = pytest.mark.cuda

CUDA = torch.device("cuda")


def random_blocks(packing: str, rows: int, blocks: int) -> torch.Tensor:
    """[rows, bytes] whose numbers are finite, on the processor."""
    size = rows, blocks * block_of(packing)[1]
    drawn = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    found = torch.from_numpy(drawn)
    is_sane = dequantize(packing, found).abs().amax(dim=-1) < 1e4
    return found[is_sane]


@pytest.mark.parametrize("packing", packings())
def test_random_bytes_stand_for_the_same_bits(packing: str) -> None:
    size = (64, 40 * block_of(packing)[1])
    rows = torch.from_numpy(np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8))
    wanted, found = dequantize(packing, rows), dequantize(packing, rows.to(CUDA)).cpu()
    assert torch.equal(found.isnan(), wanted.isnan())
    bits = [numbers.nan_to_num(0.0).view(torch.int32) for numbers in (found, wanted)]
    assert torch.equal(*bits)


@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("packing", sorted(STAYS_PACKED - CODES))
def test_products_with_packed_matrices_are_near(packing: str, tokens: int) -> None:
    blocks = random_blocks(packing, 4096, 1)
    assert len(blocks) > 100
    x = torch.randn(tokens, block_of(packing)[0], generator=torch.Generator().manual_seed(0))
    wanted = packed_linear(x, packing, blocks)
    found = packed_linear(x.to(CUDA), packing, blocks.to(CUDA)).cpu()
    scale = float(wanted.abs().amax())
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("packing", sorted(CODES))
def test_codes_stand_for_the_same_numbers(packing: str) -> None:
    order = torch.randperm(512, generator=torch.Generator().manual_seed(0))
    plain, ordered = (drawn(packing, 300, 512, 4, seed=seed) for seed in (0, 1))
    parts = [plain, replace(ordered, order=order)]
    for part in parts:
        assert torch.equal(
            part.to(CUDA).unpacked(torch.float32).cpu(), part.unpacked(torch.float32)
        )
    x = torch.randn(40, 512, generator=torch.Generator().manual_seed(0))
    wanted = prepare(parts, exact=True).matmul(x)
    found = prepare([part.to(CUDA) for part in parts], exact=True).matmul(x.to(CUDA)).cpu()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().amax()))


def test_what_is_picked_for_a_card_is_near_the_reference() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=generator) for size in ((40, 512), (300, 512)))
    table = kernels()
    for found, wanted in (
        (
            pick(LINEAR, CUDA)(x.to(CUDA), weight.to(CUDA), None),
            table.reference(LINEAR)(x, weight, None),
        ),
        (pick(RMS_NORM, CUDA)(x.to(CUDA), 1e-5), table.reference(RMS_NORM)(x, 1e-5)),
    ):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-4)
