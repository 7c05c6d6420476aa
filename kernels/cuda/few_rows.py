"""Products of few rows by `few_rows.cu`, and what comes before and after them in a layer."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
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
ALIGNED: Final = 8
"""Numbers of a row of activations that are read at a time."""
_FEW_OUTPUTS: Final = 5120
"""Outputs up to which a multiprocessor has about two programs."""
_SOME_OUTPUTS: Final = 12_288
_CUTS: Final = {
    (4, "few"): (8, 4, 2),
    (4, "some"): (8, 2, 3),
    (4, "many"): (4, 2, 6),
    (6, "few"): (8, 3, 2),
    (6, "many"): (4, 2, 5),
    (8, "few"): (8, 4, 2),
}
"""Warps, blocks that are read ahead, and programs of a multiprocessor, by bits of a code (8: FP8)
and outputs, where others than sixteen warps of a multiprocessor with two blocks each were quicker
on an H100 (docs/results/2026-11-27-h100.md)."""
_WARPS: Final = 16
"""Of a multiprocessor, for which there are 128 registers a lane."""
_COLUMN: Final = 8
"""Rows of activations that a product of tensor cores takes."""
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
_TILE: Final = 16
"""Outputs of a tile."""
_PLAIN_END: Final[Constants] = {
    "NORMED": 0,
    "EPS": "0.0f",
    "END": "STORE",
    "HAS_NEXT": 0,
    "EARLY": 0,
    "PARTS": 0,
}
_LANES: Final = 32
"""Of a warp."""
_FEW_WARPS: Final = 8
"""So that each of eight rows of activations has one."""
_MOST_PARTS: Final = 16
"""Sums of squares that a lane has registers for."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unnormalised:
    """Rows before an RMS norm's division: hidden states times the weights of the norm.

    Attributes:
        rows: [rows, width] of half precision.
        squares: [rows, parts] float32: sums of the squares of the hidden states, which are those of
            the whole row together. None: the rows have been divided.
        eps: what is added to the mean of the squares.
    """

    rows: Tensor
    squares: Tensor | None = None
    eps: float = 0.0


