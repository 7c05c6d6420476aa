"""Blocks that are free, held, pinned or idle."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hearth.backends.native.paging.block_pool import BlockPool


def test_blocks_are_taken_up_to_the_limit_and_the_memory():
    pool = BlockPool(limit=3, capacity=2)
    assert [pool.take(), pool.take(), pool.take()] == [0, 1, None]
    pool.capacity = 9
    assert [pool.take(), pool.take()] == [2, None]
    assert (pool.used, pool.held, pool.idle) == (3, 3, 0)


def test_what_was_used_before_is_taken_first():
    pool = BlockPool(limit=9, capacity=9)
    blocks = [pool.take() for _ in range(3)]
    assert pool.drop(blocks[1])
    pool.free(blocks[1])
    assert pool.take() == blocks[1]


def test_a_block_is_idle_until_somebody_holds_it_again():
    pool = BlockPool(limit=9, capacity=9)
    first, second = pool.take(), pool.take()
    pool.hold(first)
    assert not pool.drop(first)
    for block in (first, second):
        assert pool.drop(block)
        pool.rest(block)
    assert (pool.idle, pool.held, pool.oldest()) == (2, 0, first)
    pool.rest(first)
    assert pool.oldest() == second
    pool.hold(second)
    assert (pool.idle, pool.held, pool.oldest()) == (1, 1, first)
    pool.free(first)
    assert (pool.used, pool.oldest()) == (1, None)
    pool.check_integrity()


def test_a_pinned_block_is_of_use_to_somebody():
    pool = BlockPool(limit=9, capacity=9)
    block = pool.take()
    pool.pin(block)
    pool.pin(block)
    assert not pool.drop(block)
    assert (pool.pinned, pool.only_pinned) == (1, 1)
    pool.hold(block)
    assert (pool.pinned, pool.only_pinned) == (1, 0)
    assert not pool.drop(block) and not pool.unpin(block)
    assert pool.unpin(block)
    pool.rest(block)
    pool.pin(block)
    assert (pool.idle, pool.pinned, pool.only_pinned) == (0, 1, 1)
    pool.check_integrity()


class PoolMachine(RuleBasedStateMachine):
    """A pool, and who holds and pins what."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(limit=6, capacity=4)
        self.held: dict[int, int] = {}
        self.pins: dict[int, int] = {}

    some = precondition(lambda self: self.held)

    def pick(self, which):
        return sorted(self.held)[which % len(self.held)]

    @rule()
    def take(self):
        block = self.pool.take()
        assert (block is None) == (len(self.held) >= min(6, self.pool.capacity))
        if block is not None:
            assert block not in self.held
            self.held[block], self.pins[block] = 1, 0

    @some
    @rule(which=st.integers(0, 9), pins=st.booleans())
    def add(self, which, pins):
        block = self.pick(which)
        (self.pool.pin if pins else self.pool.hold)(block)
        counts = self.pins if pins else self.held
        counts[block] += 1

    @some
    @rule(which=st.integers(0, 9), pins=st.booleans(), keep=st.booleans())
    def remove(self, which, pins, keep):
        block = self.pick(which)
        counts = self.pins if pins else self.held
        if not counts[block]:
            return
        counts[block] -= 1
        useless = (self.pool.unpin if pins else self.pool.drop)(block)
        assert useless == (not self.pins[block] and not self.held[block])
        if useless and keep:
            self.pool.rest(block)
        elif useless:
            self.pool.free(block)
            del self.held[block]

    @rule()
    def evict(self):
        block = self.pool.oldest()
        if block is not None:
            assert not self.held[block] and not self.pins[block]
            self.pool.free(block)
            del self.held[block]

    @rule()
    def grow(self):
        self.pool.capacity = 8

    @rule()
    def shrink(self):
        end = self.pool.forget_free_end()
        assert end == max(self.held, default=-1) + 1
        self.pool.capacity = max(end, 4)

    @invariant()
    def everything_agrees(self):
        self.pool.check_integrity()
        assert list(self.pool.in_use()) == sorted(self.held)
        assert self.pool.idle == sum(
            not self.held[block] and not self.pins[block] for block in self.held
        )


class TestPool(PoolMachine.TestCase):
    """Random orders of all of it."""

    settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
