"""Decode steps that start before the engine requests them.

While the engine handles the tokens of a step, the card computes the next step, so it never waits
for the processor. It already knows the next tokens, or predicts them with the random numbers that
the host will use to sample.

A step ahead assumes that every session continues: each row advances by one token, which is the
likeliest or the predicted one. If the engine requests a different step, the step ahead is waited
for and discarded. It has written keys and values of only one token after each row, into blocks of
that row's session, and these are overwritten before they are read. If the engine requests fewer
rows, the results of the other rows are dropped.
"""

from __future__ import annotations

import functools
import logging
import math
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.runner import Row, StepResult
from hearth.backends.engine.sampler import Sampler
from hearth.backends.engine.shortlist import RaceSpec, ShortlistSpec
from hearth.backends.engine.truncation import SMALLEST_TEMPERATURE
from hearth.backends.native.decode_graphs import DecodeGraphs
from hearth.backends.native.kv_pool import KvPool
from hearth.backends.native.outputs import Columns, chosen_rows, fetch_row, step_result
from hearth.backends.native.paged_attention import PagedRow
from hearth.kernels.cuda.elementwise import guess_tokens
from hearth.kernels.cuda.matrix import has_triton

_LEAST_STEADY: Final = 2
"""Consecutive predictable steps that are needed before one is started ahead: a step ahead saves a
tenth to a fifth of a step, but a discarded one costs a whole step."""
_MOST_STEADY: Final = 64
"""Upper limit of this number, which doubles with each discarded step."""
_TRIED: Final = 8
"""Tokens that are predicted to test whether a device can."""
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Step:
    """A started step, whose results are being copied to the host.

    Attributes:
        logits: [rows, vocabulary] float32 on the device.
        count: number of largest logits in a shortlist.
        columns: the data for shortlists.
        found: `columns.every` on the host, valid once the copy is done.
    """

    logits: Tensor
    count: int
    columns: Columns
    found: Tensor


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last step that the engine got.

    Attributes:
        slots: index of each row by its slot.
        rows: the rows that were computed, with copies of their tables.
        tokens: the token expected after each row.
        state: versions of pool and weights.
    """

    slots: dict[int, int]
    rows: Sequence[PagedRow]
    tokens: Sequence[int]
    state: tuple[int, ...]


class StepsAhead:
    """Computes decode steps.

    Args:
        graphs: compute the steps.
        pool: keys and values.

    Attributes:
        taken: number of steps that were started ahead and then requested.
    """

    def __init__(self, graphs: DecodeGraphs, pool: KvPool) -> None:
        self.graphs = graphs
        self._pool = pool
        self._seen: _Seen | None = None
        self._ahead: _Step | None = None
        """The next step of the rows of `_seen`, in the same order."""
        self._steady = 0
        """Number of consecutive predictable steps so far."""
        self._needed = _LEAST_STEADY
        self.taken = 0

    def result(
        self, rows: Sequence[Row], paged: Sequence[PagedRow], tokens: Sequence[int]
    ) -> StepResult | None:
        """The result of a step; None if there is no graph for it, and nothing was computed.

        Args:
            rows: one token of a session each.
            paged: the same rows.
            tokens: one token for each row.
        """
        specs = [row.shortlist for row in rows if row.shortlist is not None]
        is_likely = len(specs) == len(rows) and all(map(self._is_likely, specs))
        if not is_likely or self.graphs.keeps_hidden:
            self.forget()
            logits = self.graphs.logits(paged, tokens)
            return None if logits is None else step_result(rows, logits)
        count = max(spec.count for spec in specs)
        places = self._places(rows, paged, tokens)
        self._steady = 0 if places is None else self._steady + 1
        if places is None or self._ahead is None or self._ahead.count != count:
            self.forget()
            logits = self.graphs.logits(paged, tokens)
            if logits is None:
                return None
            step, places = self._started(logits, count), [*range(len(rows))]
        else:
            step, self._ahead = self._ahead, None
            self.taken += 1
            if self._steady >= _MOST_STEADY:
                self._needed = _LEAST_STEADY
        state = self._state()
        guessed = self._guessed(step, places, specs)
        on_host = None if guessed is None else self._to_host(guessed)
        done = self._mark()
        if self._steady >= self._needed:
            best = chosen_rows(step.columns.peaks, places)[:, 2]
            self._ahead = self._next(paged, step, best if guessed is None else guessed)
        if done is not None:
            done.synchronize()
        fixed = [PagedRow(row.start, 1, tuple(map(tuple, row.tables))) for row in paged]
        slots = {row.slot: at for at, row in enumerate(rows)}
        lines = step.found.numpy()
        following = lines[places, 2] if on_host is None else on_host.numpy()
        self._seen = _Seen(slots, fixed, list(map(int, following)), state)
        lists = [
            step.columns.shortlist(lines[at], partial(fetch_row, step.logits, at)) for at in places
        ]
        return StepResult({}, dict(zip(slots, lists, strict=True)))

    def _is_likely(self, spec: ShortlistSpec) -> bool:
        """Whether the next token is known on the device, or can be predicted there."""
        if len(spec.ids) or spec.count == 1:
            return spec.count == 1
        return spec.race is not None and guesses_on(self._pool.layer(0)[0].device)

    def forget(self) -> None:
        """Discard the last step and the step ahead, if any.

        Waits for the end of the step ahead, because the memory that it reads may be freed next.
        """
        self._seen = None
        step, self._ahead = self._ahead, None
        if step is not None:
            done = self._mark()
            if done is not None:
                done.synchronize()
            self._needed = min(2 * self._needed, _MOST_STEADY)

    def _places(
        self, rows: Sequence[Row], paged: Sequence[PagedRow], tokens: Sequence[int]
    ) -> list[int] | None:
        """The indices of the rows of a step among those of the last step.

        None if it is not the step that follows, or if blocks were changed in between.
        """
        seen = self._seen
        if seen is None or seen.state != self._state():
            return None
        places = []
        for row, pages, token in zip(rows, paged, tokens, strict=True):
            at = seen.slots.get(row.slot)
            if at is None or seen.tokens[at] != token or not _follows(seen.rows[at], pages):
                return None
            places.append(at)
        return places

    def _state(self) -> tuple[int, ...]:
        return (*self.graphs.state, self._pool.edits)

    def _started(self, logits: Tensor, count: int) -> _Step:
        """The step that is computing `logits`; starts the copy of its results to the host."""
        columns = Columns(logits, count)
        return _Step(logits, count, columns, self._to_host(columns.every))

    def _guessed(
        self, step: _Step, places: Sequence[int], specs: Sequence[ShortlistSpec]
    ) -> Tensor | None:
        """The predicted next tokens of some rows of a step, [places] int64 on the device.

        None if the likeliest token follows in each row.
        """
        largest = step.columns.largest
        if largest is None or all(spec.race is None for spec in specs):
            return None
        values, ids, peaks = (chosen_rows(one, places) for one in (*largest, step.columns.peaks))
        about = torch.from_numpy(np.stack([_about(spec.race) for spec in specs]))
        if peaks.is_cuda:
            about = about.pin_memory().to(peaks.device, non_blocking=True)
        return guess_tokens(values, ids, peaks, about)

    @staticmethod
    def _to_host(numbers: Tensor) -> Tensor:
        """Start a copy to the host, which is valid once the device has made it."""
        on_host = torch.empty(
            numbers.shape, dtype=numbers.dtype, device="cpu", pin_memory=numbers.is_cuda
        )
        return on_host.copy_(numbers, non_blocking=True)

    def _mark(self) -> torch.cuda.Event | None:
        """An event after everything started so far; None if the pool is not on a CUDA device."""
        if not self._pool.layer(0)[0].is_cuda:
            return None
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        return done

    def _next(self, paged: Sequence[PagedRow], step: _Step, tokens: Tensor) -> _Step | None:
        """Start the step after `step` of the same sequences.

        Returns None if the sequences have no blocks for it, or if there is no graph.

        Args:
            tokens: the next token of each sequence, on the device.
        """
        page = self._pool.page
        further = [PagedRow(row.start + 1, 1, row.tables) for row in paged]
        if not all(_has_block(table, row.start // page) for row in further for table in row.tables):
            return None
        logits = step.logits
        step.logits = logits.clone()  # Graphs write to the same memory.
        following = self.graphs.next_logits(further, tokens)
        if following is None:
            step.logits = logits
            return None
        return self._started(following, step.count)


@functools.cache
def guesses_on(device: torch.device) -> bool:
    """Whether sampled tokens can be predicted on `device`.

    The first call tests this with tokens that the host's sampler drew.
    """
    if not has_triton(device.type):
        return False
    from triton.errors import TritonError

    sampler = Sampler(SamplingParams(seed=1))
    logits = np.linspace(-8, 8, _TRIED * 2048, dtype=np.float32).reshape(2048, _TRIED).T.copy()
    wanted = [sampler.draw(row, at).id for at, row in enumerate(logits)]
    specs = [sampler.shortlist(at) for at in range(_TRIED)]
    about = np.stack([_about(spec.race) for spec in specs if spec is not None])
    try:
        columns = Columns(torch.from_numpy(logits).to(device), 1024)
        assert columns.largest is not None
        given = (*columns.largest, columns.peaks, torch.from_numpy(about).to(device))
        guessed = guess_tokens(*given).tolist()
    except (TritonError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        log.warning("Drawn tokens are not guessed on %s: %s", device, error)
        return False
    if guessed != wanted:
        log.warning("Drawn tokens are not guessed on %s: %s, not %s", device, guessed, wanted)
    return guessed == wanted


def _about(race: RaceSpec | None) -> NDArray[np.int64]:
    """The arguments of a race, see `draw.guess_kernel`."""
    if race is None:
        return np.zeros(5, np.int64)
    least = math.log(race.min_p) if race.min_p > 0.0 else -math.inf
    share = race.top_p if race.top_p < 1.0 else math.inf
    numbers = np.array([max(race.temperature, SMALLEST_TEMPERATURE), share, least])
    whole = np.array([race.key, race.top_k], np.uint64).view(np.int64)
    return np.concatenate((whole, numbers.view(np.int64)))


def _follows(before: PagedRow, row: PagedRow) -> bool:
    """Whether `row` is the token after `before` of the same sequence, in the same blocks.

    A window may have left some of the blocks behind.
    """
    return row.start == before.start + 1 and all(
        tuple(now[: len(then)]) == then
        or all(one in (block, -1) for one, block in zip(now, then, strict=False))
        for then, now in zip(before.tables, row.tables, strict=True)
    )


def _has_block(table: Sequence[int], page: int) -> bool:
    return page < len(table) and table[page] >= 0
