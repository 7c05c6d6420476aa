"""Packed matrices on NVIDIA GPUs. Up to 16 rows are multiplied by `few_rows.cu` or, if that is not
available, by the kernel of `products.py`, which also multiplies up to 64 rows and those of experts.
More rows are multiplied by PyTorch, with weights unpacked slice by slice, or with 8-bit codes on
both sides.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import torch
from torch import Tensor

from hearth.kernels.cuda import few_rows
from hearth.kernels.cuda.elementwise import RoundedRows, can_round, round_rows
from hearth.kernels.cuda.launch import early
from hearth.kernels.cuda.packings import NOT_RUN, is_installed
from hearth.kernels.cuda.planes import BLOCK, Planes, can_read, joined, one_of, planes_of, stacked
from hearth.kernels.linear import DTYPE_NAMES, Route, wide_product
from hearth.kernels.packed_weight import PackedWeight

FEW: Final = 16
"""Most rows for which a product takes only the time of reading its weights."""
_MIDDLE: Final = 64
"""Most rows for which codes are unpacked in the kernel that multiplies them."""
_PROGRAMS: Final = 512
"""Programs that a product of few rows is split into, as far as its inputs can be split: two or more
per multiprocessor of the largest GPUs."""
_MOST_SPLIT: Final = 16
_LEAST_BLOCKS: Final = 2
"""Fewest blocks of inputs that a program multiplies."""
_SLICE_BYTES: Final = 64 << 20
"""Bytes of weights that are unpacked at a time for many rows."""
_SLICE_ROWS: Final = 256
"""A slice is a multiple of this many rows, unless it has fewer."""
ROWS_TILE: Final = 16
"""Rows that a program unpacks."""


Rounded = Literal["", "fp8", "int8"]
"""Type that activations are rounded to, with a scale per row or group; "": not rounded."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the work of a product is divided."""

    rows: int
    outputs: int
    warps: int
    stages: int
    split: int
    """Number of parts that the inputs are split into."""


