"""Whether the paged memory agrees with itself. For tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq

from hearth.backends.native.paging.chain import Chain
from hearth.backends.native.paging.memory import PageMemory
from hearth.backends.native.paging.prefix_index import NO_BLOCK, Node


def check_memory(memory: PageMemory) -> None:
    """Walk all of it and count again; raises AssertionError where it contradicts itself."""
    memory.index.check_integrity()
    nodes = list(memory.index)
    for group in memory.groups:
        group.pool.check_integrity()
        owned = {node.blocks[group.number]: node for node in nodes}
        owned.pop(NO_BLOCK, None)
        assert owned == memory.owned(group), "a block belongs to one page"
        for block, node in owned.items():
            assert not group.pool.is_idle(block) or node.wanted >> group.number & 1
            assert group.pool.holders(block) <= node.live
    for node in nodes:
        _check_node(memory, node)
    _check_counts(memory, nodes)
    pool = memory.first.pool
    assert not pool.idle or pool.idle + pool.only_pinned <= memory.kept_blocks
    for group in memory.counted():
        assert not group.pool.idle or group.excess <= 0, "what is idle makes way"


def check_chains(memory: PageMemory, chains: Seq[Chain]) -> None:
    """Whether all that is held is held by `chains`."""
    for chain in chains:
        chain.check_integrity()
    through = Counter(node for chain in chains for node in chain.nodes)
    assert all(node.live == through[node] for node in memory.index)
    for group in memory.groups:
        held = Counter(block for chain in chains for block in chain.held(group))
        assert all(group.pool.holders(block) == held[block] for block in group.pool.in_use())
        assert group.claims == sum(chain.claim(group) for chain in chains)


def _check_node(memory: PageMemory, node: Node) -> None:
    children = [child for bucket in node.children.values() for child in bucket]
    assert node.kept_children == sum(child.kept > 0 for child in children)
    assert not node.kept_children or node.kept == len(node.tokens)
    assert node.kept <= len(node.tokens)
    assert node.live >= sum(child.live for child in children)
    assert all(0 < pin.tokens <= node.kept and pin.node is node for pin in node.pins)
    assert node.live or node.kept == len(node.tokens), "what is not kept is forgotten"
    assert node.live or children or any(block != NO_BLOCK for block in node.blocks)
    assert node.digest or node.live <= 1, "one sequence writes into a page"
    for group in memory.groups:
        block = node.blocks[group.number]
        if group.window is None:
            assert block != NO_BLOCK and group.pool.holders(block) == node.live
            assert bool(node.kept) == bool(node.wanted >> group.number & 1)
    if node.blocks[memory.first.number] == NO_BLOCK:
        assert all(block == NO_BLOCK for block in node.blocks)


def _check_counts(memory: PageMemory, nodes: list[Node]) -> None:
    first = memory.first
    held = [node for node in nodes if node.blocks[first.number] != NO_BLOCK]
    live = [node for node in held if first.pool.holders(node.blocks[first.number])]
    assert memory.tokens == sum(len(node.tokens) for node in held)
    assert memory.live_tokens == sum(len(node.tokens) for node in live)
    assert memory.prefixes == sum(node.kept > 0 and not node.kept_children for node in nodes)
