"""What a step found, as the engine asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hearth.backends.engine.runner import Row, StepResult
from hearth.backends.native.drawing import draw


class DeviceLogits(Mapping[int, NDArray[np.float32]]):
    """Logits by slot, copied to the host when they are asked for.

    Args:
        logits: [outputs of all slots, V] float32.
        places: the rows of each slot.
    """

    def __init__(self, logits: Tensor, places: Mapping[int, slice]) -> None:
        self._logits = logits
        self._places = places

    def __getitem__(self, slot: int) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self._logits[self._places[slot]].cpu().numpy()
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def step_result(rows: Sequence[Row], logits: Tensor, *, draws: bool) -> StepResult:
    """The result of a step with `rows`.

    Args:
        logits: [outputs of all rows, V] float32.
        draws: draw what rows ask for on the device and leave the logits there; else all of them
            come to the host at once.
    """
    places: dict[int, slice] = {}
    at = 0
    for row in rows:
        if row.outputs:
            places[row.slot] = slice(at, at + row.outputs)
            at += row.outputs
    if not draws:
        on_host = logits.cpu().numpy()
        return StepResult({slot: on_host[place] for slot, place in places.items()})
    specs = {row.slot: row.draw for row in rows if row.outputs and row.draw is not None}
    if not specs:
        return StepResult(DeviceLogits(logits, places))
    last = [places[slot].stop - 1 for slot in specs]
    drawn = draw(logits if len(last) == at else logits[last], list(specs.values()))
    return StepResult(
        DeviceLogits(logits, places),
        {slot: token for slot, token in zip(specs, drawn, strict=True) if token is not None},
    )
