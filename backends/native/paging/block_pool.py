"""Which blocks of one group are in use, and which of those may be taken for something else."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush


class BlockPool:
    """Blocks by number. One is free, or in use: held by running sequences, pinned, or idle.

    An idle one is of use to nobody but to who asks for its tokens again; those that were used least
    recently come first. What nobody holds or pins any more must be laid to `rest` or made `free` at
    once. Every operation is O(1), but for free blocks, which are kept as a heap.

    Args:
        limit: most blocks in use.
        capacity: blocks that there is memory for; it changes only by setting the attribute, and
            never below a block that was taken and not forgotten.
    """

    def __init__(self, limit: int, capacity: int) -> None:
        self.limit = limit
        self.capacity = capacity
        self.held = 0
        """Blocks that somebody holds."""
        self.pinned = 0
        """Blocks that are pinned, whoever else holds them."""
        self.only_pinned = 0
        """Blocks that are pinned and held by nobody."""
        self._holders: list[int] = []
        self._pins: list[int] = []
        self._free: list[int] = []
        self._idle: dict[int, None] = {}

    @property
    def used(self) -> int:
        """Blocks in use."""
        return len(self._holders) - len(self._free)

    @property
    def idle(self) -> int:
        """How many are idle."""
        return len(self._idle)

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def holders(self, block: int) -> int:
        """How many hold `block`."""
        return self._holders[block]

    def is_pinned(self, block: int) -> bool:
        return self._pins[block] > 0

    def oldest(self) -> int | None:
        """The idle block that was used least recently."""
        return next(iter(self._idle), None)

    def take(self) -> int | None:
        """The free block of the lowest number, held once now; None if none is free. So memory that
        was never written to is not touched in vain, and blocks that are taken one after the other
        mostly lie so, too.
        """
        if self.used >= self.limit:
            return None
        if self._free:
            block = heappop(self._free)
            self._holders[block] = 1
        elif len(self._holders) < self.capacity:
            block = len(self._holders)
            self._holders.append(1)
            self._pins.append(0)
        else:
            return None
        self.held += 1
        return block

    def hold(self, block: int) -> None:
        """One more holds `block`, which is in use."""
        self._holders[block] += 1
        if self._holders[block] == 1:
            self.held += 1
            if self._pins[block]:
                self.only_pinned -= 1
            else:
                del self._idle[block]

    def drop(self, block: int) -> bool:
        """One fewer holds `block`; True if it is of use to nobody now."""
        self._holders[block] -= 1
        if self._holders[block]:
            return False
        self.held -= 1
        if self._pins[block]:
            self.only_pinned += 1
            return False
        return True

    def pin(self, block: int) -> None:
        """`block`, which is in use, is pinned once more."""
        self._pins[block] += 1
        if self._pins[block] == 1:
            self.pinned += 1
            if not self._holders[block]:
                self.only_pinned += 1
                del self._idle[block]

    def unpin(self, block: int) -> bool:
        """`block` is pinned once less; True if it is of use to nobody now."""
        self._pins[block] -= 1
        if self._pins[block]:
            return False
        self.pinned -= 1
        if self._holders[block]:
            return False
        self.only_pinned -= 1
        return True

    def rest(self, block: int) -> None:
        """`block`, which is of use to nobody or idle, is idle, and was used just now."""
        self._idle.pop(block, None)
        self._idle[block] = None

    def free(self, block: int) -> None:
        """`block`, which is of use to nobody or idle, may be taken."""
        self._idle.pop(block, None)
        heappush(self._free, block)

    def forget_free_end(self) -> int:
        """The free blocks after the last one in use are as if they had never been taken; returns
        how many others there are.
        """
        end = len(self._holders)
        while end and not self._is_in_use(end - 1):
            end -= 1
        if end < len(self._holders):
            del self._holders[end:], self._pins[end:]
            self._free = [block for block in self._free if block < end]
            heapify(self._free)
        return end

    def in_use(self) -> Iterator[int]:
        """Every block in use."""
        free = set(self._free)
        return (block for block in range(len(self._holders)) if block not in free)

    def check_integrity(self) -> None:
        """Count all of it again; raises AssertionError where it contradicts itself."""
        assert len(self._holders) == len(self._pins) <= self.capacity
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free once"
        for block, (holders, pins) in enumerate(zip(self._holders, self._pins, strict=True)):
            assert holders >= 0 and pins >= 0
            wanted = holders > 0 or pins > 0
            states = (block in free, wanted, block in self._idle)
            assert sum(states) == 1, "a block is free, wanted or idle"
        counted = list(zip(self._holders, self._pins, strict=True))
        assert self.held == sum(holders > 0 for holders, _ in counted)
        assert self.pinned == sum(pins > 0 for _, pins in counted)
        assert self.only_pinned == sum(pins > 0 and not holders for holders, pins in counted)
        assert self.used == self.held + self.only_pinned + self.idle

    def _is_in_use(self, block: int) -> bool:
        return self._holders[block] > 0 or self._pins[block] > 0 or block in self._idle
