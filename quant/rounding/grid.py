"""The values that weights are rounded to, and rounding to nearest.

Codes and scales are those of `hearth.kernels.dequantize_codes`: a weight is stored as a code, which
stands for (code - zero) × scale (integers) or for a number of a fixed set × scale (FP8, NF4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from hearth.kernels.bits import pack_bits
from hearth.kernels.dequantize_codes import FP8_GROUP, NF4
from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.checkpoints.scheme import NF4_BLOCKS, SHORTEST_GROUP
from hearth.quant.errors import BadGrid
from hearth.quant.gguf.errors import CannotQuantize
from hearth.quant.verify import finite_rows

Kind = Literal["int", "fp8", "nf4"]
Scope = Literal["tensor", "row", "group", "block"]

_BITS: Final[dict[Kind, tuple[int, ...]]] = {"int": (3, 4, 6, 8), "fp8": (8,), "nf4": (4,)}
_SCOPES: Final[dict[Kind, tuple[Scope, ...]]] = {
    "int": ("tensor", "row", "group"),
    "fp8": ("tensor", "row", "group", "block"),
    "nf4": ("row", "group"),
}
_CHUNK: Final = 1 << 20
"""Weights processed at a time: 4 MiB of float32."""
_SHRINKS: Final = tuple(1 - 0.02 * step for step in range(16))
"""Shares of a group's range that are tried if errors are weighted."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The values that the weights of a matrix are rounded to.

    Raises:
        BadGrid: there is no such grid; the message names the field.
    """

    kind: Kind = "int"
    bits: int = 4
    """3, 4, 6 or 8 for int, 8 for fp8, 4 for nf4."""
    group: int | None = 128
    """Inputs that share a scale, for the scopes "group" and "block" (for blocks also the number of
    outputs); None for the others."""
    scope: Scope = "group"
    """The weights that share a scale: the tensor, a row, a group of a row, or a square block."""
    symmetric: bool = True
    """For int: no zero points; fp8 and nf4 never have any. Codes are those of compressed-tensors:
    with 8 bits they start at -127 and the scale is amax / 127; with fewer bits, such as 4, they
    start at -8 and the scale is amax / 7.5."""
    e5m2: bool = False
    """For fp8: two fraction bits rather than three."""
    scales: torch.dtype | None = None
    """The dtype that scales are rounded to before codes are chosen. None: float16 for int with 3 or
    4 bits, else float32."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            known = ", ".join(get_args(Kind))
            raise BadGrid(f"kind {self.kind!r} is none of {known}.", field="kind")
        self._require("bits", self.bits in _BITS[self.kind])
        self._require("scope", self.scope in _SCOPES[self.kind])
        self._require("group", self._has_good_group())
        self._require("symmetric", self.symmetric or self.kind == "int")
        self._require("e5m2", not self.e5m2 or self.kind == "fp8")
        floats = (torch.float32, torch.float16, torch.bfloat16)
        self._require("scales", self.scales is None or self.scales in floats)

    def _require(self, field: str, is_good: bool) -> None:
        if not is_good:
            raise BadGrid(
                f"{field} = {getattr(self, field)} is not possible with kind {self.kind!r}, "
                f"scope {self.scope!r}.",
                field=field,
            )

    def _has_good_group(self) -> bool:
        if self.scope in ("tensor", "row"):
            return self.group is None
        if type(self.group) is not int:
            return False
        match self.kind:
            case "int":
                return self.group >= SHORTEST_GROUP and self.group % SHORTEST_GROUP == 0
            case "fp8":
                return self.group == FP8_GROUP
        return self.group in NF4_BLOCKS

    @property
    def packing(self) -> str:
        """The packing of the resulting `PackedWeight`."""
        match self.kind:
            case "int":
                return f"INT{self.bits}"
            case "fp8":
                return "FP8_E5M2" if self.e5m2 else "FP8"
        return "NF4"

    @property
    def scale_dtype(self) -> torch.dtype:
        """The dtype of the scales of the resulting `PackedWeight`."""
        if self.scales is not None:
            return self.scales
        return torch.float16 if self.packing in ("INT3", "INT4") else torch.float32

    @property
    def largest(self) -> float:
        """The magnitude that a symmetric grid maps the largest weight to."""
        match self.kind:
            case "int":
                return self.middle - (1 if self.bits == 8 else 0.5)
            case "fp8":
                return float(torch.finfo(self._float8).max)
        return 1.0

    @property
    def middle(self) -> int:
        """For int: the code of zero without zero points."""
        return 1 << (self.bits - 1)

    @property
    def most(self) -> int:
        """For int: the largest code."""
        return (1 << self.bits) - 1

    @property
    def _float8(self) -> torch.dtype:
        return torch.float8_e5m2 if self.e5m2 else torch.float8_e4m3fn

    def check(self, outputs: int, inputs: int) -> None:
        """Raises `CannotQuantize` for a matrix whose shape `PackedWeight` cannot hold."""
        if min(outputs, inputs) < 1:
            raise CannotQuantize(f"A matrix of {outputs:,} × {inputs:,} has no weights.")
        if inputs * self.bits % 8:
            raise CannotQuantize(
                f"Rows of {inputs:,} weights of {self.bits} bits do not fill whole bytes.",
                "Choose 8 bits for this tensor.",
            )
        if self.kind != "fp8" and self.group is not None and inputs % self.group:
            fitting = [one for one in (256, 128, 64, 32, 16, 8) if inputs % one == 0]
            raise CannotQuantize(
                f"Rows of {inputs:,} weights have no whole groups of {self.group}.",
                f"Choose groups of {fitting[0]}, or one scale a row."
                if fitting
                else "Choose one scale a row.",
            )

    def numbers_of(self, weight: Tensor) -> Tensor:
        """[outputs, groups] float32: an uninitialized tensor with one number for each group of
        `weight`."""
        groups = 1 if self.group is None else -(-weight.shape[1] // self.group)
        return torch.empty((len(weight), groups), dtype=torch.float32, device=weight.device)

    def nearest(self, ratio: Tensor, zeros: Tensor | None) -> tuple[Tensor, Tensor]:
        """The nearest codes.

        Args:
            ratio: any shape, float32: weights divided by their scales. It is overwritten.
            zeros: float32 that broadcasts to `ratio`: the zero points of an asymmetric grid.

        Returns:
            uint8 codes, and the float32 values that they stand for, divided by the scale.
        """
        match self.kind:
            case "int":
                values = self.values(ratio, zeros)
                return (values + (self.middle if zeros is None else zeros)).to(torch.uint8), values
            case "fp8":
                eighth = self._eighth(ratio)
                values = eighth.to(torch.float32)
                return eighth.view(torch.uint8).to(ratio.device), values.to(ratio.device)
        book, places = _nearest_of_nf4(ratio)
        return places.to(torch.uint8), book[places]

    def values(self, ratio: Tensor, zeros: Tensor | None) -> Tensor:
        """The values that `nearest` returns, without the codes."""
        match self.kind:
            case "int" if zeros is not None:
                return ratio.round_().add_(zeros).clamp_(0, self.most).sub_(zeros)
            case "int":
                least = 1 if self.bits == 8 else 0
                return ratio.round_().clamp_(least - self.middle, self.middle - 1)
            case "fp8":
                return self._eighth(ratio).to(torch.float32).to(ratio.device)
        book, places = _nearest_of_nf4(ratio)
        return book[places]

    def _eighth(self, ratio: Tensor) -> Tensor:
        """`ratio` as eight-bit floats; for Apple's GPUs, which lack them, on the CPU."""
        limit = torch.finfo(self._float8).max
        clamped = ratio.clamp_(-limit, limit)
        return (clamped.cpu() if ratio.device.type == "mps" else clamped).to(self._float8)


def _nearest_of_nf4(ratio: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of NF4, and the index of the nearest one for each of `ratio`."""
    book = torch.tensor(NF4, dtype=torch.float32, device=ratio.device)
    return book, torch.bucketize(ratio, (book[1:] + book[:-1]) / 2, out_int32=True)


@dataclass(frozen=True, slots=True)
class Levels:
    """A grid with the scales and zero points of a matrix, or of some rows of it."""

    grid: Grid
    scales: Tensor
    """[rows, groups] of the grid's dtype, all positive and finite."""
    zeros: Tensor | None
    """[rows, groups] uint8, for an asymmetric grid; else None."""

    def rows(self, some: slice) -> Levels:
        zeros = None if self.zeros is None else self.zeros[some]
        return Levels(self.grid, self.scales[some], zeros)

    def spread(self, inputs: int) -> tuple[Tensor, Tensor | None]:
        """Float32 scales and zero points: [rows, 1] if one group spans the row, else
        [rows, inputs].
        """
        scales = self.scales.to(torch.float32)
        zeros = None if self.zeros is None else self.zeros.to(torch.float32)
        groups = scales.shape[1]
        if groups == 1:
            return scales, zeros
        group = self.grid.group or inputs
        wide = scales.repeat_interleave(group, 1)[:, :inputs]
        return wide, None if zeros is None else zeros.repeat_interleave(group, 1)

    def values(self, weight: Tensor) -> Tensor:
        """[rows, inputs] float32: the nearest level of each weight."""
        scales, zeros = self.spread(weight.shape[1])
        return self.grid.values(weight / scales, zeros).mul_(scales)

    def packed(self, codes: Tensor) -> PackedWeight:
        """The packed weight of [rows, inputs] uint8 codes."""
        stored = pack_bits(codes, self.grid.bits)
        return PackedWeight(stored, self.grid.packing, self.scales, self.zeros)

    def encode(self, weight: Tensor) -> PackedWeight:
        """Round each weight of [rows, inputs], of any float dtype, to the nearest level."""
        rows, inputs = weight.shape
        size = inputs * self.grid.bits // 8
        stored = torch.empty((rows, size), dtype=torch.uint8, device=weight.device)
        for some in row_slices(weight, self.grid):
            scales, zeros = self.rows(some).spread(inputs)
            codes, _ = self.grid.nearest(weight[some].to(torch.float32) / scales, zeros)
            stored[some] = pack_bits(codes, self.grid.bits)
        return PackedWeight(stored, self.grid.packing, self.scales, self.zeros)


def round_plain(weight: Tensor, grid: Grid, *, importance: Tensor | None = None) -> PackedWeight:
    """Round each weight to the nearest level; levels span the range of the weights that share a
    scale.

    Args:
        weight: [outputs, inputs] of any float dtype, on any device.
        importance: [inputs], not negative: how much the squared error of each input matters, such
            as `Hessian.mean_square`. With it, ranges are narrowed where that reduces the sum of
            weighted errors.

    Raises:
        CannotQuantize: the weights have an unsuitable shape, are not finite, or are too large for
            the grid's scales.
    """
    return fit(weight, grid, importance).encode(weight)


def rounded(weight: Tensor, grid: Grid) -> Tensor:
    """[outputs, inputs] float32: the dequantized result of `round_plain`."""
    levels = fit(weight, grid)
    out = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
    for some in row_slices(weight, grid):
        out[some] = levels.rows(some).values(weight[some].to(torch.float32))
    return out


def row_slices(weight: Tensor, grid: Grid) -> Iterator[slice]:
    """Slices of rows to process at a time, which limits memory; blocks are not divided."""
    outputs, inputs = weight.shape
    step = max(1, _CHUNK // inputs)
    if grid.scope == "block":
        step = -(-step // FP8_GROUP) * FP8_GROUP
    for start in range(0, outputs, step):
        yield slice(start, min(start + step, outputs))


def fit(weight: Tensor, grid: Grid, importance: Tensor | None = None) -> Levels:
    """Scales and zero points for a matrix. Arguments and errors are those of `round_plain`."""
    check(weight, grid)
    if importance is not None:
        importance = _checked_importance(importance, weight)
    # Filled in place: concatenating parts would fragment the heap between the chunks of weights.
    low, high = (grid.numbers_of(weight) for _ in range(2))
    for some in row_slices(weight, grid):
        low[some], high[some] = _range(weight[some].to(torch.float32), grid)
    if grid.scope == "tensor":
        low, high = low.amin().expand_as(low), high.amax().expand_as(high)
    if importance is not None:
        share = _best_share(weight, low, high, grid, importance)
        low, high = low * share, high * share
    return levels_of(low, high, grid)


def check(weight: Tensor, grid: Grid) -> None:
    """Raises `CannotQuantize` for a matrix of a shape that `grid` does not take, or with numbers
    that are not finite.
    """
    if weight.ndim != 2 or not weight.is_floating_point():
        raise CannotQuantize(
            f"A matrix of a float type can be rounded, not {weight.ndim} axes of {weight.dtype}."
        )
    grid.check(*weight.shape)
    for some in row_slices(weight, grid):
        finite = finite_rows(weight[some])
        if not finite.all():
            row = some.start + int(finite.to(torch.int32).argmin())
            raise CannotQuantize(
                f"Row {row:,} holds what is no finite number.",
                "The source is damaged, or was converted badly: convert or download it again.",
            )


def blocks_of(rows: int) -> Iterator[slice]:
    """The rows of each square block."""
    for start in range(0, rows, FP8_GROUP):
        yield slice(start, min(start + FP8_GROUP, rows))


def in_groups(weight: Tensor, grid: Grid) -> Tensor:
    """[rows, groups, inputs of a group]: a view, or a copy if the last group is padded with
    zeros."""
    if grid.group is None:
        return weight[:, None]
    if missing := -weight.shape[1] % grid.group:
        weight = functional.pad(weight, (0, missing))
    return torch.unflatten(weight, 1, (-1, grid.group))


def levels_of(low: Tensor, high: Tensor, grid: Grid) -> Levels:
    """Scales and zero points for groups that range from `low` to `high`, [rows, groups] float32;
    zero must be within the range.

    Raises:
        CannotQuantize: a scale is too large for its dtype.
    """
    span = torch.maximum(-low, high) if grid.symmetric else high - low
    scales = (span / (grid.largest if grid.symmetric else grid.most)).to(grid.scale_dtype)
    if not bool(torch.isfinite(scales).all()):
        raise CannotQuantize(
            f"Weights up to {float(torch.maximum(-low, high).max()):.3g} have scales that "
            f"{str(grid.scale_dtype).removeprefix('torch.')} cannot hold.",
            "Choose scales of float32.",
        )
    # Scales of groups of zeros, and those that are too small for the dtype and became zero.
    scales = torch.where(scales == 0, 1.0, scales)
    if grid.symmetric:
        return Levels(grid, scales, None)
    zeros = (-low / scales.to(torch.float32)).round_().clamp_(0, grid.most)
    return Levels(grid, scales, zeros.to(torch.uint8))


def _checked_importance(importance: Tensor, weight: Tensor) -> Tensor:
    wanted = importance.to(weight.device, torch.float32)
    if wanted.shape != weight.shape[1:]:
        raise CannotQuantize(
            f"The importance of {importance.numel():,} inputs is given for rows of "
            f"{weight.shape[1]:,}."
        )
    if not bool((torch.isfinite(wanted) & (wanted >= 0)).all()):
        raise CannotQuantize("An importance is negative or no finite number.")
    return wanted


def _range(weight: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """[rows, groups] each: the least and the largest of the weights that share a scale (with scope
    "tensor": of the row), extended to include zero.
    """
    groups = in_groups(weight, grid)
    low, high = groups.amin(-1).clamp_(max=0), groups.amax(-1).clamp_(min=0)
    if grid.scope == "block":
        for some in blocks_of(len(low)):
            low[some] = low[some].amin(0)
            high[some] = high[some].amax(0)
    return low, high


def _best_share(
    weight: Tensor, low: Tensor, high: Tensor, grid: Grid, importance: Tensor
) -> Tensor:
    """[rows, groups], or [1, 1] with scope "tensor": for each range, the one of `_SHRINKS` with the
    least sum of weighted squared errors.
    """
    shares = torch.tensor(_SHRINKS, dtype=torch.float32, device=low.device)
    total = torch.zeros((len(_SHRINKS), 1, 1), dtype=torch.float32, device=low.device)
    best_shares = grid.numbers_of(weight)
    for some in row_slices(weight, grid):
        rows, errors = weight[some].to(torch.float32), []
        for share in _SHRINKS:
            values = levels_of(low[some] * share, high[some] * share, grid).values(rows)
            errors.append(in_groups(values.sub_(rows).square_().mul_(importance), grid).sum(-1))
        every = torch.stack(errors)
        match grid.scope:
            case "tensor":
                total += every.sum((1, 2), keepdim=True)
            case "block":
                for block in blocks_of(every.shape[1]):
                    every[:, block] = every[:, block].sum(1, keepdim=True)
        best_shares[some] = shares[every.argmin(0)]
    return shares[total.argmin(0)] if grid.scope == "tensor" else best_shares
