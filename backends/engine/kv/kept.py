"""The prefixes that are kept of sequences that no longer run, in the order of their use; some of
them are pinned, and stay until some seconds after their last use even where room is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq

from hearth.backends.engine.kv.group import Group
from hearth.backends.engine.kv.leaves import Leaves
from hearth.backends.engine.kv.tree import Node, Prefix


class KeptPrefixes:
    """Kept prefixes, the least recently used first.

    A pin ends by time only in `expire`, so that nothing changes in the middle of an operation.

    Args:
        leaves: whose they are.
        clock: seconds, never going back.
        most_pages: pages of the first group that may be kept.
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
        """Those that are not pinned."""
        return [prefix for prefix in self._order if prefix.kind == "kept"]

    @property
    def pinned_tokens(self) -> int:
        """Tokens of pins; one that several hold counts once."""
        most: dict[Node, int] = {}
        for pin in self.pins:
            for node in pin.node.upwards():
                most[node] = max(most.get(node, 0), min(pin.length, node.end) - node.start)
        return sum(most.values())

    def add(self, prefix: Prefix) -> None:
        """`prefix` is kept, and counts as used now."""
        self._order[prefix] = None

    def remove(self, prefix: Prefix) -> None:
        """`prefix` is not kept any more."""
        del self._order[prefix]

    def touch(self, prefix: Prefix) -> None:
        """`prefix`, which is kept, is used now, or a first part of it: that renews no pin."""
        del self._order[prefix]
        self._order[prefix] = None

    def use_pins(self, root: Node, tokens: Seq[int]) -> None:
        """Every pinned prefix that `tokens` begin with is used now."""
        if any(prefix.kind == "pinned" for prefix in self._order):
            for node, matched in list(self._tree.walk(root, tokens)):
                for prefix in list(node.ends):
                    if prefix.kind == "pinned" and prefix.length <= matched:
                        self._renew(prefix)

    def expire(self) -> None:
        """Those whose time is over are kept as any others from now on."""
        pins = self.pins
        if pins:
            now = self._clock()
            for prefix in pins:
                if prefix.until <= now:
                    self.unpin(prefix)

    def pin(self, prefix: Prefix, seconds: float) -> None:
        """`prefix`, which is kept, stays until `seconds` after its last use, which is now. One that
        is pinned already stays for the longer of both times.
        """
        if prefix.kind != "pinned":
            self._leaves.change(prefix, "pinned")
            prefix.seconds = seconds
        prefix.seconds = max(prefix.seconds, seconds)
        self._renew(prefix)

    def unpin(self, prefix: Prefix) -> None:
        """`prefix`, which is pinned, is kept as any other from now on."""
        self._leaves.change(prefix, "kept")
        prefix.seconds = 0.0

    def unpin_beyond(self) -> None:
        """Let pins hold no more than they may; the least recently used end first."""
        for prefix in self.pins:
            if any(group.pinned > self._most(group) for group in self._leaves.counted()):
                self.unpin(prefix)

    def may_pin(self, source: Prefix, tokens: int, seconds: float) -> bool:
        """Whether the first `tokens` of `source` may be pinned too.

        Where there are too many already, the longest one on the way to them ends, if it asks for
        no more than `seconds`: its pages stay with the new one. (A chat that grows pins a longer
        prefix at each turn.)
        """
        leaves = self._leaves
        for group in leaves.counted():
            more = leaves.unpinned(source, tokens, group)
            # Where there is a window, what is pinned counts besides what its holders claim.
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
        """The one that is just the first `tokens` of `source`, a pinned one if there is one."""
        same = [
            prefix
            for prefix in self._tree.covered(source)
            if prefix.kind != "live" and prefix.length == tokens
        ]
        same.sort(key=lambda prefix: prefix.kind != "pinned")
        return same[0] if same else None

    def covered(self, source: Prefix) -> list[Prefix]:
        """Those that are not pinned and whose tokens `source` has all."""
        return [prefix for prefix in self._tree.covered(source) if prefix.kind == "kept"]

    def serving(self, source: Prefix) -> Prefix | None:
        """One that serves all that `source` would: the same tokens, or where the past is kept more;
        None if there is none.
        """
        for prefix in self._tree.covering(source):
            serves = self._leaves.keeps_past or prefix.length == source.length
            if prefix.kind != "live" and serves:
                return prefix
        return None

    def check_integrity(self) -> None:
        """Raises AssertionError where pins are more than they may be."""
        assert all(prefix.kind != "live" and prefix.length for prefix in self._order)
        most = self._leaves.most_pins
        assert most is None or len(self.pins) <= most
        for group in self._leaves.counted():
            assert group.pinned <= self._most(group)

    def _renew(self, pin: Prefix) -> None:
        self.touch(pin)
        pin.until = self._clock() + pin.seconds

    def _most(self, group: Group) -> int:
        """Pages of `group` that pins may hold: half, and no more of the first than may be kept."""
        half = group.limit // 2
        return min(half, self._most_pages) if group is self._leaves.first else half
