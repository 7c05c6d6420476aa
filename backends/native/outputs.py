"""What a step found, as the engine asks for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hearth.backends.engine.runner import Row, StepResult
from hearth.backends.engine.shortlist import Shortlist, ShortlistSpec

Logits = NDArray[np.float32]


class DeviceLogits(Mapping[int, Logits]):
    """Logits by slot, copied to the host when they are read.

    Args:
        logits: [outputs of all slots, V] float32.
        places: the rows of each slot.
    """

    def __init__(self, logits: Tensor, places: Mapping[int, slice]) -> None:
        self._logits = logits
        self._places = places

    def __getitem__(self, slot: int) -> Logits:
        found: Logits = self._logits[self._places[slot]].cpu().numpy()
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def last(self, slot: int) -> Logits:
        """[V]: the last row of `slot`."""
        row: Logits = self[slot][-1]
        return row


def step_result(rows: Sequence[Row], logits: Tensor, *, has_shortlists: bool) -> StepResult:
    """The result of a step with `rows`.

    Args:
        logits: [outputs of all rows, V] float32.
        has_shortlists: make those that rows ask for, and leave logits on the device until they are
            read; else all of them come to the host at once.
    """
    places: dict[int, slice] = {}
    at = 0
    for row in rows:
        if row.outputs:
            places[row.slot] = slice(at, at + row.outputs)
            at += row.outputs
    if not has_shortlists:
        on_host = logits.cpu().numpy()
        return StepResult({slot: on_host[place] for slot, place in places.items()})
    on_device = DeviceLogits(logits, places)
    specs = {row.slot: row.shortlist for row in rows if row.shortlist is not None}
    if not specs:
        return StepResult(on_device)
    last = [places[slot].stop - 1 for slot in specs]
    made = shortlists(
        logits if len(last) == at else logits[last],
        list(specs.values()),
        [partial(on_device.last, slot) for slot in specs],
    )
    return StepResult(on_device, dict(zip(specs, made, strict=True)))


def shortlists(
    logits: Tensor, specs: Sequence[ShortlistSpec], fetch: Sequence[Callable[[], Logits]]
) -> list[Shortlist]:
    """The shortlists of all rows, in one copy to the host.

    Args:
        logits: [n, V] float32 on any device, left unchanged.
        specs: n of them.
        fetch: `Shortlist.row` of each.
    """
    size = logits.shape[-1]
    count = min(max(spec.count for spec in specs), size)
    floor = peak = logits.amax(dim=-1, keepdim=True)
    total = (logits - peak).exp_().sum(dim=-1, keepdim=True)
    ids = best = logits.argmax(dim=-1, keepdim=True)
    if count > 1:
        largest = logits.topk(count, dim=-1)
        floor = largest.values[:, -1:]
        named = np.zeros((len(specs), max(len(spec.ids) for spec in specs)), dtype=np.int64)
        for row, spec in zip(named, specs, strict=True):
            row[: len(spec.ids)] = spec.ids
        # From memory that is not pinned CUDA copies aside before it returns.
        more = torch.from_numpy(named).to(logits.device, non_blocking=logits.is_cuda)
        ids = torch.cat((largest.indices, more), dim=1).sort(dim=-1).values
    integers = torch.cat((best, ids), dim=1).int().view(torch.float32)
    table = torch.cat((peak, total, floor, logits.gather(-1, ids), integers), dim=1).cpu().numpy()
    values, bits = np.split(table[:, 3:], [ids.shape[-1]], axis=1)
    numbers = bits.view(np.int32).astype(np.intp)
    found = []
    for at, whole in enumerate(fetch):
        is_first = np.diff(numbers[at, 1:], prepend=-1) > 0
        found.append(
            Shortlist(
                best=int(numbers[at, 0]),
                ids=numbers[at, 1:][is_first],
                values=values[at][is_first],
                floor=-math.inf if count == size else float(table[at, 2]),
                log_sum=float(table[at, 0]) + math.log(table[at, 1]),
                vocab_size=size,
                row=whole,
            )
        )
    return found
