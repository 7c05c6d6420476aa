"""What one running sequence has of the paged memory."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from hearth.backends.native.paging.groups import Group
from hearth.backends.native.paging.memory import PageMemory
from hearth.backends.native.paging.prefix_index import NO_BLOCK, Node


class Chain:
    """The pages of a sequence, its block tables, and what it was promised.

    Attributes:
        length: tokens that it holds.
        nodes: its pages; all but the last are full.
        tables: for each group its blocks, `NO_BLOCK` before `first`; the last ones may have no page
            yet.
        first: for each group the first block that was not left behind by a window.
        promised: tokens that it may grow to.
    """

    __slots__ = ("_claims", "_memory", "first", "length", "nodes", "promised", "tables")

    def __init__(self, memory: PageMemory) -> None:
        self._memory = memory
        self.length = 0
        self.nodes: list[Node] = []
        self.tables: list[list[int]] = [[] for _ in memory.groups]
        self.first = [0] * len(memory.groups)
        self.promised = 0
        self._claims = [0] * len(memory.groups)

    @property
    def blocks(self) -> int:
        """Blocks in each table."""
        return len(self.tables[0])

    def blocks_for(self, tokens: int) -> int:
        """Blocks of a table for `tokens` tokens, and for all that it holds."""
        return -(-max(tokens, self.length) // self._memory.index.page)

    def more(self, tokens: int) -> list[int]:
        """For each group how much larger the claim would be if `tokens` were promised."""
        blocks = self.blocks_for(tokens)
        return [
            group.claim(blocks, self.blocks, self.first[group.number]) - claim
            for group, claim in zip(self._memory.groups, self._claims, strict=True)
        ]

    def promise(self, tokens: int) -> None:
        """It may grow to `tokens` tokens; replaces what was promised before."""
        self.promised = tokens
        self.settle()

    def settle(self) -> None:
        """Claim what follows from promise, tables and length."""
        more = self.more(self.promised)
        for number, (group, excess) in enumerate(zip(self._memory.groups, more, strict=True)):
            group.claims += excess
            self._claims[number] += excess

    def add_blocks(self, blocks: list[int]) -> None:
        """One more block of each group; `settle` afterwards."""
        for table, block in zip(self.tables, blocks, strict=True):
            table.append(block)

    def drop_spare(self) -> None:
        """Give back blocks without a page."""
        for _ in range(self.blocks - len(self.nodes)):
            self._memory.give_back([table.pop() for table in self.tables])

    def share(self, node: Node) -> None:
        """Go through `node`, which follows what it holds; `first` is set."""
        self._memory.enter(node, self.first)
        self.nodes.append(node)
        for group, table in enumerate(self.tables):
            table.append(node.blocks[group] if node.place >= self.first[group] else NO_BLOCK)
        self.length += len(node.tokens)

    def append(self, tokens: Seq[int]) -> bool:
        """`tokens` were computed, and are in the blocks at the end of the tables. True if somebody
        had a page already that is full now; then there is one of it left.
        """
        merged = False
        page = self._memory.index.page
        at = 0
        while at < len(tokens):
            filled = self.length % page
            piece = tokens[at : at + page - filled]
            if filled:
                node = self.nodes[-1]
                self._memory.append(node, piece)
            else:
                node = self.add_page(piece)
            at += len(piece)
            self.length += len(piece)
            if filled + len(piece) == page:
                merged |= self._seal(node)
        return merged

    def add_page(self, tokens: Seq[int]) -> Node:
        """A page of `tokens` in the first blocks that have none."""
        parent = self.nodes[-1] if self.nodes else self._memory.index.root
        blocks = [table[len(self.nodes)] for table in self.tables]
        node = self._memory.add(parent, tokens, blocks)
        self.nodes.append(node)
        return node

    def slide(self) -> bool:
        """Leave the blocks behind that no window sees any more; whether there were any."""
        moved = False
        for group in self._memory.windows:
            number = group.number
            needed = min(group.first_needed(self.length), len(self.nodes))
            while self.first[number] < needed:
                place = self.first[number]
                self.tables[number][place] = NO_BLOCK
                self.first[number] = place + 1
                self._memory.drop(self.nodes[place], group)
                moved = True
        return moved

    def trim(self, tokens: int) -> bool:
        """Keep the first `tokens` tokens, fewer than it holds; there are no spare blocks. False if
        a window has passed what comes before, or if the last page would have to be copied and there
        is no block for it; then nothing has changed.
        """
        last = -(-tokens // self._memory.index.page)
        passed = []
        for group in self._memory.windows:
            nodes = self.nodes[group.first_needed(tokens) : last]
            if any(node.blocks[group.number] == NO_BLOCK for node in nodes):
                return False
            first = self.first[group.number]
            passed += [(node, group) for node in nodes if node.place < first]
        for node, group in passed:
            self._memory.hold(node, group)  # So that the copy does not take them.
        is_done = self._trim(tokens)
        for node, group in passed:
            self._memory.drop(node, group)
        return is_done

    def copy_last(self, tokens: int, blocks: list[int]) -> None:
        """Have the first `tokens` tokens of its last page in `blocks`, of its own, instead."""
        tail = self.nodes[-1]
        piece = tail.tokens[:tokens]
        self._memory.copy(tail, tokens, blocks)
        self.leave_last()
        self.add_blocks(blocks)
        self.add_page(piece)
        self.length += tokens

    def leave_last(self) -> None:
        """Go through its last page no more."""
        for table in self.tables:
            table.pop()
        node = self.nodes.pop()
        self.length = len(self.nodes) * self._memory.index.page
        self._memory.leave(node, self.first)
        for group in self._memory.windows:
            self.first[group.number] = min(self.first[group.number], len(self.nodes))

    def leave_all(self) -> None:
        """Hold nothing."""
        self.drop_spare()
        while self.nodes:
            self.leave_last()
        self.settle()

    def claim(self, group: Group) -> int:
        """Blocks of `group` that it claims."""
        return self._claims[group.number]

    def held(self, group: Group) -> list[int]:
        """Blocks of `group` that it holds."""
        return self.tables[group.number][self.first[group.number] :]

    def check_integrity(self) -> None:
        """Raises AssertionError where it contradicts itself."""
        assert self.length == sum(len(node.tokens) for node in self.nodes)
        assert self.more(self.promised) == [0] * len(self.tables), "claims are up to date"
        before = self._memory.index.root
        for node in self.nodes:
            assert node.parent is before
            before = node
        for group in self._memory.groups:
            table, first = self.tables[group.number], self.first[group.number]
            assert len(table) == self.blocks >= len(self.nodes)
            assert first <= group.first_needed(self.length)
            assert all(block == NO_BLOCK for block in table[:first])
            assert NO_BLOCK not in table[first:]
            for node in self.nodes[first:]:
                assert table[node.place] == node.blocks[group.number]

    def _trim(self, tokens: int) -> bool:
        memory = self._memory
        whole, rest = divmod(tokens, memory.index.page)
        tail = self.nodes[whole] if rest else None
        blocks = None
        if tail is not None and not memory.is_own(tail, rest):
            blocks = memory.take_beyond()
            if blocks is None and not (len(self.nodes) > whole + 1 and self._can_spare_last()):
                return False
        while len(self.nodes) > whole + (tail is not None):
            self.leave_last()
        self._look_back(tokens)
        if tail is not None:
            if memory.is_own(tail, rest):
                if len(tail.tokens) > rest:
                    memory.shorten(tail, rest)
            else:
                blocks = blocks or memory.take()
                assert blocks is not None, "the last page was its own, and is free now"
                self.copy_last(rest, blocks)
        self.length = tokens
        return True

    def _can_spare_last(self) -> bool:
        """Whether there are blocks to take once it has left its last page."""
        is_own = self._memory.is_own(self.nodes[-1], 0)
        return is_own and all(group.pool.used <= group.pool.limit for group in self._memory.groups)

    def _look_back(self, tokens: int) -> None:
        """Hold again what the token after the first `tokens` looks at."""
        for group in self._memory.windows:
            number = group.number
            needed = min(group.first_needed(tokens), len(self.nodes))
            for place in range(self.first[number] - 1, needed - 1, -1):
                node = self.nodes[place]
                self._memory.hold(node, group)
                self.tables[number][place] = node.blocks[number]
                self.first[number] = place

    def _seal(self, node: Node) -> bool:
        twin = self._memory.seal(node)
        if twin is node:
            return False
        self.nodes[-1] = twin
        for table, block in zip(self.tables, twin.blocks, strict=True):
            table[twin.place] = block
        return True
