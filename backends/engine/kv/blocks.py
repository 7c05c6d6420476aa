"""Leaves in a store of blocks: the pages of the tree are blocks, and running sequences have block
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from heapq import heapify, heappop, heappush

from hearth.backends.engine.kv.group import Group, Holders, Kind
from hearth.backends.engine.kv.store import BlockStore, SavedState
from hearth.backends.engine.kv.tree import NO_BLOCK, Hit, Node, Prefix, PrefixTree
from hearth.backends.errors import InternalError


class BlockLeaves:
    """Prefixes in a `BlockStore`. Methods without a docstring are documented in `SequenceLeaves`.

    Whole pages are shared; of the page where a hit ends, the common tokens are copied to a new
    page. Equal pages that several sequences have computed are merged as soon as they are full. A
    sequence writes into its last page until that is full; a prefix that is kept of it meanwhile
    holds an unchanged first part of that page.

    If a group has full attention, its blocks are the pages of the tree. A block of a group with a
    window exists as long as a sequence attends to it, or a sequence continued from a kept prefix
    would.

    Args:
        pool_tokens: maximum tokens in use; rounded up to whole pages.
        step_tokens: maximum tokens of a sequence in one step; if given, it bounds the blocks that
            groups with a window need.
        evict: frees an idle page of a group; False if there is none.

    Raises:
        InternalError: the store has no group.
    """

    def __init__(
        self,
        store: BlockStore,
        *,
        pool_tokens: int,
        step_tokens: int | None,
        evict: Callable[[Group], bool],
    ) -> None:
        if not store.groups:
            raise InternalError("A store without any group of layers was given.")
        page = store.page
        blocks = -(-pool_tokens // page)
        self.store = store
        self.groups = tuple(
            Group(
                number,
                spec.window,
                page=page,
                limit=blocks if spec.blocks is None else min(spec.blocks, blocks),
                step_tokens=step_tokens,
            )
            for number, spec in enumerate(store.groups)
        )
        self._full = next((group for group in self.groups if group.window is None), None)
        self._windows = [group for group in self.groups if group.window is not None]
        self.first = self._full or max(self._windows, key=lambda group: group.window or 0)
        self.tree = PrefixTree(page, len(self.groups), self._full, self._free_full)
        self.least_cut = 1
        self.has_shrunk = False
        """The store could not grow, and the limit of a group was lowered."""
        self._page = page
        self._step_tokens = step_tokens
        self._evict = evict
        self._free: list[list[int]] = [[] for _ in self.groups]
        """Free blocks, as heaps, so that blocks taken in succession are mostly contiguous."""
        self._ends = [0 for _ in self.groups]
        """For each group, blocks from this number on were never taken."""
        self._holders: list[dict[int, Holders]] = [{} for _ in self.groups]
        """The holders of each block of a group with a window."""
        self._moving: set[int] = set()
        """Blocks that a sequence keeps while its tokens move to another place of the tree."""

    @property
    def keeps_past(self) -> bool:
        return not self._windows

    @property
    def allocated_tokens(self) -> int:
        return self.store.capacity(self.first.number) * self._page

    @property
    def most_pins(self) -> int | None:
        return None

    def counted(self) -> list[Group]:
        return [one for one in self.groups if one is self.first or one.limit < self.first.limit]

    def has_place(self) -> bool:
        return True

    def begin(self, namespace: bytes, kind: Kind) -> Prefix:
        return self.tree.new(namespace, kind, len(self.groups))

    # ---- hits

    def hits(self, root: Node, tokens: Seq[int], *, copies: bool) -> Iterator[Hit]:
        lengths = [
            (length, node)
            for node, matched in self.tree.walk(root, tokens)
            for length in self._seen_lengths(node, matched)
        ]
        for length, node in sorted(lengths, key=lambda one: -one[0]):
            if (copies or length % self._page == 0) and self._has_room(node, length):
                source = next(end for below in node.subtree() for end in below.ends)
                yield Hit(length, source, node)

    def _seen_lengths(self, node: Node, matched: int) -> Iterator[int]:
        """Lengths at which the `matched` tokens of a prompt that end in `node` can be continued:
        all blocks that the next token attends to must exist.
        """
        whole = matched // self._page * self._page
        last = [length for length in (matched, whole) if length > node.start]
        if not self._windows:
            yield from dict.fromkeys(last)
            return
        count = self.tree.pages(matched)
        begins = [(group, self._begins(node, group, count)) for group in self._windows]
        lengths = dict.fromkeys([*last, *range(whole, node.start, -self._page)])
        for length in lengths:
            page = self.tree.pages(length) - 1
            if all(begin[page] <= group.first_needed(length) for group, begin in begins):
                yield length

    @staticmethod
    def _begins(node: Node, group: Group, count: int) -> list[int]:
        """For each of the first `count` pages on the path to `node`, the first page from which on
        no block of `group` is missing up to it.
        """
        path = [block for above in node.upwards() for block in reversed(above.blocks[group.number])]
        begins, first = [], 0
        for page, block in enumerate(reversed(path)):
            if page == count:
                break
            if block == NO_BLOCK:
                first = page + 1
            begins.append(first)
        return begins

    def _has_room(self, node: Node, length: int) -> bool:
        """Whether there is room for a sequence that begins with the first `length` tokens up to
        `node`, in addition to all reservations.
        """
        is_copied = length % self._page > 0
        pages = self.tree.pages(length)
        full = self._full
        if full is not None and is_copied:
            # The pages of the hit cannot be evicted to make room for the copy.
            hit_pages = sum(
                min(self.tree.pages(above.end), pages) - above.start // self._page
                for above in node.upwards()
                if above.holders.is_idle and above.start < length
            )
            if hit_pages + 1 > full.free(pins_stay=True):
                return False
        for group in self._windows:
            first = group.first_needed(length)
            if group in self.counted() and pages - first > group.free(pins_stay=True):
                return False
            short = group.used + 1 - group.limit
            if is_copied and short > 0:
                holders = self._holders[group.number]
                blocks = self._blocks(node, group, first, pages)
                if short > group.idle - sum(holders[block].is_idle for block in blocks):
                    return False
        return True

    def _blocks(self, node: Node, group: Group, first: int, end: int) -> list[int]:
        """The blocks of the pages `first` to `end` on the path to `node`."""
        return [owner.blocks[group.number][at] for owner, at in self._places(node, first, end)]

    def _places(self, node: Node, first: int, end: int) -> Iterator[tuple[Node, int]]:
        """The places of the pages `first` to `end` on the path to `node`, last page first, as
        (node, index of the page in it).
        """
        for above in node.upwards():
            start = above.start // self._page
            for page in range(
                min(end, start + len(above.blocks[0])) - 1, max(first, start) - 1, -1
            ):
                yield above, page - start
            if start <= first:
                return

    # ---- prefixes

    def enter(self, prefix: Prefix, hit: Hit) -> bool:
        tree, page = self.tree, self._page
        whole = hit.length // page * page
        path = hit.node
        for group in self.groups:
            prefix.first[group.number] = group.first_needed(hit.length)
        if whole:
            self._hold_path(prefix, tree.upto(path, whole), whole)
            self._make_tables(prefix)
        if hit.length == whole:
            return True
        # Hold the source of the copy meanwhile, so that it is not evicted for its own copy.
        guard = self.begin(prefix.namespace, "live")
        guard.first = list(prefix.first)
        source = tree.upto(path, hit.length)
        self._hold_path(guard, source, hit.length)
        blocks = self._take_beyond()
        if blocks is not None:
            for group, block in zip(self.groups, blocks, strict=True):
                copied = source.blocks[group.number][-1]
                if copied != NO_BLOCK:
                    self.store.copy(group.number, copied, block, hit.length - whole)
                prefix.tables[group.number].append(block)
            self.append(prefix, source.tokens[whole - source.start : hit.length - source.start])
        self._leave(guard, 0)
        if blocks is None and prefix.length:
            self._leave(prefix, 0)
        return blocks is not None

    def can_fork(self, source: Prefix, length: int) -> bool:
        """See `SequenceLeaves`; False if needed blocks were released after a window passed them."""
        pages = self.tree.pages(length)
        for group in self._windows:
            blocks = self._blocks(source.node, group, group.first_needed(length), pages)
            if NO_BLOCK in blocks:
                return False
        return True

    def fork(self, source: Prefix, length: int) -> Prefix:
        prefix = self.begin(source.namespace, "kept")
        for group in self.groups:
            prefix.first[group.number] = group.first_needed(length)
        self._hold_path(prefix, self.tree.upto(source.node, length), length)
        return prefix

    def change(self, prefix: Prefix, kind: Kind) -> None:
        for group in self._windows:
            for block in self._held(prefix, group):
                self._count(group, block, prefix.kind, -1)
                self._count(group, block, kind, 1)
        self.tree.change(prefix, kind)
        if kind != "live":
            self.drop_spare(prefix)
            prefix.tables = [[] for _ in self.groups]

    def shorten(self, prefix: Prefix, length: int) -> None:
        self.tree.cut(prefix, length)

    def drop(self, prefix: Prefix) -> None:
        if prefix.kind == "live":
            self.drop_spare(prefix)
        self._leave(prefix, 0)

    def frees(self, prefix: Prefix, group: Group) -> bool:
        if group.window is None:
            return prefix.node.holders.is_idle
        holders = self._holders[group.number]
        return any(holders[block].is_idle for block in self._held(prefix, group))

    def unpinned(self, source: Prefix, length: int, group: Group) -> int:
        if group.window is None:
            return self.tree.unpinned_pages(source.node, length)
        holders = self._holders[group.number]
        first, end = group.first_needed(length), self.tree.pages(length)
        return sum(not holders[one].pinned for one in self._blocks(source.node, group, first, end))

    def taken(self, prefix: Prefix) -> int:
        return len(prefix.tables[0])

    def handle(self, prefix: Prefix) -> list[list[int]]:
        return prefix.tables

    def extend(self, prefix: Prefix, tokens: int) -> bool:
        """Take blocks for `tokens` more tokens of `prefix`; False if there are not enough, and then
        those already taken stay with `prefix`.

        Raises:
            InternalError: `tokens` exceeds `step_tokens`.
        """
        if self._step_tokens is not None and tokens > self._step_tokens:
            raise InternalError(
                f"A step of {tokens} tokens was made with a memory for {self._step_tokens}."
            )
        needed = self.tree.pages(prefix.length + tokens)
        while self.taken(prefix) < needed and (blocks := self._take_all()) is not None:
            for table, block in zip(prefix.tables, blocks, strict=True):
                table.append(block)
        return self.taken(prefix) >= needed

    def append(self, prefix: Prefix, tokens: Seq[int]) -> None:
        before = self.tree.pages(prefix.length)
        after = self.tree.pages(prefix.length + len(tokens))
        if after > self.taken(prefix):
            raise InternalError(
                f"A sequence has {self.taken(prefix)} pages; {prefix.length} + {len(tokens)} tokens"
                " were computed."
            )
        for group in self.groups:
            group.spare -= after - before
            if group.window is not None:
                for block in prefix.tables[group.number][before:after]:
                    self._count(group, block, "live", 1)
        for node in self.tree.append(prefix, tokens):
            self._merge(prefix, node)
        self._slide(prefix)

    def forget(self, prefix: Prefix, start: int, count: int, namespace: bytes) -> bool:
        """See `SequenceLeaves`. Shared blocks are copied. The first tokens of the page that
        contains `start` are copied into the page that takes its place. `count` is whole pages.
        """
        full = self._full
        assert full is not None and not self._windows and count % self._page == 0
        self.drop_spare(prefix)
        table = prefix.tables[full.number]
        first, gone = start // self._page, count // self._page
        own = len(table) - self.tree.own_pages(prefix)
        pages = [*range(first), *range(first + gone, len(table))]
        if sum(page < own for page in pages) > full.free(pins_stay=True):
            return False
        moved: list[int] = []
        fresh: list[int] = []
        for page in pages:
            if page >= own:
                moved.append(table[page])
                continue
            block = self._take(full)
            if block is None:
                for other in fresh:
                    self._give(full, other)
                full.spare -= len(fresh)
                return False
            full.spare += 1
            fresh.append(block)
            moved.append(block)
            self.store.copy(full.number, table[page], block, self._page)
        if start % self._page:
            self.store.copy(full.number, table[first], moved[first], start % self._page)
        tokens = self.tree.tokens(prefix)
        self.store.move(moved, start, prefix.length - count, count)
        self._moving = {block for block in moved if block not in fresh}
        self.tree.cut(prefix, 0)
        full.spare += len(self._moving)
        self._moving = set()
        prefix.namespace = namespace
        prefix.tables[full.number] = moved
        self.append(prefix, tokens[:start] + tokens[start + count :])
        return True

    def rearrange(self, prefix: Prefix, moved: Seq[tuple[int, int]]) -> None:
        """Copy tokens beyond the end of `prefix`: (from, to) pairs, counted from its end."""
        page = self._page
        for group, table in enumerate(prefix.tables):
            cells = [
                [table[at // page] * page + at % page for at in (prefix.length + x for x in places)]
                for places in zip(*moved, strict=True)
            ]
            self.store.rearrange(group, *cells)

    def drop_spare(self, prefix: Prefix) -> None:
        """Release the blocks that `prefix` has not filled."""
        for group in self.groups:
            table = prefix.tables[group.number]
            for block in table[self.tree.pages(prefix.length) :]:
                self._give(group, block)
                group.spare -= 1
            del table[self.tree.pages(prefix.length) :]

    def rest(self) -> None:
        """See `SequenceLeaves`. Memory is only released if the blocks after the last one in use are
        at least half of all, because a smaller number would soon be needed again.
        """
        for group in self.groups:
            number = group.number
            free = set(self._free[number])
            end = self._ends[number]
            while end and end - 1 in free:
                end -= 1
            if end < self._ends[number]:
                self._ends[number] = end
                self._free[number] = [block for block in self._free[number] if block < end]
                heapify(self._free[number])
            if 2 * end <= self.store.capacity(number):
                self.store.shrink(number, end)

    # ---- copies

    def saved_bytes(self, prefix: Prefix) -> int:
        return prefix.length * self.store.token_bytes

    def save(self, prefix: Prefix) -> SavedState | None:
        return self.save_part(prefix, 0, prefix.length) if self.keeps_past else None

    def restore(self, prefix: Prefix, state: SavedState, tokens: Seq[int]) -> bool:
        return self.keeps_past and self.restore_part(prefix, state, tokens)

    def has_room_for_part(self, tokens: int) -> bool:
        return True

    def save_part(self, prefix: Prefix, start: int, end: int) -> SavedState | None:
        blocks = self._blocks(prefix.node, self.groups[0], 0, self.tree.pages(end))
        return self.store.save_part(blocks[::-1], start, end)

    def restore_part(self, prefix: Prefix, state: SavedState, tokens: Seq[int]) -> bool:
        start = prefix.length
        needed = self.tree.pages(start + len(tokens))
        while self.taken(prefix) < needed:
            blocks = self._take_all()
            if blocks is None:
                return False
            prefix.tables[0] += blocks
        if not self.store.restore_part(prefix.tables[0], state, start, start + len(tokens)):
            return False
        self.append(prefix, tokens)
        return True

    def check_integrity(self, live: Seq[Prefix], kept: Seq[Prefix]) -> None:
        for group in self.groups:
            number = group.number
            owned = [block for node in self.tree for block in node.blocks[number]]
            owned = [block for block in owned if block != NO_BLOCK]
            spare = [
                block
                for prefix in live
                for block in prefix.tables[number][self.tree.pages(prefix.length) :]
            ]
            every = [*owned, *spare, *self._free[number]]
            assert sorted(every) == list(range(self._ends[number])), "a block has one place"
            assert self._ends[number] <= self.store.capacity(number)
            assert group.used == len(owned) + len(spare) and group.spare == len(spare)
            if group.window is not None:
                self._check_window(group, owned, [*live, *kept])
        for prefix in live:
            pages = self.tree.pages(prefix.length)
            for group in self.groups:
                table, first = prefix.tables[group.number], prefix.first[group.number]
                assert len(table) == self.taken(prefix)
                assert first <= group.first_needed(prefix.length)
                path = self._blocks(prefix.node, group, first, pages)[::-1]
                assert table[:pages] == [NO_BLOCK] * min(first, pages) + path

    def _check_window(self, group: Group, owned: Seq[int], prefixes: Seq[Prefix]) -> None:
        counted: dict[int, Holders] = {}
        for prefix in prefixes:
            for block in self._held(prefix, group):
                counted.setdefault(block, Holders()).add(prefix.kind, 1)
        assert counted == self._holders[group.number] and sorted(owned) == sorted(counted)

    # ---- internals

    def _hold_path(self, prefix: Prefix, node: Node, length: int) -> None:
        """Let the empty `prefix` hold the first `length` tokens up to `node`, and in groups with a
        window the blocks from its `first` on.
        """
        self.tree.enter(prefix, node, length)
        for group in self._windows:
            for block in self._held(prefix, group):
                self._count(group, block, prefix.kind, 1)

    def _held(self, prefix: Prefix, group: Group) -> list[int]:
        """The blocks of a group with a window that `prefix` holds, without those not filled yet."""
        first, end = prefix.first[group.number], self.tree.pages(prefix.length)
        return self._blocks(prefix.node, group, first, end)

    def _make_tables(self, prefix: Prefix) -> None:
        for group in self.groups:
            first = prefix.first[group.number]
            pages = self.tree.pages(prefix.length)
            blocks = self._blocks(prefix.node, group, first, pages)[::-1]
            prefix.tables[group.number] = [NO_BLOCK] * (pages - len(blocks)) + blocks

    def _leave(self, prefix: Prefix, length: int) -> None:
        for group in self._windows:
            self._let_go(prefix, group, self.tree.pages(prefix.length))
        prefix.first = [0] * len(self.groups)
        prefix.tables = [[] for _ in self.groups]
        self.tree.cut(prefix, length)

    def _let_go(self, prefix: Prefix, group: Group, end: int) -> None:
        """Release the pages of `prefix` before `end` in a group with a window."""
        first = prefix.first[group.number]
        for node, at in self._places(prefix.node, first, end):
            block = node.blocks[group.number][at]
            self._count(group, block, prefix.kind, -1)
            if not self._holders[group.number][block].total:
                del self._holders[group.number][block]
                node.blocks[group.number][at] = NO_BLOCK
                self._give(group, block)
        prefix.first[group.number] = max(first, end)

    def _slide(self, prefix: Prefix) -> None:
        """Release the blocks that the windows have passed."""
        for group in self._windows:
            first = prefix.first[group.number]
            end = min(group.first_needed(prefix.length), self.tree.pages(prefix.length))
            if end > first:
                self._let_go(prefix, group, end)
                prefix.tables[group.number][first:end] = [NO_BLOCK] * (end - first)

    def _merge(self, prefix: Prefix, node: Node) -> None:
        """Merge the full first page of `node`, and those after it, with equal pages of others."""
        while (twin := self.tree.twin(node)) is not None:
            is_last = len(node.tokens) <= self._page
            blocks = [blocks[0] for blocks in node.blocks]
            head = self.tree.merge(node, twin)
            for group, block in zip(self.groups, blocks, strict=True):
                self._merge_block(group, block, head)
                prefix.tables[group.number][head.start // self._page] = head.blocks[group.number][0]
            if is_last:
                return

    def _merge_block(self, group: Group, block: int, head: Node) -> None:
        """Merge `block` into the only page of `head`, which has the same tokens."""
        if group.window is None:
            self._give(group, block)
            return
        holders = self._holders[group.number]
        other = head.blocks[group.number][0]
        if other == NO_BLOCK:
            head.blocks[group.number][0] = block
            return
        moved = holders.pop(block)
        group.count(moved, -1, -self._page)
        group.count(holders[other], -1, -self._page)
        holders[other] += moved
        group.count(holders[other], 1, self._page)
        self._give(group, block)

    def _count(self, group: Group, block: int, kind: Kind, count: int) -> None:
        """Add `count` holders of `kind` to a block of a group with a window."""
        holders = self._holders[group.number].setdefault(block, Holders())
        group.count(holders, -1, -self._page)
        holders.add(kind, count)
        group.count(holders, 1, self._page)

    def _take_all(self) -> list[int] | None:
        """A free block of each group, counted as spare; None if a group has none. Idle blocks are
        evicted if a group is at its limit or can get no more memory.
        """
        taken: list[int] = []
        for group in self.groups:
            block = self._take(group)
            if block is None:
                for other, given in zip(self.groups, taken, strict=False):
                    self._give(other, given)
                    other.spare -= 1
                return None
            group.spare += 1
            taken.append(block)
        return taken

    def _take_beyond(self) -> list[int] | None:
        """`_take_all` without touching reserved room, or None."""
        full = self._full
        if full is not None:
            if full.free(pins_stay=True) < 1:
                return None
            while full.excess >= 0 and full.idle:
                if not self._evict(full):
                    return None
        return self._take_all()

    def _take(self, group: Group) -> int | None:
        number = group.number
        while True:
            if group.used < group.limit:
                if self._free[number]:
                    return heappop(self._free[number])
                if self._ends[number] < self.store.capacity(number) or self._grow(group):
                    self._ends[number] += 1
                    return self._ends[number] - 1
            if not self._evict(group):
                return None

    def _grow(self, group: Group) -> bool:
        capacity = self.store.capacity(group.number)
        if self.store.grow(group.number, capacity + 1):
            return True
        group.limit = min(group.limit, capacity)
        self.has_shrunk = True
        return False

    def _give(self, group: Group, block: int) -> None:
        heappush(self._free[group.number], block)

    def _free_full(self, blocks: list[int]) -> None:
        assert self._full is not None
        for block in blocks:
            if block not in self._moving:
                self._give(self._full, block)
