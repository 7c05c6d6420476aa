"""The key-value memory of a runner whose library names whole sequences by id: which slot has which,
what is kept of those that ended, and who shares what.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Final

from hearth.backends.engine.cells import CellPool
from hearth.backends.engine.kept import KeptPrefixes
from hearth.backends.engine.offloading import Fetch, Offloading
from hearth.backends.engine.radix import RadixIndex
from hearth.backends.engine.runner import CacheStats, SavedState
from hearth.backends.engine.sequence_store import SequenceStore
from hearth.backends.errors import InternalError

PART_TOKENS: Final = 256
"""Tokens of a part of an offloaded prefix."""


class SequenceCache:
    """Implements `hearth.backends.engine.runner.RunnerCache` over a `SequenceStore`.

    An id of the store is live (it belongs to a slot), kept (it holds a prefix, the least recently
    used going first) or free. A released sequence is kept under the id that it has, so keeping
    copies nothing and shares nothing anew. A pinned prefix is a kept one with an id of its own.

    Where running sequences would pay for every cell in use (`beside`), kept prefixes are offloaded
    to plain memory while others run, and copied back when a prompt begins with them. So is what a
    sequence held that is put aside (`copy_out`). Both take a limited time between two steps.

    `open` before `reserve`: what a sequence has found needs no room of its own, and is not evicted
    to make room for it. What `open` found offloaded is copied only after that, into cells that its
    tokens would need if they were computed.

    Args:
        store: where the sequences are; it has an id for each slot at least, and one more for each
            prefix that can be kept while all slots are in use.
        slots: sequences that run at the same time.
        pool_tokens: most cells that may be in use or promised.
        context: most tokens of one sequence.
        kept_tokens: most cells that kept prefixes alone may hold.
        beside: most of these cells while sequences run, as far as offloaded prefixes may take
            memory; None: all of them. Only for stores that keep their past.
        part_tokens: tokens that are copied at once.
        available_bytes: memory that could still be taken; offloaded prefixes take no more than
            there is besides them. None: enough.
        clock: seconds, for pins and copies.

    Raises:
        InternalError: a slot is named that does not exist or is in the wrong state.
    """

    def __init__(
        self,
        store: SequenceStore,
        *,
        slots: int,
        pool_tokens: int,
        context: int,
        kept_tokens: int,
        beside: int | None = None,
        part_tokens: int = PART_TOKENS,
        available_bytes: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if store.sequences < slots:
            raise InternalError(f"A store of {store.sequences} sequences has {slots} slots.")
        self._store = store
        self._pool_tokens = pool_tokens
        self._context = context
        self._most_kept_tokens = kept_tokens
        self._pool = CellPool(store.sequences)
        self._index = RadixIndex()
        self._slots: list[int | None] = [None] * slots
        self._free = list(reversed(range(store.sequences)))
        self._kept = KeptPrefixes(self._pool, self._index, clock, most_pins=store.sequences - slots)
        self._pins = self._kept.pins
        self._offloading = Offloading(
            store,
            self._pool,
            self._index,
            beside=beside,
            part_tokens=part_tokens,
            available_bytes=available_bytes,
            clock=clock,
        )
        self._fetches: dict[int, Fetch] = {}
        """By slot."""
        self._may_offload = False
        """Who runs or what is kept has changed, so that there may be something to offload, or
        memory to give back.
        """

    # ---- for the engine: see the protocol

    def match(self, tokens: Seq[int]) -> int:
        """See the protocol."""
        held = self._find(tokens)[0]
        fetch = self._offloading.fetch(tokens[:-1], held)
        if fetch is None or any(fetch.part_at(held) in one.parts for one in self._fetches.values()):
            return held
        return len(fetch.tokens)

    def open(self, slot: int, tokens: Seq[int]) -> int:
        """See the protocol."""
        self._must_be_empty(slot)
        self._pins.expire()
        self._kept.use_pins(tokens)
        self._may_offload = True
        held = self._open(slot, tokens)
        fetch = self._offloading.fetch(tokens[:-1], held)
        if fetch is not None:
            self._fetches[slot] = fetch
        return held

    def _open(self, slot: int, tokens: Seq[int]) -> int:
        """Begin with what the pool has."""
        length, donor = self._find(tokens)
        if donor is None:
            self._begin(slot)
            return 0
        if donor in self._kept:
            self._kept.touch(donor)
            if self._slots[slot] is None and not self._free and self._kept.loose() == [donor]:
                return self._take_over(slot, donor, length)
        self._share(donor, self._begin(slot), length)
        return length

    def reserve(self, slot: int, tokens: int) -> bool:
        """See the protocol; cells that are shared count once."""
        sequence = self._sequence(slot)
        length, promised = 0, 0
        if sequence is not None:
            length, promised = self._pool.length(sequence), self._pool.promised(sequence)
        if tokens > self._context:
            return False
        more = max(tokens, length) - max(promised, length)
        if self._pool.promised_cells + more <= self._pool_tokens:  # It fits beside what is kept.
            self._pool.promise(self._begin(slot), tokens)
            return True
        self._pins.expire()
        is_alone = all(other in (None, sequence) for other in self._slots)
        if more > 0 and more > self._free_tokens(pins_stay=not is_alone):
            return False
        self._pool.promise(self._begin(slot), tokens)
        self._evict_for_promises(pins_stay=not is_alone)
        return True

    def arriving(self, slot: int) -> int:
        """See the protocol."""
        fetch = self._fetches.get(slot)
        return 0 if fetch is None else len(fetch.tokens) - self.length(slot)

    def tend(self) -> dict[int, int]:
        """See the protocol. What is copied into slots comes before what is copied out."""
        self._offloading.renew()
        arrived = {slot: self._copy_in(slot) for slot in list(self._fetches)}
        if self._may_offload and not self._fetches:
            live = self._live()
            if not live:
                self._store.shrink(self._pool.cells)
            for sequence in self._offloading.out_of_the_way(live, self._kept):
                self._drop_kept(sequence)
            self._may_offload = not self._offloading.has_time
        return {slot: tokens for slot, tokens in arrived.items() if tokens}

    def copy_out(self, slot: int, *, grows: bool) -> None:
        """See the protocol."""
        self._offloading.copy_out(self.sequence(slot), only_full_parts=grows)

    def free_tokens(self) -> int:
        """See the protocol."""
        self._pins.expire()
        return self._free_tokens(pins_stay=bool(self._live()))

    def trim(self, slot: int, tokens: int) -> bool:
        """See the protocol. Where what is forgotten is shared, and the pool has no room for as much
        anew, less is reserved afterwards.
        """
        self._pins.expire()
        sequence = self.sequence(slot)
        held = self._index.length(sequence)
        if tokens >= held:
            return True
        if tokens > 0 and not self._store.intact(sequence, held, tokens):
            return False
        if not self._store.cut(sequence, tokens):
            return False
        self._index.cut(sequence, tokens)
        self._pool.trim(sequence, tokens)
        self._evict_excess()
        excess = self._pool.promised_cells - self._pool_tokens
        if excess > 0:
            self._pool.promise(sequence, max(tokens, self._pool.promised(sequence) - excess))
        return True

    def checkpoint(self, slot: int) -> None:
        """See the protocol; without an id to spare nothing is kept."""
        self._pins.expire()
        source = self.sequence(slot)
        if self._is_kept(source) or not self._may_keep(source):
            return
        self._drop_covered(source)
        self._keep_first(source, self._index.length(source))
        self._evict_excess()

    def pin(self, slot: int, tokens: int, seconds: float) -> bool:
        """See the protocol. Pins may hold half of the pool, no more than may be kept, and no ids
        that slots may need.
        """
        self._pins.expire()
        source = self.sequence(slot)
        held = self._index.length(source)
        if not 0 < tokens <= held:
            raise InternalError(f"Slot {slot} holds {held} tokens; {tokens} cannot be pinned.")
        known = self._kept.exactly(source, tokens)
        if known not in self._pins:
            is_whole = known is not None or self._store.intact(source, held, tokens)
            if not is_whole or self._pool.cells > self._pool_tokens:
                return False
            holder = source if known is None else known
            if not self._pins.make_room(holder, tokens, seconds, self._most_pinned_tokens):
                return False
        if known is None and (known := self._keep_first(source, tokens)) is None:
            return False
        self._kept.touch(known)
        self._pins.add(known, seconds)
        return True

    def release(self, slot: int, *, keep: bool) -> None:
        """See the protocol. Not kept is what alone exceeds the budget of kept prefixes."""
        self._pins.expire()
        sequence = self._sequence(slot)
        if sequence is None:
            return
        self._slots[slot] = None
        self._fetches.pop(slot, None)
        self._may_offload = True
        self._pool.promise(sequence, 0)
        if keep and not self._is_kept(sequence) and self._may_keep(sequence):
            self._drop_covered(sequence)
            self._kept.add(sequence)
        else:
            self._drop(sequence)
        self._evict_excess()

    def save(self, slot: int) -> SavedState | None:
        """See the protocol."""
        sequence = self.sequence(slot)
        return self._store.save(sequence) if self._index.length(sequence) else None

    @property
    def most_saved_bytes(self) -> int:
        """See the protocol; they share a budget with offloaded prefixes."""
        return max(0, self._offloading.most_bytes - self._offloading.prefixes.nbytes)

    def restore(self, slot: int, state: SavedState, tokens: Seq[int]) -> bool:
        """See the protocol; reserves as much as `tokens` need, if it was not reserved before."""
        self._must_be_empty(slot)
        before = self._slots[slot]
        promised = 0 if before is None else self._pool.promised(before)
        if not self.reserve(slot, max(promised, len(tokens))):
            return False
        sequence = self.sequence(slot)
        if self._store.restore(sequence, state):
            self.computed(slot, tokens)
            return True
        if before is None:
            self.release(slot, keep=False)
        else:
            self._pool.promise(sequence, promised)
        return False

    def clear(self) -> None:
        """See the protocol."""
        while self._kept:
            self._evict()
        self._offloading.prefixes.clear()

    def drop_offloaded(self) -> bool:
        """Forget all offloaded prefixes, because their memory is needed; whether there were any."""
        had = len(self._offloading.prefixes) > 0
        self._offloading.prefixes.clear()
        return had

    def stats(self) -> CacheStats:
        """See the protocol."""
        self._pins.expire()
        live, pinned = self._live_cells(), self._pins.cells
        kept = self._pool.cells - live
        return CacheStats(
            self._store.allocated_tokens,
            live,
            kept,
            len(self._kept),
            pinned,
            self._offloading.prefixes.tokens,
            len(self._offloading.prefixes),
            state_bytes=self._store.state_bytes,
            offloaded_bytes=self._offloading.prefixes.nbytes,
        )

    # ---- for the runner

    @property
    def cells(self) -> int:
        """Cells in use now; a shared one counts once."""
        return self._pool.cells

    @property
    def pool_tokens(self) -> int:
        """Most cells that may be in use or promised, after all `limit`s."""
        return self._pool_tokens

    def sequence(self, slot: int) -> int:
        """The store's id of what `slot` holds. It changes with `open` and `restore`."""
        sequence = self._sequence(slot)
        if sequence is None:
            raise InternalError(f"Slot {slot} was not opened.")
        return sequence

    def length(self, slot: int) -> int:
        """Tokens that `slot` holds."""
        sequence = self._sequence(slot)
        return 0 if sequence is None else self._pool.length(sequence)

    def computed(self, slot: int, tokens: Seq[int]) -> None:
        """Note that a step added `tokens` to the end of `slot`."""
        self._fetches.pop(slot, None)
        self._append(slot, tokens)

    def _append(self, slot: int, tokens: Seq[int]) -> None:
        sequence = self.sequence(slot)
        self._pool.append(sequence, len(tokens))
        self._index.extend(sequence, tokens)
        self._offloading.shrink()  # The pool may have grown for them.

    def lost(self, slot: int) -> None:
        """Note that a failed step has emptied `slot`: it holds nothing, and nothing is reserved."""
        self.release(slot, keep=False)

    def limit(self, pool_tokens: int) -> None:
        """Never hold more than `pool_tokens` cells from now on: the library could not grow. Where
        more is reserved, nothing is any more, and who wants to grow has to `reserve` again.
        """
        self._pool_tokens = min(self._pool_tokens, pool_tokens)
        self._kept.unpin_beyond(self._most_pinned_tokens)
        self._evict_for_promises()
        if self._pool.promised_cells > self._pool_tokens:
            for sequence in self._live():
                self._pool.promise(sequence, self._pool.length(sequence))
            self._evict_for_promises(pins_stay=False)

    def check_integrity(self) -> None:
        """Count all of it again; raises AssertionError where it contradicts itself."""
        self._pool.check_integrity()
        self._index.check_integrity()
        live = self._live()
        every = sorted([*live, *self._kept, *self._free])
        assert every == list(range(self._store.sequences)), "an id is live, kept or free"
        held = {sequence: self._index.tokens(sequence) for sequence in every}
        for sequence, tokens in held.items():
            assert len(tokens) == self._index.length(sequence) == self._pool.length(sequence)
            assert len(tokens) <= self._context
        assert all(held[one] for one in self._kept) and not any(held[one] for one in self._free)
        assert not any(self._pool.promised(one) for one in (*self._kept, *self._free))
        for one in every:
            for other in range(one):
                shared = self._pool.shared(one, other)
                assert held[one][:shared] == held[other][:shared], "a cell has one token"
        assert self._pool.growth == 0 or self._pool.promised_cells <= self._pool_tokens
        assert not self._kept or self._pool.cells <= self._pool_tokens
        assert self._pool.cells - self._live_cells() <= self._most_kept_tokens
        self._kept.check_integrity(self._most_pinned_tokens)
        self._offloading.prefixes.check_integrity()
        assert all(self.arriving(slot) > 0 for slot in self._fetches)

    # ---- ids

    def _sequence(self, slot: int) -> int | None:
        if not 0 <= slot < len(self._slots):
            raise InternalError(f"Slot {slot} does not exist; there are {len(self._slots)}.")
        return self._slots[slot]

    def _must_be_empty(self, slot: int) -> None:
        if self.length(slot):
            raise InternalError(f"Slot {slot} holds {self.length(slot)} tokens; it must be empty.")

    def _live(self) -> list[int]:
        return [sequence for sequence in self._slots if sequence is not None]

    def _live_cells(self) -> int:
        return self._pool.cells_of(self._live())

    def _begin(self, slot: int) -> int:
        """The id of `slot`, a free one if it has none yet."""
        sequence = self._slots[slot]
        if sequence is None:
            sequence = self._slots[slot] = self._take_id()
        return sequence

    def _take_id(self) -> int:
        if not self._free:
            self._evict()
        return self._free.pop()

    def _free_tokens(self, *, pins_stay: bool) -> int:
        held = [*self._live(), *self._pins] if pins_stay else self._live()
        return max(0, self._pool_tokens - self._pool.cells_of(held) - self._pool.growth)

    # ---- sharing and keeping

    @property
    def _most_pinned_tokens(self) -> int:
        return min(self._most_kept_tokens, self._pool_tokens // 2)

    def _keep_first(self, source: int, tokens: int) -> int | None:
        """Keep the first `tokens` of `source` under a new id; None without one to spare."""
        if not self._free and not self._can_evict():
            return None
        target = self._take_id()
        self._share(source, target, tokens)
        self._kept.add(target)
        return target

    def _find(self, tokens: Seq[int]) -> tuple[int, int | None]:
        """The longest part of `tokens` but the last that can be gone on from, and who holds it."""
        for length, holder in self._index.candidates(tokens[:-1]):
            if self._store.intact(holder, self._index.length(holder), length):
                return length, holder
        return 0, None

    def _share(self, source: int, target: int, tokens: int) -> None:
        self._store.share(source, target, tokens)
        self._index.share(source, target, tokens)
        self._pool.fork(source, target, tokens)

    def _take_over(self, slot: int, donor: int, tokens: int) -> int:
        """There is no id but that of the kept `donor` itself: it becomes the sequence of `slot`,
        cut to `tokens`. Returns how many it has."""
        self._kept.remove(donor)
        self._slots[slot] = donor
        if not self.trim(slot, tokens):
            self.trim(slot, 0)
        return self.length(slot)

    def _is_kept(self, sequence: int) -> bool:
        """Whether a kept prefix serves all that `sequence` would; it counts as used then."""
        other = self._kept.serving(sequence, keeps_past=self._store.keeps_past)
        if other is not None:
            self._kept.touch(other)
        return other is not None

    def _may_keep(self, sequence: int) -> bool:
        """Whether `sequence` holds something, and would, kept alone, be within the budget."""
        others = [other for other in self._live() if other != sequence]
        own = self._pool.cells_of([*others, sequence]) - self._pool.cells_of(others)
        return self._index.length(sequence) > 0 and own <= self._most_kept_tokens

    def _drop_covered(self, sequence: int) -> None:
        """Drop the kept prefixes that `sequence` makes superfluous, but no pins; memories that
        keep no past need them, each is a checkpoint of another length."""
        if self._store.keeps_past:
            for other in self._kept.covered(sequence):
                self._drop_kept(other)

    def _copy_in(self, slot: int) -> int:
        """Copy on what `open` found offloaded, while there is time; returns how many tokens came.
        What there is no room for, or is not there any more, is left to be computed.
        """
        fetch = self._fetches[slot]
        began = self.length(slot)
        while (held := self.length(slot)) < len(fetch.tokens):
            if not self._offloading.has_time:
                return held - began
            sequence = self._sequence(slot)
            promised = 0 if sequence is None else self._pool.promised(sequence)
            if not self.reserve(slot, max(promised, len(fetch.tokens))):
                break
            count = self._offloading.copy_in(self.sequence(slot), held, fetch)
            if count == 0:
                break
            self._append(slot, fetch.tokens[held : held + count])
        del self._fetches[slot]
        return self.length(slot) - began

    # ---- forgetting

    def _evict(self) -> None:
        """Drop the kept prefix that was used least recently; pinned ones come last."""
        self._drop_kept(self._kept.first_to_go())

    def _evict_excess(self) -> None:
        """Bring kept prefixes within their budget, and let them leave room for what is promised."""
        most = self._live_cells() + self._most_kept_tokens
        while self._pool.cells > most:
            self._evict()
        self._evict_for_promises()

    def _evict_for_promises(self, *, pins_stay: bool = True) -> None:
        while self._pool.promised_cells > self._pool_tokens and self._can_evict(pins_stay):
            self._evict()

    def _can_evict(self, pins_stay: bool = True) -> bool:
        return len(self._kept) > (len(self._pins) if pins_stay else 0)

    def _drop_kept(self, sequence: int) -> None:
        self._kept.remove(sequence)
        self._drop(sequence)

    def _drop(self, sequence: int) -> None:
        """Forget all of `sequence`; its id is free."""
        self._store.cut(sequence, 0)
        self._index.remove(sequence)
        self._pool.release(sequence)
        self._free.append(sequence)
