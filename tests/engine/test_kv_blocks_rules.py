"""Any calls of the paged memory in any order: block tables point to what was written, no longer
prefix could be found, reservations are kept, and the accounts agree with the blocks.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fake_pages import PagedMemory
from hearth.backends.engine.kv.tree import NO_BLOCK
from hearth.backends.errors import Busy

SLOTS, POOL, CONTEXT, STEP = 3, 48, 32, 8
WINDOWS = [(None,), (None, 3), (None, 5, 9), (4,), (2, 7)]
picks = st.integers(0, 100)
tokens = st.lists(st.integers(0, 1), min_size=1, max_size=STEP)
some_open = precondition(lambda self: self.slots)
some_empty = precondition(lambda self: len(self.slots) < SLOTS)
counted = {"rules": 0}
MOST_RULES = 100_000


class PagedCacheMachine(RuleBasedStateMachine):
    """A cache, its pages, and the expected contents of each slot."""

    @initialize(
        page=st.integers(1, 16),
        windows=st.sampled_from(WINDOWS),
        few_window_blocks=st.booleans(),
        kept_tokens=st.sampled_from([0, 16, POOL]),
        memory=st.sampled_from([POOL, POOL, 20]),
        start=st.sampled_from([None, 1]),
    )
    def load(self, page, windows, few_window_blocks, kept_tokens, memory, start):
        most = (max(w or 0 for w in windows) + STEP - 2) // page + 2  # For one sequence alone.
        self.memory = PagedMemory(
            page=page,
            windows=windows,
            window_blocks=(most,) * len(windows) if few_window_blocks else None,
            slots=SLOTS,
            pool=POOL,
            context=CONTEXT,
            kept_tokens=kept_tokens,
            memory=memory,
            start=start,
            step_tokens=STEP,
        )
        self.cache = self.memory.cache
        self.page, self.windows = page, windows
        self.can_grow = memory == POOL
        self.is_simple = windows == (None,) and self.can_grow
        """Whether the account of blocks can be computed from outside."""
        self.limit = -(-POOL // page)
        self.kept_tokens = kept_tokens
        self.slots: dict[int, list[int]] = {}
        self.reserved = dict.fromkeys(range(SLOTS), 0)
        self.said: list[list[int]] = []

    # ---- what is true of the pages themselves

    def blocks(self, count):
        return -(-count // self.page)

    def held_blocks(self, *, pins):
        """Blocks of the first group that cannot be evicted."""
        held = {block for slot in self.slots for block in self.cache.handle(slot)[0]}
        if pins:
            for pin in self.cache._kept.pins:
                held |= {block for node in pin.node.upwards() for block in node.blocks[0]}
        return len(held)

    def growth(self):
        return sum(
            max(0, self.blocks(self.reserved[slot]) - len(self.cache.handle(slot)[0]))
            for slot in self.slots
        )

    def free(self, slot):
        """Blocks that could be reserved for `slot` or a new one."""
        self.cache.stats()
        others = self.slots.keys() - {slot}
        return self.limit - self.held_blocks(pins=bool(others)) - self.growth()

    def best(self, prompt):
        """The longest part of `prompt`, without its last token, that any page holds with all cells
        that its end attends to, found by looking at all pages.
        """
        best = 0
        for node in self.cache._tree:
            path = list(node.upwards())[::-1]
            held = [token for above in path for token in above.tokens]
            common = 0
            while common < min(len(held), len(prompt) - 1) and held[common] == prompt[common]:
                common += 1
            for length in range(common, node.start, -1):
                if length > best and self.is_whole(path, length):
                    best = length
                    break
        return best

    def is_whole(self, path, length):
        for group, window in enumerate(self.windows):
            first = 0 if window is None else max(0, length - window + 1) // self.page
            blocks = [block for node in path for block in node.blocks[group]]
            if NO_BLOCK in blocks[first : self.blocks(length)]:
                return False
        return True

    def has_spare(self):
        """Whether a block is available beyond all reservations, whatever is evicted."""
        return self.is_simple and self.limit - self.held_blocks(pins=True) - self.growth() > 0

    def reserve(self, slot, count):
        held = len(self.slots.get(slot, ()))
        granted = None
        if self.is_simple:
            table = len(self.cache.handle(slot)[0]) if slot in self.slots else 0
            now = max(self.blocks(self.reserved[slot]), table)
            need = self.blocks(max(count, held))
            granted = count <= CONTEXT and (need <= table or need - now <= self.free(slot))
        before = self.cache.stats()
        got = self.cache.reserve(slot, count)
        assert granted is None or got == granted
        if got:
            self.reserved[slot] = count
            self.slots.setdefault(slot, [])
        else:
            assert self.cache.stats() == before
        return got

    def empty(self, pick):
        slots = [slot for slot in range(SLOTS) if slot not in self.slots]
        return slots[pick % len(slots)]

    def opened(self, pick):
        return sorted(self.slots)[pick % len(self.slots)]

    # ---- rules

    @rule(pick=picks, prompt=tokens, known=picks, cut=st.just(CONTEXT) | st.integers(0, CONTEXT))
    @some_empty
    def open(self, pick, prompt, known, cut):
        slot = self.empty(pick)
        if self.said:
            prompt = [*self.said[known % len(self.said)][:cut], *prompt][:CONTEXT]
        best, spare = self.best(prompt), self.has_spare()
        may_be_last = best % self.page > 0 and self.cache.stats().kept_tokens > 0
        matched = self.cache.match(prompt)
        found = self.cache.open(slot, prompt)
        assert found <= matched <= best and found <= max(0, len(prompt) - 1)
        assert found == matched or not self.can_grow
        if self.windows == (None,):
            assert found >= best // self.page * self.page, "full pages cost nothing"
        if spare and not may_be_last:  # Blocks that are copied cannot be evicted for the copy.
            assert found == best
        self.slots[slot] = prompt[:found]
        assert self.memory.holds(slot, prompt[:found])
        self.compute(slot, prompt[found:])

    @rule(pick=picks, new=tokens, wrong=st.integers(0, 3))
    @some_open
    def grow(self, pick, new, wrong):
        self.compute(self.opened(pick), new, wrong)

    def compute(self, slot, new, wrong=0):
        """Steps that add `new`, and try `wrong` more tokens each, which are not accepted."""
        held = self.slots[slot]
        while new:
            step, new = new[:STEP], new[STEP:]
            count = len(held) + len(step)
            if count > self.reserved[slot] and not self.reserve(slot, count):
                return
            drafts = min(wrong, STEP - len(step), self.reserved[slot] - count)
            try:
                self.cache.prepare({slot: len(step) + drafts})
            except Busy:
                assert not self.can_grow, "what was promised is there"
                self.limit = self.cache.pool_tokens // self.page
                return
            self.memory.write(slot, [*step, *[9] * drafts])
            computed = len(step) + drafts if drafts % 2 else None
            assert self.cache.commit(slot, step, computed)
            held += step
            assert self.memory.holds(slot, held)
        self.said = [*self.said[-9:], list(held)]

    @rule(slot=st.integers(0, SLOTS - 1), count=st.integers(0, CONTEXT + 1))
    def reserve_some(self, slot, count):
        self.reserve(slot, count)

    @rule(pick=picks)
    @some_open
    def checkpoint(self, pick):
        before = self.cache._leaves.groups[0].used
        slot = self.opened(pick)
        self.cache.checkpoint(slot)
        assert self.cache._leaves.groups[0].used <= before, "it costs nothing"

    @rule(seconds=st.integers(1, 6))
    def wait(self, seconds):
        self.memory.now += seconds

    @rule(pick=picks, count=st.integers(1, CONTEXT), seconds=st.sampled_from([4, 4, 10]))
    @precondition(lambda self: any(self.slots.values()))
    def pin(self, pick, count, seconds):
        slots = [slot for slot in sorted(self.slots) if self.slots[slot]]
        slot = slots[pick % len(slots)]
        held = self.slots[slot][:count]
        before = self.cache._leaves.groups[0].used
        granted = self.cache.pin(slot, len(held), seconds)
        assert self.cache._leaves.groups[0].used <= before, "a pin costs nothing"
        if granted:
            assert len(held) <= self.cache.stats().pinned_tokens or None not in self.windows
        elif self.is_simple:
            pinned = self.cache._leaves.first.pinned
            most = min(self.kept_tokens // self.page, self.limit // 2)
            assert (
                pinned + self.blocks(len(held)) > most
                or self.cache._leaves.groups[0].used > self.limit
            )

    @rule(pick=picks, keep=st.sampled_from([True, True, False]))
    @some_open
    def release(self, pick, keep):
        slot = self.opened(pick)
        held = self.slots.pop(slot)
        self.reserved[slot] = 0
        before = self.cache.stats()
        self.cache.release(slot, keep=keep)
        after = self.cache.stats()
        if keep and self.is_simple and self.kept_tokens == POOL == self.limit * self.page:
            assert self.best([*held, 0]) == len(held)
        if not keep:
            assert after.live_tokens + after.kept_tokens <= before.live_tokens + before.kept_tokens

    @rule()
    @precondition(lambda self: self.cache.stats().kept_prefixes > 2)
    def clear(self):
        self.cache.clear()
        stats = self.cache.stats()
        assert (stats.kept_prefixes, stats.kept_tokens, stats.pinned_tokens) == (0, 0, 0)

    @rule(pool=st.integers(20, POOL))
    @precondition(lambda self: self.is_simple and self.limit == -(-POOL // self.page))
    def shrink(self, pool):
        self.cache.limit(pool)
        self.limit = min(self.limit, pool // self.page)
        self.reserved = {
            slot: self.cache._prefix(slot).reserved if slot in self.slots else 0
            for slot in self.reserved
        }

    @invariant()
    def everything_agrees(self):
        counted["rules"] += 1
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity()
        for slot in range(SLOTS):
            assert self.cache.length(slot) == len(self.slots.get(slot, ()))
            if slot in self.slots:
                assert self.memory.holds(slot, self.slots[slot])
        stats = self.cache.stats()
        assert stats.kept_tokens <= self.kept_tokens
        assert bool(stats.kept_prefixes) >= bool(stats.kept_tokens)
        if self.is_simple:
            slot = next((slot for slot in range(SLOTS) if slot not in self.slots), None)
            free = self.limit - self.held_blocks(pins=bool(self.slots)) - self.growth()
            assert self.cache.free_tokens() == max(0, free) * self.page
            assert slot is None or self.free(slot) == free

    def teardown(self):
        if not hasattr(self, "cache"):
            return
        for slot in list(self.slots):
            self.cache.release(slot, keep=True)
        self.cache.clear()
        self.cache.check_integrity()
        assert all(self.cache._leaves.groups[group].used == 0 for group in range(len(self.windows)))
        stats = self.cache.stats()
        assert (stats.live_tokens, stats.kept_tokens, stats.kept_prefixes) == (0, 0, 0)
        assert not list(self.cache._tree)


QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


class TestRules(PagedCacheMachine.TestCase):
    """A few rules, in every run."""

    settings = settings(
        max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=QUIET
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_rules():
    """At least a hundred thousand, in machines of different lengths."""

    class Many(PagedCacheMachine.TestCase):
        settings = settings(
            max_examples=500, stateful_step_count=100, deadline=None, suppress_health_check=QUIET
        )

    counted["rules"] = 0
    while counted["rules"] < MOST_RULES:
        Many("runTest").runTest()
