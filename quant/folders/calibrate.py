"""The calibration pass: blocks are rounded one after the other, each with the activations that the
rounded blocks before it produce, and the matrices of a block in order of computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.folders.calibrated import CalibratedBlock, CalibratedModel
from hearth.quant.folders.fold import fold_scales
from hearth.quant.folders.matrices import Matrix, Stage
from hearth.quant.folders.plan import Calibration, FolderPlan, Piece
from hearth.quant.folders.write import Report, naming
from hearth.quant.gguf.errors import CannotQuantize
from hearth.quant.methods import OnNote
from hearth.quant.rounding.awq import Activations, round_awq, search_clip
from hearth.quant.rounding.choose import PLAIN, choose
from hearth.quant.rounding.gptq import Hessian, round_gptq
from hearth.quant.rounding.grid import Grid, round_plain
from hearth.quant.rounding.hqq import round_hqq
from hearth.quant.safetensors import SafetensorsTensors

_HELD_OUT: Final = 8
"""One window in this many is used only for choosing between methods."""
_CHOOSING_ROWS: Final = 1024
"""Approximate number of held-out activations to keep for choosing."""
_MOMENTS_BYTES: Final = 512 << 20
"""Limit of the second moments that are summed at a time; experts are divided accordingly."""


class Seen:
    """Statistics of the inputs of some matrices."""

    def __init__(self, inputs: int) -> None:
        self.hessian = Hessian(inputs)
        self.activations = Activations(inputs)
        self.held_out: list[Tensor] = []
        """Rows of windows that the Hessian has not seen."""
        self.every = 1
        """One in this many held-out rows is kept."""

    def add(self, x: Tensor, *, is_held_out: bool) -> None:
        if is_held_out:
            self.held_out.append(x[:: self.every].clone())
        else:
            self.hessian.add(x)
            self.activations.add(x)


Choose = Callable[[Matrix, Tensor, Grid, Seen], tuple[PackedWeight, dict[str, Any]]]
"""Rounds a matrix, and returns it with facts for the manifest."""


class Calibrated:
    """Rounds the matrices of a model in the order in which they are computed."""

    def __init__(
        self,
        plan: FolderPlan,
        file: SafetensorsTensors,
        model: CalibratedModel,
        choose_one: Choose,
        on_note: OnNote,
        *,
        holds_out: bool,
        folds: bool,
    ) -> None:
        """
        Args:
            holds_out: some windows are used only for choosing.
            folds: inputs are scaled as in AWQ before matrices are rounded.

        Raises:
            CannotQuantize: the calibration text is shorter than two windows.
        """
        assert plan.calibration is not None
        self._plan = plan
        self._file = file
        self._model = model
        self._choose_one = choose_one
        windows = _windows(model, plan.calibration, on_note)
        self._hidden = [model.embed(window) for window in windows]
        """[tokens, width] of each window: the input of the next block."""
        self._held_out = set(range(1, len(windows), _HELD_OUT)) if holds_out else set[int]()
        self._folds = folds
        self._facts: dict[str, Any] = {}
        self._changed: Mapping[str, Tensor] = {}

    def round(self, piece: Piece, report: Report) -> Iterator[tuple[Matrix, PackedWeight]]:
        self._facts, self._changed = {}, {}
        if piece.block is None:
            for matrix in piece.matrices:
                with naming(matrix):
                    grid = self._plan.stored[matrix.name].grid
                    packed = round_plain(self._file.read(matrix.name), grid)
                yield matrix, packed
            return
        block = self._model.block(piece.block.index)
        stages = piece.block.stages
        if self._folds:
            folded = fold_scales(
                block,
                piece.block,
                self._plan.config,
                self._plan.storage.grid,
                self._hidden,
                self._held_out,
                self._file.read,
                lambda share: report(0.0, piece.name),
            )
            self._changed = folded.changed
            self._facts |= {name: {"scales": facts} for name, facts in folded.facts.items()}
        for number, stage in enumerate(stages):

            def report_stage(share: float, name: str, number: int = number) -> None:
                report((number + share) / (len(stages) + 1), name)

            yield from self._round_stage(block, stage, report_stage)
        rest = piece.name
        self._advance(block, lambda share: report((len(stages) + share) / (len(stages) + 1), rest))

    def _round_stage(
        self, block: CalibratedBlock, stage: Stage, report: Report
    ) -> Iterator[tuple[Matrix, PackedWeight]]:
        """Round the matrices of a stage, with as many experts at a time as memory allows."""
        groups = list(stage.groups.items())
        inputs = groups[0][1][0].inputs
        at_once = max(1, _MOMENTS_BYTES // (4 * inputs * inputs))
        for first in range(0, len(groups), at_once):
            some = groups[first : first + at_once]
            seen = {expert: Seen(inputs) for expert, _ in some}
            rows = len(self._hidden[0]) * max(1, len(self._held_out))
            for one in seen.values():
                one.every = max(1, rows // _CHOOSING_ROWS)
            for window, hidden in enumerate(self._hidden):

                def look(
                    module: str,
                    expert: int | None,
                    x: Tensor,
                    window: int = window,
                    seen: Mapping[int | None, Seen] = seen,
                ) -> None:
                    if module == stage.module and expert in seen:
                        seen[expert].add(x, is_held_out=window in self._held_out)

                block.run(hidden, look, until=stage.module)
                share = (first + len(some) * window / len(self._hidden)) / len(groups)
                report(share, some[0][1][0].name)
            for expert, matrices in some:
                for matrix in matrices:
                    grid = self._plan.stored[matrix.name].grid
                    report((first + len(some)) / len(groups), matrix.name)
                    with naming(matrix):
                        packed, facts = self._choose_one(
                            matrix, block.weight(matrix), grid, seen[expert]
                        )
                    if facts:
                        self._facts[matrix.name] = self._facts.get(matrix.name, {}) | facts
                    block.replace(matrix, packed)
                    yield matrix, packed
                del seen[expert]

    def _advance(self, block: CalibratedBlock, report: Callable[[float], None]) -> None:
        """Replace the hidden states with those after `block` as it is now."""
        for window, hidden in enumerate(self._hidden):
            self._hidden[window] = block.run(hidden)
            report(window / len(self._hidden))

    def changed(self, piece: Piece) -> Mapping[str, Tensor]:
        return self._changed

    def facts(self, piece: Piece) -> dict[str, Any]:
        return self._facts

    def restore(
        self, piece: Piece, weight: Callable[[Matrix], PackedWeight], plain: Callable[[str], Tensor]
    ) -> None:
        if piece.block is None:
            return
        block = self._model.block(piece.block.index)
        for matrix in piece.block.matrices:
            block.replace(matrix, weight(matrix))
        for vector in piece.block.vectors if self._folds else ():
            values = plain(vector.name).to(torch.float32) + vector.offset
            whole = block.plain(vector.parameter)
            whole[vector.first : vector.first + vector.count] = values
        self._advance(block, lambda share: None)


def _windows(
    model: CalibratedModel, calibration: Calibration, on_note: OnNote
) -> list[Sequence[int]]:
    """Consecutive, non-overlapping windows from the beginning of the text."""
    try:
        text = calibration.text.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CannotQuantize(f"{calibration.text} is no UTF-8 text.") from error
    tokens, length = model.tokens(text), calibration.tokens
    count = min(calibration.samples, len(tokens) // length)
    if count < 2:
        raise CannotQuantize(
            f"{calibration.text.name} has {len(tokens):,} tokens; two windows of {length:,} are "
            "needed at least.",
            "Choose a longer text (--calibration) or shorter windows (--seq-len).",
        )
    if count < calibration.samples:
        on_note(
            f"{calibration.text.name} has {count:,} windows of {length:,} tokens, fewer than "
            f"{calibration.samples:,}."
        )
    return [tokens[start : start + length] for start in range(0, count * length, length)]


def gptq(*, act_order: bool) -> Choose:
    """GPTQ; rounds to nearest if the matrix received no inputs."""

    def round_one(
        matrix: Matrix, weight: Tensor, grid: Grid, seen: Seen
    ) -> tuple[PackedWeight, dict[str, Any]]:
        if not seen.hessian.rows:
            return round_plain(weight, grid), {"method": PLAIN, "why": "no token came here"}
        said: list[str] = []
        packed = round_gptq(weight, seen.hessian, grid, act_order=act_order, report=said.append)
        return packed, {"said": said} if said else {}

    return round_one


def awq(*, clips: bool) -> Choose:
    """AWQ after its scales are folded in: narrows the ranges of groups, except for queries and
    keys, whose products are sensitive. Without `clips` it only rounds to nearest.
    """

    def round_one(
        matrix: Matrix, weight: Tensor, grid: Grid, seen: Seen
    ) -> tuple[PackedWeight, dict[str, Any]]:
        is_value = matrix.module.endswith(".v_proj")
        is_clipped = clips and (is_value or not matrix.parameter.endswith(".qkv.weight"))
        if not is_clipped or not seen.hessian.rows:
            return round_plain(weight, grid), {}
        return _clipped(weight, grid, seen), {}

    return round_one


def _clipped(weight: Tensor, grid: Grid, seen: Seen) -> PackedWeight:
    clip = search_clip(weight, seen.activations.sample, grid)
    return round_awq(weight, grid, clip)


def best(matrix: Matrix, weight: Tensor, grid: Grid, seen: Seen) -> tuple[PackedWeight, Any]:
    """The candidate with the least error on held-out activations."""
    candidates = {PLAIN: round_plain(weight, grid)}
    if seen.hessian.rows:
        candidates["clipped"] = _clipped(weight, grid, seen)
    if grid.scope in ("row", "group"):
        candidates["hqq"] = round_hqq(weight, grid)
    if seen.hessian.rows:
        candidates["gptq"] = round_gptq(weight, seen.hessian, grid, act_order=False)
        for name, narrowed in (("gptq, act-order", False), ("gptq, act-order, narrowed", True)):
            candidates[name] = round_gptq(weight, seen.hessian, grid, narrowed=narrowed)
    if not seen.held_out:
        return candidates[PLAIN], {"method": PLAIN, "why": "no held-out token came here"}
    x = torch.cat(seen.held_out)
    choice = choose(candidates, weight, x)
    errors = {name: round(error, 6) for name, error in choice.errors.items()}
    return candidates[choice.name], {"method": choice.name, "errors": errors}
