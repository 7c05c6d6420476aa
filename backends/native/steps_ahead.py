"""Greedy decode steps that are started before the engine asks for them: while it handles the tokens
of a step, the card computes the next one, whose tokens it knows already. So it never waits for the
processor.

A step ahead is the one that comes if every session goes on: each row one token further, after the
likeliest token of the step before. If another step comes, it is waited for and forgotten; what it
wrote are keys and values of one token behind each row, in blocks that the row's session had, which
are written again before they are read. For fewer rows the others' results are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from hearth.backends.engine.runner import Row, StepResult
from hearth.backends.native.decode_graphs import DecodeGraphs
from hearth.backends.native.kv_pool import KvPool
from hearth.backends.native.outputs import fetch_row, greedy_shortlist, peaks_of, step_result
from hearth.backends.native.paged_attention import PagedRow

_LEAST_STEADY: Final = 2
"""Steps of which each was the one that could have been foreseen, before one is started ahead: it
saves a tenth to a fifth of a step, and one that is forgotten costs a whole one."""
_MOST_STEADY: Final = 64
"""As many after some that were forgotten."""


@dataclass(slots=True)
class _Step:
    """One that was started: what comes of it is on its way to the host.

    Attributes:
        logits: [rows, vocabulary] float32 on the device.
        peaks: [rows, 3] float32 on the device, as `outputs.peaks_of` gives them.
        found: the same on the host, once `done`; None: it is there.
    """

    logits: Tensor
    peaks: Tensor
    found: Tensor
    done: torch.cuda.Event | None

    def wait(self) -> None:
        """Until what it found is on the host."""
        if self.done is not None:
            self.done.synchronize()


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the engine got last.

    Attributes:
        slots: of rows, and where they are among them.
        rows: what was computed, with tables that do not change.
        best: the likeliest token of each.
        state: of pool and weights.
    """

    slots: dict[int, int]
    rows: Sequence[PagedRow]
    best: Sequence[int]
    state: tuple[int, ...]


class StepsAhead:
    """Computes steps of which every row wants its likeliest token alone, each a token of a session.

    Args:
        graphs: compute steps.
        pool: keys and values.

    Attributes:
        taken: steps that were started ahead and asked for.
    """

    def __init__(self, graphs: DecodeGraphs, pool: KvPool) -> None:
        self.graphs = graphs
        self._pool = pool
        self._seen: _Seen | None = None
        self._ahead: _Step | None = None
        """Of the rows of `_seen`, in their order, a token further."""
        self._steady = 0
        """Steps that could have been foreseen, one after the other."""
        self._needed = _LEAST_STEADY
        self.taken = 0

    def result(
        self, rows: Sequence[Row], paged: Sequence[PagedRow], tokens: Sequence[int]
    ) -> StepResult | None:
        """Of a step of single tokens; None: there is no graph for it, and nothing was computed.

        Args:
            paged: the same rows.
            tokens: one of each row.
        """
        is_greedy = all(row.shortlist is not None and row.shortlist.count == 1 for row in rows)
        if not is_greedy or self.graphs.keeps_hidden:
            self.forget()
            found = self.graphs.logits(paged, tokens)
            return None if found is None else step_result(rows, found)
        places = self._places(rows, paged, tokens)
        self._steady = 0 if places is None else self._steady + 1
        if places is None or self._ahead is None:
            self.forget()
            logits = self.graphs.logits(paged, tokens)
            if logits is None:
                return None
            step, places = self._started(logits), [*range(len(rows))]
        else:
            step, self._ahead = self._ahead, None
            self.taken += 1
            if self._steady >= _MOST_STEADY:
                self._needed = _LEAST_STEADY
        state = self._state()
        if self._steady >= self._needed:
            self._ahead = self._next(paged, step, places)
        step.wait()
        lines = step.found.tolist()
        fixed = [PagedRow(row.start, 1, tuple(map(tuple, row.tables))) for row in paged]
        slots = {row.slot: at for at, row in enumerate(rows)}
        self._seen = _Seen(slots, fixed, [int(lines[at][2]) for at in places], state)
        size = step.logits.shape[-1]
        lists = [
            greedy_shortlist(lines[at], partial(fetch_row, step.logits, at), size) for at in places
        ]
        return StepResult({}, dict(zip(slots, lists, strict=True)))

    def forget(self) -> None:
        """What was seen, and the step that was started ahead, if there is one; wait for its end:
        what it reads may be freed then.
        """
        self._seen = None
        step, self._ahead = self._ahead, None
        if step is not None:
            step.wait()
            self._needed = min(2 * self._needed, _MOST_STEADY)

    def _places(
        self, rows: Sequence[Row], paged: Sequence[PagedRow], tokens: Sequence[int]
    ) -> list[int] | None:
        """Where the rows of a step are among those that were seen; None: it is not the next one of
        them, or blocks were changed in between.
        """
        seen = self._seen
        if seen is None or seen.state != self._state():
            return None
        places = []
        for row, pages, token in zip(rows, paged, tokens, strict=True):
            at = seen.slots.get(row.slot)
            if at is None or seen.best[at] != token or not _follows(seen.rows[at], pages):
                return None
            places.append(at)
        return places

    def _state(self) -> tuple[int, ...]:
        return (*self.graphs.state, self._pool.edits)

    def _started(self, logits: Tensor) -> _Step:
        """What comes of `logits`, which are being computed."""
        peaks = peaks_of(logits)
        found = torch.empty_like(peaks, device="cpu", pin_memory=peaks.is_cuda)
        found.copy_(peaks, non_blocking=True)
        done = None
        if peaks.is_cuda:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return _Step(logits, peaks, found, done)

    def _next(self, paged: Sequence[PagedRow], step: _Step, places: Sequence[int]) -> _Step | None:
        """The step after `step` of the same sequences, started; None where they have no blocks for
        it, or there is no graph.
        """
        page = self._pool.page
        further = [PagedRow(row.start + 1, 1, row.tables) for row in paged]
        if not all(_has_block(table, row.start // page) for row in further for table in row.tables):
            return None
        best = step.peaks[:, 2]
        if len(places) < len(best) or places[-1] != len(places) - 1:
            best = best[torch.tensor(places).to(best.device, non_blocking=True)]
        logits = step.logits
        step.logits = logits.clone()  # Graphs write to the same memory.
        next_logits = self.graphs.next_logits(further, best)
        if next_logits is None:
            step.logits = logits
            return None
        return self._started(next_logits)


def _follows(before: PagedRow, row: PagedRow) -> bool:
    """Whether `row` is the token after `before` of the same sequence, in the same blocks, of which
    a window may have left some behind.
    """
    return row.start == before.start + 1 and all(
        tuple(now[: len(then)]) == then
        or all(one in (block, -1) for one, block in zip(now, then, strict=False))
        for then, now in zip(before.tables, row.tables, strict=True)
    )


def _has_block(table: Sequence[int], page: int) -> bool:
    return page < len(table) and table[page] >= 0
