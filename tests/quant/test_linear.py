"""Layers over packed weights compute what layers over the unpacked ones compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from hearth.kernels import packed_linear
from hearth.kernels.blocks import block_of
from hearth.quant.linear import STAYS_PACKED, QuantEmbedding, QuantLinear, Rows
from random_blocks import Kind, random_rows

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def packed(packing: str, rows: int, inputs: int, seed: int = 0) -> Rows:
    """Random weights of deviation one."""
    rng = np.random.default_rng(seed)
    if packing in ("Q5_K", "MXFP4"):
        elements, size = block_of(packing)
        blocks = rng.integers(0, 256, (rows * inputs // elements, size), dtype=np.uint8)
        if packing == "MXFP4":
            blocks[:, 0] = 126
        else:
            blocks[:, :4] = np.array([0.001, 0.01], np.float16).view(np.uint8)
        return Rows(torch.from_numpy(blocks.reshape(rows, -1)), packing)
    return Rows(torch.from_numpy(random_rows(Kind[packing], rows, inputs, 1.0, rng)), packing)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    scale = expected.float().abs().max()
    assert (found.float() - expected.float()).abs().max() <= TOLERANCE[found.dtype] * scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packing", sorted(STAYS_PACKED))
def test_a_packed_layer(packing: str, dtype: torch.dtype) -> None:
    part = packed(packing, 37, 512)
    bias = torch.randn(37)
    layer = QuantLinear([part], bias)
    for shape in ((512,), (1, 512), (3, 5, 512)):
        x = torch.randn(shape, dtype=dtype)
        assert_close(layer(x), functional.linear(x, part.unpacked(dtype), bias.to(dtype)))


def test_parts_of_different_types() -> None:
    """Queries and keys in one type, values in another, and rows that are not packed at all."""
    parts = [packed("Q4_K", 8, 256), packed("Q6_K", 4, 256, 1), Rows(torch.randn(5, 256))]
    layer = QuantLinear(parts)
    x = torch.randn(2, 256)
    matrix = torch.cat([part.unpacked(torch.float32) for part in parts])
    assert torch.equal(layer.unpacked(torch.float32), matrix)
    assert_close(layer(x), functional.linear(x, matrix))
    assert (layer.in_features, layer.out_features) == (256, 17)
    assert "Q4_K+Q6_K+plain" in repr(layer)


def test_x_need_not_be_contiguous() -> None:
    part = packed("Q8_0", 16, 64)
    x = torch.randn(64, 6).t()
    assert_close(QuantLinear([part])(x), functional.linear(x, part.unpacked(torch.float32)))


def test_rows_are_unpacked_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    unpack = packed_linear.dequantize_into

    def counting(packing: str, blocks: torch.Tensor, out: torch.Tensor) -> None:
        sizes.append(out.nbytes)
        unpack(packing, blocks, out)

    monkeypatch.setattr(packed_linear, "dequantize_into", counting)
    part = packed("Q8_0", 5000, 512)
    x = torch.randn(2, 512)
    found = QuantLinear([part])(x)
    assert len(sizes) > 1 and max(sizes) <= 64 << 20
    assert_close(found, functional.linear(x, part.unpacked(torch.float32)))


def test_the_state_moves_with_the_layer() -> None:
    layer = QuantLinear([packed("Q8_0", 4, 32), packed("Q4_0", 4, 32)], torch.zeros(8))
    assert set(layer.state_dict()) == {"rows_0", "rows_1", "bias"}
    assert layer.to("meta").parts[0].weight.device.type == "meta"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packing", sorted(STAYS_PACKED))
def test_a_packed_embedding(packing: str, dtype: torch.dtype) -> None:
    table = packed(packing, 50, 256)
    ids = torch.tensor([[3, 0, 49], [3, 7, 7]])
    found = QuantEmbedding(table, dtype)(ids)
    assert torch.equal(found, functional.embedding(ids, table.unpacked(dtype)))


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        QuantLinear([packed("Q8_0", 4, 32), packed("Q8_0", 4, 64)])
    with pytest.raises(ValueError, match="one length, not none"):
        QuantLinear([])
    with pytest.raises(ValueError, match="bias"):
        QuantLinear([packed("Q8_0", 4, 32)], torch.zeros(5))
    with pytest.raises(ValueError, match="32 inputs, not 33"):
        QuantLinear([packed("Q8_0", 4, 32)])(torch.zeros(1, 33))
