"""Dequantizes codes with separate scales, as in safetensors checkpoints: integers of two to eight
bits, FP8, and NF4.

In float32 the results equal those of the libraries that wrote the files bit for bit: the exact
difference of code and zero point, or the value of the code, times the scale, rounded once.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from hearth.kernels.bits import unpack_bits

CODE_BITS: Final = {
    **{f"INT{bits}": bits for bits in (2, 3, 4, 6, 8)},
    "FP8": 8,
    "FP8_E5M2": 8,
    "NF4": 4,
}
"""Bits of a code, for every packing of this kind; "FP8" is E4M3. Codes are stored without gaps, the
first one in the lowest bits of the first byte.
"""
MIDDLE: Final = {name: 1 << bits - 1 for name, bits in CODE_BITS.items() if name.startswith("INT")}
"""Zero point of integer packings if none is given: the middle code."""
FP8_GROUP: Final = 128
"""Inputs that share a scale in FP8, if a row has more than one scale."""
NF4: Final = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Values of the NF4 codes (bitsandbytes' `functional.get_4bit_type`, arXiv 2305.14314)."""
_CHUNK_CPU: Final = 1 << 20
"""Numbers converted at a time: 4 MiB of float32, which stay in the CPU's cache."""
_CHUNK: Final = 1 << 24


def inputs_of(packing: str, row_bytes: int) -> int:
    """Number of codes in a row of `row_bytes` bytes."""
    return row_bytes * 8 // CODE_BITS[packing]


def row_bytes_of(packing: str, inputs: int) -> int:
    """Bytes of a row of `inputs` codes."""
    return -(-inputs * CODE_BITS[packing] // 8)


def group_of(packing: str, inputs: int, groups: int) -> int:
    """Inputs that share a scale; in FP8 the last group may have fewer.

    Raises:
        ValueError: rows of `inputs` numbers cannot be split into `groups` groups.
    """
    is_fp8 = packing.startswith("FP8")
    group = FP8_GROUP if is_fp8 and groups > 1 else inputs // max(groups, 1)
    whole = -(-inputs // group) if is_fp8 and group else inputs / max(group, 1)
    if not group or whole != groups:
        raise ValueError(f"{inputs:,} inputs of {packing} have no {groups:,} groups")
    return group


def codes_into(
    packing: str, codes: Tensor, scales: Tensor, zeros: Tensor | None, out: Tensor
) -> None:
    """Dequantize `codes` into `out`.

    Args:
        packing: one of `CODE_BITS`.
        codes: [..., rows, bytes of a row] uint8, on any device, contiguous or not.
        scales: [..., rows, groups] float16, bfloat16 or float32.
        zeros: [..., rows, groups] uint8 zero points; None: `MIDDLE`. FP8 and NF4 have none.
        out: [..., rows, inputs], contiguous, of any float dtype, to which float32 values are
            rounded.

    Raises:
        ValueError: shapes do not match, or `out` is not contiguous.
    """
    inputs = inputs_of(packing, codes.shape[-1])
    if out.shape != (*codes.shape[:-1], inputs) or not out.is_contiguous():
        raise ValueError(f"{tuple(codes.shape)} codes of {packing} do not fill {tuple(out.shape)}")
    if scales.shape[:-1] != codes.shape[:-1] or (zeros is not None and zeros.shape != scales.shape):
        raise ValueError(f"{tuple(codes.shape)} codes have no scales {tuple(scales.shape)}")
    group = group_of(packing, inputs, scales.shape[-1])
    if not out.numel():
        return
    rows = codes.reshape(-1, codes.shape[-1])
    factors = scales.reshape(len(rows), -1)
    subtracted = None if zeros is None else zeros.reshape(len(rows), -1)
    results = out.view(len(rows), inputs)
    step = max(1, (_CHUNK_CPU if out.device.type == "cpu" else _CHUNK) // inputs)
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        place = results[some]
        exact = place if out.dtype == torch.float32 else place.to(torch.float32)
        _values(packing, rows[some], exact)
        if packing in MIDDLE:
            if subtracted is None:
                exact.sub_(MIDDLE[packing])
            else:
                torch.unflatten(exact, -1, (-1, group)).sub_(subtracted[some, :, None])
        _scale(exact, factors[some].to(torch.float32), group)
        if exact is not place:
            place.copy_(exact)


def _values(packing: str, codes: Tensor, out: Tensor) -> None:
    """Fill `out` [rows, inputs] float32 with integer codes, or with the values of other codes."""
    match packing:
        case "INT8":
            out.copy_(codes)
        case "FP8" if codes.device.type == "mps":
            out.copy_(fp8_by_bits(codes))
        case "FP8":
            out.copy_(codes.view(torch.float8_e4m3fn))
        case "FP8_E5M2":  # The upper byte of float16.
            out.copy_(codes.to(torch.int16).bitwise_left_shift_(8).view(torch.float16))
        case "INT2" | "INT3" | "INT6":
            out.copy_(unpack_bits(codes, CODE_BITS[packing])[:, : out.shape[1]])
        case "INT4":
            pairs = torch.unflatten(out, -1, (-1, 2))
            pairs[..., 0].copy_(codes.bitwise_and(15))
            pairs[..., 1].copy_(codes.bitwise_right_shift(4))
        case _:
            book = torch.tensor(NF4, dtype=torch.float32, device=codes.device)
            # [256, 2]: the two numbers of each byte.
            both = torch.stack((book.repeat(16), book.repeat_interleave(16)), -1)
            out.copy_(both.index_select(0, codes.flatten().to(torch.int32)).view(out.shape))


def fp8_by_bits(codes: Tensor) -> Tensor:
    """E4M3 as float16, for devices that do not support it (Apple's): the bits are moved to their
    places in float16, whose exponent bias is larger by 8. NaN (0x7F) becomes 480.
    """
    wide = codes.to(torch.int16)
    bits = wide.bitwise_and(0x80).bitwise_left_shift(8)
    bits = bits.bitwise_or_(wide.bitwise_and(0x7F).bitwise_left_shift(7))
    return bits.view(torch.float16) * 256


def _scale(numbers: Tensor, scales: Tensor, group: int) -> None:
    """`numbers` [rows, inputs] float32 times `scales` [rows, groups] float32, in place."""
    whole = numbers.shape[-1] // group
    end = whole * group
    torch.unflatten(numbers[:, :end], -1, (whole, group)).mul_(scales[:, :whole, None])
    if end < numbers.shape[-1]:
        numbers[:, end:].mul_(scales[:, whole:])