def tiles_for(
    rows: int, outputs: int, inputs: int, dtype: torch.dtype, is_narrow: bool = False
) -> Tiles:
    """Tiles for a product of `rows` rows of `dtype`, at most 64.

    Args:
        is_narrow: tiles have half as many outputs; see `is_narrow`.
    """
    is_wide = dtype == torch.float32
    tile = Tiles(16, 32, 4, 2, 1) if is_wide else Tiles(16, 32 if is_narrow else 64, 4, 3, 1)
    if rows > FEW:
        if is_wide:
            return tile
        return replace(tile, rows=64, warps=8) if rows > 32 else replace(tile, rows=32)
    blocks = -(-inputs // BLOCK)
    split = min(_PROGRAMS // -(-outputs // tile.outputs), blocks // _LEAST_BLOCKS, _MOST_SPLIT)
    return replace(tile, split=max(split, 1))


def is_narrow(part: Planes, capability: tuple[int, int]) -> bool:
    """Whether tiles of `part` have few outputs, because Triton 3.9 runs out of registers with some
    kinds of codes on Blackwell (10.0) and later GPUs.
    """
    is_large = part.value in ("e2m1", "nf4") or (part.bits == 8 and part.zeros is not None)
    return is_large and capability >= (10, 0)


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


@functools.cache
def has_triton(device_type: str) -> bool:
    """Whether the kernels work on devices of that type: triton is installed, the GPU is Ampere or
    later, and it computes a known product correctly.
    """
    if device_type != "cuda" or not is_installed() or not torch.cuda.is_available():
        return False
    if torch.cuda.get_device_capability() < (8, 0):
        return False
    return multiplies_on(torch.device("cuda", torch.cuda.current_device()))


def multiplies_on(device: torch.device) -> bool:
    """Whether `device` computes a known product: a release of triton may not support the GPU, and
    there may be no C compiler, which triton needs to start its kernels.
    """
    from triton.errors import TritonError

    # Q4_0: the half-precision scale 1.0, then codes of 9, which have the value 1.
    weight = torch.full((FEW, 18), 0x99, dtype=torch.uint8)
    weight[:, 0], weight[:, 1] = 0x00, 0x3C
    part = PackedWeight(weight.to(device), "Q4_0")
    try:
        product = TritonMatrix([part]).matmul(torch.ones(2, 32, device=device, dtype=torch.float16))
    except (TritonError, RuntimeError, OSError, subprocess.SubprocessError):
        return False
    return bool((product == 32).all())


def rounded_as(part: Planes, rows: int, dtype: torch.dtype) -> Rounded:
    """Type that activations of a product with `rows` rows may be rounded to: for many rows, where
    arithmetic takes the time, if 8-bit codes are multiplied as they are.
    """
    if rows <= _MIDDLE:
        return ""
    if part.packing == "INT8" and part.zeros is None and (not part.group or part.group >= BLOCK):
        return "int8"
    if part.packing != "FP8" or part.outputs % 16:
        return ""
    return "fp8" if has_scaled_products(part.codes.device, dtype, part.group) else ""


@functools.cache
def has_scaled_products(device: torch.device, dtype: torch.dtype, group: int) -> bool:
    """Whether PyTorch multiplies E4M3 by E4M3 on `device`, with results of `dtype` and a scale for
    each row of both (`group` 0), or for each `group` inputs of a row. GPUs have the instructions
    since Ada (8.9); which scales the release of PyTorch supports is found by trying.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        return False
    rows, outputs, inputs = 32, 128, 256
    groups = inputs // group if group else 1
    x = torch.ones(rows, inputs, device=device).to(torch.float8_e4m3fn)
    weight = torch.ones(outputs, inputs, device=device).to(torch.float8_e4m3fn)
    # Powers of two that differ from their neighbours, so that a wrong order changes the results.
    x_scales, scales = (
        2.0 ** (torch.arange(groups * count, device=device).view(groups, count) % 3)
        for count in (rows, outputs)
    )
    wanted = inputs // groups * (x_scales.t() @ scales)
    try:
        product = scaled_product(x, x_scales, weight, scales, dtype)
    except (RuntimeError, ValueError):
        return False
    return torch.equal(product, wanted.to(dtype))


def scaled_product(
    x: Tensor, x_scales: Tensor, weight: Tensor, scales: Tensor, dtype: torch.dtype
) -> Tensor:
    """x · weightᵀ [rows, outputs] of `dtype`, by PyTorch.

    Args:
        x, weight: [rows, inputs] and [outputs, inputs] float8_e4m3fn, contiguous.
        x_scales, scales: [groups, rows] and [groups, outputs] float32, contiguous.
    """
    if len(x_scales) > 1:
        return torch._scaled_mm(x, weight.t(), x_scales.t(), scales, out_dtype=dtype)
    # The view has stride 1, unlike the transpose of one row. Fast accumulation in tensor cores is a
    # tenth faster, and its error is a hundredth of that of rounding to E4M3.
    by_row = x_scales.view(-1, 1)
    return torch._scaled_mm(x, weight.t(), by_row, scales, out_dtype=dtype, use_fast_accum=True)


def reads(part: PackedWeight) -> bool:
    """Whether `part`, on any device, can be a part of a `TritonMatrix`."""
    groups = 1 if part.scales is None else part.scales.shape[-1]
    return part.weight.ndim == 2 and can_read(part.packing, part.inputs, groups)


class TritonMatrix:
    """Implements `packed.Prepared` on an NVIDIA GPU, for parts for which `reads` is true.

    Activations are multiplied in their own dtype, by weights rounded to it; sums are float32.
    Activations of many rows may be rounded to 8-bit codes (`rounded_as`), unless `exact`.
    """

    def __init__(self, parts: Sequence[PackedWeight], *, exact: bool = False) -> None:
        self._is_exact = exact
        every = [planes_of(one.packing, one.weight, one.scales, one.zeros) for one in parts]
        self.parts = tuple(joined(every))
        """Adjacent parts of the same kind are joined."""
        self.inputs = parts[0].inputs
        self.outputs = sum(one.outputs for one in self.parts)
        device = self.parts[0].codes.device
        most = max(
            -(-one.outputs // tiles_for(1, 1, 1, torch.float32).outputs) for one in self.parts
        )
        self._counters = torch.zeros(most, dtype=torch.int32, device=device)

    is_row_invariant = False
    """Up to 16 rows a product does not depend on the other rows; more rows use other tiles."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*(tensor for one in self.parts for tensor in one.tensors), self._counters)

    @property
    def kind(self) -> str:
        return f"{'+'.join(one.packing for one in self.parts)}, Triton"

    def matmul(self, x: Tensor) -> Tensor:
        return self._multiplied(x, x.dtype)

    def takes_rounded(self, rows: int, dtype: torch.dtype) -> bool:
        """Whether `matmul` would round `rows` rows of `dtype`, and accepts them already rounded."""
        if self._is_exact or len(self.parts) > 1 or not can_round(self.inputs):
            return False
        (part,) = self.parts
        return not part.group and rounded_as(part, rows, dtype) == "fp8"

    def rounded_matmul(self, x: RoundedRows) -> Tensor:
        """`matmul` of rounded rows, if `takes_rounded` is true."""
        return _multiply_fp8(self.parts[0], x)

    def wide_matmul(self, x: Tensor) -> Tensor:
        """`matmul` with a float32 result, of `x` without rounding."""
        return self._multiplied(x, torch.float32)

    def _multiplied(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if x.shape[-1] != self.inputs:
            raise ValueError(f"a matrix of {self.inputs:,} inputs, not {x.shape[-1]:,}")
        rows = x.reshape(-1, self.inputs)
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        if len(self.parts) == 1 and self._rounding(self.parts[0], rows, dtype) == "fp8":
            return _multiply_fp8(self.parts[0], rows).view(*x.shape[:-1], self.outputs)
        out = rows.new_empty((len(rows), self.outputs), dtype=dtype)
        if len(rows):
            column = 0
            for part in self.parts:
                self._multiply(part, rows, out[:, column : column + part.outputs])
                column += part.outputs
        return out.view(*x.shape[:-1], self.outputs)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """As in `Prepared`, for a matrix of one part."""
        (part,) = self.parts
        out = torch.empty((len(ids), part.inputs), dtype=dtype, device=ids.device)
        launch_rows(part, out, ids)
        return out

    def route(self, rows: int, dtype: torch.dtype) -> Route:
        """How `rows` activations of `dtype` are multiplied."""
        match "" if self._is_exact else rounded_as(self.parts[0], rows, dtype):
            case "fp8":
                why = f"E4M3 on both sides, a scale for each token; {NOT_RUN}"
                return Route("PyTorch, scaled products", "fp8", why)
            case "int8":
                why = f"whole numbers on both sides, a scale for each token; {NOT_RUN}"
                return Route("Triton, int8 tensor cores", "int8", why)
        name = DTYPE_NAMES[dtype]
        if (
            rows <= few_rows.MOST
            and dtype != torch.float32
            and few_rows.is_there(self._counters.device)
        ):
            return Route(
                "CUDA C++, tensor cores", name, f"time is that of reading the weights; {NOT_RUN}"
            )
        if rows > _MIDDLE:
            return Route(
                "PyTorch, slices unpacked by Triton", name, f"unpacking is little; {NOT_RUN}"
            )
        why = "time is that of reading the weights" if rows <= FEW else "codes go to tensor cores"
        return Route("Triton, tensor cores", name, f"{why}; {NOT_RUN}")

    def _rounding(self, part: Planes, x: Tensor, dtype: torch.dtype) -> Rounded:
        """Type that activations are rounded to for results of `dtype`."""
        is_exact = self._is_exact or dtype != x.dtype
        return "" if is_exact else rounded_as(part, len(x), x.dtype)

    def _multiply(self, part: Planes, x: Tensor, out: Tensor) -> None:
        match self._rounding(part, x, out.dtype):
            case "fp8":
                out.copy_(_multiply_fp8(part, x))
                return
            case "int8":
                _multiply_int8(part, x, out)
                return
        if len(x) > _MIDDLE:
            _multiply_slices(part, x, out)
            return
        if few_rows.can_multiply(part.inputs, x):
            few_rows.multiply(part, x, out)
            return
        narrow = is_narrow(part, _capability(x.device))
        tiles = tiles_for(len(x), part.outputs, part.inputs, x.dtype, narrow)
        partial = self._counters
        if tiles.split > 1:
            shape = (tiles.split, len(x), part.outputs)
            partial = torch.empty(shape, dtype=torch.float32, device=x.device)
        launch_product(part, x, out, partial, self._counters, None, tiles)


INT8_CONSTANTS: Final = {"BM": 128, "BN": 128, "BK": BLOCK, "num_warps": 8, "num_stages": 3}
"""Compile-time constants of `codes.int8_kernel`."""


def _multiply_fp8(part: Planes, x: Tensor | RoundedRows) -> Tensor:
    """[rows, outputs]: the product of many rows rounded to E4M3."""
    some = x if isinstance(x, RoundedRows) else round_rows(x, fp8=True, group=part.group)
    weight = part.codes.view(torch.float8_e4m3fn)
    return scaled_product(some.codes, some.scales, weight, part.scales.float(), some.dtype)


def _multiply_int8(part: Planes, x: Tensor, out: Tensor) -> None:
    """Into `out` [rows, outputs]: the product of many rows rounded to int8."""
    from hearth.kernels.cuda.codes import int8_kernel

    some = round_rows(x, fp8=False)
    codes, x_scales = some.codes, some.scales
    fixed = INT8_CONSTANTS
    grid = (-(-part.outputs // fixed["BN"]), -(-len(x) // fixed["BM"]))
    sizes = (len(x), part.outputs, codes.shape[1], out.stride(0))
    weight = part.codes.view(torch.int8)
    int8_kernel[grid](codes, x_scales, weight, part.scales, out, *sizes, GROUP=part.group, **fixed)


def _multiply_slices(part: Planes, x: Tensor, out: Tensor) -> None:
    """Into `out` [rows, outputs]: the product by PyTorch, with weights unpacked to `x.dtype`."""
    numbers = max(_SLICE_BYTES // x.itemsize // part.inputs, 1)
    step = min(numbers // _SLICE_ROWS * _SLICE_ROWS or numbers, part.outputs)
    place = x.new_empty((step, part.inputs))
    for first in range(0, part.outputs, step):
        weight = place[: part.outputs - first]
        launch_rows(part, weight, None, first)
        of_slice = out[:, first : first + len(weight)]
        if out.dtype == x.dtype:
            torch.mm(x, weight.t(), out=of_slice)
        else:
            of_slice.copy_(wide_product(x, weight))


class TritonGroup:
    """Matrices of one shape and kind that each multiply their own rows. The row ranges are read on
    the device, so the host does not wait for them.
    """

    def __init__(self, matrices: Sequence[TritonMatrix]) -> None:
        """
        Args:
            matrices: matrices for which `can_group` is true. Their planes become views of this
                group's planes.
        """
        self._count = len(matrices)
        self.outputs, self.inputs = matrices[0].outputs, matrices[0].inputs
        self.parts = tuple(
            stacked([matrix.parts[at] for matrix in matrices])
            for at in range(len(matrices[0].parts))
        )
        for number, matrix in enumerate(matrices):
            matrix.parts = tuple(one_of(part, number) for part in self.parts)

    def matmul(self, x: Tensor, offsets: Tensor) -> Tensor:
        """As `packed.GroupedLinear.matmul`, with `offsets` on the device."""
        out = x.new_empty((len(x), self.outputs))
        column = 0
        for part in self.parts:
            rows = min(-(-len(x) // self._count), _MIDDLE)
            narrow = is_narrow(part, _capability(x.device))
            tiles = tiles_for(rows, part.outputs, 1, x.dtype, narrow)
            launch_product(part, x, out[:, column:], x, x, offsets, tiles)
            column += part.outputs
        return out


def can_group(matrices: Sequence[TritonMatrix]) -> bool:
    """Whether `matrices` can form a `TritonGroup`."""
    kinds = {tuple((part.shape_class, part.outputs) for part in one.parts) for one in matrices}
    return len(kinds) == 1


def launch_product(
    part: Planes,
    x: Tensor,
    out: Tensor,
    partial: Tensor,
    counters: Tensor,
    offsets: Tensor | None,
    tiles: Tiles,
) -> None:
    """Start `products.product_kernel` with these arguments.

    Args:
        offsets: None: there is only one matrix, for all rows.
    """
    from hearth.kernels.cuda.products import product_kernel

    experts = 0 if offsets is None else len(offsets) - 1
    grid = (-(-part.outputs // tiles.outputs), -(-len(x) // tiles.rows) + experts, tiles.split)
    product_kernel[grid](
        x,
        *plane_arguments(part),
        out,
        partial,
        counters,
        counters if offsets is None else offsets,
        len(x),
        part.outputs,
        part.inputs,
        x.stride(0),
        out.stride(0),
        part.groups,
        tiles.split,
        **constants(part, x.dtype),
        IS_SPLIT=tiles.split > 1,
        EXPERTS=experts,
        EXPERT_LANES=1 << max(experts - 1, 0).bit_length(),
        BM=tiles.rows,
        BN=tiles.outputs,
        STAGES=tiles.stages,
        ON_CARD=x.device.type == "cuda",
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        **early(x.device),
    )


def launch_rows(part: Planes, out: Tensor, ids: Tensor | None, first: int = 0) -> None:
    """Unpack rows into `out` [rows, inputs]: the rows `ids` [rows] int64, or those from `first`."""
    from hearth.kernels.cuda.products import rows_kernel

    if not len(out):
        return
    grid = (-(-len(out) // ROWS_TILE), -(-part.inputs // BLOCK))
    rows_kernel[grid](
        out if ids is None else ids,
        *plane_arguments(part),
        out,
        first,
        len(out),
        part.outputs,
        part.inputs,
        **constants(part, torch.float16),
        HAS_IDS=ids is not None,
        BN=ROWS_TILE,
    )


def plane_arguments(part: Planes) -> tuple[Tensor, ...]:
    """The planes in the order of the kernels' arguments; absent ones are replaced by the codes."""
    some = (part.codes, part.high, part.scales, part.zeros, part.supers, part.book)
    return tuple(part.codes if one is None else one for one in some)


def constants(part: Planes, dtype: torch.dtype) -> dict[str, Any]:
    """Compile-time constants of a kernel for a matrix that is unpacked to `dtype`."""
    most = BLOCK
    if dtype == torch.float32:  # Takes twice the registers, and three times for products.
        most = 32
    # Codes are put into the mantissa bits of half-precision numbers. For integers the result is the
    # code plus 1,024 or 128; bytes do not fit the mantissa of bfloat16 and become float32.
    added = 1024.0
    if dtype == torch.bfloat16:
        added = 8388608.0 if part.bits == 8 else 128.0
    # Other values come out divided by this; MXFP4 values are doubled, as in GGUF.
    factor = {"fp8": 256.0, "e2m1": 32768.0}.get(part.value, 1.0)
    return {
        "VALUE": part.value,
        "SCALE": part.scale,
        "NUMBER": part.number,
        "BITS": part.bits,
        "ZERO": float(part.zero),
        "ADDED": added,
        "HAS_ZEROS": part.zeros is not None,
        "GROUP": part.group,
        "FACTOR": factor,
        "SUB": min(BLOCK if part.scale == "k" else part.group or BLOCK, most),
        "IS_EVEN": part.inputs % BLOCK == 0,
    }
