"""Dequantizes GGUF's packed blocks: the entry points, and the types with one scale per small block.

The functions for single types, here and in `dequantize_k`, `dequantize_codebook` and
`dequantize_iq`, have the same signature: `blocks` [n, bytes of a block] uint8 is read, `out`
[n, elements of a block] float32 is filled. In float32 the results equal gguf-py's bit for bit (a
NaN is a NaN): products and sums are rounded one by one, in its order. Source: ggml's
`ggml-quants.c`, `gguf/quants.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hearth.kernels import dequantize_codebook, dequantize_iq, dequantize_k
from hearth.kernels.blocks import block_of, fields, halves

Unpack = Callable[[Tensor, Tensor], None]

_CHUNK_ELEMENTS_CPU = 1 << 20
"""A chunk's float32 result, 4 MiB, stays in the CPU's cache between the passes over it."""
_CHUNK_ELEMENTS = 1 << 24
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def dequantize(packing: str, blocks: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weights in `blocks`.

    Args:
        packing: the GGUF type, e.g. "Q4_K"; one of `blocks.packings()`.
        blocks: [..., bytes of a row] uint8, on any device, contiguous or not.
        dtype: dtype of the result, to which float32 values are rounded.

    Returns:
        [..., elements of a row], a new tensor.

    Raises:
        ValueError: the type is unknown, or `blocks` are not uint8 or not whole blocks.
    """
    shape = _result_shape(packing, blocks)
    out = torch.empty(shape, dtype=dtype, device=blocks.device)
    dequantize_into(packing, blocks, out)
    return out


def dequantize_into(packing: str, blocks: Tensor, out: Tensor) -> None:
    """As `dequantize`, into `out`: [..., elements of a row], contiguous, of any float dtype.

    Raises:
        ValueError: as `dequantize`, or `out` has the wrong shape or is not contiguous.
    """
    shape = _result_shape(packing, blocks)
    if out.shape != shape or not out.is_contiguous():
        raise ValueError(
            f"{packing} rows need contiguous room of {tuple(shape)}, not {tuple(out.shape)}"
        )
    if not out.numel():
        return
    rows = blocks.reshape(-1, blocks.shape[-1])
    results = out.view(-1, shape[-1])
    most = _CHUNK_ELEMENTS_CPU if out.device.type == "cpu" else _CHUNK_ELEMENTS
    step = max(1, most // shape[-1])
    for start in range(0, len(rows), step):
        _dequantize_rows(packing, rows[start : start + step], results[start : start + step])


def _result_shape(packing: str, blocks: Tensor) -> torch.Size:
    elements, size = block_of(packing)
    if blocks.dtype != torch.uint8:
        raise ValueError(f"blocks of {packing} are uint8, not {blocks.dtype}")
    if not blocks.ndim or blocks.shape[-1] % size:
        raise ValueError(
            f"rows of {tuple(blocks.shape)[-1:]} bytes are no whole blocks of {packing}: "
            f"it needs a multiple of {size}"
        )
    return torch.Size((*blocks.shape[:-1], blocks.shape[-1] // size * elements))


def _dequantize_rows(packing: str, rows: Tensor, out: Tensor) -> None:
    """`rows`: [n, bytes of a row]; `out`: [n, elements of a row], contiguous."""
    if packing in _PLAIN:
        plain = rows.clone(memory_format=torch.contiguous_format).view(_PLAIN[packing])
        out.copy_(plain)
        return
    elements, size = block_of(packing)
    exact = out if out.dtype == torch.float32 else torch.empty_like(out, dtype=torch.float32)
    _UNPACKERS[packing](rows.reshape(-1, size), exact.view(-1, elements))
    if exact is not out:
        out.copy_(exact)


def _q4_0(blocks: Tensor, out: Tensor) -> None:
    _nibbles(blocks[:, 2:], out)
    out.sub_(8).mul_(halves(blocks, 0))


def _q4_1(blocks: Tensor, out: Tensor) -> None:
    _nibbles(blocks[:, 4:], out)
    out.mul_(halves(blocks, 0)).add_(halves(blocks, 2))


def _q5_0(blocks: Tensor, out: Tensor) -> None:
    _five_bits(blocks[:, 6:], blocks[:, 2:6], out)
    out.sub_(16).mul_(halves(blocks, 0))


def _q5_1(blocks: Tensor, out: Tensor) -> None:
    _five_bits(blocks[:, 8:], blocks[:, 4:8], out)
    out.mul_(halves(blocks, 0)).add_(halves(blocks, 2))


def _q8_0(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks[:, 2:].view(torch.int8)).mul_(halves(blocks, 0))


def _tq1_0(blocks: Tensor, out: Tensor) -> None:
    """Five base-3 digits per byte, in fixed point; products with powers of 3 wrap in uint8."""
    done = 0
    for start, length, digits in ((0, 32, 5), (32, 16, 5), (48, 4, 4)):
        packed = blocks[:, start : start + length]
        for digit in range(digits):
            place = out[:, done : done + length]
            place.copy_(((packed * 3**digit).to(torch.int16) * 3).bitwise_right_shift_(8))
            done += length
    out.sub_(1).mul_(halves(blocks, 52))


def _tq2_0(blocks: Tensor, out: Tensor) -> None:
    packed = torch.unflatten(blocks[:, :64], 1, (2, 32))
    out.view(-1, 2, 4, 32).copy_(fields(packed, (0, 2, 4, 6), 3, -2))
    out.sub_(1).mul_(halves(blocks, 64))


def _nibbles(packed: Tensor, out: Tensor) -> None:
    """Fill `out` with the low nibbles of the bytes [n, 16], then the high nibbles."""
    out[:, :16].copy_(packed.bitwise_and(15))
    out[:, 16:].copy_(packed.bitwise_right_shift(4))


def _five_bits(packed: Tensor, fifths: Tensor, out: Tensor) -> None:
    """As `_nibbles`, with the fifth bit of element i at bit i of the four bytes `fifths`."""
    high = fields(fifths, range(8), 1, -1).flatten(1).bitwise_left_shift_(4)
    out[:, :16].copy_(packed.bitwise_and(15).bitwise_or_(high[:, :16]))
    out[:, 16:].copy_(packed.bitwise_right_shift(4).bitwise_or_(high[:, 16:]))


_UNPACKERS: dict[str, Unpack] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    **dequantize_k.UNPACKERS,
    **dequantize_codebook.UNPACKERS,
    **dequantize_iq.UNPACKERS,
}
