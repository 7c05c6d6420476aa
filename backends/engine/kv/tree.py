"""The prefix tree: a radix tree over token ids, split at page boundaries, in which each node is one
place in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final

from hearth.backends.engine.kv.group import Group, Holders, Kind

NO_BLOCK: Final = -1
"""Entry in a block table for a block that a window has passed."""
TOKEN_TYPE: Final = "i"
"""Array type of stored token ids, as in llama.cpp: 4 bytes; slices are compared at memory speed."""
_FIRST_COMPARED = 256
"""Tokens of the first slice that is compared; each further slice is twice as long, so that prompts
that differ early are cheap to compare."""


class Node:
    """A run of tokens after those of its parents, held in memory by the same set of prefixes.

    It begins at a page boundary. Every prefix that holds one of its pages holds all of them, but
    prefixes may hold different lengths of the last page.

    Attributes:
        start: number of tokens before it.
        blocks: for each group of layers, a block per page; `NO_BLOCK` for blocks that windows have
            passed. Empty for stores without blocks.
        holders: counts of the prefixes that go through it.
        ends: the prefixes that end in its last page, in order of arrival.
    """

    __slots__ = ("blocks", "children", "ends", "holders", "parent", "start", "tokens")

    def __init__(
        self, parent: Node | None, start: int, tokens: array[int], blocks: list[list[int]]
    ) -> None:
        self.parent = parent
        self.start = start
        self.tokens = tokens
        self.blocks = blocks
        self.children: dict[int, list[Node]] = {}
        """By first token. Several with the same first token were computed separately."""
        self.holders = Holders()
        self.ends: dict[Prefix, None] = {}

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def upwards(self) -> Iterator[Node]:
        """This node and its ancestors, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def subtree(self) -> Iterator[Node]:
        """This node and all its descendants."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            for siblings in node.children.values():
                pending += siblings


class Prefix:
    """The held first tokens of a text: of a running sequence, which may append to them, or of one
    that was kept.

    Attributes:
        namespace: of its tokens.
        node: the node of its last token; a root while it is empty.
        length: number of tokens.
        sequence: its id in a store of sequences.
        tables: for a running sequence in a store of blocks, its block table of each group,
            including blocks that it has not filled yet. `NO_BLOCK` before `first`.
        first: for each group, the first page that no window has passed.
        reserved: number of tokens that it may grow to.
        claims: for each group, the pages claimed for that, see `Group`.
        seconds: how long it is kept after each use, if pinned.
        until: time at which the pin expires.
    """

    __slots__ = (
        "claims",
        "first",
        "kind",
        "length",
        "namespace",
        "node",
        "reserved",
        "seconds",
        "sequence",
        "tables",
        "until",
    )

    def __init__(self, root: Node, namespace: bytes, kind: Kind, groups: int) -> None:
        self.node = root
        self.namespace = namespace
        self.kind: Kind = kind
        self.length = 0
        self.sequence = -1
        self.tables: list[list[int]] = [[] for _ in range(groups)]
        self.first = [0] * groups
        self.reserved = 0
        self.claims = [0] * groups
        self.seconds = 0.0
        self.until = 0.0


@dataclass(frozen=True, slots=True)
class Hit:
    """The first `length` tokens of a prompt, which `source` also has; the last is in `node`."""

    length: int
    source: Prefix
    node: Node


class PrefixTree:
    """All prefixes by their tokens, with the number of holders of each page.

    Every namespace has its own root, because equal tokens with, say, different adapters have
    different keys and values. Appending tokens to a prefix takes a few microseconds, independent of
    its length; a look-up compares the prompt with the stored tokens once.

    Args:
        page: tokens per page.
        groups: number of layer groups in stores with blocks; else 0.
        full: the group whose pages are those of the tree; None: every group has a window.
        free: called with blocks of the full group that no prefix holds any more.
    """

    def __init__(
        self, page: int, groups: int, full: Group | None, free: Callable[[list[int]], None]
    ) -> None:
        self.page = page
        self._groups = groups
        self._full = full
        self._free = free
        self._roots: dict[bytes, Node] = {}

    def __iter__(self) -> Iterator[Node]:
        """Every node, parents first."""
        for root in self._roots.values():
            for node in root.subtree():
                if node.parent is not None:
                    yield node

    def root(self, namespace: bytes = b"") -> Node:
        """The empty beginning of all prefixes of a namespace."""
        if namespace not in self._roots:
            # Drop roots of namespaces that hold nothing, or they would accumulate.
            self._roots = {name: root for name, root in self._roots.items() if root.children}
            self._roots[namespace] = self._node(None, 0)
        return self._roots[namespace]

    def pages(self, tokens: int) -> int:
        """Pages of `tokens` tokens."""
        return -(-tokens // self.page)

    # ---- look-up

    @staticmethod
    def tokens(prefix: Prefix) -> array[int]:
        """All tokens of `prefix`."""
        joined = array(TOKEN_TYPE)
        for node in reversed(list(prefix.node.upwards())):
            joined += node.tokens
        return joined[: prefix.length]

    @staticmethod
    def walk(root: Node, wanted: Seq[int]) -> Iterator[tuple[Node, int]]:
        """Every node whose path matches `wanted`, parents first, with the number of first tokens of
        `wanted` that match up to that node.
        """
        tokens = wanted if isinstance(wanted, array) else array(TOKEN_TYPE, wanted)
        pending = [root]
        while pending:
            node = pending.pop()
            end = node.end
            if node.parent is not None:
                common = common_prefix(node.tokens, tokens, 0, node.start)
                yield node, node.start + common
                if common < len(node.tokens):
                    continue
            if end < len(tokens):
                pending += reversed(node.children.get(tokens[end], ()))

    def covered(self, prefix: Prefix) -> list[Prefix]:
        """The other prefixes whose tokens `prefix` begins with, wherever they were computed."""
        matches = self.walk(self.root(prefix.namespace), self.tokens(prefix))
        return [
            other
            for node, matched in matches
            for other in node.ends
            if other is not prefix and other.length <= matched
        ]

    def covering(self, prefix: Prefix) -> Iterator[Prefix]:
        """The other prefixes that begin with all tokens of `prefix`, equally long ones first."""
        length = prefix.length
        longer: list[Prefix] = []
        for node, matched in list(self.walk(self.root(prefix.namespace), self.tokens(prefix))):
            if matched < length:
                continue
            for below in node.subtree():
                for other in below.ends:
                    if other is prefix or other.length < length:
                        continue
                    if other.length > length:
                        longer.append(other)
                    else:
                        yield other
        yield from longer

    def own_pages(self, prefix: Prefix) -> int:
        """Pages that no other prefix holds."""
        pages = 0
        for node in prefix.node.upwards():
            if node.holders.total > 1:
                break
            pages += self.pages(len(node.tokens))
        return pages

    def unpinned_pages(self, node: Node, length: int) -> int:
        """Pages of the first `length` tokens up to `node` that are not pinned."""
        return sum(
            self.pages(min(above.end, length)) - above.start // self.page
            for above in node.upwards()
            if above.start < length and not above.holders.pinned
        )

    # ---- prefixes

    def new(self, namespace: bytes, kind: Kind, groups: int) -> Prefix:
        """A prefix without tokens.

        Args:
            groups: of layers, or 1 in stores without blocks.
        """
        return Prefix(self.root(namespace), namespace, kind, groups)

    def enter(self, prefix: Prefix, node: Node, length: int) -> None:
        """Let the empty `prefix` hold the first `length` tokens of the path to `node`, which end in
        the last page of `node`.
        """
        for above in node.upwards():
            self._hold(above, prefix.kind, 1)
        prefix.node, prefix.length = node, length
        node.ends[prefix] = None

    def upto(self, node: Node, length: int) -> Node:
        """The node on the path to `node` whose last page has the last of the first `length` tokens;
        split if need be.
        """
        while node.parent is not None and node.start >= length:
            node = node.parent
        end = self.pages(length) * self.page
        return self._split(node, end) if end < node.end else node

    def append(self, prefix: Prefix, tokens: Seq[int]) -> list[Node]:
        """Append `tokens`, which were computed for the running `prefix`, to its last page as far as
        there is room, and to the next pages of its tables. Returns the nodes whose first page
        became full, parents first.
        """
        filled = prefix.length % self.page
        if len(tokens) == 1 and prefix.node.holders.total == 1 and (filled or not self._groups):
            return self._append_one(prefix, tokens[0])
        new = array(TOKEN_TYPE, tokens)
        room = min(self.page - filled, len(new)) if filled else 0
        parts = [new[:room], new[room:]] if room else [new]
        full = []
        for part in parts:
            if not part:
                continue
            node = prefix.node
            # The node is its own, or this fills the last page, of which others hold an unchanged
            # first part. Otherwise a new node is needed.
            if node.holders.total != 1 and (part is not parts[0] or not room):
                node = self._child(prefix, part[0])
            had = len(node.tokens)
            self._extend(node, part, prefix)
            if had < self.page <= len(node.tokens):
                full.append(node)
        return full

    def _append_one(self, prefix: Prefix, token: int) -> list[Node]:
        """`append` for one token to a node that no other prefix holds, the most common case."""
        node = prefix.node
        node.tokens.append(token)
        prefix.length += 1
        if self._full is not None:
            self._full.held_tokens += 1
            self._full.held += not self._groups  # Each cell is a page.
        return [node] if len(node.tokens) == self.page else []

    def cut(self, prefix: Prefix, length: int) -> None:
        """Cut `prefix` to its first `length` tokens, which are whole pages."""
        node = prefix.node
        target = self.upto(node, length) if length else self.root(prefix.namespace)
        node.ends.pop(prefix, None)
        lowest = self._leave(node, target, prefix.kind)
        prefix.node, prefix.length = target, length
        if target.parent is not None:
            target.ends[prefix] = None
        self._tidy(lowest)

    def change(self, prefix: Prefix, kind: Kind) -> None:
        """Change the kind of `prefix`."""
        for node in prefix.node.upwards():
            self._hold(node, prefix.kind, -1)
            self._hold(node, kind, 1)
        prefix.kind = kind

    def twin(self, node: Node) -> Node | None:
        """Another node that begins with the same full page after the same tokens, if any."""
        if node.parent is None or len(node.tokens) < self.page:
            return None
        page = node.tokens[: self.page]
        for other in node.parent.children[page[0]]:
            if other is not node and other.tokens[: self.page] == page:
                return other
        return None

    def merge(self, node: Node, twin: Node) -> Node:
        """Merge the first page of `node` into that of `twin`, which has the same tokens: prefixes
        that go through `node` go through `twin` instead. Returns the node of that page alone; the
        blocks of `node` for it are no longer in use.
        """
        head = self._split(twin, twin.start + self.page) if len(twin.tokens) > self.page else twin
        self._count(head, -1)
        self._count(node, -1)
        head.holders += node.holders
        self._unlink(node)
        if len(node.tokens) > self.page:
            del node.tokens[: self.page]
            for blocks in node.blocks:
                del blocks[0]
            moved = [node]
            self._count(node, 1)
        else:
            moved = [child for siblings in node.children.values() for child in siblings]
            for prefix in node.ends:
                prefix.node = head
            head.ends.update(node.ends)
        for child in moved:
            child.parent, child.start = head, head.end
            head.children.setdefault(child.tokens[0], []).append(child)
        self._count(head, 1)
        return head

    def check_integrity(self) -> None:
        """Check the whole tree; raises AssertionError if it is inconsistent."""
        for root in self._roots.values():
            for node in root.subtree():
                siblings = [child for bucket in node.children.values() for child in bucket]
                for first, bucket in node.children.items():
                    assert bucket and all(child.tokens[0] == first for child in bucket)
                assert all(c.parent is node and c.start == node.end for c in siblings)
                if node.parent is None:
                    assert not node.tokens and not node.ends and not node.holders.total
                    continue
                assert node.tokens and node.start % self.page == 0
                assert len(node.tokens) % self.page == 0 or not siblings, "a page ends before"
                counted = Holders()
                for prefix in node.ends:
                    counted.add(prefix.kind, 1)
                    assert prefix.node is node and node.start < prefix.length <= node.end
                    assert self.pages(prefix.length) == self.pages(node.end)
                for child in siblings:
                    counted += child.holders
                assert counted == node.holders and counted.total > 0, "each holder ends somewhere"
                assert siblings or max(prefix.length for prefix in node.ends) == node.end
                assert len(node.blocks) == self._groups
                assert all(len(b) == self.pages(len(node.tokens)) for b in node.blocks)

    # ---- internals

    def _node(self, parent: Node | None, start: int) -> Node:
        return Node(parent, start, array(TOKEN_TYPE), [[] for _ in range(self._groups)])

    def _count(self, node: Node, sign: int) -> None:
        if self._full is not None:
            tokens = len(node.tokens)
            self._full.count(node.holders, sign * self.pages(tokens), sign * tokens)

    def _hold(self, node: Node, kind: Kind, count: int) -> None:
        self._count(node, -1)
        node.holders.add(kind, count)
        self._count(node, 1)

    def _extend(self, node: Node, tokens: array[int], prefix: Prefix) -> None:
        """Append `tokens` to `node`, where `prefix` ends."""
        self._count(node, -1)
        before = self.pages(node.end)
        node.tokens += tokens
        after = self.pages(node.end)
        if after > before:
            for blocks, table in zip(node.blocks, prefix.tables, strict=False):
                blocks += table[before:after]
        self._count(node, 1)
        prefix.length += len(tokens)

    def _child(self, prefix: Prefix, first: int) -> Node:
        """A new, empty node for tokens that only `prefix` has; `first` will be its first token."""
        # The root that an empty prefix had may have been dropped.
        parent = prefix.node if prefix.length else self.root(prefix.namespace)
        parent.ends.pop(prefix, None)
        child = self._node(parent, prefix.length)
        child.holders.add(prefix.kind, 1)
        child.ends[prefix] = None
        parent.children.setdefault(first, []).append(child)
        prefix.node = child
        return child

    def _split(self, node: Node, end: int) -> Node:
        """Split off the pages of `node` before `end` into a new node, which is returned."""
        at = end - node.start
        pages = at // self.page
        head = Node(node.parent, node.start, node.tokens[:at], [b[:pages] for b in node.blocks])
        head.holders = node.holders + Holders()
        assert node.parent is not None
        bucket = node.parent.children[node.tokens[0]]
        bucket[bucket.index(node)] = head
        node.parent, node.start, node.tokens = head, end, node.tokens[at:]
        node.blocks = [b[pages:] for b in node.blocks]
        head.children = {node.tokens[0]: [node]}
        return head

    def _leave(self, node: Node, stop: Node, kind: Kind) -> Node:
        """Remove a prefix from `node` and its ancestors below `stop`; returns the lowest node that
        remains.
        """
        lowest: Node | None = None
        while node is not stop and (parent := node.parent) is not None:
            self._hold(node, kind, -1)
            if node.holders.total == 0:
                self._unlink(node)
                if self._full is not None and self._groups:
                    self._free(node.blocks[self._full.number])
            elif lowest is None:
                lowest = node
            node = parent
        return lowest or stop

    def _unlink(self, node: Node) -> None:
        assert node.parent is not None
        bucket = node.parent.children[node.tokens[0]]
        bucket.remove(node)
        if not bucket:
            del node.parent.children[node.tokens[0]]

    def _tidy(self, node: Node) -> None:
        """Drop tokens of `node` that no prefix has any more, or join it with its only child if both
        have the same holders.
        """
        if node.parent is None:
            return
        if not node.children:
            longest = max(prefix.length for prefix in node.ends)
            if longest < node.end:
                self._count(node, -1)
                del node.tokens[longest - node.start :]
                self._count(node, 1)
            return
        if node.ends or len(node.children) > 1:
            return
        (bucket,) = node.children.values()
        child = bucket[0]
        if len(bucket) == 1 and child.holders == node.holders:
            siblings = node.parent.children[node.tokens[0]]
            siblings[siblings.index(node)] = child
            child.parent, child.start = node.parent, node.start
            child.tokens = node.tokens + child.tokens
            child.blocks = [a + b for a, b in zip(node.blocks, child.blocks, strict=True)]


def common_prefix(left: Seq[int], right: Seq[int], left_at: int = 0, right_at: int = 0) -> int:
    """How many tokens are equal from `left_at` and `right_at` on. Both must be of the same type
    (lists, tuples or arrays), because slices are compared instead of tokens.
    """
    most = min(len(left) - left_at, len(right) - right_at)
    low, step = 0, _FIRST_COMPARED
    while low < most:
        high = min(low + step, most)
        if left[left_at + low : left_at + high] != right[right_at + low : right_at + high]:
            break
        low, step = high, 2 * step
    else:
        return most
    while high - low > 1:
        middle = (low + high) // 2
        if left[left_at + low : left_at + middle] == right[right_at + low : right_at + middle]:
            low = middle
        else:
            high = middle
    return low
