"""Whatever is done to the memory manager of whole sequences, in any order: slots hold what they
should, nothing better was to be found, and the accounts agree with the cells.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fake_store import FakeStore
from hearth.backends.engine.sequence_cache import SequenceCache

SLOTS, POOL, CONTEXT = 3, 40, 24
picks = st.integers(0, 100)
some_open = precondition(lambda self: self.slots)
some_empty = precondition(lambda self: not all(map(self.slots.get, range(SLOTS))))
tokens = st.lists(st.integers(0, 1), min_size=1, max_size=8)


class CacheMachine(RuleBasedStateMachine):
    """A cache, its store, and what each slot should hold."""

    @initialize(
        kind=st.sampled_from(["full", "recurrent", "sliding"]),
        kept=st.integers(0, 4),
        kept_tokens=st.sampled_from([0, 10, 40]),
        overwrites=st.booleans(),
    )
    def load(self, kind, kept, kept_tokens, overwrites):
        self.store = FakeStore(SLOTS + kept, POOL, kind=kind, window=4, overwrites=overwrites)
        self.cache = SequenceCache(
            self.store, slots=SLOTS, pool_tokens=POOL, context=CONTEXT, kept_tokens=kept_tokens
        )
        self.pool = POOL
        self.kept_tokens = kept_tokens
        self.slots: dict[int, list[int]] = {}
        self.reserved = dict.fromkeys(range(SLOTS), 0)
        self.saved: list[tuple[object, list[int]]] = []
        self.said: list[list[int]] = []

    # ---- what is true of the store itself

    def live_cells(self):
        return self.store.cells_of(self.cache.sequence(slot) for slot in self.slots)

    def growth(self):
        held = {slot: len(self.slots.get(slot, ())) for slot in range(SLOTS)}
        return sum(max(0, self.reserved[slot] - held[slot]) for slot in range(SLOTS))

    def best(self, prompt):
        """The most of `prompt` that can be gone on from, found by looking at all there is."""
        found = 0
        for sequence in range(self.store.sequences):
            held = self.store.tokens(sequence)
            pairs = zip(held, prompt[:-1], strict=False)
            same = [a == b for a, b in pairs] + [False]
            common = same.index(False)
            if common > found and self.store.intact(sequence, len(held), common):
                found = common
        return found

    def contents(self):
        return [self.store.tokens(sequence) for sequence in range(self.store.sequences)]

    def reserve(self, slot, count):
        held = len(self.slots.get(slot, ()))
        more = max(count, held) - max(self.reserved[slot], held)
        free = max(0, self.pool - self.live_cells() - self.growth())
        before, stats = self.contents(), self.cache.stats()
        granted = self.cache.reserve(slot, count)
        assert granted == (count <= CONTEXT and more <= free)
        if granted:
            self.reserved[slot] = count
            self.slots.setdefault(slot, [])
        else:
            assert (self.contents(), self.cache.stats()) == (before, stats)
        return granted

    def empty(self, pick):
        slots = [slot for slot in range(SLOTS) if not self.slots.get(slot)]
        return slots[pick % len(slots)]

    def opened(self, pick):
        return sorted(self.slots)[pick % len(self.slots)]

    # ---- rules

    @rule(pick=picks, prompt=tokens, known=picks, cut=st.integers(0, 16))
    @some_empty
    def open(self, pick, prompt, known, cut):
        slot = self.empty(pick)
        if self.said:
            prompt = [*self.said[known % len(self.said)][:cut], *prompt]
        expected = self.best(prompt)
        assert self.cache.match(prompt) == expected
        assert self.cache.open(slot, prompt) == expected
        self.slots[slot] = prompt[:expected]
        self.compute(slot, prompt[expected:])

    @rule(pick=picks, new=tokens)
    @some_open
    def grow(self, pick, new):
        self.compute(self.opened(pick), new)

    def compute(self, slot, new):
        held = self.slots[slot]
        count = len(held) + len(new)
        if count > self.reserved[slot] and not self.reserve(slot, count):
            return
        self.store.compute(self.cache.sequence(slot), new)
        self.cache.computed(slot, new)
        held += new
        self.said = [*self.said[-9:], list(held)]

    @rule(slot=st.integers(0, SLOTS - 1), count=st.integers(0, CONTEXT + 1))
    def reserve_some(self, slot, count):
        self.reserve(slot, count)

    @rule(pick=picks, count=st.integers(0, 12))
    @some_open
    def trim(self, pick, count):
        slot = self.opened(pick)
        held = self.slots[slot]
        able = count == 0 or count >= len(held)
        able = able or self.store.intact(self.cache.sequence(slot), len(held), count)
        assert self.cache.trim(slot, count) == able
        if able and count < len(held):
            del held[count:]
            excess = self.live_cells() + self.growth() - self.pool
            if excess > 0:
                self.reserved[slot] = max(count, self.reserved[slot] - excess)

    @rule(pick=picks)
    @some_open
    def checkpoint(self, pick):
        before = self.cache.cells
        self.cache.checkpoint(self.opened(pick))
        assert self.cache.cells <= before

    @rule(pick=picks, keep=st.sampled_from([True, True, False]))
    @some_open
    def release(self, pick, keep):
        slot = self.opened(pick)
        held = self.slots.pop(slot)
        self.reserved[slot] = 0
        self.cache.release(slot, keep=keep)
        has_room = self.kept_tokens >= POOL and self.pool - self.live_cells() >= len(held)
        if keep and has_room:
            assert self.cache.match([*held, 0]) == len(held)

    @rule(pick=picks)
    @some_open
    def save(self, pick):
        slot = self.opened(pick)
        state = self.cache.save(slot)
        assert (state is None) == (not self.slots[slot])
        if state is not None:
            self.saved = [*self.saved[-2:], (state, list(self.slots[slot]))]

    @rule(pick=picks, which=picks, refuses=st.sampled_from([False, False, True]))
    @precondition(lambda self: self.saved)
    @some_empty
    def restore(self, pick, which, refuses):
        slot = self.empty(pick)
        state, known = self.saved[which % len(self.saved)]
        more = max(0, len(known) - self.reserved[slot])
        fits = more <= max(0, self.pool - self.live_cells() - self.growth())
        self.store.refuses_restore = refuses
        restored = self.cache.restore(slot, state, known)
        assert restored == (fits and not refuses)
        if restored:
            self.slots[slot] = list(known)
            self.reserved[slot] = max(self.reserved[slot], len(known))

    @rule(pick=picks)
    @some_open
    def lose(self, pick):
        slot = self.opened(pick)
        self.store.cut(self.cache.sequence(slot), 0)
        self.cache.lost(slot)
        del self.slots[slot]
        self.reserved[slot] = 0

    @rule()
    @precondition(lambda self: self.cache.stats().kept_prefixes > 3)
    def clear(self):
        self.cache.clear()
        assert self.cache.cells == self.live_cells()
        assert self.cache.stats().kept_prefixes == 0

    @rule(pool=st.integers(20, POOL))
    @precondition(lambda self: self.pool == POOL)
    def limit(self, pool):
        self.cache.limit(pool)
        self.pool = pool
        if self.live_cells() + self.growth() > self.pool:
            self.reserved = {slot: len(self.slots.get(slot, ())) for slot in self.reserved}

    @invariant()
    def everything_agrees(self):
        self.cache.check_integrity()
        for slot in range(SLOTS):
            assert self.cache.length(slot) == len(self.slots.get(slot, ()))
            if slot in self.slots:
                assert self.store.tokens(self.cache.sequence(slot)) == self.slots[slot]
        stats = self.cache.stats()
        assert self.cache.cells == self.store.cells == stats.live_tokens + stats.kept_tokens
        assert stats.live_tokens == self.live_cells()
        assert stats.kept_tokens <= self.kept_tokens
        free = max(0, self.pool - self.live_cells() - self.growth())
        assert self.cache.free_tokens() == free

    def teardown(self):
        if not hasattr(self, "cache"):
            return
        for slot in list(self.slots):
            self.cache.release(slot, keep=True)
        self.cache.clear()
        self.cache.check_integrity()
        assert self.store.cells == self.cache.cells == 0


class TestRules(CacheMachine.TestCase):
    """Random orders of all of it."""

    settings = settings(
        max_examples=100,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
