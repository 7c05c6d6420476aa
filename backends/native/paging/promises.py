"""How far running sequences may grow, and what makes way for that."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from hearth.backends.native.paging.chain import Chain
from hearth.backends.native.paging.memory import PageMemory
from hearth.backends.native.paging.pins import PagePins


class Promises:
    """Promises of blocks to sequences.

    Idle blocks make way when a promise is made, not when it is kept: so nothing that happens in
    between can take them. Pins make way only for a sequence that runs alone.

    Args:
        slots: the sequences that run; changed by its owner.
    """

    def __init__(self, memory: PageMemory, pins: PagePins, slots: Seq[Chain | None]) -> None:
        self._memory = memory
        self._pins = pins
        self._slots = slots

    @property
    def are_too_many(self) -> bool:
        """More is held and promised than there is."""
        return any(group.excess > 0 for group in self._memory.counted())

    def can_make(self, chain: Chain, tokens: int) -> bool:
        """Whether blocks for `tokens` tokens can be had for `chain`."""
        if chain.blocks_for(tokens) <= chain.blocks:
            return True
        more = chain.more(tokens)
        counted = list(self._memory.counted())
        if all(group.excess + more[group.number] <= 0 for group in counted):
            return True
        self._pins.expire()
        pins_stay = not self._is_alone(chain)
        return all(more[group.number] <= group.free(pins_stay=pins_stay) for group in counted)

    def make(self, chain: Chain, tokens: int) -> None:
        """Promise `tokens` tokens to `chain`, which can be done."""
        chain.promise(tokens)
        self._memory.evict_excess()
        if self._is_alone(chain):
            self._unpin()

    def make_what_fits(self, chain: Chain, tokens: int) -> None:
        """Promise `tokens` tokens to `chain`, or as many as there is room for beside pins."""
        chain.promise(tokens)
        self._memory.evict_excess()
        excess = max(group.excess for group in self._memory.counted())
        if excess > 0:
            fitting = (chain.blocks_for(tokens) - excess) * self._memory.index.page
            chain.promise(max(chain.length, min(tokens, fitting)))
        if self.are_too_many:
            chain.promise(chain.length)

    def note_shrunk(self) -> None:
        """If the store could not grow, there is less room than was thought."""
        if self._memory.has_shrunk:
            self._memory.has_shrunk = False
            self.keep_to_limits()

    def keep_to_limits(self) -> None:
        """Limits are lower now. Where more is promised, nothing is any more."""
        self._pins.remove_beyond()
        self._memory.evict_excess()
        if self.are_too_many:
            for chain in self._slots:
                if chain is not None:
                    chain.promise(chain.length)
            self._memory.evict_excess()
        self._unpin()

    def _unpin(self) -> None:
        while self.are_too_many and len(self._pins):
            self._pins.remove_oldest()
            self._memory.evict_excess()

    def _is_alone(self, chain: Chain) -> bool:
        return all(other in (None, chain) for other in self._slots)
