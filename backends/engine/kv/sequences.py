"""Leaves in a store that names whole sequences by id, as llama.cpp's does: each prefix owns one id.

llama.cpp keeps one cell per token, and `llama_memory_seq_cp` lets a second sequence hold the same
cell. Nothing in its C interface says how many cells are free: a page of the tree is a cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Final

from hearth.backends.engine.kv.group import Group, Kind
from hearth.backends.engine.kv.store import SavedState, SequenceStore
from hearth.backends.engine.kv.tree import Hit, Node, Prefix, PrefixTree

LEAST_CUT: Final = 64
"""Cells that are cut off a kept prefix at least: llama.cpp goes through all cells of the pool."""


class SequenceLeaves:
    """Prefixes in a `SequenceStore`. Those that are passed to it are in its tree.

    Args:
        slots: sequences that run at the same time; there is an id for each.
        pool_tokens: most cells in use.
    """

    def __init__(self, store: SequenceStore, *, slots: int, pool_tokens: int) -> None:
        self.store = store
        pool = Group(0, None, page=1, limit=pool_tokens, step_tokens=None)
        self.groups: tuple[Group, ...] = (pool,)
        self.tree = PrefixTree(1, 0, pool, lambda blocks: None)
        self.least_cut = LEAST_CUT
        """Fewer pages are not worth the time that it takes to cut them off."""
        self.most_pins: int | None = store.sequences - slots
        """How many prefixes may be pinned; None: any number."""
        self.first = pool
        """The group that sees most."""
        self._free = list(reversed(range(store.sequences)))

    @property
    def keeps_past(self) -> bool:
        """See `RunnerInfo.keeps_past`."""
        return self.store.keeps_past

    @property
    def allocated_tokens(self) -> int:
        """Tokens that there is memory for now."""
        return self.store.allocated_tokens

    def counted(self) -> list[Group]:
        """The groups that can run short: one with as many pages as the first cannot."""
        return [self.first]

    def has_place(self) -> bool:
        """Whether one more prefix can be had without another going away."""
        return bool(self._free)

    def begin(self, namespace: bytes, kind: Kind) -> Prefix:
        """An empty prefix. Only where `has_place`."""
        prefix = self.tree.new(namespace, kind, 1)
        prefix.sequence = self._free.pop()
        return prefix

    def hits(self, root: Node, tokens: Seq[int], *, copies: bool) -> Iterator[Hit]:
        """First parts of `tokens` that can be continued from and that there is room for, longest
        first.

        Args:
            copies: whether a part of a page may be copied for it.
        """
        matches = sorted(self.tree.walk(root, tokens), key=lambda match: -match[1])
        if self.keeps_past:
            if matches:
                node, matched = matches[0]
                source = next(end for below in node.subtree() for end in below.ends)
                yield Hit(matched, source, node)
            return
        common: dict[Prefix, int] = {}
        for node, matched in matches:
            for below in node.subtree():
                for prefix in below.ends:
                    common.setdefault(prefix, min(matched, prefix.length))
        # Of equal ones first those that end there.
        for source, length in sorted(common.items(), key=lambda one: (-one[1], one[0].length)):
            if self.store.intact(source.sequence, source.length, length):
                yield Hit(length, source, source.node)

    def enter(self, prefix: Prefix, hit: Hit) -> bool:
        """Let the empty `prefix`, of a running sequence, begin with `hit`; False, and still empty,
        if there was no memory for a copy.
        """
        self._share(hit.source, prefix, hit.length)
        return True

    def can_fork(self, source: Prefix, length: int) -> bool:
        """Whether the first `length` tokens of `source` can be kept by themselves."""
        return self.store.intact(source.sequence, source.length, length)

    def fork(self, source: Prefix, length: int) -> Prefix:
        """Keep the first `length` tokens of `source`. Only where `can_fork` and `has_place`."""
        prefix = self.begin(source.namespace, "kept")
        self._share(source, prefix, length)
        return prefix

    def change(self, prefix: Prefix, kind: Kind) -> None:
        """`prefix` is of another kind from now on."""
        self.tree.change(prefix, kind)

    def shorten(self, prefix: Prefix, length: int) -> None:
        """`prefix` keeps its first `length` tokens, whole pages. Only where the past is kept."""
        self.store.cut(prefix.sequence, length)
        self.tree.cut(prefix, length)

    def drop(self, prefix: Prefix) -> None:
        """Forget `prefix`: whatever it had is free, if no other has it."""
        self.store.cut(prefix.sequence, 0)
        self.tree.cut(prefix, 0)
        self._free.append(prefix.sequence)

    def frees(self, prefix: Prefix, group: Group) -> bool:
        """Whether without `prefix`, which is kept, idle pages of `group` have one holder fewer."""
        return prefix.node.holders.is_idle

    def unpinned(self, source: Prefix, length: int, group: Group) -> int:
        """Pages of `group` that a token after the first `length` of `source` looks at, and that are
        not pinned.
        """
        return self.tree.unpinned_pages(source.node, length)

    def taken(self, prefix: Prefix) -> int:
        """Pages of `prefix`, with those that it has not filled yet."""
        return prefix.length

    def handle(self, prefix: Prefix) -> int:
        return prefix.sequence

    def append(self, prefix: Prefix, tokens: Seq[int]) -> None:
        """A step computed `tokens` for `prefix`."""
        self.tree.append(prefix, tokens)

    def forget(self, prefix: Prefix, start: int, count: int, namespace: bytes) -> bool:
        """`prefix`, of a running sequence, has lost the `count` tokens after its first `start`, and
        is of `namespace`; False, and unchanged, where cells of its own for those that others have,
        too, cannot be had.
        """
        length = prefix.length - count
        is_own = self.tree.own_pages(prefix) == prefix.length
        if not is_own and self.first.free(pins_stay=True) < length:
            return False
        if not self.store.forget(prefix.sequence, start, count, is_own=is_own):
            return False
        tokens = self.tree.tokens(prefix)
        self.tree.cut(prefix, 0)
        prefix.namespace = namespace
        self.append(prefix, tokens[:start] + tokens[start + count :])
        return True

    def rest(self) -> None:
        """No sequence runs: give back memory that nothing is in."""
        self.store.shrink(self.first.used)

    def saved_bytes(self, prefix: Prefix) -> int:
        """What a copy of all that `prefix` has would take."""
        return self.store.saved_bytes(prefix.sequence)

    def save(self, prefix: Prefix) -> SavedState | None:
        """A copy of all that `prefix` has; None if that cannot be had."""
        return self.store.save(prefix.sequence)

    def restore(self, prefix: Prefix, state: SavedState, tokens: Seq[int]) -> bool:
        """Give the empty `prefix` what was saved; False, and still empty, if that fails."""
        if not self.store.restore(prefix.sequence, state):
            return False
        self.append(prefix, tokens)
        return True

    def has_room_for_part(self, tokens: int) -> bool:
        """Whether a part of `tokens` tokens can be copied in without more memory for the pool."""
        # All of it needs cells for a moment, and a larger pool is worth more than a few tokens.
        most = max(self.allocated_tokens, self.first.used + self.first.claims)
        return self.first.used + tokens <= most

    def save_part(self, prefix: Prefix, start: int, end: int) -> SavedState | None:
        """A copy of its tokens `start` to `end`; None if that cannot be had."""
        return self.store.save_part(prefix.sequence, start, end)

    def restore_part(self, prefix: Prefix, state: SavedState, tokens: Seq[int]) -> bool:
        """Add `tokens`, which are in `state` from the end of `prefix` on; False, and unchanged, if
        that fails.
        """
        start = prefix.length
        if not self.store.restore_part(prefix.sequence, state, start, start + len(tokens)):
            return False
        self.append(prefix, tokens)
        return True

    def check_integrity(self, live: Seq[Prefix], kept: Seq[Prefix]) -> None:
        """Count all of it again; raises AssertionError where it contradicts itself."""
        ids = sorted([*self._free, *(prefix.sequence for prefix in (*live, *kept))])
        assert ids == list(range(self.store.sequences)), "an id is live, kept or free"
        assert not self.first.spare

    def _share(self, source: Prefix, prefix: Prefix, length: int) -> None:
        self.store.share(source.sequence, prefix.sequence, length)
        self.tree.enter(prefix, self.tree.upto(source.node, length), length)
