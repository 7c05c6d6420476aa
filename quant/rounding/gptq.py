"""GPTQ: columns are rounded one after the other, and each compensates for the errors of those
before it (arXiv 2210.17323).

With second moments H = Σ x xᵀ of a matrix's inputs, the squared error of its outputs is
tr((W - Q) H (W - Q)ᵀ). With a factor H = R Rᵀ, R upper triangular, this is the sum over columns of
((w'ⱼ - qⱼ) Rⱼⱼ)², where w'ⱼ = wⱼ + Σ_{i<j} (wᵢ - qᵢ) Rᵢⱼ / Rⱼⱼ is the value that is rounded. The
results equal those of the paper, which updates the weights with the rows of R⁻¹ (as arXiv
2307.13304, theorem 6, shows), but nothing is inverted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.gguf.errors import CannotQuantize
from hearth.quant.rounding.grid import Grid, Levels, check, fit, levels_of, round_plain

log = logging.getLogger(__name__)

_RETRIES: Final = (1, 10, 100)
"""Multiples of the damping that are tried."""
_STRIP: Final = 512
"""Inputs whose products with themselves and all later inputs are summed at a time. This computes
about half of all products, since H is symmetric."""
_CHUNK: Final = 1 << 24
"""Weights processed at a time: 64 MiB of float32."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """How the errors of columns change later columns."""

    order: Tensor
    """[inputs] int64: the order in which inputs are rounded."""
    factor: Tensor
    """[inputs, inputs] float32, inputs in that order: R, each column divided by its diagonal
    element."""


class Hessian:
    """Second moments of a matrix's inputs, summed up batch by batch in float32.

    Args:
        inputs: number of inputs of the matrix.
        device: where the sums, inputs² float32, are kept and computed.
    """

    def __init__(self, inputs: int, device: torch.device | str = "cpu") -> None:
        self._sums = torch.zeros((inputs, inputs), dtype=torch.float32, device=device)
        """Σ x xᵀ; the part below the diagonal lacks recent batches unless `_is_whole`."""
        self._is_whole = True
        self.rows = 0
        """Number of rows in all batches."""
        self._feedback: tuple[bool, float, Feedback | None] | None = None

    def add(self, x: Tensor) -> None:
        """
        Args:
            x: [..., inputs] of any float dtype: activations that the matrix was multiplied by.

        Raises:
            ValueError: rows have another length.
        """
        if x.shape[-1] != len(self._sums):
            raise ValueError(f"rows of {len(self._sums):,} inputs, not {x.shape[-1]:,}")
        rows = x.reshape(-1, x.shape[-1]).to(self._sums.device, torch.float32)
        for start in range(0, len(self._sums), _STRIP):
            some = slice(start, start + _STRIP)
            self._sums[some, start:].addmm_(rows[:, some].t(), rows[:, start:])
        self.rows += len(rows)
        self._is_whole, self._feedback = False, None

    @property
    def total(self) -> Tensor:
        """[inputs, inputs] float32: Σ x xᵀ, without copying."""
        if not self._is_whole:
            for start in range(0, len(self._sums), _STRIP):
                end = start + _STRIP
                self._sums[end:, start:end] = self._sums[start:end, end:].t()
            self._is_whole = True
        return self._sums

    @property
    def mean_square(self) -> Tensor:
        """[inputs] float32: the mean of x², as in an importance matrix."""
        return self._sums.diagonal() / max(self.rows, 1)

    def feedback(self, *, act_order: bool, damp: float) -> Feedback | None:
        """The feedback for `round_gptq`, cached for the next matrix with the same inputs. None if
        no damping makes the Hessian positive definite.
        """
        if self._feedback is None or self._feedback[:2] != (act_order, damp):
            self._feedback = None  # Free it before the next one is computed.
            squares = self.total.diagonal()
            order = torch.arange(len(squares), device=squares.device)
            if act_order:
                order = squares.argsort(descending=True, stable=True)
            self._feedback = act_order, damp, _feedback(self.total, order, damp)
        return self._feedback[2]


def _feedback(total: Tensor, order: Tensor, damp: float) -> Feedback | None:
    """Compute the factor. It takes twice the memory of `total`."""
    if total.device.type == "mps":
        total, order = total.cpu(), order.cpu()
    # The lower factor with inputs in reverse order, flipped, is the upper factor in that order.
    backwards = order.flip(0)
    added = 0.0
    moments = total[backwards[:, None], backwards]
    diagonal = moments.diagonal()
    mean = float(diagonal[diagonal > 0].mean())
    diagonal[diagonal == 0] = mean
    for multiple in _RETRIES:
        diagonal += (damp * multiple - added) * mean
        added = damp * multiple
        factor, fault = torch.linalg.cholesky_ex(moments)
        if not int(fault) and bool(torch.isfinite(factor.diagonal()).all()):
            del moments, diagonal
            upper: Tensor = factor.flip((0, 1))
            return Feedback(order, upper.div_(upper.diagonal().clone()))
    return None


def round_gptq(
    weight: Tensor,
    hessian: Hessian,
    grid: Grid,
    *,
    act_order: bool = True,
    damp: float = 0.01,
    block: int = 128,
    narrowed: bool = False,
    report: Callable[[str], None] = log.warning,
) -> PackedWeight:
    """Round so that the outputs change least for the inputs that `hessian` has seen.

    Inputs that were always zero are rounded to nearest.

    Args:
        weight: [outputs, inputs] of any float dtype, on any device.
        act_order: round columns with the largest mean square first, with scales of the original
            weights, so that groups stay as they are. Otherwise columns are rounded in their order,
            and the scales of a group follow its weights as updated when it is reached.
        damp: share of the mean of the diagonal that is added to the diagonal; 10 and 100 times as
            much if needed.
        block: number of columns that are updated together; affects only the speed. When the scales
            of groups follow the updated weights, each group is a block.
        narrowed: use the scales that `round_plain` fits to the original weights with the mean
            squares of the inputs as importance. This reduces errors at 4 bits and fewer.
        report: called with a sentence if the matrix had to be rounded to nearest.

    Raises:
        CannotQuantize: as in `round_plain`, or the Hessian is of other inputs, or not finite.
    """
    check(weight, grid)
    total = hessian.total
    if len(total) != weight.shape[1]:
        raise CannotQuantize(
            f"Activations of {len(total):,} inputs were seen for rows of {weight.shape[1]:,}."
        )
    squares = total.diagonal()
    if not bool(torch.isfinite(squares).all()):
        raise CannotQuantize(
            "The activations for this tensor hold what is no finite number.",
            "Calibrate in float32 or bfloat16.",
        )
    if not bool((squares > 0).any()):
        report("Rounded to nearest: calibration has not reached this tensor.")
        return round_plain(weight, grid)
    factored = hessian.feedback(act_order=act_order, damp=damp)
    if factored is None:
        report("Rounded to nearest: the activations for this tensor have no Cholesky factor.")
        return round_plain(weight, grid)
    feedback, order = factored.factor.to(weight.device), factored.order.to(weight.device)
    # Scales can follow the updated weights only if each group is rounded as a whole, in order.
    is_fixed = act_order or narrowed or grid.scope != "group"
    importance = hessian.mean_square if narrowed else None
    levels = fit(weight, grid, importance) if is_fixed else None
    outputs, inputs = weight.shape
    step = max(1, _CHUNK // inputs)
    parts = []
    for start in range(0, outputs, step):
        some = slice(start, start + step)
        turned = weight[some].t().to(torch.float32, memory_format=torch.contiguous_format)
        columns = turned.index_select(0, order)
        if levels is None:
            parts.append(_following(columns, feedback, grid))
        else:
            codes = torch.empty(columns.shape, dtype=torch.uint8, device=weight.device)
            _rounded(columns, feedback, levels.rows(some), order.tolist(), block, codes)
            parts.append(levels.rows(some).packed(codes.t()))
    return _joined(parts)


def _joined(parts: list[PackedWeight]) -> PackedWeight:
    """Concatenate the rows of `parts`."""
    if len(parts) == 1:
        return parts[0]
    scales = [part.scales for part in parts if part.scales is not None]
    zeros = [part.zeros for part in parts if part.zeros is not None]
    return PackedWeight(
        torch.cat([part.weight for part in parts]),
        parts[0].packing,
        torch.cat(scales),
        torch.cat(zeros) if zeros else None,
    )


def _rounded(
    columns: Tensor, feedback: Tensor, levels: Levels, order: list[int], block: int, codes: Tensor
) -> None:
    """Round with given levels.

    Args:
        columns: [inputs, rows] float32, in `order`; overwritten with the errors.
        levels: of the rows, with inputs in stored order.
        codes: [inputs, rows] uint8, the output, with inputs in stored order.
    """
    scales = levels.scales.t().to(torch.float32).contiguous()
    zeros = None if levels.zeros is None else levels.zeros.t().to(torch.float32).contiguous()
    group = levels.grid.group or len(columns)
    for start, targets in _blocks(columns, feedback, block):
        for place, target in _in_turn(start, targets, columns, feedback):
            number = order[place] // group if len(scales) > 1 else 0
            scale, zero = scales[number], None if zeros is None else zeros[number]
            codes[order[place]], values = levels.grid.nearest(target / scale, zero)
            columns[place] -= values.mul_(scale)


def _following(columns: Tensor, feedback: Tensor, grid: Grid) -> PackedWeight:
    """Round groups in their order, each with levels fitted to its weights as updated by then.

    Args:
        columns: [inputs, rows] float32; overwritten with the errors.
    """
    codes = torch.empty(columns.shape, dtype=torch.uint8, device=columns.device)
    fitted = []
    for start, targets in _blocks(columns, feedback, grid.group or len(columns)):
        end = start + len(targets)
        # The updated weights, as if those of the group were not rounded either.
        own = columns[start:end]
        moved = torch.linalg.solve_triangular(
            feedback[start:end, start:end].t(), targets - own, upper=False, unitriangular=True
        ).add_(own)
        low, high = moved.amin(0).clamp_(max=0), moved.amax(0).clamp_(min=0)
        levels = levels_of(low[:, None], high[:, None], grid)
        fitted.append(levels)
        _, zero = levels.spread(1)
        scale = levels.scales[:, 0].to(torch.float32)
        for place, target in _in_turn(start, targets, columns, feedback):
            codes[place], values = grid.nearest(
                target / scale, None if zero is None else zero[:, 0]
            )
            columns[place] -= values.mul_(scale)
    zeros = [one.zeros for one in fitted if one.zeros is not None]
    scales = torch.cat([one.scales for one in fitted], 1)
    return Levels(grid, scales, torch.cat(zeros, 1) if zeros else None).packed(codes.t())


def _blocks(columns: Tensor, feedback: Tensor, block: int) -> Iterator[tuple[int, Tensor]]:
    """The first column of each block, and its columns [columns, rows], which compensate for the
    errors of all earlier blocks.
    """
    for start in range(0, len(columns), block):
        end = min(start + block, len(columns))
        yield (
            start,
            torch.addmm(columns[start:end], feedback[:start, start:end].t(), columns[:start]),
        )


def _in_turn(
    start: int, targets: Tensor, columns: Tensor, feedback: Tensor
) -> Iterator[tuple[int, Tensor]]:
    """The index of each column of a block, and the values [rows] to round, which compensate for the
    errors of all earlier columns. The caller stores the errors in `columns` step by step.
    """
    for place in range(start, start + len(targets)):
        before = columns[start:place]
        yield place, torch.addmv(targets[place - start], before.t(), feedback[start:place, place])
