"""What the manager asks of the leaves of its tree, whichever kind of store they are in."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from hearth.backends.engine.kv.group import Group, Kind
from hearth.backends.engine.kv.store import SavedState, Store
from hearth.backends.engine.kv.tree import Node, Prefix, PrefixTree

Handle = int | list[list[int]]
"""What a runner computes a sequence with: the id of a sequence, or for each group of layers its
blocks (`NO_BLOCK` where a window has passed).
"""


@dataclass(frozen=True, slots=True)
class Hit:
    """The first `length` tokens of a prompt, which `source` has too; the last of them in `node`."""

    length: int
    source: Prefix
    node: Node


class Leaves(Protocol):
    """Prefixes in a store. Those that are passed to it are in its tree."""

    tree: PrefixTree
    groups: tuple[Group, ...]
    first: Group
    """The one that sees most."""

    @property
    def store(self) -> Store: ...

    @property
    def keeps_past(self) -> bool:
        """See `RunnerInfo.keeps_past`."""
        ...

    @property
    def least_cut(self) -> int:
        """Fewer pages are not worth the time that it takes to cut them off."""
        ...

    @property
    def allocated_tokens(self) -> int:
        """Tokens that there is memory for now."""
        ...

    @property
    def most_pins(self) -> int | None:
        """How many prefixes may be pinned; None: any number."""
        ...

    def counted(self) -> list[Group]:
        """The groups that can run short: one with as many pages as the first cannot."""
        ...

    def has_place(self) -> bool:
        """Whether one more prefix can be had without another going away."""
        ...

    def begin(self, namespace: bytes, kind: Kind) -> Prefix:
        """An empty prefix. Only where `has_place`."""
        ...

    def hits(self, root: Node, tokens: Seq[int], *, copies: bool) -> Iterator[Hit]:
        """First parts of `tokens` that can be continued from and that there is room for, longest
        first.

        Args:
            copies: whether a part of a page may be copied for it.
        """
        ...

    def enter(self, prefix: Prefix, hit: Hit) -> bool:
        """Let the empty `prefix`, of a running sequence, begin with `hit`; False, and still empty,
        if there was no memory for a copy.
        """
        ...

    def can_fork(self, source: Prefix, length: int) -> bool:
        """Whether the first `length` tokens of `source` can be kept by themselves."""
        ...

    def fork(self, source: Prefix, length: int) -> Prefix:
        """Keep the first `length` tokens of `source`. Only where `can_fork` and `has_place`."""
        ...

    def change(self, prefix: Prefix, kind: Kind) -> None:
        """`prefix` is of another kind from now on."""
        ...

    def shorten(self, prefix: Prefix, length: int) -> None:
        """`prefix` keeps its first `length` tokens, whole pages. Only where the past is kept."""
        ...

    def drop(self, prefix: Prefix) -> None:
        """Forget `prefix`: whatever it had is free, if no other has it."""
        ...

    def frees(self, prefix: Prefix, group: Group) -> bool:
        """Whether without `prefix`, which is kept, idle pages of `group` have one holder fewer."""
        ...

    def unpinned(self, source: Prefix, length: int, group: Group) -> int:
        """Pages of `group` that a token after the first `length` of `source` looks at, and that are
        not pinned.
        """
        ...

    def taken(self, prefix: Prefix) -> int:
        """Pages of `prefix`, with those that it has not filled yet."""
        ...

    def handle(self, prefix: Prefix) -> Handle: ...

    def append(self, prefix: Prefix, tokens: Seq[int]) -> None:
        """A step computed `tokens` for `prefix`."""
        ...

    def rest(self) -> None:
        """No sequence runs: give back memory that nothing is in."""
        ...

    def saved_bytes(self, prefix: Prefix) -> int:
        """What a copy of all that `prefix` has would take."""
        ...

    def save(self, prefix: Prefix) -> SavedState | None:
        """A copy of all that `prefix` has; None if that cannot be had."""
        ...

    def restore(self, prefix: Prefix, state: SavedState, tokens: Seq[int]) -> bool:
        """Give the empty `prefix` what was saved; False, and still empty, if that fails."""
        ...

    def has_room_for_part(self, tokens: int) -> bool:
        """Whether a part of `tokens` tokens can be copied in without more memory for the pool."""
        ...

    def save_part(self, prefix: Prefix, start: int, end: int) -> SavedState | None:
        """A copy of its tokens `start` to `end`; None if that cannot be had."""
        ...

    def restore_part(self, prefix: Prefix, state: SavedState, tokens: Seq[int]) -> bool:
        """Add `tokens`, which are in `state` from the end of `prefix` on; False, and unchanged, if
        that fails.
        """
        ...

    def check_integrity(self, live: Seq[Prefix], kept: Seq[Prefix]) -> None:
        """Count all of it again; raises AssertionError where it contradicts itself."""
        ...
