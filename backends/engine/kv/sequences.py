"""Leaves in a store that identifies whole sequences by id, as in llama.cpp. Each prefix owns an id.

llama.cpp keeps one cell per token, and `llama_memory_seq_cp` lets a second sequence share a cell.
Its C API does not report how many cells are free, so they are counted here: a page of the tree is a
cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Final

from hearth.backends.engine.kv.group import Group, Kind
from hearth.backends.engine.kv.store import SavedState, SequenceStore
from hearth.backends.engine.kv.tree import Hit, Node, Prefix, PrefixTree

LEAST_CUT: Final = 64
"""Minimum number of cells to cut off a kept prefix, because llama.cpp scans all cells of the pool
for each cut."""


class SequenceLeaves:
    """Prefixes in a `SequenceStore`. Prefixes passed to its methods must be in its tree.

    Args:
        slots: sequences that run at the same time; there is an id for each.
        pool_tokens: maximum number of cells in use.
    """

    def __init__(self, store: SequenceStore, *, slots: int, pool_tokens: int) -> None:
        self.store = store
        pool = Group(0, None, page=1, limit=pool_tokens, step_tokens=None)
        self.groups: tuple[Group, ...] = (pool,)
        self.tree = PrefixTree(1, 0, pool, lambda blocks: None)
        self.least_cut = LEAST_CUT
        """Minimum number of pages that is worth the time to cut them off."""
        self.most_pins: int | None = store.sequences - slots
        """Maximum number of pinned prefixes; None: any number."""
        self.first = pool
        """The group with the longest attention span."""
        self._free = list(reversed(range(store.sequences)))

    @property
    def keeps_past(self) -> bool:
        """See `RunnerInfo.keeps_past`."""
        return self.store.keeps_past

    @property
    def allocated_tokens(self) -> int:
        """Tokens that have memory now."""
        return self.store.allocated_tokens

    def counted(self) -> list[Group]:
        """The groups that can run short; groups with as many pages as the first cannot."""
        return [self.first]

    def has_place(self) -> bool:
        """Whether one more prefix can be created without evicting another."""
        return bool(self._free)

    def begin(self, namespace: bytes, kind: Kind) -> Prefix:
        """A new, empty prefix. Requires `has_place`."""
        prefix = self.tree.new(namespace, kind, 1)
        prefix.sequence = self._free.pop()
        return prefix

    def hits(self, root: Node, tokens: Seq[int], *, copies: bool) -> Iterator[Hit]:
        """First parts of `tokens` that a sequence can continue from and that there is room for,
        longest first.

        Args:
            copies: whether part of a page may be copied for a hit.
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
        # Among equal lengths, prefixes that end there come first.
        for source, length in sorted(common.items(), key=lambda one: (-one[1], one[0].length)):
            if self.store.intact(source.sequence, source.length, length):
                yield Hit(length, source, source.node)

    def enter(self, prefix: Prefix, hit: Hit) -> bool:
        """Fill the empty `prefix` of a running sequence with `hit`; False, and still empty, if
        there was no memory for a copy.
        """
        self._share(hit.source, prefix, hit.length)
        return True

    def can_fork(self, source: Prefix, length: int) -> bool:
        """Whether the first `length` tokens of `source` can be kept as a prefix of their own."""
        return self.store.intact(source.sequence, source.length, length)

    def fork(self, source: Prefix, length: int) -> Prefix:
        """Keep the first `length` tokens of `source`. Requires `can_fork` and `has_place`."""
        prefix = self.begin(source.namespace, "kept")
        self._share(source, prefix, length)
        return prefix

    def change(self, prefix: Prefix, kind: Kind) -> None:
        """Change the kind of `prefix`."""
        self.tree.change(prefix, kind)

    def shorten(self, prefix: Prefix, length: int) -> None:
        """Cut `prefix` to its first `length` tokens, in whole pages. Requires `keeps_past`."""
        self.store.cut(prefix.sequence, length)
        self.tree.cut(prefix, length)

    def drop(self, prefix: Prefix) -> None:
        """Drop `prefix` and free what no other prefix holds."""
        self.store.cut(prefix.sequence, 0)
        self.tree.cut(prefix, 0)
        self._free.append(prefix.sequence)

    def frees(self, prefix: Prefix, group: Group) -> bool:
        """Whether dropping the kept `prefix` removes a holder from idle pages of `group`."""
        return prefix.node.holders.is_idle

    def unpinned(self, source: Prefix, length: int, group: Group) -> int:
        """Number of unpinned pages of `group` that the token after the first `length` tokens of
        `source` attends to.
        """
        return self.tree.unpinned_pages(source.node, length)

    def taken(self, prefix: Prefix) -> int:
        """Pages of `prefix`, including those that it has not filled yet."""
        return prefix.length

    def handle(self, prefix: Prefix) -> int:
        return prefix.sequence

    def append(self, prefix: Prefix, tokens: Seq[int]) -> None:
        """Record that a step computed `tokens` for `prefix`."""
        self.tree.append(prefix, tokens)

    def forget(self, prefix: Prefix, start: int, count: int, namespace: bytes) -> bool:
        """Remove the `count` tokens after the first `start` from the `prefix` of a running
        sequence, which is of `namespace` from now on. False, and unchanged, if it shares cells and
        there is no room for cells of its own.
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
        """Called when no sequence runs: release unused memory."""
        self.store.shrink(self.first.used)

    def saved_bytes(self, prefix: Prefix) -> int:
        """Bytes that a copy of the whole `prefix` would take."""
        return self.store.saved_bytes(prefix.sequence)

    def save(self, prefix: Prefix) -> SavedState | None:
        """A copy of the whole `prefix`; None if not possible."""
        return self.store.save(prefix.sequence)

    def restore(self, prefix: Prefix, state: SavedState, tokens: Seq[int]) -> bool:
        """Fill the empty `prefix` with a saved state; False, and still empty, if that fails."""
        if not self.store.restore(prefix.sequence, state):
            return False
        self.append(prefix, tokens)
        return True

    def has_room_for_part(self, tokens: int) -> bool:
        """Whether a part of `tokens` tokens can be copied in without growing the pool."""
        # The whole part needs cells for a moment. Growing the pool for that costs more than it
        # saves.
        most = max(self.allocated_tokens, self.first.used + self.first.claims)
        return self.first.used + tokens <= most

    def save_part(self, prefix: Prefix, start: int, end: int) -> SavedState | None:
        """A copy of its tokens `start` to `end`; None if not possible."""
        return self.store.save_part(prefix.sequence, start, end)

    def restore_part(self, prefix: Prefix, state: SavedState, tokens: Seq[int]) -> bool:
        """Append `tokens`, whose keys and values are in `state`, to `prefix`; False, and unchanged,
        if that fails.
        """
        start = prefix.length
        if not self.store.restore_part(prefix.sequence, state, start, start + len(tokens)):
            return False
        self.append(prefix, tokens)
        return True

    def check_integrity(self, live: Seq[Prefix], kept: Seq[Prefix]) -> None:
        """Recount everything; raises AssertionError if the state is inconsistent."""
        ids = sorted([*self._free, *(prefix.sequence for prefix in (*live, *kept))])
        assert ids == list(range(self.store.sequences)), "an id is live, kept or free"
        assert not self.first.spare

    def _share(self, source: Prefix, prefix: Prefix, length: int) -> None:
        self.store.share(source.sequence, prefix.sequence, length)
        self.tree.enter(prefix, self.tree.upto(source.node, length), length)
