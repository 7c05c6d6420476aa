"""Pages that hold tokens: who goes through them, what of them is kept, and which make way."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

from hearth.backends.native.paging.groups import Group
from hearth.backends.native.paging.prefix_index import NO_BLOCK, Node, PrefixIndex
from hearth.backends.native.paging.store import PageStore


class PageMemory:
    """The pages of an index and their blocks.

    A block of a page is held by the sequences that go through it (and still see it), or it is idle:
    some kept prefix wants it. Blocks that nobody holds or wants are free at once. Pages come to
    rest from the last to the first, so the least recently used idle block is always one that no
    kept page comes after, and the beginnings of conversations stay longest.

    Where one group sees everything, it holds a block of each page; blocks of other groups exist
    beside it only. That group is the `first`, or the one with the longest window. A group that may
    have as many blocks as the first never runs short before it does, and needs no account.

    Args:
        kept_blocks: most blocks of the first group that kept prefixes alone may hold.
    """

    def __init__(
        self, groups: Seq[Group], store: PageStore, index: PrefixIndex, *, kept_blocks: int
    ) -> None:
        self.groups = tuple(groups)
        self.first = max(
            groups, key=lambda group: float("inf") if group.window is None else group.window
        )
        self.index = index
        self.tokens = 0
        """In blocks of the first group; a shared one counts once."""
        self.live_tokens = 0
        """Of these, held by running sequences."""
        self.prefixes = 0
        """Kept prefixes that are not the beginning of another."""
        self.has_shrunk = False
        """The store could not grow, and a group has a lower limit since."""
        self.kept_blocks = kept_blocks
        self._store = store
        self._owners: list[dict[int, Node]] = [{} for _ in groups]
        self.windows = [group for group in groups if group.window is not None]
        """The groups that do not see everything."""
        self._wanted_always = sum(1 << group.number for group in groups if group.window is None)

    def owned(self, group: Group) -> dict[int, Node]:
        """The pages of all blocks in `group` that have one."""
        return dict(self._owners[group.number])

    def counted(self) -> Iterator[Group]:
        """The groups that can run short."""
        for group in self.groups:
            if group is self.first or group.pool.limit < self.first.pool.limit:
                yield group

    # ---- blocks

    def take(self) -> list[int] | None:
        """A block of each group, held by who takes them; None if there is none. Idle ones are
        evicted where a group is at its limit or can get no more memory.
        """
        taken: list[int] = []
        for group in self.groups:
            block = self._take(group)
            if block is None:
                self.give_back(taken)
                return None
            taken.append(block)
        return taken

    def take_beyond(self) -> list[int] | None:
        """`take` what was promised to nobody, or None."""
        counted = [group for group in self.counted() if group.window is None]
        if any(group.excess >= group.pool.idle for group in counted):
            return None
        for group in counted:
            while group.excess >= 0:
                self.evict(group)
        return self.take()

    def give_back(self, blocks: Seq[int]) -> None:
        """Free what `take` gave: nothing was written there that anybody needs."""
        for group, block in zip(self.groups, blocks, strict=False):
            if group.pool.drop(block):
                group.pool.free(block)

    def _take(self, group: Group) -> int | None:
        pool = group.pool
        while (block := pool.take()) is None:
            if pool.used < pool.limit and self._grow(group):
                continue
            if not pool.idle:
                return None
            self.evict(group)
        return block

    def _grow(self, group: Group) -> bool:
        pool = group.pool
        if self._store.grow(group.number, pool.capacity + 1):
            pool.capacity = max(pool.capacity + 1, self._store.capacity(group.number))
            return True
        pool.limit = min(pool.limit, pool.capacity)
        self.has_shrunk = True
        return False

    # ---- sequences

    def add(self, parent: Node, tokens: Seq[int], blocks: list[int]) -> Node:
        """A new page of a sequence, in `blocks` that it holds."""
        node = self.index.add(parent, tokens, blocks)
        node.live = 1
        for owners, block in zip(self._owners, blocks, strict=True):
            owners[block] = node
        self._count(len(tokens))
        return node

    def append(self, node: Node, tokens: Seq[int]) -> None:
        """The sequence that writes into `node` has added `tokens` to it."""
        node.tokens.extend(tokens)
        self._count(len(tokens))

    def seal(self, node: Node) -> Node:
        """`node`, which a sequence writes into, is full. Where somebody has the same page already,
        that sequence goes through this other page from now on, and `node` is no more.
        """
        twin = self.index.seal(node)
        if twin is not node:
            self._merge(node, twin)
        return twin

    def copy(self, source: Node, tokens: int, blocks: list[int]) -> None:
        """Copy the first `tokens` tokens of `source` to `blocks`."""
        for group, block in zip(self.groups, blocks, strict=True):
            if source.blocks[group.number] != NO_BLOCK:
                self._store.copy(group.number, source.blocks[group.number], block, tokens)

    def enter(self, node: Node, first: Seq[int]) -> None:
        """One more sequence goes through `node`, and holds its blocks of each group from the
        group's page `first` on.
        """
        node.live += 1
        for group in self.groups:
            if node.place >= first[group.number]:
                self.hold(node, group)

    def leave(self, node: Node, first: Seq[int]) -> None:
        """The opposite of `enter`; what is not kept of `node` is forgotten if nobody else goes
        through it. From the last page to the first.
        """
        node.live -= 1
        for group in self.groups:
            if node.place >= first[group.number]:
                self.drop(node, group)
        if node.live:
            return
        if not node.kept:
            self._remove(node)
            return
        if node.kept < len(node.tokens):
            self.shorten(node, node.kept)
        self._prune(node)

    def hold(self, node: Node, group: Group) -> None:
        """A sequence that goes through `node` holds its block of `group` too."""
        block = node.blocks[group.number]
        group.pool.hold(block)
        if group is self.first and group.pool.holders(block) == 1:
            self.live_tokens += len(node.tokens)

    def drop(self, node: Node, group: Group) -> None:
        """A sequence that goes through `node` does not hold its block of `group` any more."""
        block = node.blocks[group.number]
        is_useless = group.pool.drop(block)
        if group is self.first and not group.pool.holders(block):
            self.live_tokens -= len(node.tokens)
        if is_useless:
            self._rest(node, group)

    def shorten(self, node: Node, tokens: int) -> None:
        """Forget what `node` has beyond its first `tokens` tokens; nothing comes after it."""
        less = len(node.tokens) - tokens
        block = node.blocks[self.first.number]
        if block != NO_BLOCK:
            self.tokens -= less
            if self.first.pool.holders(block):
                self.live_tokens -= less
        self.index.shorten(node, tokens)

    def is_own(self, node: Node, tokens: int) -> bool:
        """Whether the one sequence that goes through `node` may write over what comes after its
        first `tokens` tokens.
        """
        return node.live == 1 and node.kept <= tokens

    # ---- what is kept

    def keep(self, node: Node, tokens: int) -> None:
        """Keep the first `tokens` tokens of `node`, and all before them, until room is needed."""
        length = node.place * self.index.page + tokens
        count = tokens
        for page in node.upwards():
            if page.kept >= count:
                break
            self._keep_page(page, count)
            count = self.index.page
            if not self.windows:
                self._drop_covered(page)
        for group in self.windows:
            for page in self.seen(group, node, length):
                if page.blocks[group.number] != NO_BLOCK:
                    page.wanted |= 1 << group.number

    def keep_end(self, node: Node) -> None:
        """Keep all of `node`, where a sequence ends, or another page that begins with the same
        tokens and is kept already; that counts as used.
        """
        count = len(node.tokens)
        for other in [] if node.kept == count else self.index.siblings(node):
            if (
                other.kept >= count
                and NO_BLOCK not in other.blocks
                and other.tokens[:count] == node.tokens
            ):
                self.keep(other, count)
                self._touch(other)
                return
        self.keep(node, count)

    def clear(self) -> None:
        """Keep nothing any more; nothing may be pinned."""
        for node in reversed(list(self.index)):
            if node.kept:
                self._forget(node)

    def evict(self, group: Group) -> None:
        """Free the idle block of `group` that was used least recently."""
        block = group.pool.oldest()
        assert block is not None
        node = self._owners[group.number][block]
        if group is self.first:
            self._forget_blocks(node)
            if not node.live and not node.children:
                self._remove(node)
        else:
            self._free(node, group)

    def evict_excess(self) -> None:
        """Bring kept prefixes within their budget, and let them leave room for what is promised."""
        pool = self.first.pool
        while pool.idle and pool.idle + pool.only_pinned > self.kept_blocks:
            self.evict(self.first)
        for group in self.counted():
            while group.pool.idle and group.excess > 0:
                self.evict(group)

    # ---- pins

    def pin_blocks(self, node: Node, length: int) -> None:
        """The blocks that a token after `length` others, the last of them in `node`, looks at are
        pinned once more.
        """
        for group in self.groups:
            for page in self.seen(group, node, length):
                group.pool.pin(page.blocks[group.number])

    def unpin_blocks(self, node: Node, length: int) -> None:
        """The opposite; they are kept as any others from now on."""
        for group in self.groups:
            for page in self.seen(group, node, length):
                if group.pool.unpin(page.blocks[group.number]):
                    self._rest(page, group)

    def seen(self, group: Group, node: Node, length: int) -> Iterator[Node]:
        """`node`, which holds the last of `length` tokens, and the pages before it that a token
        after them looks at.
        """
        first = group.first_needed(length)
        for page in node.upwards():
            if page.place < first:
                return
            yield page

    # ---- inside

    def _count(self, tokens: int) -> None:
        self.tokens += tokens
        self.live_tokens += tokens

    def _merge(self, node: Node, twin: Node) -> None:
        moved = [group for group in self.groups if twin.blocks[group.number] == NO_BLOCK]
        for group in moved:
            twin.blocks[group.number] = node.blocks[group.number]
        if node.kept:
            self.keep(twin, node.kept)
        for pin in node.pins:
            length = node.place * self.index.page + pin.tokens
            self.pin_blocks(twin, length)
            self.unpin_blocks(node, length)
            pin.node = twin
        twin.pins += node.pins
        twin.live += 1
        for group in self.groups:
            block = node.blocks[group.number]
            if group in moved:
                self._owners[group.number][block] = twin
                node.blocks[group.number] = NO_BLOCK
            else:
                self.hold(twin, group)
                node.wanted = 0
                self.drop(node, group)
        node.live = 0
        self._remove(node)

    def _rest(self, node: Node, group: Group) -> None:
        """Nobody holds or pins this block: it is idle if it is wanted, else it is free."""
        if node.wanted >> group.number & 1:
            group.pool.rest(node.blocks[group.number])
        else:
            self._free(node, group)

    def _touch(self, node: Node) -> None:
        for group in self.groups:
            if group.pool.is_idle(node.blocks[group.number]):
                group.pool.rest(node.blocks[group.number])

    def _free(self, node: Node, group: Group) -> None:
        block = node.blocks[group.number]
        group.pool.free(block)
        del self._owners[group.number][block]
        node.blocks[group.number] = NO_BLOCK
        node.wanted &= ~(1 << group.number)
        if group is self.first:
            self.tokens -= len(node.tokens)

    def _keep_page(self, node: Node, tokens: int) -> None:
        parent = node.parent
        assert parent is not None
        if not node.kept:
            self.prefixes += not node.kept_children
            self.prefixes -= parent.kept > 0 and not parent.kept_children
            parent.kept_children += 1
        node.kept = max(node.kept, tokens)
        node.wanted |= self._wanted_always

    def _unkeep(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        if node.kept:
            assert not node.kept_children
            node.kept = 0
            self.prefixes -= 1
            parent.kept_children -= 1
            self.prefixes += parent.kept > 0 and not parent.kept_children

    def _drop_covered(self, node: Node) -> None:
        """Forget kept pages of which `node` has all."""
        for other in self.index.siblings(node):
            count = len(other.tokens)
            is_free = not (other.live or other.pins or other.children)
            if is_free and count <= node.kept and node.tokens[:count] == other.tokens:
                self._forget(other)

    def _forget_blocks(self, node: Node) -> None:
        for group in self.groups:
            block = node.blocks[group.number]
            if block != NO_BLOCK and group.pool.is_idle(block):
                self._free(node, group)
        node.wanted = 0

    def _forget(self, node: Node) -> None:
        """Keep nothing of `node`; no page after it is kept."""
        self._forget_blocks(node)
        self._unkeep(node)
        if not node.live and not node.children:
            self._remove(node)

    def _remove(self, node: Node) -> None:
        """`node` has no blocks, and nobody goes through it."""
        parent = node.parent
        assert parent is not None
        self._unkeep(node)
        self.index.remove(node)
        self._prune(parent)

    def _prune(self, node: Node) -> None:
        """Forget `node` if neither it nor any page after it has a block."""
        if node.parent is None or node.live or node.children:
            return
        if all(block == NO_BLOCK for block in node.blocks):
            self._remove(node)
