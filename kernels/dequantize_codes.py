"""Weights out of codes with scales beside them, as checkpoints of safetensors have them: whole
numbers of two to eight bits, FP8, and NF4.

In float32 the results are those of the libraries that wrote the files, bit for bit: an exact
difference of code and zero, or the number that a code stands for, times the scale, rounded once.
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
"""Every packing of this kind; FP8 alone is E4M3. Codes are one after the other without gaps, the
first one in the lowest bits of the first byte.
"""
MIDDLE: Final = {name: 1 << bits - 1 for name, bits in CODE_BITS.items() if name.startswith("INT")}
"""Of whole numbers: the code that stands for zero where no other is named."""
FP8_GROUP: Final = 128
"""Inputs that share a scale, where a row has more than one."""
NF4: Final = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""What the codes of NF4 stand for (bitsandbytes' `functional.get_4bit_type`, arXiv 2305.14314)."""
_CHUNK_CPU: Final = 1 << 20
"""Numbers at a time: 4 MiB of float32, which stay in the processor's cache."""
_CHUNK: Final = 1 << 24


def inputs_of(packing: str, row_bytes: int) -> int:
    """Codes of a row of so many bytes."""
    return row_bytes * 8 // CODE_BITS[packing]


def row_bytes_of(packing: str, inputs: int) -> int:
    """Bytes of a row of codes."""
    return -(-inputs * CODE_BITS[packing] // 8)


def group_of(packing: str, inputs: int, groups: int) -> int:
    """Inputs that share a scale; of FP8 the last group may have fewer.

    Raises:
        ValueError: rows of `inputs` numbers have no such groups.
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
    """The numbers that `codes` stand for.

    Args:
        packing: one of `CODE_BITS`.
        codes: [..., rows, bytes of a row] uint8, on any device, contiguous or not.
        scales: [..., rows, groups] float16, bfloat16 or float32.
        zeros: [..., rows, groups] uint8, the code that stands for zero; None: `MIDDLE`. FP8 and NF4
            have none.
        out: [..., rows, inputs], contiguous, of any float dtype: float32 values rounded to it.

    Raises:
        ValueError: a shape does not suit the others, or `out` is not contiguous.
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
    """[rows, inputs] float32: codes as numbers, or what they stand for."""
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
    """float16 of E4M3 for devices that do not compute with it (Apple's): its bits at their places
    in float16, which has eight more powers of two below one. NaN (0x7F) becomes 480.
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
