"""The KV cache as the scheduler sees it: what each slot holds, which prefixes of ended sequences
are kept, and what is evicted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final

from hearth.backends.contract.loaded import CacheStats
from hearth.backends.engine.kv.blocks import BlockLeaves
from hearth.backends.engine.kv.disk import DiskTier
from hearth.backends.engine.kv.group import Group
from hearth.backends.engine.kv.kept import KeptPrefixes
from hearth.backends.engine.kv.leaves import Handle, Leaves
from hearth.backends.engine.kv.offload import WORTH_MOVING, DiskFetch, Fetch, Offloading
from hearth.backends.engine.kv.sequences import SequenceLeaves
from hearth.backends.engine.kv.store import BlockStore, SavedState, SequenceStore
from hearth.backends.engine.kv.tree import Prefix
from hearth.backends.engine.kv.write_behind import WriteBehind
from hearth.backends.errors import Busy, InternalError

PART_TOKENS: Final = 256
"""Tokens per part of an offloaded prefix."""

RETRY_S: Final = 10.0
"""Seconds for which less is held after the store could not grow. Doubled each time the store has no
more memory than at the previous failure."""
MOST_RETRY_S: Final = 600.0
"""Upper limit of the doubled `RETRY_S`."""
_GROWS_S: Final = 0.005
"""Seconds between two checks whether memory was allocated, while nothing runs."""


@dataclass(frozen=True, slots=True)
class KvLimits:
    """How much of a store may be used for what.

    Attributes:
        slots: number of sequences that run at the same time.
        pool_tokens: maximum tokens in use or reserved, where shared ones count once; rounded up to
            blocks.
        context: maximum tokens of one sequence.
        kept_tokens: maximum tokens held only by kept prefixes; rounded down to blocks.
        step_tokens: maximum tokens of a sequence in one step; None: any number.
        kept_while_running: maximum tokens of kept prefixes that stay in the cache while sequences
            run, for runners whose steps are slower with every token in it; None: all of them.
        part_tokens: tokens that are copied to host memory, or back, at once.
        worth_moving: minimum number of tokens that offloading a prefix must free, or that a copy
            must save from being computed.
    """

    slots: int
    pool_tokens: int
    context: int
    kept_tokens: int
    step_tokens: int | None = None
    kept_while_running: int | None = None
    part_tokens: int = PART_TOKENS
    worth_moving: int = WORTH_MOVING


class KvManager:
    """Manages which tokens are held, by slot, over the store of a runner.

    A slot is empty until `open` or `restore` and after `release`. What is released may be kept as a
    prefix. `open` finds such prefixes until room is needed; then the least recently used is evicted
    first, from its end if a shorter prefix is still useful. Sharing copies at most part of a block.
    Hits are found by comparing token ids and are always exact.

    A pinned prefix is kept until some seconds after its last use (an `open` with tokens that begin
    with it), even if others need room: next to other sequences its tokens count as in use. Pins are
    given up, after all other prefixes, only if `reserve` needs the room for a sequence that runs
    alone and could not continue otherwise.

    Kept prefixes and preempted sequences may be offloaded to host memory, and are copied back into
    a slot whose prompt begins with them. Copies take time between steps, so `tend` limits them.

    A step is prepared with `prepare`, computed by the runner, and recorded with `commit`. Only
    accepted tokens are recorded, so unverified tokens never become part of the cache.

    Call `open` before `reserve`: tokens that a sequence found need no room of their own, and are
    not evicted to make room for it. Tokens that `open` found offloaded are copied only after
    `reserve`, into the room that they would need if they were computed.

    Args:
        store: of the runner.
        limits: how much of it may be used for what.
        clock: seconds, for pins and copies.
        disk: where sequences with a session are written; None: nowhere.

    Raises:
        InternalError: the store is too small for one sequence; a slot does not exist or is in the
            wrong state.
    """

    def __init__(
        self,
        store: SequenceStore | BlockStore,
        limits: KvLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        disk: DiskTier | None = None,
    ) -> None:
        self._limits = limits
        self._sequences: SequenceLeaves | None = None
        self._blocks: BlockLeaves | None = None
        if isinstance(store, SequenceStore):
            if store.sequences < limits.slots:
                raise InternalError(
                    f"A store of {store.sequences} sequences has {limits.slots} slots."
                )
            self._sequences = SequenceLeaves(
                store, slots=limits.slots, pool_tokens=limits.pool_tokens
            )
        else:
            self._blocks = BlockLeaves(
                store,
                pool_tokens=limits.pool_tokens,
                step_tokens=limits.step_tokens,
                evict=lambda group: self._evict(group, 1),
            )
        leaves: Leaves | None = self._sequences or self._blocks
        assert leaves is not None
        self._leaves = leaves
        self._tree = leaves.tree
        self._page = leaves.tree.page
        for group in leaves.groups if self._blocks is not None else ():
            needed = group.claim(self._tree.pages(limits.context), 0, 0)
            if needed > group.limit:
                raise InternalError(
                    f"One sequence of {limits.context} tokens needs {needed} blocks of group"
                    f" {group.number}, which has {group.limit}."
                )
        self._slots: list[Prefix | None] = [None] * limits.slots
        self._most_kept = limits.kept_tokens // self._page
        self._kept = KeptPrefixes(leaves, clock, self._most_kept)
        self._offloading = Offloading(
            leaves,
            kept_while_running=None
            if limits.kept_while_running is None
            else limits.kept_while_running // self._page,
            part_tokens=limits.part_tokens,
            worth_moving=limits.worth_moving,
            clock=clock,
        )
        self._behind: WriteBehind | None = None
        if disk is not None:
            self._behind = WriteBehind(
                disk,
                leaves,
                self._offloading,
                part_tokens=limits.part_tokens,
                worth_moving=limits.worth_moving,
            )
        self._fetches: dict[int, Fetch | DiskFetch] = {}
        """Copies in progress, by slot."""
        self._clock = clock
        self._refused_at: float | None = None
        """When the store could not grow; None: limits are not lowered now."""
        self._retry_s = RETRY_S
        self._had_tokens = 0
        """Tokens that the store had memory for at `_refused_at`."""
        self._may_offload = False
        """Running sequences or kept prefixes have changed, so there may be something to offload, or
        memory to release.
        """

    def expect(self, tokens: int) -> None:
        """Called before anything runs, when a prefix of `tokens` tokens may be read from disk:
        allocate memory for it and for a step after it, as far as there is enough.
        """
        tokens = min(tokens + (self._limits.step_tokens or PART_TOKENS), self._limits.pool_tokens)
        if self._blocks is not None:
            for group in self._blocks.groups:
                if group.window is None:
                    self._blocks.store.expect(group.number, self._tree.pages(tokens))
        elif self._sequences is not None:
            while not self._sequences.store.grow(tokens) and self.is_growing:
                time.sleep(_GROWS_S)

    # ---- admission

    def match(self, tokens: Seq[int], namespace: bytes = b"") -> int:
        """Length of the first part of `tokens` that `open` would find, including tokens that would
        be copied in afterwards: at most len(tokens) - 1. Parts that are being copied into another
        slot do not count.
        """
        hits = self._leaves.hits(self._tree.root(namespace), tokens[:-1], copies=True)
        hit = next(hits, None)
        held = 0 if hit is None else hit.length
        fetch = self._offloading.fetch(tokens[:-1], namespace, held)
        if fetch is None:
            return held
        part = fetch.part_at(held)
        others = (one for one in self._fetches.values() if isinstance(one, Fetch))
        return held if any(part in one.parts for one in others) else len(fetch.tokens)

    def open(
        self, slot: int, tokens: Seq[int], namespace: bytes = b"", session: str | None = None
    ) -> int:
        """Begin a sequence in the empty `slot` with the longest first part of `tokens` that any
        running sequence or kept prefix has; returns its length. A hit that ends within a block
        needs a block of its own; if there is none, the hit ends where the block begins.

        Args:
            namespace: stands for everything keys and values depend on besides tokens and model.
            session: the session of the sequence, if it is written to disk.
        """
        if self.length(slot):
            raise InternalError(f"Slot {slot} holds {self.length(slot)} tokens; it must be empty.")
        if self._behind is not None:
            self._behind.begin(slot, session)
        self._kept.expire()
        self._retry()
        self._kept.use_pins(self._tree.root(namespace), tokens)
        self._may_offload = True
        prefix = self._slots[slot]
        if prefix is not None:
            prefix.namespace = namespace
        is_whole = not self._leaves.keeps_past and self._fetch_whole(slot, tokens[:-1], namespace)
        if not is_whole and not self._enter(slot, tokens[:-1], namespace, copies=True):
            self._enter(slot, tokens[:-1], namespace, copies=False)
        self._settle(self._begin(slot, namespace))
        self._evict_excess()
        self._note_shrunk()
        held = self.length(slot)
        if self._leaves.keeps_past:
            self._fetch(slot, tokens[:-1], namespace, held)
        return held

    def _fetch_whole(self, slot: int, tokens: Seq[int], namespace: bytes) -> bool:
        """Start to copy a whole offloaded prefix into `slot`, if it is longer than what the cache
        has.
        """
        hit = next(self._leaves.hits(self._tree.root(namespace), tokens, copies=True), None)
        return self._fetch(slot, tokens, namespace, 0 if hit is None else hit.length)

    def _fetch(self, slot: int, tokens: Seq[int], namespace: bytes, held: int) -> bool:
        """Start to copy `tokens` into `slot`, which holds the first `held` of them, from host
        memory, or from disk if that has more; False if there is nothing to copy.
        """
        fetch: Fetch | DiskFetch | None = self._offloading.fetch(tokens, namespace, held)
        if self._behind is not None:
            reached = held if fetch is None else len(fetch.tokens)
            fetch = self._behind.fetch(tokens, namespace, held, reached) or fetch
        if fetch is not None:
            self._fetches[slot] = fetch
        return fetch is not None

    def _end_fetch(self, slot: int) -> None:
        fetch = self._fetches.pop(slot, None)
        if isinstance(fetch, DiskFetch):
            fetch.load.end()

    def _enter(self, slot: int, tokens: Seq[int], namespace: bytes, *, copies: bool) -> bool:
        """Begin `slot` with the tokens that the cache has; False if there was no memory to copy."""
        hits = self._leaves.hits(self._tree.root(namespace), tokens, copies=copies)
        hit = next(hits, None)
        if hit is None:
            return True
        source = hit.source
        if source.kind != "live":
            self._kept.touch(source)
            is_last = self._kept.loose == [source] and not self._leaves.has_place()
            if is_last and self._slots[slot] is None:
                self._take_over(slot, source, hit.length)
                return True
        return self._leaves.enter(self._begin(slot, namespace), hit)

    def reserve(self, slot: int, tokens: int) -> bool:
        """Make sure that `slot` can grow to `tokens` tokens, evicting kept prefixes if needed, and
        pinned ones if no other slot is in use. False if that is not possible; then nothing has
        changed.
        """
        prefix = self._slot(slot)
        if tokens > self._limits.context:
            return False
        if prefix is not None and self._claim_idle(prefix, tokens):
            return True
        more = self._more_for(prefix, tokens)
        counted = self._leaves.counted()
        # Otherwise it fits next to what is kept.
        must_evict = any(group.excess + more[group.number] > 0 for group in counted)
        if must_evict and max(more) > 0:
            self._kept.expire()
            pins_stay = not self._is_alone(prefix)
            if any(more[one.number] > one.free(pins_stay=pins_stay) for one in counted):
                return False
        if prefix is None:
            prefix = self._begin(slot, b"")
        prefix.reserved = tokens
        self._claim(prefix, more)
        if must_evict:
            self._evict_excess()
            if self._is_alone(prefix):
                self._unpin_excess()
        if self._sequences is not None:  # Grow before it is full, while little has to be moved.
            self.has_memory(self._sequences.first.claims)
        return True

    def free_tokens(self) -> int:
        """Tokens that could be reserved for one more slot in addition to all reservations."""
        self._kept.expire()
        self._retry()
        pins_stay = any(prefix is not None for prefix in self._slots)
        free = (group.free_tokens(pins_stay=pins_stay) for group in self._leaves.counted())
        return min((tokens for tokens in free if tokens is not None), default=self.pool_tokens)

    # ---- steps

    def prepare(self, counts: Mapping[int, int]) -> None:
        """Allocate memory for a step that computes `counts` more tokens, by slot, so that `handle`
        includes it.

        Raises:
            Busy: there is no memory; nothing has changed, except that `pool_tokens` may be lower.
            RunnerLost: what the store held is lost.
        """
        if self._sequences is not None:
            self._make_room(self._sequences, self.cells + sum(counts.values()))
        else:
            for slot, count in counts.items():
                self._extend(slot, count)
        self._offloading.shrink()  # The pool may have grown.

    def handle(self, slot: int) -> Handle:
        """The runner's handle for `slot`; valid until the next call of the manager."""
        return self._leaves.handle(self._prefix(slot))

    def commit(self, slot: int, tokens: Seq[int], computed: int | None = None) -> bool:
        """Record that a step computed tokens at the end of `slot`, of which `tokens` are accepted.

        Args:
            computed: number of computed tokens; None: just `tokens`.

        Returns:
            False if the store cannot forget the tokens that were not accepted; then `slot` is
            empty and has no reservation.
        """
        prefix = self._prefix(slot)
        if self._fetches:
            self._end_fetch(slot)
        self._leaves.append(prefix, tokens)
        if self._blocks is not None:
            self._settle(prefix)
            self._evict_excess()  # Idle pages may exceed limits after merges or passed windows.
        else:  # Cells are taken as they are filled.
            claim = prefix.claims[0]
            prefix.claims[0] = max(0, prefix.reserved - prefix.length)
            self._leaves.first.claims += prefix.claims[0] - claim
        if computed is not None and computed > len(tokens):
            return self.undo(slot, computed - len(tokens))
        return True

    def keep(self, slot: int, places: Seq[int]) -> None:
        """Of the tokens that a step computed at the end of `slot`, move those at `places`
        (ascending) together, because they come next. Must be followed by `commit`.
        """
        assert self._blocks is not None, "only runners with blocks take trees"
        moved = [(place, at) for at, place in enumerate(places) if place != at]
        if moved:
            self._blocks.rearrange(self._prefix(slot), moved)

    def undo(self, slot: int, computed: int) -> bool:
        """Discard the `computed` tokens of a step for `slot`; returns the same as `commit`."""
        prefix = self._prefix(slot)
        store = self._sequences.store if self._sequences is not None else None
        if computed and store is not None and not store.cut(prefix.sequence, prefix.length):
            self.release(slot, keep=False)
            return False
        if self._blocks is not None:
            self._blocks.drop_spare(prefix)
            self._settle(prefix)
        return True

    def forget(self, slot: int, start: int, count: int, namespace: bytes) -> bool:
        """Let `slot` forget the `count` tokens (whole pages) after its first `start`, and lower the
        positions of the tokens after them by `count`. The remaining tokens are of `namespace` from
        now on and are not written to disk, and the reservation is reduced to them. False if memory
        is short; then nothing has changed.
        """
        prefix = self._prefix(slot)
        if not self._leaves.forget(prefix, start, count, namespace):
            self._note_shrunk()
            return False
        if self._behind is not None:
            self._behind.begin(slot, None)
        self._promise(prefix, prefix.length)
        self._evict_excess()
        self._note_shrunk()
        self._may_offload = True
        return True

    def has_memory(self, tokens: int) -> bool:
        """Whether there is memory for `tokens` more tokens than are in use. If not, starts to
        allocate some if steps need not wait for it; call again later.
        """
        if self._sequences is None:
            return True
        has = self._sequences.store.grow(self.cells + tokens)
        if self.is_growing:
            self._offloading.shrink()
        return has

    # ---- copies

    def arriving(self, slot: int) -> int:
        """How many more tokens `tend` will copy to the end of `slot`. No step may compute tokens
        for it before that. If the copies turn out to be impossible, this becomes 0.
        """
        fetch = self._fetches.get(slot)
        return 0 if fetch is None else len(fetch.tokens) - self.length(slot)

    def tend(self) -> dict[int, int]:
        """Called once before each step: continue the copies between the cache and host memory or
        disk, for a time short enough for streams, and drop offloaded prefixes if memory is short.
        Copies into slots come first. Returns how many tokens arrived, by slot.
        """
        self._offloading.renew()
        if self.is_growing:
            self.has_memory(0)
        arrived = {slot: self._copy_in(slot) for slot in list(self._fetches)}
        if self._behind is not None and (not self._fetches or self.is_waiting):
            self._behind.work(self._slots, self._kept)
        if self._may_offload and not self._fetches and not self.is_writing:
            if any(self._slots):
                for prefix in self._offloading.out_of_the_way(self._kept):
                    self._drop_kept(prefix)
            else:
                self._leaves.rest()
            self._may_offload = not self._offloading.has_time
        return {slot: tokens for slot, tokens in arrived.items() if tokens}

    @property
    def is_waiting(self) -> bool:
        """Whether all tokens counted by `arriving` are still being read from disk, so that `tend`
        has nothing to copy until the disk tier wakes the engine.
        """
        return bool(self._fetches) and all(one.is_waiting for one in self._fetches.values())

    @property
    def is_writing(self) -> bool:
        """Whether `tend` has tokens of ended sequences to write to disk."""
        return self._behind is not None and self._behind.is_wanted

    def write_out(self) -> None:
        """Called when no sequence runs any more: write to disk what is not there yet."""
        if self._behind is None:
            return
        while self.is_writing:
            self.tend()
            self._behind.disk.flush()
        self._behind.disk.flush()

    def copy_out(self, slot: int, *, grows: bool) -> None:
        """`slot` will be released to make room, now or soon: copy what it holds to host memory, as
        far as there is time before the next `tend`, so that `open` finds it there. Tokens that were
        already copied are not copied again.

        Args:
            grows: the sequence continues for now, so an incomplete last part, which would have to
                be copied again, is left out.
        """
        self._offloading.copy_out(self._prefix(slot), only_full_parts=grows)

    def drop_offloaded(self) -> bool:
        """Drop all offloaded prefixes, because their memory is needed; returns whether there were
        any.
        """
        had = len(self._offloading.prefixes) > 0
        self._offloading.prefixes.clear()
        return had

    def save(self, slot: int) -> SavedState | None:
        """A copy of everything that `slot` holds, for `restore`; None if not possible."""
        prefix = self._prefix(slot)
        return self._leaves.save(prefix) if prefix.length else None

    def restore(self, slot: int, state: SavedState, tokens: Seq[int]) -> bool:
        """Fill the empty `slot` with the saved state after `tokens`. Reserves room for them if it
        was not reserved before. False if the state cannot be restored; then the slot is empty.
        """
        if self.length(slot):
            raise InternalError(f"Slot {slot} holds {self.length(slot)} tokens; it must be empty.")
        before = self._slots[slot]
        reserved = 0 if before is None else before.reserved
        if not self.reserve(slot, max(reserved, len(tokens))):
            return False
        prefix = self._prefix(slot)
        if self._leaves.restore(prefix, state, tokens):
            self._end_fetch(slot)
            self._settle(prefix)
            return True
        if before is None:
            self.release(slot, keep=False)
        else:
            self._promise(prefix, reserved)
        return False

    # ---- what is kept

    def checkpoint(self, slot: int) -> None:
        """Keep what `slot` holds now as a prefix while the sequence continues. Nothing is kept if
        the store has no place for it.
        """
        self._kept.expire()
        source = self._prefix(slot)
        if not source.length:
            return
        if (other := self._kept.serving(source)) is not None:
            self._kept.touch(other)
        else:
            self._drop_covered(source)
            kept = self._keep_first(source, source.length)
            if self._behind is not None and kept is not None:
                self._behind.checkpoint(slot, kept)
            self._evict_excess()

    def pin(self, slot: int, tokens: int, seconds: float) -> bool:
        """Pin the first `tokens` tokens of `slot`, which must hold them, until `seconds` after
        their last use. False if that would be more than pins may hold, or if the memory cannot
        share exactly that many; then they are kept like any others.
        """
        self._kept.expire()
        source = self._prefix(slot)
        if not 0 < tokens <= source.length:
            raise InternalError(
                f"Slot {slot} holds {source.length} tokens; {tokens} cannot be pinned."
            )
        known = self._kept.exactly(source, tokens)
        if known is None or known.kind != "pinned":
            if known is None and not self._leaves.can_fork(source, tokens):
                return False
            holder = source if known is None else known
            if not self._kept.may_pin(holder, tokens, seconds):
                return False
        if known is None and (known := self._keep_first(source, tokens)) is None:
            return False
        self._kept.pin(known, seconds)
        self._evict_excess()
        return True

    def release(self, slot: int, *, keep: bool) -> None:
        """Empty `slot`; with `keep`, what it held is kept as a prefix while there is room. If that
        alone exceeds the budget of kept prefixes, only its beginning is kept, if that is useful.
        """
        self._kept.expire()
        prefix = self._slot(slot)
        if prefix is None:
            return
        self._slots[slot] = None
        self._end_fetch(slot)
        self._may_offload = True
        for group in self._leaves.groups:
            group.claims -= prefix.claims[group.number]
        prefix.claims = [0] * len(prefix.claims)
        prefix.reserved = 0
        held = prefix.length
        keep = keep and held > 0
        if keep and self._behind is not None:
            self._behind.end(slot, prefix)
        kept = self._kept.serving(prefix) if keep else None
        if kept is not None:
            self._kept.touch(kept)
        elif keep:
            self._drop_covered(prefix)
            self._keep(prefix)
            kept = prefix
        if kept is not prefix:
            self._leaves.drop(prefix)
        if self._behind is not None:
            self._behind.keep(slot, kept, held)
        self._evict_excess()
        if self._blocks is not None and not any(self._slots):
            self._blocks.rest()

    def clear(self) -> None:
        """Drop every kept prefix, including pinned ones, except those on disk."""
        for prefix in list(self._kept):
            self._drop_kept(prefix)
        self._offloading.prefixes.clear()
        if self._blocks is not None and not any(self._slots):
            self._blocks.rest()

    def clear_disk(self) -> None:
        """Delete everything of this model on disk."""
        if self._behind is not None:
            self._behind.clear()

    # ---- accounts

    @property
    def pool_tokens(self) -> int:
        """Maximum tokens that may be in use or reserved now, after `limit` calls."""
        return self._leaves.first.limit * self._page

    @property
    def cells(self) -> int:
        """Tokens that the pages in use have room for; shared pages count once."""
        return self._leaves.first.used * self._page

    def length(self, slot: int) -> int:
        """Tokens that `slot` holds."""
        prefix = self._slot(slot)
        return 0 if prefix is None else prefix.length

    def limit(self, pool_tokens: int) -> None:
        """Hold at most `pool_tokens` tokens until `lift_limits`, because the store could not grow.
        If more is reserved, all reservations are dropped, and sequences must `reserve` again to
        grow.
        """
        first = self._leaves.first
        first.limit = min(first.limit, pool_tokens // self._page)
        self._keep_to_limits()

    def lift_limits(self) -> bool:
        """Restore the planned limits, because memory that the store could not get may be free by
        now. False if the store got all it asked for since the last call.
        """
        if self._refused_at is None:
            return False
        self._refused_at = None
        for group in self._leaves.groups:
            group.limit = group.planned
        return True

    def stats(self) -> CacheStats:
        """What the cache holds now."""
        self._kept.expire()
        first, offloaded = self._leaves.first, self._offloading.prefixes
        windows = [group.number for group in self._leaves.groups if group.window is not None]
        disk = None if self._behind is None else self._behind.disk
        return CacheStats(
            allocated_tokens=self._leaves.allocated_tokens,
            live_tokens=first.held_tokens,
            kept_tokens=first.other_tokens,
            kept_prefixes=len(self._kept),
            pinned_tokens=self._kept.pinned_tokens,
            offloaded_tokens=offloaded.tokens,
            offloaded_prefixes=len(offloaded),
            window_bytes=sum(map(self._blocks.store.nbytes, windows)) if self._blocks else 0,
            state_bytes=self._leaves.store.state_bytes,
            offloaded_bytes=offloaded.nbytes,
            disk_tokens=0 if disk is None else disk.tokens,
            disk_bytes=0 if disk is None else disk.nbytes,
            disk_written_bytes=0 if disk is None else disk.written_bytes,
            disk_read_tokens=0 if disk is None else disk.read_tokens,
        )

    def check_integrity(self) -> None:
        """Recount everything; raises AssertionError if the state is inconsistent. For tests."""
        live, kept = self._live(), list(self._kept)
        self._tree.check_integrity()
        self._leaves.check_integrity(live, kept)
        ends = {prefix for node in self._tree for prefix in node.ends}
        assert ends == {prefix for prefix in (*live, *kept) if prefix.length}
        assert all(prefix.kind == "live" for prefix in live)
        assert all(prefix.length <= self._limits.context for prefix in live)
        for group in self._leaves.groups:
            assert group.claims == sum(prefix.claims[group.number] for prefix in live)
            assert min(group.spare, group.held, group.only_pinned, group.idle, group.claims) >= 0
        assert all(
            self._more_for(prefix, prefix.reserved) == [0] * len(self._leaves.groups)
            for prefix in live
        )
        full = [group for group in self._leaves.groups if group.window is None]
        for group in full:
            self._check_full(group)
        first = self._leaves.first
        assert not first.idle or first.idle + first.only_pinned <= self._most_kept
        for group in self._leaves.counted():
            assert not group.idle or group.excess <= 0, "what is idle makes way"
            grows = any(
                self._tree.pages(prefix.reserved) > self._leaves.taken(prefix) for prefix in live
            )
            assert not grows or group.free(pins_stay=True) >= 0, "what is reserved is there"
        self._kept.check_integrity()
        self._offloading.prefixes.check_integrity()
        assert all(self.arriving(slot) > 0 for slot in self._fetches)

    def _check_full(self, group: Group) -> None:
        counted = Group(0, None, page=self._page, limit=group.limit, step_tokens=None)
        for node in self._tree:
            tokens = len(node.tokens)
            counted.count(node.holders, self._tree.pages(tokens), tokens)
        for name in ("held", "only_pinned", "idle", "pinned", "held_tokens", "other_tokens"):
            assert getattr(counted, name) == getattr(group, name), name

    # ---- slots

    def _slot(self, slot: int) -> Prefix | None:
        if not 0 <= slot < len(self._slots):
            raise InternalError(f"Slot {slot} does not exist; there are {len(self._slots)}.")
        return self._slots[slot]

    def _prefix(self, slot: int) -> Prefix:
        prefix = self._slot(slot)
        if prefix is None:
            raise InternalError(f"Slot {slot} was not opened.")
        return prefix

    def _live(self) -> list[Prefix]:
        return [prefix for prefix in self._slots if prefix is not None]

    def _begin(self, slot: int, namespace: bytes) -> Prefix:
        """The prefix of `slot`, created if it has none yet."""
        prefix = self._slots[slot]
        if prefix is None:
            if not self._leaves.has_place():
                self._drop_kept(next(iter([*self._kept.loose, *self._kept.pins])))
            prefix = self._slots[slot] = self._leaves.begin(namespace, "live")
        return prefix

    def _is_alone(self, prefix: Prefix | None) -> bool:
        return all(other in (None, prefix) for other in self._slots)

    def _take_over(self, slot: int, donor: Prefix, tokens: int) -> None:
        """The only free place in the store is that of the kept `donor`: it becomes the prefix of
        `slot`, cut to `tokens`, or to nothing if the store cannot cut it there.
        """
        assert self._sequences is not None
        self._kept.remove(donor)
        if donor.length > tokens:
            if not self._sequences.store.cut(donor.sequence, tokens):
                self._sequences.store.cut(donor.sequence, tokens := 0)
            self._tree.cut(donor, tokens)
        self._leaves.change(donor, "live")
        self._slots[slot] = donor

    def _copy_in(self, slot: int) -> int:
        """Continue to copy what `open` found offloaded, while there is time; returns how many
        tokens arrived. Tokens that find no room or no longer exist are left to be computed.
        """
        fetch = self._fetches[slot]
        began = self.length(slot)
        while self.length(slot) < len(fetch.tokens):
            if not self._offloading.has_time or self.is_growing or fetch.is_waiting:
                return self.length(slot) - began
            prefix = self._slots[slot]
            reserved = 0 if prefix is None else prefix.reserved
            if not self.reserve(slot, max(reserved, len(fetch.tokens))):
                break
            prefix = self._prefix(slot)
            is_done = not self.is_growing and self._offloading.copy_in(prefix, fetch)
            self._settle(prefix)
            if not is_done and not self.is_growing:
                break
        self._end_fetch(slot)
        if self._behind is not None and isinstance(fetch, DiskFetch):
            self._behind.disk.read_tokens += self.length(slot) - fetch.start
        return self.length(slot) - began

    # ---- reservations

    def _more_for(self, prefix: Prefix | None, tokens: int) -> list[int]:
        """For each group, by how much the claim of `prefix` (None: an empty slot) would grow if
        `tokens` were reserved.
        """
        if prefix is None:
            pages = self._tree.pages(tokens)
            return [group.claim(pages, 0, 0) for group in self._leaves.groups]
        pages = self._tree.pages(max(tokens, prefix.length))
        taken = self._leaves.taken(prefix)
        return [
            group.claim(pages, taken, prefix.first[number]) - prefix.claims[number]
            for number, group in enumerate(self._leaves.groups)
        ]

    def _claim(self, prefix: Prefix, more: Seq[int]) -> None:
        for number, group in enumerate(self._leaves.groups):
            group.claims += more[number]
            prefix.claims[number] += more[number]

    def _settle(self, prefix: Prefix) -> None:
        """Update the claim to match the reservation, block table and length."""
        self._claim(prefix, self._more_for(prefix, prefix.reserved))

    def _promise(self, prefix: Prefix, tokens: int) -> None:
        """Set the reservation of `prefix` to `tokens`, replacing the previous one."""
        prefix.reserved = tokens
        self._settle(prefix)

    def _claim_idle(self, prefix: Prefix, tokens: int) -> bool:
        """Fast path: reserve `tokens` for `prefix` if nothing has to be evicted for them, as for
        most tokens of most streams; False if that is not certain.
        """
        if self._sequences is None:
            pages = self._tree.pages(max(tokens, prefix.length))
            if pages != self._tree.pages(max(prefix.reserved, prefix.length)):
                return False
        else:  # Each cell is a page.
            pool = self._sequences.first
            more = max(0, tokens - prefix.length) - prefix.claims[0]
            claims = pool.claims + more
            if pool.used + claims > min(pool.limit, self._sequences.store.allocated_tokens):
                return False
            prefix.claims[0] += more
            pool.claims = claims
        prefix.reserved = tokens
        return True

    def _extend(self, slot: int, tokens: int) -> None:
        """Allocate blocks for `tokens` more tokens of `slot`."""
        blocks = self._blocks
        assert blocks is not None
        prefix = self._prefix(slot)
        end = prefix.length + tokens
        if self._tree.pages(end) <= blocks.taken(prefix):
            return
        has_all = (end <= prefix.reserved or self.reserve(slot, end)) and blocks.extend(
            prefix, tokens
        )
        self._settle(prefix)
        self._note_shrunk()
        if not has_all:
            raise Busy(
                f"There are no pages for {tokens} more tokens; the key-value memory holds"
                f" {self.pool_tokens:,}.",
                "Try again when another request is done.",
                retry_after_s=1.0,
            )

    def _make_room(self, leaves: SequenceLeaves, cells: int) -> None:
        """Grow the store to `cells` if needed; if it cannot grow, lower the limit."""
        store = leaves.store
        if cells <= store.allocated_tokens:
            return
        self._offloading.prefixes.shrink(store.most_offloaded_while_growing(cells))
        try:
            try:
                store.make_room(cells)
            except Busy:
                if not self.drop_offloaded():
                    raise
                store.make_room(cells)  # They took the memory that it needs.
        except Busy:
            if cells <= self._limits.pool_tokens:
                self._note_refused()
                self.limit(store.allocated_tokens)
            raise

    def _note_shrunk(self) -> None:
        """If the store could not grow, apply the lower limits."""
        if self._blocks is not None and self._blocks.has_shrunk:
            self._blocks.has_shrunk = False
            self._note_refused()
            self._keep_to_limits()

    def _note_refused(self) -> None:
        tokens = self._leaves.allocated_tokens
        found_none = tokens <= self._had_tokens
        self._retry_s = min(2 * self._retry_s, MOST_RETRY_S) if found_none else RETRY_S
        self._refused_at, self._had_tokens = self._clock(), tokens

    def _retry(self) -> None:
        if self._refused_at is not None and self._clock() - self._refused_at >= self._retry_s:
            self.lift_limits()

    @property
    def is_growing(self) -> bool:
        """Whether memory is being allocated, so that `has_memory` is worth calling again."""
        return self._sequences is not None and self._sequences.store.is_growing

    @property
    def _is_over(self) -> bool:
        """Whether more is held and reserved than the limits allow."""
        return any(group.excess > 0 for group in self._leaves.counted())

    def _keep_to_limits(self) -> None:
        """Apply lower limits: evict, and drop all reservations if they do not fit any more."""
        self._kept.unpin_beyond()
        self._evict_excess()
        if self._is_over:
            for prefix in self._live():
                self._promise(prefix, prefix.length)
            self._evict_excess()
        self._unpin_excess()

    def _unpin_excess(self) -> None:
        while self._is_over and (pins := self._kept.pins):
            self._kept.unpin(pins[0])
            self._evict_excess()

    # ---- keeping and eviction

    def _drop_covered(self, prefix: Prefix) -> None:
        """Drop the kept prefixes, but not pins, that `prefix` makes redundant. Memories without
        `keeps_past` need them, because each is a checkpoint of a different length.
        """
        if self._leaves.keeps_past:
            for other in self._kept.covered(prefix):
                self._drop_kept(other)

    def _keep(self, prefix: Prefix) -> None:
        """Keep the prefix of a sequence that ran, as far as the budget allows."""
        self._leaves.change(prefix, "kept")
        excess = self._tree.own_pages(prefix) - self._most_kept
        if excess > 0:
            pages = self._tree.pages(prefix.length) - max(excess, self._leaves.least_cut)
            if not self._leaves.keeps_past or pages <= 0:
                self._leaves.drop(prefix)
                return
            self._leaves.shorten(prefix, pages * self._page)
        self._kept.add(prefix)

    def _keep_first(self, source: Prefix, tokens: int) -> Prefix | None:
        """Keep the first `tokens` of `source`; None if the store has no place for it."""
        if not self._leaves.has_place():
            if not (loose := self._kept.loose):
                return None
            self._drop_kept(loose[0])
        prefix = self._leaves.fork(source, tokens)
        self._kept.add(prefix)
        return prefix

    def _drop_kept(self, prefix: Prefix) -> None:
        self._kept.remove(prefix)
        self._leaves.drop(prefix)

    def _evict(self, group: Group, pages: int) -> bool:
        """Free about `pages` idle pages of `group`, from the end of the least recently used prefix;
        False if there are none.
        """
        pages = max(pages, self._leaves.least_cut)
        for prefix in self._kept.loose:
            if not self._leaves.frees(prefix, group):
                continue
            own = self._tree.own_pages(prefix)
            if self._leaves.keeps_past and own > pages:
                left = self._tree.pages(prefix.length) - pages
                self._leaves.shorten(prefix, left * self._page)
            else:  # Its other pages are held by others, too.
                self._drop_kept(prefix)
            return True
        return False

    def _evict_excess(self) -> None:
        """Evict kept prefixes until they fit their budget and leave room for all reservations."""
        first = self._leaves.first
        while first.idle and (excess := first.idle + first.only_pinned - self._most_kept) > 0:
            if not self._evict(first, excess):
                break
        for group in self._leaves.counted():
            while group.idle and group.excess > 0:
                if not self._evict(group, group.excess):
                    break
