"""How much of a prompt the paged memory has, and where."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from hearth.backends.native.paging.groups import Group
from hearth.backends.native.paging.memory import PageMemory
from hearth.backends.native.paging.prefix_index import NO_BLOCK, Node


@dataclass(frozen=True, slots=True)
class Hit:
    """The first `length` tokens of a prompt: all tokens of `path`, and the first few of `tail`."""

    length: int
    path: list[Node]
    tail: Node | None = None


def hits(memory: PageMemory, tokens: Seq[int]) -> Iterator[Hit]:
    """First parts of `tokens`, without the last, that can be gone on from, longest first. Lazy.

    A hit needs all blocks that the token after it looks at: of groups that see everything those of
    all its pages, of groups with a window the last few.
    """
    index = memory.index
    most = len(tokens) - 1
    wanted, path = index.walk(tokens)
    runs = [(group, _runs(path, group)) for group in memory.windows]
    for place in range(len(path), -1, -1):
        at = place * index.page
        if at >= most:
            continue
        for common, node in _pages(memory, path, place, wanted):
            length = min(at + common, most)
            if all(_sees_all(group, run, node, length) for group, run in runs):
                if length == at + index.page:
                    yield Hit(length, [*path[:place], node])
                else:
                    yield Hit(length, path[:place], node)


def _pages(
    memory: PageMemory, path: list[Node], place: int, wanted: array[int]
) -> Iterator[tuple[int, Node]]:
    """Pages at `place` that have some of `wanted`, and how much; the most first."""
    whole = path[place] if place < len(path) else None
    if whole is not None:
        yield memory.index.page, whole
    before = path[place - 1] if place else memory.index.root
    for common, node in memory.index.branches(before, wanted, place * memory.index.page):
        if node is not whole:
            yield common, node


def _runs(path: list[Node], group: Group) -> list[int]:
    """For each page of `path` the first from which on, up to it, none is missing in `group`."""
    runs = []
    first = 0
    for place, node in enumerate(path):
        if node.blocks[group.number] == NO_BLOCK:
            first = place + 1
        runs.append(first)
    return runs


def _sees_all(group: Group, runs: list[int], node: Node, length: int) -> bool:
    """Whether all blocks are there that the token after the first `length` tokens, which end in
    `node`, looks at.
    """
    first = group.first_needed(length)
    if first > node.place:
        return True
    if node.blocks[group.number] == NO_BLOCK:
        return False
    return node.place == first or runs[node.place - 1] <= first
