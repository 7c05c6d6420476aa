"""Products of few rows by `few_rows.cu`."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from hearth.kernels.cuda.compiled import CompileError, Kernel, compile_for
from hearth.kernels.cuda.packings import is_wanted
from hearth.kernels.cuda.planes import BLOCK, Planes

MOST: Final = 16
"""Rows."""
_SOURCE: Final = Path(__file__).with_suffix(".cu")
_SCALES: Final = {"row": "ROW", "group": "GROUPS", "k": "K_SCALES", "k6": "K6", "e8m0": "E8M0"}
_NUMBERS: Final = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "int8": "I8", "uint8": "U8"}
_ALIGNED: Final = 8
"""Numbers of a row of activations that are read at a time."""
_FEW_OUTPUTS: Final = 5120
"""Outputs up to which more warps share the inputs: about two programs of each multiprocessor."""
Constants = dict[str, int | str]
_PLAIN: Final[Constants] = {
    "BITS": 16,
    "VALUE": "INT",
    "SCALE": "ROW",
    "NUMBER": "F32",
    "GROUP": 0,
    "ZERO": 0,
    "HAS_ZEROS": 0,
}
log = logging.getLogger(__name__)


def _tiles(outputs: int, inputs: int, rows: int, bits: int, *, is_light: bool) -> Constants:
    """How much a program and a warp have. What decides in which order a row is summed follows from
    the shape alone.

    Args:
        is_light: unpacking takes few registers.
    """
    warps = 16 if outputs <= _FEW_OUTPUTS else 8
    while warps > -(-inputs // BLOCK) and warps > 1:
        warps //= 2
    is_many = rows > 8
    ahead = 2
    if bits == 16 and is_many:
        ahead = 1
    elif bits == 4 and warps <= 8 and not is_many:
        ahead = 4
    return {
        "COLUMNS": 2 if is_many else 1,
        "EVEN": int(inputs % BLOCK == 0),
        # Activations are read once for both.
        "TILES": 2 if is_many and is_light else 1,
        "WARPS": warps,
        "AHEAD": ahead,
    }


def constants_of(part: Planes, rows: int, dtype: torch.dtype, out: torch.dtype) -> Constants:
    """What the kernel is compiled for."""
    is_light = part.bits == 4 or part.value == "fp8"
    return {
        "WIDE": int(dtype == torch.bfloat16),
        "TO_F32": int(out == torch.float32),
        "BITS": part.bits,
        "VALUE": part.value.upper(),
        "SCALE": _SCALES[part.scale],
        "NUMBER": _NUMBERS[part.number],
        "GROUP": part.group,
        "ZERO": part.zero,
        "HAS_ZEROS": int(part.zeros is not None and part.scale != "k"),
        **_tiles(part.outputs, part.inputs, rows, part.bits, is_light=is_light),
    }


def plain_constants(weight: Tensor, rows: int, out: torch.dtype) -> Constants:
    """Of a matrix [outputs, inputs] of half precision."""
    return {
        "WIDE": int(weight.dtype == torch.bfloat16),
        "TO_F32": int(out == torch.float32),
        **_PLAIN,
        **_tiles(weight.shape[0], weight.shape[1], rows, 16, is_light=True),
    }


def can_multiply(inputs: int, x: Tensor) -> bool:
    """Whether the kernel takes rows of activations, and is there for the card."""
    if x.dtype not in (torch.bfloat16, torch.float16) or not 0 < len(x) <= MOST:
        return False
    is_aligned = x.data_ptr() % 16 == 0 and x.stride(0) % _ALIGNED == 0 and x.stride(1) == 1
    return is_aligned and inputs % _ALIGNED == 0 and is_there(x.device)


@functools.cache
def is_there(device: torch.device) -> bool:
    """Whether kernels can be compiled for `device` and started there."""
    if (
        device.type != "cuda"
        or not is_wanted()
        or torch.cuda.get_device_capability(device) < (8, 0)
    ):
        return False
    plain = torch.empty((16, BLOCK), dtype=torch.float16)
    try:
        constants = plain_constants(plain, 1, plain.dtype)
        Kernel(compile_for(device, _SOURCE, constants), "few_rows", device)
    except CompileError as error:
        log.warning("Products of few rows are left to others: %s", error)
        return False
    return True


def multiply(part: Planes, x: Tensor, out: Tensor) -> None:
    """out = x · weightsᵀ, where `can_multiply` says yes.

    Args:
        x: [rows, inputs] bfloat16 or float16, the last contiguous.
        out: [rows, outputs] of the same dtype or float32, the last contiguous.
    """
    some = (part.codes, part.high, part.scales, part.zeros, part.supers, part.book)
    constants = constants_of(part, len(x), x.dtype, out.dtype)
    planes = [part.codes if one is None else one for one in some]
    _launch(constants, planes, x, out, part.outputs, part.inputs)


def multiply_plain(weight: Tensor, x: Tensor, out: Tensor) -> None:
    """The same for `weight` [outputs, inputs], contiguous, of the dtype of `x`: one that is not the
    result of the operation ahead, which may not have ended when the kernel reads its first rows.
    """
    _launch(plain_constants(weight, len(x), out.dtype), [weight] * 6, x, out, *weight.shape)


def _launch(
    constants: Constants, planes: list[Tensor], x: Tensor, out: Tensor, outputs: int, inputs: int
) -> None:
    kernel = _kernel(x.device, tuple(constants.items()))
    programs = -(-outputs // (16 * int(constants["TILES"])))
    sizes = (len(x), outputs, inputs, x.stride(0), out.stride(0))
    kernel(programs, 32 * int(constants["WARPS"]), (x, *planes, out, *sizes))


@functools.cache
def _kernel(device: torch.device, constants: tuple[tuple[str, int | str], ...]) -> Kernel:
    return Kernel(compile_for(device, _SOURCE, dict(constants)), "few_rows", device)
