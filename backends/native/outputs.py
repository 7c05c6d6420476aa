"""The results of a step in the form that the engine requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hearth.backends.engine.runner import Row, StepResult
from hearth.backends.engine.selection import Indices
from hearth.backends.engine.shortlist import Shortlist, ShortlistSpec
from hearth.kernels.cuda.elementwise import row_peaks
from hearth.kernels.cuda.matrix import has_triton

Logits = NDArray[np.float32]


def step_result(rows: Sequence[Row], logits: Tensor) -> StepResult:
    """The result of a step with `rows`.

    Makes at most two copies to the host: one of the shortlists that rows request, and one of the
    logits of all other rows.

    Args:
        logits: [outputs of all rows, V] float32.
    """
    specs: dict[int, ShortlistSpec] = {}
    last: list[int] = []
    whole: dict[int, slice] = {}
    copied: list[int] = []
    at = 0
    for row in rows:
        if row.shortlist is not None:
            specs[row.slot] = row.shortlist
            last.append(at + row.outputs - 1)
        elif row.outputs:
            whole[row.slot] = slice(len(copied), len(copied) + row.outputs)
            copied += range(at, at + row.outputs)
        at += row.outputs
    made = shortlists(logits, last, list(specs.values())) if specs else []
    on_host = chosen_rows(logits, copied).cpu().numpy()
    return StepResult(
        {slot: on_host[places] for slot, places in whole.items()},
        dict(zip(specs, made, strict=True)),
    )


def shortlists(
    logits: Tensor, rows: Sequence[int], specs: Sequence[ShortlistSpec]
) -> list[Shortlist]:
    """The shortlists of some rows, in one copy to the host.

    Args:
        logits: [outputs of all rows, V] float32 on any device, left unchanged.
        rows: indices of the rows that get shortlists.
        specs: the requested shortlist of each row.
    """
    some = Columns(
        chosen_rows(logits, rows), max(spec.count for spec in specs), [s.ids for s in specs]
    )
    fetches = [partial(fetch_row, logits, row) for row in rows]
    lines = some.every.cpu().numpy()
    return [some.shortlist(line, fetch) for line, fetch in zip(lines, fetches, strict=True)]


class Columns:
    """The data for shortlists, on the device.

    Args:
        logits: [rows, V] float32.
        count: number of largest logits to find.
        ids: for each row the ids that its shortlist must include; empty for none.

    Attributes:
        peaks: [rows, 3] float32, see `peaks_of`.
        largest: values and ids of the largest logits, sorted; None if `count` is 1.
        every: [rows, n] float32: everything that the host needs.
    """

    def __init__(self, logits: Tensor, count: int, ids: Sequence[Indices] = ()) -> None:
        self._size = logits.shape[-1]
        self._count = min(count, self._size)
        self.peaks = self.every = peaks_of(logits)
        self.largest: tuple[Tensor, Tensor] | None = None
        if self._count == 1:
            return
        values, every = self.largest = logits.topk(self._count, dim=-1)
        longest = max(map(len, ids), default=0)
        if longest:
            named = np.zeros((len(logits), longest), dtype=np.int64)
            for row, some in zip(named, ids, strict=True):
                row[: len(some)] = some
            # CUDA stages a copy of unpinned memory before the call returns.
            more = torch.from_numpy(named).to(logits.device, non_blocking=logits.is_cuda)
            every = torch.cat((every, more), dim=1)
        every = every.sort(dim=-1).values
        # Ids are exact in float32 up to 2**24, beyond any vocabulary.
        columns = (self.peaks, values[:, -1:], every, logits.gather(-1, every))
        self.every = torch.cat(columns, dim=1)

    def shortlist(self, line: NDArray[np.float32], row: Callable[[], Logits]) -> Shortlist:
        """The shortlist of a row.

        Args:
            line: the row of `every`, on the host.
            row: fetches all logits of the row.
        """
        peak, total, best = map(float, line[:3])
        ids, values = np.array([best], np.intp), line[:1]
        floor = peak
        if self._count > 1:
            floor = float(line[3])
            repeated, values = np.split(line[4:], 2)
            is_first = np.diff(repeated, prepend=-1) > 0
            ids, values = repeated[is_first].astype(np.intp), values[is_first]
        return Shortlist(
            best=int(best),
            ids=ids,
            values=values,
            floor=-math.inf if self._count == self._size else floor,
            log_sum=peak + math.log(total),
            vocab_size=self._size,
            row=row,
        )


def peaks_of(logits: Tensor) -> Tensor:
    """[rows, 3] float32 of logits [rows, V].

    For each row: the largest logit; the sum of the exponentials of all logits minus the largest,
    which is NaN if a logit is not finite; and the index of the largest.
    """
    if has_triton(logits.device.type):
        return row_peaks(logits)
    peak = logits.amax(dim=-1, keepdim=True)
    total = (logits - peak).exp_().sum(dim=-1, keepdim=True)
    return torch.cat((peak, total, logits.argmax(dim=-1, keepdim=True)), dim=1)


def fetch_row(logits: Tensor, row: int) -> Logits:
    """One row [V], on the host."""
    row_logits: Logits = logits[row].cpu().numpy()
    return row_logits


def chosen_rows(numbers: Tensor, rows: Sequence[int]) -> Tensor:
    """The given rows of `numbers`. Copies nothing if they are the first rows, in order. Does not
    wait for the device.
    """
    if list(rows) == [*range(len(rows))]:
        return numbers[: len(rows)]
    # CUDA stages a copy of unpinned memory before the call returns.
    places = torch.tensor(rows).to(numbers.device, non_blocking=numbers.is_cuda)
    return numbers.index_select(0, places)
