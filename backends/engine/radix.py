"""Which sequences begin with the same tokens: a radix tree over token ids, where what several share
is stored once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Seq

_TOKEN = "i"
"""Type of a stored token id, as llama.cpp's: 4 bytes, compared by slices at the speed of memory."""
_FIRST_COMPARED = 256
"""Tokens of the first slice that is compared; each that follows is twice as long, so that prompts
that differ early cost little."""


class _Node:
    """An edge and what follows it. Holders may end anywhere in the edge, so that only a branch
    splits one.
    """

    __slots__ = ("children", "edge", "ends", "parent", "start")

    def __init__(self, parent: _Node | None, start: int, edge: array[int]) -> None:
        self.parent = parent
        self.start = start
        """Tokens before the edge."""
        self.edge = edge
        self.children: dict[int, _Node] = {}
        """By the first token of their edges."""
        self.ends: set[int] = set()
        """Holders whose last token is in the edge."""

    @property
    def end(self) -> int:
        return self.start + len(self.edge)


class RadixIndex:
    """The tokens of each holder (a number, e.g. a sequence id), found by what they begin with.

    A holder without tokens is not in it. Token ids are 32-bit numbers. Adding tokens to the end of
    a holder costs a few microseconds, however long it is; looking a prompt up compares it with
    memory once.
    """

    def __init__(self) -> None:
        self._root = _Node(None, 0, array(_TOKEN))
        self._at: dict[int, _Node] = {}
        self._lengths: dict[int, int] = {}

    def __iter__(self) -> Iterator[int]:
        """Every holder."""
        return iter(self._at)

    def length(self, holder: int) -> int:
        """How many tokens `holder` has; 0 if it is unknown."""
        return self._lengths.get(holder, 0)

    def tokens(self, holder: int) -> list[int]:
        """All tokens of `holder`."""
        edges = []
        node = self._at.get(holder, self._root)
        while node.parent is not None:
            edges.append(node.edge)
            node = node.parent
        joined = [token for edge in reversed(edges) for token in edge]
        return joined[: self.length(holder)]

    def extend(self, holder: int, tokens: Seq[int]) -> None:
        """Add `tokens` to the end of what `holder` has."""
        new = array(_TOKEN, tokens)
        if not new:
            return
        node = self._at.get(holder, self._root)
        length = self._lengths.get(holder, 0)
        if length < node.end or node.children or node.parent is None:
            node.ends.discard(holder)
            node = self._walk(node, length, new)
            node.ends.add(holder)
            self._at[holder] = node
        else:
            node.edge.extend(new)
        self._lengths[holder] = length + len(new)

    def share(self, source: int, target: int, tokens: int) -> None:
        """Let `target`, which has none, have the first `tokens` tokens of `source` too."""
        assert target not in self._at and tokens <= self.length(source)
        if tokens:
            self._end(target, self._above(self._at[source], tokens), tokens)

    def cut(self, holder: int, tokens: int) -> None:
        """Keep the first `tokens` tokens of `holder`."""
        if tokens >= self.length(holder):
            return
        node = self._at.pop(holder)
        del self._lengths[holder]
        node.ends.remove(holder)
        if tokens:
            self._end(holder, self._above(node, tokens), tokens)
        self._prune(node)

    def remove(self, holder: int) -> None:
        """Forget `holder`, if it is known."""
        self.cut(holder, 0)

    def candidates(self, tokens: Seq[int]) -> Iterator[tuple[int, int]]:
        """Every holder that begins like `tokens`, with the length of what is common, longest first;
        of equal ones those that end there first.

        Lazy: the tree must not change before the last one was taken.
        """
        wanted = array(_TOKEN, tokens)
        node, common = self._root, 0
        while common == node.end and common < len(wanted):
            child = node.children.get(wanted[common])
            if child is None:
                break
            node = child
            common += common_prefix(node.edge, wanted, 0, common)
        passed: _Node | None = None
        while node.parent is not None:
            for holder in self._beyond(node, common, passed):
                yield common, holder
            shorter = [h for h in node.ends if self._lengths[h] < common]
            for holder in sorted(shorter, key=self._lengths.__getitem__, reverse=True):
                yield self._lengths[holder], holder
            common, passed, node = node.start, node, node.parent

    def covering(self, holder: int) -> Iterator[int]:
        """The other holders that have all tokens of `holder`, and maybe more. Lazy."""
        if holder in self._at:
            for other in self._beyond(self._at[holder], self._lengths[holder], None):
                if other != holder:
                    yield other

    def covered(self, holder: int) -> Iterator[int]:
        """The other holders whose tokens `holder` has all. Lazy."""
        node = self._at.get(holder, self._root)
        length = self.length(holder)
        while node.parent is not None:
            for other in node.ends:
                if other != holder and self._lengths[other] <= length:
                    yield other
            node = node.parent

    def check_integrity(self) -> None:
        """Walk all of it; raises AssertionError where it contradicts itself."""
        ends: dict[int, _Node] = {}
        pending = [self._root]
        while pending:
            node = pending.pop()
            for first, child in node.children.items():
                assert child.edge[0] == first, "a child goes by its first token"
                assert child.parent is node and child.start == node.end
                pending.append(child)
            if node.parent is None:
                assert not node.edge and not node.ends, "nobody ends before the first token"
                continue
            assert node.edge and len(node.children) != 1, "only a branch splits an edge"
            lengths = [self._lengths[holder] for holder in node.ends]
            assert all(node.start < length <= node.end for length in lengths)
            assert node.children or max(lengths, default=0) == node.end, "nobody holds the last"
            ends.update(dict.fromkeys(node.ends, node))
        assert ends == self._at and ends.keys() == self._lengths.keys()

    def _walk(self, node: _Node, length: int, new: array[int]) -> _Node:
        """The node where `new`, put after the first `length` tokens of `node`'s path, ends; made if
        need be."""
        done = 0
        while done < len(new):
            if length < node.end:
                same = common_prefix(node.edge, new, length - node.start, done)
                length, done = length + same, done + same
                if done < len(new) and length < node.end:
                    self._split(node, length)
            elif new[done] in node.children:
                node = node.children[new[done]]
            elif node.children or node.parent is None:
                leaf = _Node(node, length, new[done:])
                node.children[new[done]] = leaf
                return leaf
            else:
                node.edge.extend(new[done:])
                return node
        return node

    def _beyond(self, node: _Node, length: int, passed: _Node | None) -> Iterator[int]:
        """Holders of at least `length` tokens that end in `node` or below it, but not by way of its
        child `passed`."""
        for holder in node.ends:
            if self._lengths[holder] == length:
                yield holder
        for holder in node.ends:
            if self._lengths[holder] > length:
                yield holder
        pending = [child for child in node.children.values() if child is not passed]
        while pending:
            below = pending.pop()
            yield from below.ends
            pending.extend(below.children.values())

    def _above(self, node: _Node, length: int) -> _Node:
        """The node on the way to `node` where the first `length` tokens end."""
        while node.parent is not None and node.start >= length:
            node = node.parent
        return node

    def _end(self, holder: int, node: _Node, length: int) -> None:
        node.ends.add(holder)
        self._at[holder] = node
        self._lengths[holder] = length

    def _split(self, node: _Node, length: int) -> None:
        """Let `node` end after `length` tokens; what was behind becomes its only child."""
        tail = _Node(node, length, node.edge[length - node.start :])
        tail.children = node.children
        tail.ends = {holder for holder in node.ends if self._lengths[holder] > length}
        self._moved(tail)
        del node.edge[length - node.start :]
        node.ends -= tail.ends
        node.children = {tail.edge[0]: tail}

    def _prune(self, node: _Node) -> None:
        """Drop what nobody holds any more, from `node` upwards; join what no longer branches."""
        while node.parent is not None and not node.children:
            last = max((self._lengths[holder] for holder in node.ends), default=node.start)
            if last > node.start:
                del node.edge[last - node.start :]
                return
            del node.parent.children[node.edge[0]]
            node = node.parent
        if node.parent is not None and len(node.children) == 1:
            (child,) = node.children.values()
            node.edge.extend(child.edge)
            node.ends |= child.ends
            node.children = child.children
            self._moved(node)

    def _moved(self, node: _Node) -> None:
        """`node` has taken over ends and children of another."""
        self._at.update(dict.fromkeys(node.ends, node))
        for child in node.children.values():
            child.parent = node


def common_prefix(left: Seq[int], right: Seq[int], left_at: int = 0, right_at: int = 0) -> int:
    """How many tokens are equal from `left_at` and `right_at` on. Both are of one type: lists, or
    tuples, or arrays; slices of them are compared, not tokens.
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
