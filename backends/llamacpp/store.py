"""The sequences of a runner, by id, in one unified llama.cpp pool that grows as it fills."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hearth.backends.engine.kv.store import SavedState, StoredBytes
from hearth.backends.engine.runner import RunnerLost
from hearth.backends.errors import Busy, DoesNotFit, HearthError, InternalError
from hearth.backends.llamacpp.context import LlamaContext, State
from hearth.backends.llamacpp.model import ModelFacts
from hearth.backends.llamacpp.params import ContextPlan, larger_pool
from hearth.backends.llamacpp.state_layout import UnknownLayout, transposed
from hearth.backends.machine.memory import available_bytes, release_free_memory

log = logging.getLogger(__name__)

_RETRY_S = 10.0
"""Seconds to wait after a larger context could not be made in the background."""
SAVE_MARGIN_BYTES = 256 << 20
"""Memory that must stay free when a state is saved: steps need memory more than saved states do."""


@dataclass(frozen=True, slots=True)
class LlamaState:
    """A saved sequence. Only a store with the same fingerprint takes it."""

    data: State
    by_channel: bool
    """Layout of its values, see `state_layout`."""
    fingerprint: bytes

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


class LlamaStore:
    """Implements `hearth.backends.engine.kv.store.SequenceStore`, which has the docstrings.

    The context starts with `plan.first_tokens` cells and doubles (`larger_pool`), because llama.cpp
    zeroes the whole pool of a new context. If there is memory for both pools and a copy, the larger
    context is made in a thread while steps go on, and the contents are moved between two steps.
    Otherwise they are copied out and the smaller pool is freed first. The pool may shrink again
    while no sequence runs.

    Pools, copies, states and other contexts always stay within the KV budget. To make room, other
    contexts are freed, except those in which texts are being computed.

    From how many of its first tokens a sequence can be continued depends on the memory. Full
    attention: from any number. A recurrent state (also in hybrid models): only from all of them,
    because the state has no past. A sliding window: from all of them, or if every cell that the
    next token sees still exists. llama.cpp gives cells that a sequence no longer sees to other
    sequences, and then drops all cells before them, so that the tokens between a sequence's first
    and last position are complete (`apply_ubatch` in llama-kv-cache.cpp).

    llama.cpp only copies whole sequences. If the memory keeps its past, parts are copied through a
    reserved id, which briefly shares the cells of a part, or loads a copy.

    Args:
        make_context: makes a context whose pool has at least a number of cells, with values by
            channel (attention without flash) or not.
        plan: sizes.
        facts: capabilities of the model's memory.
        by_channel: initial layout of values.
        fingerprint: of the model, and of all else that keys and values depend on.
        beside_bytes: memory of the KV budget that other contexts of the runner take now.
        make_way: frees other contexts, if possible, until they take at most the given bytes.

    Raises:
        DoesNotFit: the first context could not be made.
        UnsupportedModel: as `LlamaContext`.
    """

    def __init__(
        self,
        make_context: Callable[[int, bool], LlamaContext],
        plan: ContextPlan,
        facts: ModelFacts,
        *,
        by_channel: bool,
        fingerprint: bytes,
        beside_bytes: Callable[[], int] = lambda: 0,
        make_way: Callable[[float], None] = lambda most_bytes: None,
    ) -> None:
        self._make_context = make_context
        self.by_channel = by_channel
        self.fingerprint = fingerprint
        self._plan = plan
        self._beside_bytes = beside_bytes
        self._make_way = make_way
        self._only_whole = not facts.can_roll_back
        self._window = facts.sliding_window
        self._torn: set[int] = set()
        self._context: LlamaContext | None = make_context(plan.first_tokens, by_channel)
        self._growth: _Growth | None = None
        self._refused_at = -math.inf
        """When a larger context could not be made in the background."""
        self.keeps_past = facts.can_roll_back and not facts.sliding_window
        has_spare = self.keeps_past and plan.sequences > plan.slots
        self._part_id = plan.sequences - 1 if has_spare else None
        """The reserved id; empty except while a part is being copied."""
        self.sequences = plan.sequences - has_spare
        self.token_bytes = plan.kv_bytes_per_token
        self.state_bytes = plan.sequences * plan.state_bytes

    @property
    def context(self) -> LlamaContext:
        """The context that holds the pool now; `make_room` may replace it.

        Raises:
            InternalError: the store is closed.
        """
        if self._context is None:
            raise InternalError("The runner's memory is closed.")
        return self._context

    @property
    def no_streaming(self) -> str:
        """See `RunnerInfo`."""
        can = self.keeps_past and self.context.can_shift
        return "" if can else "llama.cpp cannot move tokens within its memory"

    @property
    def allocated_tokens(self) -> int:
        """See the protocol; cells that llama.cpp adds to fill a block of 256 are not used."""
        return min(self.context.cells, self._plan.pool_tokens)

    @property
    def most_offloaded_bytes(self) -> int:
        """See the protocol: as much as the pool may take, and no more than the KV budget leaves."""
        most = self._plan.pool_tokens * self.token_bytes + self.state_bytes
        return int(min(most, self.budget_left_bytes))

    def available_bytes(self) -> int:
        return available_bytes()

    def most_offloaded_while_growing(self, cells: int) -> int:
        moved = self._moved_bytes(self._larger(cells))
        return max(0, int(min(self.most_offloaded_bytes, self._budget_left(moved))))

    @property
    def budget_left_bytes(self) -> float:
        """The KV budget that the pool, its states and other contexts leave; infinite if unset."""
        growing = 0 if self._growth is None else self._growth.nbytes
        scratch = self._scratch_bytes(self.allocated_tokens, by_channel=self.by_channel)
        pool = self.allocated_tokens * self.token_bytes
        return max(0, self._budget_left(pool + growing + scratch))

    @property
    def texts_left_bytes(self) -> float:
        """The KV budget left for contexts of texts, which must leave room for the full pool."""
        scratch = self._scratch_bytes(self._plan.pool_tokens, by_channel=self.by_channel)
        return self._budget_left(self._plan.pool_tokens * self.token_bytes + scratch)

    def _budget_left(self, pool_bytes: int) -> float:
        budget = self._plan.kv_budget_bytes
        if budget is None:
            return math.inf
        return budget - pool_bytes - self.state_bytes - self._beside_bytes()

    def _scratch_bytes(self, cells: int, *, by_channel: bool) -> int:
        """Scratch memory of graphs without flash attention that was not allocated at loading."""
        more = max(0, cells - self._plan.first_tokens)
        return more * self._plan.scratch_bytes_per_cell if by_channel else 0

    def _has_budget(self, pool_bytes: int) -> bool:
        """Whether `pool_bytes` for pool and copies fit; frees other contexts if necessary."""
        left = self._budget_left(pool_bytes)
        if left < 0:
            self._make_way(max(0, left + self._beside_bytes()))
            left = self._budget_left(pool_bytes)
        return left >= 0

    def _larger(self, cells: int) -> int:
        """Size of the next pool, which needs `cells` cells, more than now."""
        return larger_pool(self.context.cells, cells, self._plan.pool_tokens)

    def _moved_bytes(self, cells: int) -> int:
        """Bytes of a pool of `cells` cells, and of a copy of the current contents."""
        return cells * self.token_bytes + self.context.state_bytes()

    def intact(self, sequence: int, held: int, tokens: int) -> bool:
        if self.keeps_past or tokens == held:
            return True
        if self._only_whole or sequence in self._torn:
            return False
        first, _ = self.positions(sequence)
        return first <= max(0, tokens - self._window)

    def share(self, source: int, target: int, tokens: int) -> None:
        end = -1 if self._only_whole else tokens
        self.context.share(self._checked(source), self._checked(target), end)
        if source in self._torn:
            self._torn.add(target)

    def cut(self, sequence: int, tokens: int) -> bool:
        if tokens and not self.intact(sequence, self.positions(sequence)[1] + 1, tokens):
            return False
        if not self.context.remove(self._checked(sequence), tokens):
            return False
        if tokens == 0:
            self._torn.discard(sequence)
        return True

    def forget(self, sequence: int, start: int, count: int, *, is_own: bool) -> bool:
        """See the protocol; llama.cpp moves a cell for all sequences that share it."""
        if is_own:
            return self.context.forget(self._checked(sequence), start, count)
        part = self._part_id
        if part is None:
            return False
        context = self.context
        context.share(sequence, part, start)
        context.share(sequence, part, -1, start + count)
        state = self.save(part)
        context.remove(part, 0)
        if state is None or not self._take_in(part, state):
            return False
        self.context.remove(sequence, 0)
        self.context.share(part, sequence, -1)
        self.context.remove(part, 0)
        return self.context.forget(sequence, start, count)

    def undo(self, sequence: int, tokens: int) -> bool:
        """Undo a failed step: remove what it may have stored after the first `tokens` tokens.

        Returns False if that is not possible; `sequence` is then empty.
        """
        if (tokens == 0 or self.keeps_past) and self.cut(sequence, tokens):
            return True
        self.cut(sequence, 0)
        return False

    def tear(self) -> None:
        """Mark all sequences incomplete after a failed step, if there is a sliding window.

        llama.cpp may have dropped cells in the middle of those that no sequence sees any more, so
        sequences can no longer be continued from fewer tokens than they have.
        """
        if self._window and not self._only_whole:
            self._torn.update(range(self.sequences))

    def saved_bytes(self, sequence: int) -> int:
        return self.context.sequence_bytes(self._checked(sequence))

    def save(self, sequence: int) -> LlamaState | None:
        if self.saved_bytes(sequence) + SAVE_MARGIN_BYTES > available_bytes():
            return None
        try:
            data = self.context.export_sequence(sequence)
            return LlamaState(data, self.by_channel, self.fingerprint)
        except (MemoryError, InternalError):  # Short of memory, llama.cpp writes fewer bytes.
            return None

    def restore(self, sequence: int, state: SavedState) -> bool:
        """See the protocol; the pool grows if necessary.

        States of other models or with other types of keys and values are refused.
        """
        if not self._take_in(self._checked(sequence), state):
            return False
        self._torn.discard(sequence)
        return True

    def save_part(self, sequence: int, start: int, end: int) -> LlamaState | None:
        """See the protocol; None if there is no reserved id."""
        part = self._part_id
        if part is None:
            return None
        self.context.share(self._checked(sequence), part, end, start)
        try:
            return self.save(part)
        finally:
            self.context.remove(part, 0)

    def restore_part(self, sequence: int, state: SavedState, start: int, end: int) -> bool:
        """See the protocol; the pool grows if necessary."""
        part = self._part_id
        if part is None or not self._take_in(part, state):
            return False
        self.context.share(part, self._checked(sequence), end, start)
        self.context.remove(part, 0)
        return True

    def pack(self, state: SavedState) -> tuple[bytes, memoryview]:
        assert isinstance(state, LlamaState)
        return bytes([state.by_channel]), state.data.data

    def unpack(self, meta: bytes, data: StoredBytes) -> LlamaState | None:
        by_channel = {b"\0": False, b"\1": True}.get(meta)
        if by_channel is None:
            return None
        buffer = np.empty(data.nbytes, np.uint8)
        data.read([buffer.data])
        return LlamaState(buffer, by_channel, self.fingerprint)

    def positions(self, sequence: int) -> tuple[int, int]:
        """First and last position that `sequence` holds; (-1, -1) if it is empty.

        If the memory keeps its past, the last position is the length - 1, which tests compare with
        the KV manager's records.
        """
        return self.context.positions(self._checked(sequence))

    def make_room(self, cells: int) -> None:
        """Make sure that the pool has `cells` cells in all, growing the context if necessary.

        Raises:
            Busy: the pool may not have that many cells, or a larger one could not be made; its
                contents are unchanged.
            RunnerLost: growing failed, and the previous pool could not be made again.
        """
        most = self._plan.pool_tokens
        if cells > most:
            raise Busy(
                f"The KV pool holds {most:,} tokens and {cells:,} are needed.",
                "Try again when another request is done.",
                retry_after_s=1.0,
            )
        if self._growth is not None and cells > self.context.cells:
            self._growth.thread.join()
            self._end_growth()
        if cells > self.context.cells:
            larger, least = self._larger(cells), min(cells + cells // 8, most)
            try:
                self._move(larger, by_channel=self.by_channel)
            except Busy:
                if least >= larger:
                    raise
                self._move(least, by_channel=self.by_channel)

    @property
    def is_growing(self) -> bool:
        return self._growth is not None

    def grow(self, cells: int) -> bool:
        """See the protocol.

        No pool is made beyond the KV budget, nor on a GPU, whose memory may be planned for a single
        pool.
        """
        if self._growth is not None:
            if not self._growth.thread.is_alive():
                self._end_growth()
        elif self.context.cells < cells <= self._plan.pool_tokens:
            self._begin_growth(self._larger(cells))
        return cells <= self.allocated_tokens

    def _begin_growth(self, cells: int) -> None:
        token = self._plan.host_kv_bytes_per_token
        if token < self.token_bytes or time.monotonic() - self._refused_at < _RETRY_S:
            return
        most_bytes = (cells + self.context.cells) * token  # The pool may be full by then.
        if most_bytes > self.budget_left_bytes:
            return
        if self._moved_bytes(cells) + SAVE_MARGIN_BYTES > available_bytes():
            return
        try:
            self._growth = _Growth(lambda: self._make_context(cells, self.by_channel), most_bytes)
        except RuntimeError as error:  # "can't start new thread"
            log.warning("no larger KV pool can be made now: %s", error)
            self._refused_at = time.monotonic()

    def _end_growth(self) -> None:
        """Move everything to the larger context, if it could be made."""
        growth, self._growth = self._growth, None
        assert growth is not None
        if growth.context is None:
            self._refused_at = time.monotonic()
            return
        old = self.context
        held = old.cells * self.token_bytes
        try:
            if not self._has_budget(held + self._moved_bytes(growth.context.cells)):
                raise MemoryError("the KV budget has no place for a copy any more")
            growth.context.restore(old.export())
        except (MemoryError, InternalError) as error:
            log.warning("the KV pool could not be moved to a larger one: %s", error)
            growth.context.close()
            self._refused_at = time.monotonic()
            return
        self._context = growth.context
        old.close()

    def shrink(self, cells: int) -> None:
        """See the protocol.

        A pool that leaves too little of the KV budget for copies is made again with at most half of
        its cells. It stays if there is no memory for that.

        Raises:
            RunnerLost: as `make_room`.
        """
        least = max(cells, self._plan.first_tokens)
        is_short = self.budget_left_bytes < cells * self.token_bytes
        if not is_short or self.is_growing or 2 * least > self.context.cells:
            return
        try:
            self._move(least, by_channel=self.by_channel)
        except Busy as error:
            log.warning("the KV pool keeps its size: %s", error.message)

    def transpose(self) -> None:
        """Move everything to a context with the other kind of attention.

        Raises:
            Busy: there is no memory for it, or the state's format is unknown; the contents are
                unchanged.
            RunnerLost: as `make_room`.
        """
        cells, to = self.context.cells, not self.by_channel
        at_work = cells * self.token_bytes + self._scratch_bytes(cells, by_channel=to)
        if not self._has_budget(max(at_work, self._moved_bytes(cells))):
            raise _cannot_move(cells, cells, "the KV budget is taken")
        self._move(cells, by_channel=to)

    def close(self) -> None:
        """Free the context. May be called twice."""
        growth, self._growth = self._growth, None
        if growth is not None:
            growth.thread.join()
            if growth.context is not None:
                growth.context.close()
        context, self._context = self._context, None
        if context is not None:
            context.close()

    def _take_in(self, sequence: int, state: SavedState) -> bool:
        """Load a saved state into the empty `sequence`; False if that fails."""
        if not isinstance(state, LlamaState) or state.fingerprint != self.fingerprint:
            return False
        data = state.data
        if state.by_channel != self.by_channel:
            try:
                data = transposed(data, by_channel=self.by_channel)
            except (UnknownLayout, MemoryError):
                return False
        while not self.context.restore_sequence(sequence, data):
            # llama.cpp does not report how many cells are free, so grow until it fits.
            try:
                self.make_room(self.context.cells + 1)
            except Busy:
                return False
        return True

    def _move(self, cells: int, *, by_channel: bool) -> None:
        """Move the contents to a new pool of `cells` cells: copy out, free, make, copy in.

        The two pools never exist at the same time, nor two copies together with a pool.
        """
        old = self.context
        old_cells = old.cells
        self._has_budget(self._moved_bytes(max(cells, old_cells)))
        more_bytes = (cells - old_cells) * self._plan.host_kv_bytes_per_token
        more_bytes += old.state_bytes()
        free_bytes = available_bytes()
        if more_bytes > free_bytes:
            raise _cannot_move(
                old_cells, cells, f"{more_bytes / 1e9:.2f} GB of {free_bytes / 1e9:.2f} GB free"
            )
        try:
            state = old.export()
        except (MemoryError, InternalError) as error:
            raise _cannot_move(old_cells, cells, "no memory for a copy of the old one") from error
        self._context = None
        old.close()
        release_free_memory()
        refused: HearthError | UnknownLayout | MemoryError | None = None
        is_transposed = False
        try:
            if by_channel != self.by_channel:
                state, is_transposed = transposed(state, by_channel=by_channel), True
            context = self._make_context(cells, by_channel)
        except (DoesNotFit, UnknownLayout, MemoryError) as error:
            refused = error
            context = self._back_to(old_cells, self.by_channel)
            if is_transposed:
                try:
                    state = transposed(state, by_channel=self.by_channel)
                except (UnknownLayout, MemoryError) as lost:
                    context.close()
                    raise RunnerLost(f"the sequences could not be moved back: {lost}") from lost
        else:
            self.by_channel = by_channel
        self._context = context
        try:
            context.restore(state)
        except InternalError as error:
            raise RunnerLost(f"the sequences could not be moved: {error.message}") from error
        if refused is not None:
            raise _cannot_move(old_cells, cells, str(refused)) from refused

    def _back_to(self, cells: int, by_channel: bool) -> LlamaContext:
        """A context like the previous one. Raises `RunnerLost` if it cannot be made."""
        try:
            return self._make_context(cells, by_channel)
        except DoesNotFit as error:
            raise RunnerLost(f"no memory for the {cells:,} cells that were there before") from error

    def _checked(self, sequence: int) -> int:
        """Return `sequence` if it exists: invalid ids fail an assertion of llama.cpp."""
        if not 0 <= sequence < self._plan.sequences:
            raise InternalError(
                f"Sequence {sequence} does not exist; there are {self._plan.sequences}."
            )
        return sequence


class _Growth:
    """A larger context that is being made in its own thread.

    Attributes:
        context: set once the thread has ended; None if the context could not be made.
        nbytes: of its pool, and of a copy of the current contents.
    """

    def __init__(self, make: Callable[[], LlamaContext], nbytes: int) -> None:
        self.nbytes = nbytes
        self.context: LlamaContext | None = None
        self._make = make
        self.thread = threading.Thread(target=self._run, name="larger KV pool", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.context = self._make()
        except HearthError as error:
            log.warning("no larger KV pool can be made now: %s", error.message)
        except Exception:
            log.exception("making a larger KV pool failed")


def _cannot_move(old_cells: int, cells: int, why: str) -> Busy:
    to = "change its layout"
    if cells != old_cells:
        verb = "grow" if cells > old_cells else "shrink"
        to = f"{verb} from {old_cells:,} to {cells:,} tokens"
    return Busy(
        f"The KV pool cannot {to}: {why}.",
        "Try again when another request is done, close other programs, or set a smaller context "
        "(--ctx).",
        retry_after_s=1.0,
    )
