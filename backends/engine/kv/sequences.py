"""Leaves in a store that names whole sequences by id, as llama.cpp's does: each prefix owns one id.

llama.cpp keeps one cell per token, and `llama_memory_seq_cp` lets a second sequence hold the same
cell. Nothing in its C interface says how many cells are free: a page of the tree is a cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Final

from hearth.backends.engine.kv.group import Group, Kind
from hearth.backends.engine.kv.leaves import Hit
from hearth.backends.engine.kv.store import SavedState, SequenceStore
from hearth.backends.engine.kv.tree import Node, Prefix, PrefixTree

LEAST_CUT: Final = 64
"""Cells that are cut off a kept prefix at least: llama.cpp goes through all cells of the pool."""


class SequenceLeaves:
    """Implements `hearth.backends.engine.kv.leaves.Leaves` over a `SequenceStore`.

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
        self.most_pins: int | None = store.sequences - slots
        self.first = pool
        self._free = list(reversed(range(store.sequences)))

    @property
    def keeps_past(self) -> bool:
        return self.store.keeps_past

    @property
    def allocated_tokens(self) -> int:
        return self.store.allocated_tokens

    def counted(self) -> list[Group]:
        return [self.first]

    def has_place(self) -> bool:
        return bool(self._free)

    def begin(self, namespace: bytes, kind: Kind) -> Prefix:
        prefix = self.tree.new(namespace, kind, 1)
        prefix.sequence = self._free.pop()
        return prefix

    def hits(self, root: Node, tokens: Seq[int], *, copies: bool) -> Iterator[Hit]:
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
        self._share(hit.source, prefix, hit.length)
        return True

    def can_fork(self, source: Prefix, length: int) -> bool:
        return self.store.intact(source.sequence, source.length, length)

    def fork(self, source: Prefix, length: int) -> Prefix:
        prefix = self.begin(source.namespace, "kept")
        self._share(source, prefix, length)
        return prefix

    def change(self, prefix: Prefix, kind: Kind) -> None:
        self.tree.change(prefix, kind)

    def shorten(self, prefix: Prefix, length: int) -> None:
        self.store.cut(prefix.sequence, length)
        self.tree.cut(prefix, length)

    def drop(self, prefix: Prefix) -> None:
        self.store.cut(prefix.sequence, 0)
        self.tree.cut(prefix, 0)
        self._free.append(prefix.sequence)

    def frees(self, prefix: Prefix, group: Group) -> bool:
        return prefix.node.holders.is_idle

    def unpinned(self, source: Prefix, length: int, group: Group) -> int:
        return self.tree.unpinned_pages(source.node, length)

    def taken(self, prefix: Prefix) -> int:
        return prefix.length

    def handle(self, prefix: Prefix) -> int:
        return prefix.sequence

    def append(self, prefix: Prefix, tokens: Seq[int]) -> None:
        self.tree.append(prefix, tokens)

    def rest(self) -> None:
        self.store.shrink(self.first.used)

    def saved_bytes(self, prefix: Prefix) -> int:
        return self.store.saved_bytes(prefix.sequence)

    def save(self, prefix: Prefix) -> SavedState | None:
        return self.store.save(prefix.sequence)

    def restore(self, prefix: Prefix, state: SavedState, tokens: Seq[int]) -> bool:
        if not self.store.restore(prefix.sequence, state):
            return False
        self.append(prefix, tokens)
        return True

    def has_room_for_part(self, tokens: int) -> bool:
        # All of it needs cells for a moment, and a larger pool is worth more than a few tokens.
        most = max(self.allocated_tokens, self.first.used + self.first.claims)
        return self.first.used + tokens <= most

    def save_part(self, prefix: Prefix, start: int, end: int) -> SavedState | None:
        return self.store.save_part(prefix.sequence, start, end)

    def restore_part(self, prefix: Prefix, state: SavedState, tokens: Seq[int]) -> bool:
        start = prefix.length
        if not self.store.restore_part(prefix.sequence, state, start, start + len(tokens)):
            return False
        self.append(prefix, tokens)
        return True

    def check_integrity(self, live: Seq[Prefix], kept: Seq[Prefix]) -> None:
        ids = sorted([*self._free, *(prefix.sequence for prefix in (*live, *kept))])
        assert ids == list(range(self.store.sequences)), "an id is live, kept or free"
        assert not self.first.spare

    def _share(self, source: Prefix, prefix: Prefix, length: int) -> None:
        self.store.share(source.sequence, prefix.sequence, length)
        self.tree.enter(prefix, self.tree.upto(source.node, length), length)
