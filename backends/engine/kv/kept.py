"""Prefixes kept from sequences that no longer run, in order of use. Some of them are pinned: they
stay until some seconds after their last use even if room is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq

from hearth.backends.engine.kv.group import Group
from hearth.backends.engine.kv.leaves import Leaves
from hearth.backends.engine.kv.tree import Node, Prefix


class KeptPrefixes:
    """Kept prefixes, the least recently used first.

    Pins expire only in `expire`, so that nothing changes in the middle of an operation.

    Args:
        leaves: that own the prefixes.
        clock: monotonic seconds.
        most_pages: maximum pages of the first group that may be kept.
    """

    def __init__(self, leaves: Leaves, clock: Callable[[], float], most_pages: int) -> None:
        self._leaves = leaves
        self._tree = leaves.tree
        self._clock = clock
        self._most_pages = most_pages
        self._order: dict[Prefix, None] = {}

    def __iter__(self) -> Iterator[Prefix]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    @property
    def pins(self) -> list[Prefix]:
        return [prefix for prefix in self._order if prefix.kind == "pinned"]

    @property
    def loose(self) -> list[Prefix]:
        """The kept prefixes that are not pinned."""
        return [prefix for prefix in self._order if prefix.kind == "kept"]

    @property
    def pinned_tokens(self) -> int:
        """Tokens of all pins; tokens that several pins hold count once."""
        most: dict[Node, int] = {}
        for pin in self.pins:
            for node in pin.node.upwards():
                most[node] = max(most.get(node, 0), min(pin.length, node.end) - node.start)
        return sum(most.values())

    def add(self, prefix: Prefix) -> None:
        """Add `prefix`, which counts as used now."""
        self._order[prefix] = None

    def remove(self, prefix: Prefix) -> None:
        """Remove `prefix`, which is no longer kept."""
        del self._order[prefix]

    def touch(self, prefix: Prefix) -> None:
        """Mark the kept `prefix` as used now, entirely or in part. Does not renew a pin."""
        del self._order[prefix]
        self._order[prefix] = None

    def use_pins(self, root: Node, tokens: Seq[int]) -> None:
        """Renew every pinned prefix that `tokens` begin with."""
        if any(prefix.kind == "pinned" for prefix in self._order):
            for node, matched in list(self._tree.walk(root, tokens)):
                for prefix in list(node.ends):
                    if prefix.kind == "pinned" and prefix.length <= matched:
                        self._renew(prefix)

    def expire(self) -> None:
        """Unpin the pins that have expired; they stay as ordinary kept prefixes."""
        pins = self.pins
        if pins:
            now = self._clock()
            for prefix in pins:
                if prefix.until <= now:
                    self.unpin(prefix)

    def pin(self, prefix: Prefix, seconds: float) -> None:
        """Pin the kept `prefix` until `seconds` after its last use, which is now. If it is already
        pinned, the longer of both times applies.
        """
        if prefix.kind != "pinned":
            self._leaves.change(prefix, "pinned")
            prefix.seconds = seconds
        prefix.seconds = max(prefix.seconds, seconds)
        self._renew(prefix)

    def unpin(self, prefix: Prefix) -> None:
        """Turn the pinned `prefix` into an ordinary kept one."""
        self._leaves.change(prefix, "kept")
        prefix.seconds = 0.0

    def unpin_beyond(self) -> None:
        """Unpin until pins are within their limits, the least recently used first."""
        for prefix in self.pins:
            if any(group.pinned > self._most(group) for group in self._leaves.counted()):
                self.unpin(prefix)

    def may_pin(self, source: Prefix, tokens: int, seconds: float) -> bool:
        """Whether the first `tokens` of `source` may be pinned as well.

        If there are too many pins already, the longest pinned prefix of these tokens is unpinned,
        provided that its time is at most `seconds`: the new pin holds its pages. (A growing chat
        pins a longer prefix with each message.)
        """
        leaves = self._leaves
        for group in leaves.counted():
            more = leaves.unpinned(source, tokens, group)
            # In groups with a window, pinned pages count in addition to claims of their holders.
            has_room = group.window is None or more <= group.free(pins_stay=True)
            if not has_room or group.pinned + more > self._most(group):
                return False
        if leaves.first.used > leaves.first.limit:
            return False
        pins = self.pins
        if leaves.most_pins is None or len(pins) < leaves.most_pins:
            return True
        on_the_way = [
            prefix
            for prefix in self._tree.covered(source)
            if prefix.kind == "pinned" and prefix.length < tokens and prefix.seconds <= seconds
        ]
        if not on_the_way:
            return False
        self.unpin(max(on_the_way, key=lambda prefix: prefix.length))
        return True

    def exactly(self, source: Prefix, tokens: int) -> Prefix | None:
        """The kept prefix that is exactly the first `tokens` of `source`, preferably a pinned one;
        None if there is none.
        """
        same = [
            prefix
            for prefix in self._tree.covered(source)
            if prefix.kind != "live" and prefix.length == tokens
        ]
        same.sort(key=lambda prefix: prefix.kind != "pinned")
        return same[0] if same else None

    def covered(self, source: Prefix) -> list[Prefix]:
        """The unpinned prefixes whose tokens `source` begins with."""
        return [prefix for prefix in self._tree.covered(source) if prefix.kind == "kept"]

    def serving(self, source: Prefix) -> Prefix | None:
        """A kept prefix that can serve in place of `source`: with the same tokens, or with
        `keeps_past` also a longer one; None if there is none.
        """
        for prefix in self._tree.covering(source):
            serves = self._leaves.keeps_past or prefix.length == source.length
            if prefix.kind != "live" and serves:
                return prefix
        return None

    def check_integrity(self) -> None:
        """Raises AssertionError if pins exceed their limits."""
        assert all(prefix.kind != "live" and prefix.length for prefix in self._order)
        most = self._leaves.most_pins
        assert most is None or len(self.pins) <= most
        for group in self._leaves.counted():
            assert group.pinned <= self._most(group)

    def _renew(self, pin: Prefix) -> None:
        self.touch(pin)
        pin.until = self._clock() + pin.seconds

    def _most(self, group: Group) -> int:
        """Maximum pages of `group` that pins may hold: half of its limit, and in the first group no
        more than may be kept.
        """
        half = group.limit // 2
        return min(half, self._most_pages) if group is self._leaves.first else half
