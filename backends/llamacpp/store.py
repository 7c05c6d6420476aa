"""The sequences of a runner: by id, in one unified llama.cpp pool that grows as it fills."""

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
from hearth.backends.llamacpp.state_layout import UnknownLayout, turned
from hearth.backends.machine.memory import available_bytes, release_free_memory

log = logging.getLogger(__name__)

_RETRY_S = 10.0
"""After a larger context could not be made in the background, none is tried for so long."""
SAVE_MARGIN_BYTES = 256 << 20
"""What must be free beside a saved state: states are a convenience, memory for a step is not."""


@dataclass(frozen=True, slots=True)
class LlamaState:
    """A saved sequence. Only a store with the same fingerprint takes it."""

    data: State
    by_channel: bool
    """How its values lie: see `state_layout`."""
    fingerprint: bytes

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


class LlamaStore:
    """Implements `hearth.backends.engine.kv.store.SequenceStore`, which has the docstrings.

    The context starts with `plan.first_tokens` cells and doubles (`larger_pool`), because llama.cpp
    zeroes a whole pool when it makes one. Where there is memory for both, and for a copy, the
    larger one is made in a thread while steps go on, and what the pool holds is moved between two
    of them. Else it is copied out, and the smaller pool freed first. At rest it may shrink again.

    Whatever it does, pools, copies, states and what is beside them stay within the KV budget; only
    contexts for texts that are being computed do not make way.

    What can be gone on from depends on the memory. Full attention: any first part. A recurrent
    state (hybrids have one too) has no past, so only the whole. A sliding window: the whole, or
    where every cell that the next token looks at is still there; llama.cpp gives cells that a
    sequence no longer looks at to others, and then drops all before them, so that what lies between
    a sequence's first and last position is complete (`apply_ubatch` in llama-kv-cache.cpp).

    llama.cpp copies whole sequences only. Where the memory keeps its past, parts go through an id
    that is held back for them: it shares the cells of a part, or takes in a copy, for a moment.

    Args:
        make_context: makes a context whose pool has at least so many cells, with values by channel
            (attention without flash) or not.
        plan: sizes.
        facts: what the model's memory can do.
        by_channel: how values lie at first.
        fingerprint: of the model, and of all that keys and values depend on.
        beside_bytes: what other contexts of the runner take of the KV budget now.
        make_way: frees what it can of them until they take at most the bytes it is given.

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
        """Empty but while a part is copied."""
        self.sequences = plan.sequences - has_spare
        self.token_bytes = plan.kv_bytes_per_token
        self.state_bytes = plan.sequences * plan.state_bytes

    @property
    def context(self) -> LlamaContext:
        """The context that holds the pool now; `make_room` may replace it.

        Raises:
            InternalError: it is closed.
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
        """See the protocol; what llama.cpp adds to fill a block of 256 is not used."""
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
        """What the pool, its states and other contexts leave of the KV budget; infinite without
        one.
        """
        growing = 0 if self._growth is None else self._growth.nbytes
        scratch = self._scratch_bytes(self.allocated_tokens, by_channel=self.by_channel)
        pool = self.allocated_tokens * self.token_bytes
        return max(0, self._budget_left(pool + growing + scratch))

    @property
    def texts_left_bytes(self) -> float:
        """The same once the pool has its full size, which contexts for texts leave for it."""
        scratch = self._scratch_bytes(self._plan.pool_tokens, by_channel=self.by_channel)
        return self._budget_left(self._plan.pool_tokens * self.token_bytes + scratch)

    def _budget_left(self, pool_bytes: int) -> float:
        budget = self._plan.kv_budget_bytes
        if budget is None:
            return math.inf
        return budget - pool_bytes - self.state_bytes - self._beside_bytes()

    def _scratch_bytes(self, cells: int, *, by_channel: bool) -> int:
        """What graphs without flash attention take more than when the model was loaded."""
        more = max(0, cells - self._plan.first_tokens)
        return more * self._plan.scratch_bytes_per_cell if by_channel else 0

    def _has_budget(self, pool_bytes: int) -> bool:
        """Whether `pool_bytes` for the pool and its copies fit; other contexts are freed for it."""
        left = self._budget_left(pool_bytes)
        if left < 0:
            self._make_way(max(0, left + self._beside_bytes()))
            left = self._budget_left(pool_bytes)
        return left >= 0

    def _larger(self, cells: int) -> int:
        """Size of the next pool, which is to have `cells` cells, more than there are."""
        return larger_pool(self.context.cells, cells, self._plan.pool_tokens)

    def _moved_bytes(self, cells: int) -> int:
        """A pool of `cells` cells, and a copy of what the one of now holds."""
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
        """See the protocol; llama.cpp moves a cell for all sequences that have it."""
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
        """After a failed step: forget what llama.cpp may have stored of it beyond the `tokens` that
        `sequence` held; False if that cannot be told, and then it is empty.
        """
        if (tokens == 0 or self.keeps_past) and self.cut(sequence, tokens):
            return True
        self.cut(sequence, 0)
        return False

    def tear(self) -> None:
        """After a failed step: where a window slides, llama.cpp may have dropped cells out of the
        middle of what no sequence looked at any more, so that none can go back any more.
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
        except (MemoryError, InternalError):  # llama.cpp says that it had no memory by writing less
            return None

    def restore(self, sequence: int, state: SavedState) -> bool:
        """See the protocol; the pool grows if it must. A state of another model, or of another kind
        of keys and values, is refused.
        """
        if not self._take_in(self._checked(sequence), state):
            return False
        self._torn.discard(sequence)
        return True

    def save_part(self, sequence: int, start: int, end: int) -> LlamaState | None:
        """See the protocol; None where no id is left for it."""
        part = self._part_id
        if part is None:
            return None
        self.context.share(self._checked(sequence), part, end, start)
        try:
            return self.save(part)
        finally:
            self.context.remove(part, 0)

    def restore_part(self, sequence: int, state: SavedState, start: int, end: int) -> bool:
        """See the protocol; the pool grows if it must."""
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
        """First and last position that `sequence` holds; (-1, -1) if it is empty. For a memory that
        keeps its past the last is the length - 1, which tests compare with the cache's account.
        """
        return self.context.positions(self._checked(sequence))

    def make_room(self, cells: int) -> None:
        """Make sure that the pool has `cells` cells in all, growing the context if it must.

        Raises:
            Busy: that is more than the pool may have, or a larger one could not be had; what it
                holds is unchanged.
            RunnerLost: growing failed, and then the pool of before could not be made again.
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
        """See the protocol. Nothing is made beyond the KV budget, nor on a GPU, whose memory may be
        planned for one pool.
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
        most_bytes = (cells + self.context.cells) * token  # It may be full by then.
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
        """The larger context was made, or could not be: move everything there."""
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
        """See the protocol: a pool that has grown over its KV budget's share for copies is made
        anew with half of its cells or fewer. Where there is no memory for that it stays.

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

    def turn(self) -> None:
        """Move everything to a context with the other kind of attention.

        Raises:
            Busy: there is no memory for that, or llama.cpp's states are not as they were; what it
                holds is unchanged.
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
        """Give the empty `sequence` what was saved."""
        if not isinstance(state, LlamaState) or state.fingerprint != self.fingerprint:
            return False
        data = state.data
        if state.by_channel != self.by_channel:
            try:
                data = turned(data, by_channel=self.by_channel)
            except (UnknownLayout, MemoryError):
                return False
        while not self.context.restore_sequence(sequence, data):
            # Nothing says how many cells are free: ask for more until it fits.
            try:
                self.make_room(self.context.cells + 1)
            except Busy:
                return False
        return True

    def _move(self, cells: int, *, by_channel: bool) -> None:
        """Copy out, free, make, copy in: so that the two pools are never there together, nor either
        with two copies.
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
        is_turned = False
        try:
            if by_channel != self.by_channel:
                state, is_turned = turned(state, by_channel=by_channel), True
            context = self._make_context(cells, by_channel)
        except (DoesNotFit, UnknownLayout, MemoryError) as error:
            refused = error
            context = self._back_to(old_cells, self.by_channel)
            if is_turned:
                try:
                    state = turned(state, by_channel=self.by_channel)
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
        """A context like the one before. Raises `RunnerLost` if even that is gone."""
        try:
            return self._make_context(cells, by_channel)
        except DoesNotFit as error:
            raise RunnerLost(f"no memory for the {cells:,} cells that were there before") from error

    def _checked(self, sequence: int) -> int:
        """`sequence`, if it exists: llama.cpp asserts on ids that it was not made for."""
        if not 0 <= sequence < self._plan.sequences:
            raise InternalError(
                f"Sequence {sequence} does not exist; there are {self._plan.sequences}."
            )
        return sequence


class _Growth:
    """A larger context that is being made, in a thread of its own.

    Attributes:
        context: once the thread has ended: it; None if it could not be made.
        nbytes: of its pool, and of a copy of what the one of now holds.
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
