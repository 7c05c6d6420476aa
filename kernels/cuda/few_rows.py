"""Products of few rows by `few_rows.cu`, with the operations before and after them fused."""

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
"""Most rows of a product."""
_SOURCE: Final = Path(__file__).with_suffix(".cu")
_SCALES: Final = {"row": "ROW", "group": "GROUPS", "k": "K_SCALES", "k6": "K6", "e8m0": "E8M0"}
_NUMBERS: Final = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "int8": "I8", "uint8": "U8"}
ALIGNED: Final = 8
"""Numbers of an activation row that are read at a time."""
_FEW_OUTPUTS: Final = 5120
"""Most outputs for which a multiprocessor has about two programs."""
_SOME_OUTPUTS: Final = 12_288
_CUTS: Final = {
    (4, "few"): (8, 4, 2),
    (4, "some"): (8, 2, 3),
    (4, "many"): (4, 2, 6),
    (6, "few"): (8, 3, 2),
    (6, "many"): (4, 2, 5),
    (8, "few"): (8, 4, 2),
}
"""Warps, blocks read ahead, and programs per multiprocessor, by bits of a code (8: FP8) and number
of outputs, where these were faster on an H100 than the default of sixteen warps per multiprocessor
and two blocks read ahead (docs/results/2026-11-27-h100.md)."""
_WARPS: Final = 16
"""Warps of a multiprocessor, which leave 128 registers per lane."""
_COLUMN: Final = 8
"""Activation rows in one tensor core product."""
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
"""Lanes of a warp."""
_FEW_WARPS: Final = 8
"""One warp for each of eight activation rows."""
_MOST_PARTS: Final = 16
"""Most sums of squares that a lane has registers for."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unnormalised:
    """Rows before the division of an RMS norm: hidden states times the weights of the norm.

    Attributes:
        rows: [rows, width] of half precision.
        squares: [rows, parts] float32: partial sums of the squares of the hidden states, which add
            up to the sum of the row. None: the rows need no division.
        eps: added to the mean of the squares.
    """

    rows: Tensor
    squares: Tensor | None = None
    eps: float = 0.0


def _tiles(outputs: int, inputs: int, rows: int, bits: int, *, is_light: bool) -> Constants:
    """The work of programs and warps. The number of warps that share the inputs determines the
    order in which a row is summed; it depends only on the matrix.

    Args:
        is_light: unpacking takes few registers.
    """
    size = "few" if outputs <= _FEW_OUTPUTS else "some" if outputs <= _SOME_OUTPUTS else "many"
    plain = (16, 2, 1) if size == "few" else (8, 2, 2)
    warps, ahead, programs = plain if bits == 8 and not is_light else _CUTS.get((bits, size), plain)
    is_many = rows > _COLUMN
    if is_many:  # Registers are needed for sums.
        ahead, programs = 1 if bits == 16 else 2, max(_WARPS // warps, 1)
    while warps > -(-inputs // BLOCK) and warps > 1:
        warps, programs = warps // 2, 2 * programs
    tiles = 2 if is_many and is_light else 1  # Activations are read once for both tiles.
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
    """Number of outputs of a matrix, packed or not."""
    return len(part) if isinstance(part, Tensor) else part.outputs


def is_light(part: Planes | Tensor) -> bool:
    """Whether unpacking takes so few registers that a program with many rows can have two tiles."""
    return isinstance(part, Tensor) or part.bits == 4 or part.value == "fp8"


def constants_of(
    part: Planes | Tensor, rows: int, dtype: torch.dtype, out: torch.dtype
) -> Constants:
    """Compile-time constants of the kernel for a matrix, packed or of the activations' `dtype`."""
    kinds: Constants = {"WIDE": int(dtype == torch.bfloat16), "TO_F32": int(out == torch.float32)}
    if isinstance(part, Tensor):
        tiles = _tiles(len(part), part.shape[1], rows, 16, is_light=True)
        return {**kinds, **_PLAIN, **_PLAIN_END, **tiles}
    shape = (part.outputs, part.inputs, rows, part.bits)
    return {
        **kinds,
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


def can_multiply(inputs: int, x: Tensor) -> bool:
    """Whether the kernel supports the activations `x` and is available on their GPU."""
    if x.dtype not in (torch.bfloat16, torch.float16) or not 0 < len(x) <= MOST:
        return False
    is_aligned = x.data_ptr() % 16 == 0 and x.stride(0) % ALIGNED == 0 and x.stride(1) == 1
    return is_aligned and inputs % ALIGNED == 0 and is_there(x.device)


@functools.cache
def is_there(device: torch.device) -> bool:
    """Whether the kernel can be compiled and loaded for `device`."""
    if (
        device.type != "cuda"
        or not is_wanted()
        or torch.cuda.get_device_capability(device) < (8, 0)
    ):
        return False
    plain = torch.empty((16, BLOCK), dtype=torch.float16)
    try:
        constants = constants_of(plain, 1, plain.dtype, plain.dtype)
        Kernel(compile_for(device, _SOURCE, constants), "few_rows", device)
    except CompileError as error:
        log.warning("Products of few rows are left to others: %s", error)
        return False
    return True


def multiply(part: Planes | Tensor, x: Tensor | Unnormalised, out: Tensor) -> None:
    """out = x · weightsᵀ, if `can_multiply` is true.

    Args:
        part: planes, or a matrix [outputs, inputs], contiguous, of the dtype of `x`. It must not be
            the result of the preceding operation, which may not have finished when the kernel reads
            the first rows of `part`.
        x: [rows, inputs] bfloat16 or float16, the last dimension contiguous.
        out: [rows, outputs] of the same dtype or float32, the last dimension contiguous.
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
        part, x: as for `multiply`.
        hidden: [rows, outputs] of the dtype of `x`, the last dimension contiguous.
        norm: the norm applied next to the new `hidden`: weights [outputs] float32, and epsilon.

    Returns:
        The new `hidden` before the division of `norm`; None without `norm`.
    """
    if norm is None:
        _launch(part, x, hidden, {"END": "ADD"})
        return None
    weight, eps = norm
    rows, outputs = hidden.shape
    squares = hidden.new_empty((rows, -(-outputs // _TILE)), dtype=torch.float32)
    unnormalised = Unnormalised(hidden.new_empty((rows, outputs)), squares, eps)
    _launch(part, x, hidden, {"END": "ADD", "HAS_NEXT": 1}, weight, unnormalised)
    return unnormalised


def can_gate(part: Planes | Tensor) -> bool:
    """Whether `gated_product` supports a matrix, whose tiles have eight gates and eight ups."""
    return outputs_of(part) % _TILE == 0


def gated_product(part: Planes | Tensor, x: Unnormalised) -> Tensor:
    """silu(gate) · up [rows, outputs / 2] of x · weightsᵀ, gate first, if `can_gate` is true."""
    out = x.rows.new_empty((len(x.rows), outputs_of(part) // 2))
    _launch(part, x, out, {"END": "GATE"})
    return out


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
    constants = constants_of(part, len(rows), rows.dtype, out.dtype) | end
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
    # Absent tensors are replaced by one that is not read.
    tensors = [codes if one is None else one for one in every]
    sizes = (len(rows), outputs, inputs, rows.stride(0), out.stride(0), parts)
    kernel = _kernel(rows.device, tuple(constants.items()))
    of_program = _TILE * int(constants["TILES"])
    kernel(-(-outputs // of_program), _LANES * int(constants["WARPS"]), (*tensors, *sizes))


@functools.cache
def _kernel(device: torch.device, constants: tuple[tuple[str, int | str], ...]) -> Kernel:
    return Kernel(compile_for(device, _SOURCE, dict(constants)), "few_rows", device)
