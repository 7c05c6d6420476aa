"""How a plan's method rounds each matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.folders.calibrate import Calibrated, awq, best, gptq
from hearth.quant.folders.matrices import Matrix
from hearth.quant.folders.methods import Runner
from hearth.quant.folders.plan import FolderPlan
from hearth.quant.folders.write import EachAlone, Rounding
from hearth.quant.methods import OnNote
from hearth.quant.rounding.grid import round_plain
from hearth.quant.rounding.hqq import round_hqq
from hearth.quant.safetensors import SafetensorsTensors

_ALONE: Final = {"hqq": round_hqq}
"""Methods without activations that do not round to nearest."""


def rounding(
    plan: FolderPlan, runner: Runner | None, on_note: OnNote
) -> Callable[[SafetensorsTensors], Rounding]:
    """A function that makes the `Rounding` of a plan's matrices from the tensors of its source."""
    if runner is None or plan.calibration is None:
        round_one = _ALONE.get(plan.method, round_plain)

        def alone(file: SafetensorsTensors) -> Rounding:
            def pack(matrix: Matrix) -> PackedWeight:
                weight = matrix.rows_in(file.read(matrix.source))
                return round_one(weight, plan.stored[matrix.name].grid)

            return EachAlone(file, pack)

        return alone
    open_model, tokens = runner.open_model, plan.calibration.tokens
    is_best = plan.method == "best"
    choose_one = {
        "best": best,
        "awq": awq(clips=plan.options.get("clip") != "no-clip"),
        "gptq": gptq(act_order=plan.options.get("order") != "no-act-order"),
    }[plan.method]
    folds = plan.method != "gptq"

    def opened(file: SafetensorsTensors) -> Rounding:
        model = open_model(plan.source, tokens)
        return Calibrated(plan, file, model, choose_one, on_note, holds_out=is_best, folds=folds)

    return opened
