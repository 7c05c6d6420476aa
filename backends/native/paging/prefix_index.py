"""Which tokens lie in which blocks: a tree of pages, whose full ones are found by a chain of
digests.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from hearth.backends.engine.radix import common_prefix

_TOKEN = "i"
"""Type of a stored token id: 4 bytes."""
NO_BLOCK = -1
"""In place of a block: none of this group holds the page."""

Digest = Callable[[bytes, bytes], bytes]
"""Of a page, made of the digest of the page before it and of its own token ids."""


def chain_digest(before: bytes, tokens: bytes) -> bytes:
    """128 bits of BLAKE2b (RFC 7693)."""
    return hashlib.blake2b(before + tokens, digest_size=16).digest()


class Node:
    """A page of tokens after all pages before it: up to `page` token ids, and a block of each group
    that holds their keys and values.

    A sequence writes into its last one as long as that is not full. What is kept or pinned of it
    meanwhile is a first part that stays as it is.

    Attributes:
        parent: the page before; None: this is the root, the empty beginning of all.
        place: pages before it.
        tokens: [1 to page] int32.
        digest: of itself and all before it; b"" while it is not full.
        blocks: [groups], `NO_BLOCK` where a window has passed.
        live: running sequences that go through it.
        kept: first tokens that stay when nobody goes through it.
        kept_children: children of which something is kept; if there are any, all of it is kept.
        wanted: bit g: the block of group g stays when nobody holds it.
        pins: those that end in it.
        children: pages after it, by their first token.
    """

    __slots__ = (
        "blocks",
        "children",
        "digest",
        "kept",
        "kept_children",
        "live",
        "parent",
        "pins",
        "place",
        "tokens",
        "wanted",
    )

    def __init__(self, parent: Node | None, tokens: array[int], blocks: list[int]) -> None:
        self.parent = parent
        self.place: int = -1 if parent is None else parent.place + 1
        self.tokens = tokens
        self.digest = b""
        self.blocks = blocks
        self.live = 0
        self.kept = 0
        self.kept_children = 0
        self.wanted = 0
        self.pins: list[Pin] = []
        self.children: dict[int, list[Node]] = {}

    def upwards(self) -> Iterator[Node]:
        """Itself and all before it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


@dataclass(eq=False, slots=True)
class Pin:
    """The first `tokens` tokens of `node`, and all before them, must stay for a while."""

    node: Node
    tokens: int
    seconds: float
    """After each use."""
    until: float = 0.0


class PrefixIndex:
    """Pages of tokens in a tree.

    A page has a digest when it is full, and no other page with the same tokens after the same
    beginning has one. Digests only lead to candidates: token ids, and who comes before, are
    compared on each hit. Adding a token to a page costs O(1), looking tokens up O(their number).

    Args:
        page: tokens of a block.
        fingerprint: of the model and of all that keys and values depend on; where chains begin.
        digest: for tests.
    """

    def __init__(self, page: int, fingerprint: bytes, digest: Digest = chain_digest) -> None:
        self.page = page
        self.root = Node(None, array(_TOKEN), [])
        self.root.digest = fingerprint
        self._digest = digest
        self._full: dict[bytes, list[Node]] = {}
        self._size = 0

    def __len__(self) -> int:
        """Pages."""
        return self._size

    def __iter__(self) -> Iterator[Node]:
        """Every page, those before others first."""
        pending = [self.root]
        while pending:
            node = pending.pop()
            if node.parent is not None:
                yield node
            for bucket in node.children.values():
                pending += bucket

    def walk(self, tokens: Seq[int]) -> tuple[array[int], list[Node]]:
        """`tokens` as an array, and the full pages that they begin with."""
        wanted = array(_TOKEN, tokens)
        node, path = self.root, []
        for end in range(self.page, len(wanted) + 1, self.page):
            piece = wanted[end - self.page : end]
            found = self._find(node, piece, self._digest(node.digest, piece.tobytes()))
            if found is None:
                break
            path.append(found)
            node = found
        return wanted, path

    def branches(self, parent: Node, wanted: array[int], at: int) -> list[tuple[int, Node]]:
        """Pages after `parent` that begin as `wanted` goes on from `at`: how many tokens are the
        same, most first, and the page.
        """
        if at >= len(wanted):
            return []
        bucket = parent.children.get(wanted[at], ())
        found = [(common_prefix(node.tokens, wanted, 0, at), node) for node in bucket]
        found.sort(key=lambda branch: -branch[0])
        return found

    def siblings(self, node: Node) -> list[Node]:
        """The other pages after the same beginning that have its first token."""
        assert node.parent is not None
        return [other for other in node.parent.children[node.tokens[0]] if other is not node]

    def add(self, parent: Node, tokens: Seq[int], blocks: list[int]) -> Node:
        """A new page of at least one token after `parent`; if it is full, `seal` it."""
        node = Node(parent, array(_TOKEN, tokens), blocks)
        parent.children.setdefault(node.tokens[0], []).append(node)
        self._size += 1
        return node

    def seal(self, node: Node) -> Node:
        """`node` is full: it can be found by its digest now. If there is such a page already, that
        one; `node` must be removed then.
        """
        assert node.parent is not None and len(node.tokens) == self.page
        digest = self._digest(node.parent.digest, node.tokens.tobytes())
        twin = self._find(node.parent, node.tokens, digest)
        if twin is not None:
            return twin
        node.digest = digest
        self._full.setdefault(digest, []).append(node)
        return node

    def shorten(self, node: Node, tokens: int) -> None:
        """Keep the first `tokens` tokens of `node`, at least one; nothing comes after it."""
        assert tokens > 0 and not node.children
        self._unseal(node)
        del node.tokens[tokens:]

    def remove(self, node: Node) -> None:
        """Forget `node`; nothing comes after it."""
        assert node.parent is not None and not node.children
        self._unseal(node)
        bucket = node.parent.children[node.tokens[0]]
        bucket.remove(node)
        if not bucket:
            del node.parent.children[node.tokens[0]]
        self._size -= 1

    def check_integrity(self) -> None:
        """Work all of it out again; raises AssertionError where it contradicts itself."""
        seen = list(self)
        assert len(seen) == self._size
        for node in seen:
            parent = node.parent
            assert parent is not None and node.place == parent.place + 1
            assert 1 <= len(node.tokens) <= self.page
            assert sum(other is node for other in parent.children[node.tokens[0]]) == 1
            if node.digest:
                assert len(node.tokens) == self.page, "only full pages have digests"
                assert node.digest == self._digest(parent.digest, node.tokens.tobytes())
                assert self._find(parent, node.tokens, node.digest) is node, "there is one of each"
            assert node.digest or not node.children, "nothing comes after a page that is not full"
        assert sum(map(len, self._full.values())) == sum(bool(node.digest) for node in seen)
        assert all(self._full.values())

    def _find(self, parent: Node, tokens: array[int], digest: bytes) -> Node | None:
        for node in self._full.get(digest, ()):
            if node.parent is parent and node.tokens == tokens:
                return node
        return None

    def _unseal(self, node: Node) -> None:
        if not node.digest:
            return
        same = self._full[node.digest]
        same.remove(node)
        if not same:
            del self._full[node.digest]
        node.digest = b""