def _tiles(outputs: int, inputs: int, rows: int, bits: int, *, is_light: bool) -> Constants:
    """How much a program and a warp have. How many warps share the inputs decides in which order a
    row is summed; it follows from the matrix alone.

    Args:
        is_light: unpacking takes few registers.
    """
    size = "few" if outputs <= _FEW_OUTPUTS else "some" if outputs <= _SOME_OUTPUTS else "many"
    plain = (16, 2, 1) if size == "few" else (8, 2, 2)
    warps, ahead, programs = plain if bits == 8 and not is_light else _CUTS.get((bits, size), plain)
    is_many = rows > _COLUMN
    if is_many:  # Registers are for sums.
        ahead, programs = 1 if bits == 16 else 2, max(_WARPS // warps, 1)
    while warps > -(-inputs // BLOCK) and warps > 1:
        warps, programs = warps // 2, 2 * programs
    tiles = 2 if is_many and is_light else 1  # Activations are read once for both.
    return {
        "COLUMNS": 2 if is_many else 1,
        "EVEN": int(inputs % BLOCK == 0),
        "WHOLE": int(outputs % (_TILE * tiles) == 0),
        "TILES": tiles,
        "WARPS": warps,
        "AHEAD": ahead,
        "PROGRAMS": programs,
    }


def outputs_of(part: Planes | Tensor) -> int:
    """Rows of a matrix, packed or not."""
    return len(part) if isinstance(part, Tensor) else part.outputs


def is_light(part: Planes | Tensor) -> bool:
    """Whether unpacking takes so few registers that a program of many rows has two tiles."""
    return isinstance(part, Tensor) or part.bits == 4 or part.value == "fp8"


def constants_of(part: Planes, rows: int, dtype: torch.dtype, out: torch.dtype) -> Constants:
    """What the kernel is compiled for."""
    shape = (part.outputs, part.inputs, rows, part.bits)
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
        **_PLAIN_END,
        **_tiles(*shape, is_light=is_light(part)),
    }


def plain_constants(weight: Tensor, rows: int, out: torch.dtype) -> Constants:
    """Of a matrix [outputs, inputs] of half precision."""
    return {
        "WIDE": int(weight.dtype == torch.bfloat16),
        "TO_F32": int(out == torch.float32),
        **_PLAIN,
        **_PLAIN_END,
        **_tiles(weight.shape[0], weight.shape[1], rows, 16, is_light=True),
    }


def can_multiply(inputs: int, x: Tensor) -> bool:
    """Whether the kernel takes rows of activations, and is there for the card."""
    if x.dtype not in (torch.bfloat16, torch.float16) or not 0 < len(x) <= MOST:
        return False
    is_aligned = x.data_ptr() % 16 == 0 and x.stride(0) % ALIGNED == 0 and x.stride(1) == 1
    return is_aligned and inputs % ALIGNED == 0 and is_there(x.device)


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


def multiply(part: Planes | Tensor, x: Tensor | Unnormalised, out: Tensor) -> None:
    """out = x · weightsᵀ, where `can_multiply` says yes.

    Args:
        part: or a matrix [outputs, inputs], contiguous, of the dtype of `x`: one that is not the
            result of the operation ahead, which may not have ended when the kernel reads its first
            rows.
        x: [rows, inputs] bfloat16 or float16, the last contiguous.
        out: [rows, outputs] of the same dtype or float32, the last contiguous.
    """
    _launch(part, x, out, {})


def add_product(
    part: Planes | Tensor,
    x: Tensor | Unnormalised,
    hidden: Tensor,
    norm: tuple[Tensor, float] | None,
) -> Unnormalised | None:
    """hidden += x · weightsᵀ, in place and rounded once.

    Args:
        part, x: as of `multiply`.
        hidden: [rows, outputs] of the dtype of `x`, the last contiguous.
        norm: what the new `hidden` goes through next: weights [outputs] float32, and epsilon.

    Returns:
        `hidden` before the division of `norm`; None without it.
    """
    if norm is None:
        _launch(part, x, hidden, {"END": "ADD"})
        return None
    weight, eps = norm
    rows, outputs = hidden.shape
    squares = hidden.new_empty((rows, -(-outputs // _TILE)), dtype=torch.float32)
    found = Unnormalised(hidden.new_empty((rows, outputs)), squares, eps)
    _launch(part, x, hidden, {"END": "ADD", "HAS_NEXT": 1}, weight, found)
    return found


def can_gate(part: Planes | Tensor) -> bool:
    """Whether `gated_product` takes a matrix: eight gates lie together, and eight ups."""
    return outputs_of(part) % _TILE == 0


def gated_product(part: Planes | Tensor, x: Unnormalised) -> Tensor:
    """silu(gate) · up [rows, outputs / 2] of x · weightsᵀ, gate before up, where `can_gate` says
    yes.
    """
    out = x.rows.new_empty((len(x.rows), outputs_of(part) // 2))
    _launch(part, x, out, {"END": "GATE"})
    return out


def _constants(part: Planes | Tensor, rows: int, dtype: torch.dtype, out: torch.dtype) -> Constants:
    if isinstance(part, Tensor):
        return plain_constants(part, rows, out)
    return constants_of(part, rows, dtype, out)


def _launch(
    part: Planes | Tensor,
    x: Tensor | Unnormalised,
    out: Tensor,
    end: Constants,
    gamma: Tensor | None = None,
    following: Unnormalised | None = None,
) -> None:
    given = x if isinstance(x, Unnormalised) else Unnormalised(x)
    rows, squares = given.rows, given.squares
    constants = _constants(part, len(rows), rows.dtype, out.dtype) | end
    parts = 0 if squares is None else squares.shape[1]
    is_few = constants["COLUMNS"] == 1 and int(constants["WARPS"]) >= _FEW_WARPS
    constants["EARLY"] = int(bool(end or parts) and is_few and parts <= _LANES * _MOST_PARTS)
    if squares is not None:
        constants |= {"NORMED": 1, "EPS": f"{given.eps!r}f", "PARTS": -(-parts // _LANES)}
    planes: list[Tensor | None] = [None] * 5
    if isinstance(part, Tensor):
        (outputs, inputs), codes = part.shape, part
    else:
        outputs, inputs, codes = part.outputs, part.inputs, part.codes
        planes = [part.high, part.scales, part.zeros, part.supers, part.book]
    ends = (None, None) if following is None else (following.rows, following.squares)
    every = (rows, codes, *planes, squares, gamma, out, *ends)
    # In the place of what is not there something that is not read.
    tensors = [codes if one is None else one for one in every]
    sizes = (len(rows), outputs, inputs, rows.stride(0), out.stride(0), parts)
    kernel = _kernel(rows.device, tuple(constants.items()))
    of_program = _TILE * int(constants["TILES"])
    kernel(-(-outputs // of_program), _LANES * int(constants["WARPS"]), (*tensors, *sizes))


@functools.cache
def _kernel(device: torch.device, constants: tuple[tuple[str, int | str], ...]) -> Kernel:
    return Kernel(compile_for(device, _SOURCE, dict(constants)), "few_rows", device)
