"""Which kept prefixes must stay for a while, whoever needs their blocks."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq

from hearth.backends.native.paging.groups import Group
from hearth.backends.native.paging.memory import PageMemory
from hearth.backends.native.paging.prefix_index import NO_BLOCK, Node, Pin


class PagePins:
    """Pinned prefixes, the least recently used first.

    A pin ends by time only in `expire`, so that nothing changes in the middle of an operation.

    Args:
        clock: seconds, never going back.
    """

    def __init__(self, memory: PageMemory, clock: Callable[[], float]) -> None:
        self._memory = memory
        self._clock = clock
        self._order: dict[Pin, None] = {}
        self._first_end = 0.0
        """No pin ends before."""

    def __len__(self) -> int:
        return len(self._order)

    @property
    def tokens(self) -> int:
        """Tokens that they hold, whoever else holds them; one that several hold counts once."""
        most: dict[Node, int] = {}
        for pin in self._order:
            count = pin.tokens
            for page in pin.node.upwards():
                if most.get(page, 0) >= count:
                    break
                most[page] = count
                count = self._memory.index.page
        first = self._memory.first.number
        return sum(count for page, count in most.items() if page.blocks[first] != NO_BLOCK)

    def add(self, node: Node, tokens: int, seconds: float) -> bool:
        """Pin the first `tokens` tokens of `node` and all before them until `seconds` after their
        last use, which is now; False where that would be too much. Where they are pinned already,
        the longer of both times counts.
        """
        pin = self._find(node, tokens)
        if pin is None:
            pin = Pin(node, tokens, seconds)
            if not self._may_be_pinned(pin):
                return False
            self._memory.keep(node, tokens)
            node.pins.append(pin)
            self._memory.pin_blocks(node, self._length(pin))
        pin.seconds = max(pin.seconds, seconds)
        self._use(pin)
        return True

    def use(self, tokens: Seq[int]) -> None:
        """All that `tokens` begin with are used now."""
        if not self._order:
            return
        wanted, path = self._memory.index.walk(tokens)
        for pin in [pin for pin in self._order if self._begins(pin, wanted, path)]:
            self._use(pin)

    def expire(self) -> None:
        """Remove those whose time is over."""
        if not self._order or (now := self._clock()) < self._first_end:
            return
        for pin in [pin for pin in self._order if pin.until <= now]:
            self.remove(pin)
        self._first_end = min((pin.until for pin in self._order), default=0.0)

    def remove(self, pin: Pin) -> None:
        """`pin` is kept as any other prefix from now on."""
        del self._order[pin]
        pin.node.pins.remove(pin)
        self._memory.unpin_blocks(pin.node, self._length(pin))

    def remove_oldest(self) -> None:
        """The one that was used least recently is kept as any other from now on."""
        self.remove(next(iter(self._order)))

    def remove_beyond(self) -> None:
        """Let pins hold no more than they may; the least recently used end first."""
        for group in self._memory.counted():
            while self._order and group.pool.pinned > self._most(group):
                self.remove_oldest()

    def clear(self) -> None:
        """Remove all."""
        while self._order:
            self.remove_oldest()

    def check_integrity(self) -> None:
        """Raises AssertionError where pins are not where they should be, or hold too much."""
        found = [pin for node in self._memory.index for pin in node.pins]
        assert len(found) == len(self._order) and set(found) == set(self._order)
        for group in self._memory.groups:
            blocks = set()
            for pin in self._order:
                pages = self._memory.seen(group, pin.node, self._length(pin))
                blocks |= {page.blocks[group.number] for page in pages}
            assert NO_BLOCK not in blocks, "nothing is missing of what is pinned"
            assert all(group.pool.is_pinned(block) for block in blocks)
            assert group.pool.pinned == len(blocks)
        for group in self._memory.counted():
            assert group.pool.pinned <= self._most(group)

    def _length(self, pin: Pin) -> int:
        return pin.node.place * self._memory.index.page + pin.tokens

    def _most(self, group: Group) -> int:
        """Blocks of `group` that pins may hold: half, and no more of the first than may be kept."""
        half = group.pool.limit // 2
        return min(half, self._memory.kept_blocks) if group is self._memory.first else half

    def _may_be_pinned(self, pin: Pin) -> bool:
        """Whether all blocks are there, and pins have room for them."""
        memory = self._memory
        counted = list(memory.counted())
        for group in memory.groups:
            pages = memory.seen(group, pin.node, self._length(pin))
            blocks = [page.blocks[group.number] for page in pages]
            if NO_BLOCK in blocks:
                return False
            more = sum(not group.pool.is_pinned(block) for block in blocks)
            if group not in counted:
                continue
            # Where there is a window, what is pinned counts beside what its holders claim.
            has_room = group.window is None or more <= group.free(pins_stay=True)
            if not has_room or group.pool.pinned + more > self._most(group):
                return False
        return memory.first.pool.used <= memory.first.pool.limit

    def _find(self, node: Node, tokens: int) -> Pin | None:
        """The pin of the same tokens, on whichever page they are."""
        wanted = node.tokens[:tokens]
        for page in (node, *self._memory.index.siblings(node)):
            for pin in page.pins:
                if pin.tokens == tokens and page.tokens[:tokens] == wanted:
                    return pin
        return None

    def _begins(self, pin: Pin, wanted: array[int], path: list[Node]) -> bool:
        """Whether `wanted`, whose full pages are `path`, begins with what is pinned."""
        node, index = pin.node, self._memory.index
        before = index.root if node.place == 0 else None
        if 0 < node.place <= len(path):
            before = path[node.place - 1]
        at = node.place * index.page
        return node.parent is before and wanted[at : at + pin.tokens] == node.tokens[: pin.tokens]

    def _use(self, pin: Pin) -> None:
        pin.until = self._clock() + pin.seconds
        self._first_end = min(self._first_end, pin.until) if self._order else pin.until
        self._order.pop(pin, None)
        self._order[pin] = None
