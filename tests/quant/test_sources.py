"""Undoing the changes that file formats make to weights: on plain numbers and on packed rows."""

from __future__ import annotations

from typing import Any

import gguf
import pytest
import torch
from gguf.quants import dequantize, quantize

from hearth.quant.errors import UnsupportedModel
from hearth.quant.families.source import Part, choose, joined, one, rows_of, shape_of
from hearth.quant.hf_names import by_canonical_name
from hearth.quant.mxfp4 import pack_mxfp4

Q8_0 = gguf.GGMLQuantizationType.Q8_0
MXFP4 = gguf.GGMLQuantizationType.MXFP4


def undone(stored: torch.Tensor, **how: Any) -> torch.Tensor:
    """`stored` in the form that the decoder needs."""
    return rows_of(Part(("stored",), **how), [stored])


def as_the_converter_does(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp's permutation of queries and keys."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


@pytest.mark.parametrize("shape", [(48, 64), (48,)])
def test_rows_of_heads_come_back(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape)
    stored = as_the_converter_does(weight, 3)
    assert torch.equal(undone(stored, heads=3, head_dim=16), weight)


def test_rows_after_the_heads_stay() -> None:
    weight = torch.randn(48, 8)
    stored = torch.cat((as_the_converter_does(weight[:32], 2), weight[32:]))
    assert torch.equal(undone(stored, heads=2, head_dim=16), weight)


@pytest.mark.parametrize(
    ("how", "rows"), [({"heads": 4, "head_dim": 16}, (64,)), ({"alternates": True}, (3, 64))]
)
def test_packed_rows_move_as_plain_ones(how: dict[str, Any], rows: tuple[int, ...]) -> None:
    plain = torch.randn(*rows, 96).numpy()
    packed = quantize(plain, Q8_0)
    moved = undone(torch.from_numpy(packed), **how)
    expected = undone(torch.from_numpy(dequantize(packed, Q8_0)), **how)
    assert torch.equal(torch.from_numpy(dequantize(moved.numpy(), Q8_0)), expected)


def test_norms_get_their_one_back_in_float32() -> None:
    stored = torch.tensor([0.00390625, -0.5], dtype=torch.bfloat16)
    found = undone(stored, is_minus_one=True)
    assert found.dtype is torch.float32
    assert found.tolist() == [1.00390625, 0.5]


@pytest.mark.parametrize("how", ["is_minus_one", "is_transposed"])
def test_what_packed_rows_do_not_allow_is_refused(how: str) -> None:
    with pytest.raises(UnsupportedModel, match="'stored' is packed"):
        undone(torch.zeros(2, 2, 34, dtype=torch.uint8), **{how: True})


@pytest.mark.parametrize("shape", [(2, 6, 3, 16), (1, 2, 1, 16)])
def test_blocks_and_scales_become_gguf_blocks(shape: tuple[int, ...]) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    scales = torch.randint(100, 140, shape[:-1], generator=generator, dtype=torch.uint8)
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    packed = pack_mxfp4(blocks, scales)
    assert packed.shape == (*shape[:2], shape[2] * 17)
    assert torch.equal(torch.from_numpy(dequantize(packed.numpy(), MXFP4)), expected)


def test_parts_tell_their_shape_before_anything_is_read() -> None:
    def check(part: Part, *tensors: torch.Tensor) -> tuple[int, ...]:
        told = shape_of(part, [tuple(tensor.shape) for tensor in tensors])
        assert told == tuple(rows_of(part, tensors).shape)
        return told

    expert = torch.zeros(6, 4)
    assert check(Part(("a", "b", "c")), expert, expert, expert) == (3, 6, 4)
    turned = Part(("a",), is_transposed=True, alternates=True)
    assert check(turned, torch.zeros(2, 4, 6)) == (2, 6, 4)
    packed = Part(("blocks", "scales"), is_mxfp4=True, alternates=True)
    blocks = torch.zeros(2, 6, 3, 16, dtype=torch.uint8)
    assert rows_of(packed, (blocks, blocks[..., 0])).shape == (2, 6, 51)
    assert shape_of(packed, [(2, 6, 3, 16), (2, 6, 3)]) == (2, 6, 96)
    with pytest.raises(ValueError, match="different shapes"):
        shape_of(Part(("a", "b")), [(6, 4), (6, 5)])


def test_the_first_choice_that_is_there_is_taken() -> None:
    choices = joined("q", "k") + one("qkv")
    assert choose(choices, {"q", "k", "qkv"}) == choices[0]
    assert choose(choices, {"q", "qkv"}) == choices[1]
    assert choose(choices, {"q"}) is None


def test_names_have_one_spelling() -> None:
    spelled = by_canonical_name(
        ["language_model.model.layers.1.a", "norm.weight", "vision_tower.norm.weight"]
    )
    assert spelled == {
        "model.layers.1.a": "language_model.model.layers.1.a",
        "model.norm.weight": "norm.weight",
        "vision_tower.norm.weight": "vision_tower.norm.weight",
    }
