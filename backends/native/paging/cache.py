"""The key-value memory of the native runner: pages that sequences share, and a table of them for
each slot.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq

from hearth.backends.engine.runner import CacheStats, SavedState
from hearth.backends.errors import Busy, InternalError
from hearth.backends.native.paging.chain import Chain
from hearth.backends.native.paging.checks import check_chains, check_memory
from hearth.backends.native.paging.giving_back import give_back
from hearth.backends.native.paging.groups import Group
from hearth.backends.native.paging.hits import Hit, hits
from hearth.backends.native.paging.memory import PageMemory
from hearth.backends.native.paging.pins import PagePins
from hearth.backends.native.paging.prefix_index import Digest, PrefixIndex, chain_digest
from hearth.backends.native.paging.promises import Promises
from hearth.backends.native.paging.store import GroupSpec, PageStore


class PagedCache:
    """Implements `hearth.backends.engine.runner.RunnerCache` over a `PageStore`.

    Full pages are shared; of the page where a hit ends, the common tokens are copied to a page of
    its own. Pages that several sequences have computed become one as soon as they are full. What is
    promised is counted in whole pages, and idle pages make way when it is promised: within it,
    `extend` finds blocks, unless the store cannot grow.

    Nothing is ever copied out: a sequence that was put aside computes again what is not found.

    Args:
        groups: of layers, numbered as the store's.
        store: where the pages are.
        slots: sequences that run at the same time.
        page: tokens of a block.
        pool_tokens: most tokens that may be in use or promised; rounded up to whole pages.
        context: most tokens of one sequence.
        kept_tokens: most tokens that kept prefixes alone may hold; rounded down to whole pages.
        fingerprint: of the model and all that keys and values depend on.
        clock: seconds, for pins.
        step_tokens: most tokens of one `extend`; with it, groups with a window are known to need
            few blocks.
        digest: for tests.

    Raises:
        InternalError: no group, or one with too few blocks for a single sequence; a slot that does
            not exist, or is in the wrong state.
    """

    def __init__(
        self,
        groups: tuple[GroupSpec, ...],
        *,
        store: PageStore,
        slots: int,
        page: int,
        pool_tokens: int,
        context: int,
        kept_tokens: int,
        fingerprint: bytes,
        clock: Callable[[], float] = time.monotonic,
        step_tokens: int | None = None,
        digest: Digest = chain_digest,
    ) -> None:
        if not groups:
            raise InternalError("A paged memory without any group of layers was asked for.")
        blocks = -(-pool_tokens // page)
        self._page = page
        self._context = context
        self._step_tokens = step_tokens
        self._store = store
        self._memory = PageMemory(
            [
                Group(
                    number,
                    spec,
                    page=page,
                    limit=blocks if spec.blocks is None else min(spec.blocks, blocks),
                    capacity=store.capacity(number),
                    step_tokens=step_tokens,
                )
                for number, spec in enumerate(groups)
            ],
            store,
            PrefixIndex(page, fingerprint, digest),
            kept_blocks=kept_tokens // page,
        )
        for group in self._memory.groups:
            needed = group.claim(-(-context // page), 0, 0)
            if needed > group.pool.limit:
                raise InternalError(
                    f"One sequence of {context} tokens needs {needed} blocks of group"
                    f" {group.number}, which has {group.pool.limit}."
                )
        self._pins = PagePins(self._memory, clock)
        self._slots: list[Chain | None] = [None] * slots
        self._promises = Promises(self._memory, self._pins, self._slots)

    # ---- for the engine: see the protocol

    def match(self, tokens: Seq[int]) -> int:
        """See the protocol."""
        hit = self._find(tokens)
        return 0 if hit is None else hit.length

    def open(self, slot: int, tokens: Seq[int]) -> int:
        """See the protocol. A hit within a page costs a block; without one to spare, it ends where
        the page begins.
        """
        if self.length(slot):
            raise InternalError(f"Slot {slot} holds {self.length(slot)} tokens; it must be empty.")
        self._pins.expire()
        self._pins.use(tokens)
        chain = self._begin(slot)
        chain.drop_spare()
        hit = self._find(tokens)
        if hit is not None and not self._enter(chain, hit):
            hit = self._find(tokens, may_copy=False)  # The store could not grow for the copy.
            if hit is not None:
                self._enter(chain, hit)
        chain.settle()
        self._memory.evict_excess()
        self._promises.note_shrunk()
        return chain.length

    def arriving(self, slot: int) -> int:
        """See the protocol; 0, since nothing is ever copied out."""
        self._chain_or_none(slot)
        return 0

    def tend(self) -> dict[int, int]:
        """See the protocol; there is nothing to copy."""
        return {}

    def copy_out(self, slot: int, *, grows: bool) -> None:
        """See the protocol; computing again is nearly free where pages are found."""
        self._chain_or_none(slot)

    def reserve(self, slot: int, tokens: int) -> bool:
        """See the protocol; blocks that are shared count once."""
        chain = self._chain_or_none(slot) or Chain(self._memory)
        if tokens > self._context:
            return False
        if chain.length and chain.blocks_for(tokens) == chain.blocks_for(chain.promised):
            chain.promised = tokens
            return True
        if not self._promises.can_make(chain, tokens):
            return False
        self._slots[slot] = chain
        self._promises.make(chain, tokens)
        return True

    def free_tokens(self) -> int:
        """See the protocol."""
        self._pins.expire()
        pins_stay = any(chain is not None for chain in self._slots)
        free = (group.free_tokens(pins_stay=pins_stay) for group in self._memory.counted())
        return min((tokens for tokens in free if tokens is not None), default=self.pool_tokens)

    def trim(self, slot: int, tokens: int) -> bool:
        """See the protocol. Blocks that were taken for tokens that did not come about are given
        back. False where a window has passed, or where the last page is shared and there is no
        block for a copy. Where what is forgotten is shared, and the pool has no room for as much
        anew, less is reserved afterwards.
        """
        self._pins.expire()
        chain = self._chain(slot)
        promised = chain.promised
        chain.promise(0)
        chain.drop_spare()
        is_done = tokens >= chain.length or chain.trim(tokens)
        self._promises.make_what_fits(chain, promised)
        self._promises.note_shrunk()
        return is_done

    def checkpoint(self, slot: int) -> None:
        """See the protocol. Costs nothing: the sequence goes on after what is kept."""
        self._pins.expire()
        chain = self._chain(slot)
        if chain.nodes:
            self._memory.keep_end(chain.nodes[-1])
            self._memory.evict_excess()

    def pin(self, slot: int, tokens: int, seconds: float) -> bool:
        """See the protocol. Pins may hold half of the blocks, and no more than may be kept. Costs
        nothing.
        """
        self._pins.expire()
        chain = self._chain(slot)
        if not 0 < tokens <= chain.length:
            raise InternalError(
                f"Slot {slot} holds {chain.length} tokens; {tokens} cannot be pinned."
            )
        node = chain.nodes[(tokens - 1) // self._page]
        is_pinned = self._pins.add(node, tokens - node.place * self._page, seconds)
        self._memory.evict_excess()
        return is_pinned

    def release(self, slot: int, *, keep: bool) -> None:
        """See the protocol. Of what exceeds the budget of kept prefixes the beginning stays."""
        self._pins.expire()
        chain = self._chain_or_none(slot)
        if chain is None:
            return
        self._slots[slot] = None
        if keep and chain.nodes:
            self._memory.keep_end(chain.nodes[-1])
        chain.leave_all()
        chain.promise(0)
        self._memory.evict_excess()
        self._rest()

    def save(self, slot: int) -> SavedState | None:
        """See the protocol; None: computing again is nearly free where pages are found."""
        self._chain(slot)
        return None

    @property
    def most_saved_bytes(self) -> int:
        """See the protocol; nothing is ever saved."""
        return 0

    def restore(self, slot: int, state: SavedState, tokens: Seq[int]) -> bool:
        """See the protocol; False, since nothing is ever saved."""
        self._chain_or_none(slot)
        return False

    def clear(self) -> None:
        """See the protocol."""
        self._pins.clear()
        self._memory.clear()
        self._rest()

    def stats(self) -> CacheStats:
        """See the protocol."""
        self._pins.expire()
        memory = self._memory
        return CacheStats(
            allocated_tokens=memory.first.pool.capacity * self._page,
            live_tokens=memory.live_tokens,
            kept_tokens=memory.tokens - memory.live_tokens,
            kept_prefixes=memory.prefixes,
            pinned_tokens=self._pins.tokens,
            window_bytes=sum(self._store.nbytes(group.number) for group in memory.windows),
        )

    # ---- for the runner

    @property
    def pool_tokens(self) -> int:
        """Most tokens that may be in use or promised, after all `limit`s."""
        return self._memory.first.pool.limit * self._page

    def used_blocks(self, group: int) -> int:
        """Blocks of `group` in use, of kept prefixes too; a shared one counts once."""
        return self._memory.groups[group].pool.used

    def length(self, slot: int) -> int:
        """Tokens that `slot` holds."""
        chain = self._chain_or_none(slot)
        return 0 if chain is None else chain.length

    def tables(self, slot: int, group: int) -> Seq[int]:
        """The blocks of `slot`, those of the tokens that `extend` made room for included; -1 where
        a window has left one behind. Valid until the cache is called again, but for `extend`.
        """
        return self._chain(slot).tables[group]

    def extend(self, slot: int, tokens: int) -> None:
        """Before a step: have blocks for `tokens` more tokens of `slot`.

        Raises:
            Busy: there is no memory for them; blocks that were taken already stay for later.
            InternalError: more than `step_tokens`.
        """
        chain = self._chain(slot)
        end = chain.length + tokens
        needed = -(-end // self._page)
        if needed <= chain.blocks:
            return
        if self._step_tokens is not None and tokens > self._step_tokens:
            raise InternalError(
                f"A step of {tokens} tokens was made with a memory for {self._step_tokens}."
            )
        if end <= chain.promised or self.reserve(slot, end):
            while chain.blocks < needed and (blocks := self._memory.take()) is not None:
                chain.add_blocks(blocks)
            chain.settle()
            self._promises.note_shrunk()
        if chain.blocks < needed:
            raise Busy(
                f"There are no pages for {tokens} more tokens; the key-value memory holds"
                f" {self.pool_tokens:,}.",
                "Try again when another request is done.",
                retry_after_s=1.0,
            )

    def computed(self, slot: int, tokens: Seq[int]) -> None:
        """After a step: `tokens` were added to the end of `slot`. Those that turned out not to be
        wanted are not told, and are written over by the next step.
        """
        chain = self._chain(slot)
        if chain.length + len(tokens) > chain.blocks * self._page:
            raise InternalError(
                f"Slot {slot} has {chain.blocks} pages; {chain.length} + {len(tokens)} tokens were"
                " computed."
            )
        merged = chain.append(tokens)
        slid = chain.slide()
        if slid:
            chain.settle()
        if merged or slid:
            self._memory.evict_excess()

    def undo(self, slot: int) -> None:
        """A step failed, or not all of its tokens were wanted: give back the blocks that `extend`
        took and `computed` did not fill.
        """
        chain = self._chain(slot)
        chain.drop_spare()
        chain.settle()

    def lost(self, slot: int) -> None:
        """Note that a failed step has spoilt what `slot` held: it holds nothing, and nothing is
        reserved.
        """
        self.release(slot, keep=False)

    def limit(self, pool_tokens: int) -> None:
        """Never hold more than so many tokens from now on. Where more is reserved, nothing is any
        more, and who wants to grow has to `reserve` again.
        """
        pool = self._memory.first.pool
        pool.limit = min(pool.limit, pool_tokens // self._page)
        self._promises.keep_to_limits()

    def check_integrity(self) -> None:
        """Count all of it again; raises AssertionError where it contradicts itself."""
        chains = [chain for chain in self._slots if chain is not None]
        check_memory(self._memory)
        check_chains(self._memory, chains)
        self._pins.check_integrity()
        assert all(chain.length <= self._context for chain in chains)
        if any(chain.promised > chain.blocks * self._page for chain in chains):
            assert not self._promises.are_too_many, "there is room for what is promised"

    # ---- inside

    def _chain_or_none(self, slot: int) -> Chain | None:
        if not 0 <= slot < len(self._slots):
            raise InternalError(f"Slot {slot} does not exist; there are {len(self._slots)}.")
        return self._slots[slot]

    def _chain(self, slot: int) -> Chain:
        chain = self._chain_or_none(slot)
        if chain is None:
            raise InternalError(f"Slot {slot} was not opened.")
        return chain

    def _begin(self, slot: int) -> Chain:
        chain = self._slots[slot]
        if chain is None:
            chain = self._slots[slot] = Chain(self._memory)
        return chain

    def _rest(self) -> None:
        """When nothing runs, give back the memory of what nobody uses."""
        if all(chain is None for chain in self._slots):
            give_back(self._memory.groups, self._store)

    def _find(self, tokens: Seq[int], *, may_copy: bool = True) -> Hit | None:
        """The longest hit that there is room for."""
        for hit in hits(self._memory, tokens):
            if (may_copy or hit.tail is None) and self._has_room(hit):
                return hit
        return None

    def _has_room(self, hit: Hit) -> bool:
        """Whether a sequence can begin with `hit` beside all that is promised."""
        nodes = hit.path if hit.tail is None else [*hit.path, hit.tail]
        for group in self._memory.counted():
            pool = group.pool
            if group.window is not None:
                held = len(nodes) - group.first_needed(hit.length)
                if held > group.free(pins_stay=True):
                    return False
            if hit.tail is None:
                continue
            # What is found, and copied, cannot make way for the copy.
            short = pool.used + 1 - pool.limit if group.window is not None else group.excess + 1
            if short > 0:
                found = sum(pool.is_idle(node.blocks[group.number]) for node in nodes)
                if short > pool.idle - found:
                    return False
        return True

    def _enter(self, chain: Chain, hit: Hit) -> bool:
        """Let the empty `chain` begin with `hit`; False, and still empty, if there is no memory."""
        memory = self._memory
        for group in memory.windows:
            chain.first[group.number] = group.first_needed(hit.length)
        for node in hit.path:
            chain.share(node)
        if hit.tail is None:
            return True
        chain.share(hit.tail)
        chain.settle()
        blocks = memory.take_beyond()
        if blocks is None:
            chain.leave_all()
            return False
        chain.copy_last(hit.length - hit.tail.place * self._page, blocks)
        return True
