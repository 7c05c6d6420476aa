"""The host KV tier: copies of prefixes in host memory, in parts of equal length."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from hearth.backends.engine.kv.store import SavedState
from hearth.backends.engine.kv.tree import common_prefix


@dataclass(slots=True, eq=False)
class Part:
    """The keys and values of some tokens, which depend on all tokens before them."""

    tokens: tuple[int, ...]
    state: SavedState
    siblings: dict[tuple[int, ...], Part]
    """This part and the others that follow the same tokens, by their tokens."""
    children: dict[tuple[int, ...], Part] = field(default_factory=dict)


class OffloadedPrefixes:
    """A tree of parts. The least recently used part is dropped first, but a parent never before its
    children. Prefixes that begin with the same tokens share their first parts. Without
    `keeps_past` there are only whole prefixes, each a single part.

    Args:
        part_tokens: tokens of each part except the last one of a prefix, which may be shorter.
        keeps_past: any first tokens of a part can be used.
    """

    def __init__(self, part_tokens: int, *, keeps_past: bool = True) -> None:
        self.part_tokens = part_tokens
        self._keeps_past = keeps_past
        self.tokens = 0
        """Tokens of all parts."""
        self.nbytes = 0
        self._roots: dict[bytes, dict[tuple[int, ...], Part]] = {}
        self._order: dict[Part, None] = {}
        """The least recently used first, children before their parents."""

    def __len__(self) -> int:
        """Number of prefixes, i.e. of parts without children."""
        return sum(not part.children for part in self._order)

    def __contains__(self, part: object) -> bool:
        return part in self._order

    def path(self, tokens: Seq[int], namespace: bytes = b"") -> list[tuple[Part, int]]:
        """The parts that `tokens` begin with, and how many tokens of each match: all, except in the
        last part.
        """
        matches: list[tuple[Part, int]] = []
        children, at = self._roots.get(namespace, {}), 0
        while at < len(tokens):
            wanted = tuple(tokens[at : at + self.part_tokens])
            part = children.get(wanted)
            if part is None:
                shared = [(common_prefix(part.tokens, wanted), part) for part in children.values()]
                common, part = max(shared, key=lambda pair: pair[0], default=(0, None))
                if part is not None and common:
                    matches.append((part, common))
                break
            matches.append((part, len(wanted)))
            at += len(wanted)
            children = part.children
        return matches

    def whole(self, tokens: Seq[int], namespace: bytes = b"") -> Part | None:
        """The longest part whose tokens are all first tokens of `tokens`; None if there is none."""
        longest = None
        for part in self._roots.get(namespace, {}).values():
            length = len(part.tokens)
            is_longer = longest is None or length > len(longest.tokens)
            if is_longer and part.tokens == tuple(tokens[:length]):
                longest = part
        return longest

    def add(
        self, parents: list[Part], tokens: Seq[int], state: SavedState, namespace: bytes = b""
    ) -> Part:
        """Add a part of `tokens` after `parents`, a path that begins at a first part. Siblings that
        `tokens` begin with are dropped.
        """
        siblings = parents[-1].children if parents else self._roots.setdefault(namespace, {})
        part = Part(tuple(tokens), state, siblings)
        if self._keeps_past:
            for covered in [key for key in siblings if key == part.tokens[: len(key)]]:
                self._drop(siblings[covered])
        siblings[part.tokens] = part
        self.tokens += len(part.tokens)
        self.nbytes += state.nbytes
        self.use([*parents, part])
        return part

    def use(self, path: Seq[Part]) -> None:
        """Mark the parts of `path`, the first part first, as used now."""
        for part in reversed(path):
            self._order.pop(part, None)
            self._order[part] = None

    def shrink(self, most_bytes: int) -> None:
        """Drop the least recently used parts until the rest takes at most `most_bytes`."""
        while self._order and self.nbytes > most_bytes:
            self._drop(next(iter(self._order)))

    def clear(self) -> None:
        """Drop all parts."""
        self.shrink(-1)

    def check_integrity(self) -> None:
        """Raises AssertionError if tree, order and sizes are inconsistent."""
        seen: set[Part] = set()
        for part in self._order:
            assert part.siblings[part.tokens] is part
            is_full = self._keeps_past and len(part.tokens) == self.part_tokens
            assert is_full or not part.children
            assert all(child in seen for child in part.children.values()), "dropped first"
            seen.add(part)
        assert all(part in seen for roots in self._roots.values() for part in roots.values())
        assert self.tokens == sum(len(part.tokens) for part in seen)
        assert self.nbytes == sum(part.state.nbytes for part in seen)

    def _drop(self, part: Part) -> None:
        del part.siblings[part.tokens]
        del self._order[part]
        self.tokens -= len(part.tokens)
        self.nbytes -= part.state.nbytes
        if not self._order:
            self._roots.clear()
