"""Any calls of the memory manager of whole sequences in any order: slots hold what they should, no
better prefix could be found, pins stay until they expire, and the accounts agree with the cells.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fake_store import FakeStore
from hearth.backends.engine.kv.manager import KvLimits, KvManager

SLOTS, POOL, CONTEXT = 3, 40, 24
picks = st.integers(0, 100)
some_open = precondition(lambda self: self.slots)
some_empty = precondition(lambda self: not all(map(self.slots.get, range(SLOTS))))
tokens = st.lists(st.integers(0, 1), min_size=1, max_size=8)


class CacheMachine(RuleBasedStateMachine):
    """A cache, its store, and the expected contents of each slot."""

    @initialize(
        kind=st.sampled_from(["full", "recurrent", "sliding"]),
        kept=st.integers(0, 4),
        kept_tokens=st.sampled_from([0, 10, 40]),
        overwrites=st.booleans(),
    )
    def load(self, kind, kept, kept_tokens, overwrites):
        self.store = FakeStore(SLOTS + kept, POOL, kind=kind, window=4, overwrites=overwrites)
        self.now = 0
        self.cache = KvManager(
            self.store,
            KvLimits(SLOTS, pool_tokens=POOL, context=CONTEXT, kept_tokens=kept_tokens),
            clock=lambda: self.now,
        )
        self.most_pins = kept
        self.pins: dict[tuple[int, ...], tuple[int, int]] = {}
        """By pinned tokens: for how many seconds after a use, and until when."""
        self.pool = POOL
        self.kept_tokens = kept_tokens
        self.slots: dict[int, list[int]] = {}
        self.reserved = dict.fromkeys(range(SLOTS), 0)
        self.saved: list[tuple[object, list[int]]] = []
        self.said: list[list[int]] = []

    # ---- what is true of the store itself

    def live_cells(self):
        return self.store.cells_of(self.cache.handle(slot) for slot in self.slots)

    def growth(self):
        held = {slot: len(self.slots.get(slot, ())) for slot in range(SLOTS)}
        return sum(max(0, self.reserved[slot] - held[slot]) for slot in range(SLOTS))

    def pinned(self):
        """Ids of sequences that are pinned now."""
        self.cache.stats()
        return [prefix.sequence for prefix in self.cache._kept.pins]

    def free(self, slot=None):
        """Tokens that could be reserved, for `slot` or a new one."""
        live = [self.cache.handle(open_slot) for open_slot in self.slots]
        others = [open_slot for open_slot in self.slots if open_slot != slot]
        held = self.store.cells_of([*live, *self.pinned()] if others else live)
        return max(0, self.pool - held - self.growth())

    def note_lost_pins(self):
        """Pins may have been dropped for lack of room: record which are left."""
        left = {tuple(self.store.tokens(sequence)) for sequence in self.pinned()}
        assert left <= self.pins.keys()
        self.pins = {tokens: self.pins[tokens] for tokens in left}

    def best(self, prompt):
        """The longest part of `prompt` that can be continued, found by looking at all sequences."""
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
        free = self.free(slot)
        before, stats = self.contents(), self.cache.stats()
        alone = not self.slots.keys() - {slot}
        pinned = self.store.cells_of(
            [*self.pinned(), *(self.cache.handle(open_slot) for open_slot in self.slots)]
        )
        granted = self.cache.reserve(slot, count)
        assert granted == (count <= CONTEXT and more <= free)
        if granted:
            self.reserved[slot] = count
            self.slots.setdefault(slot, [])
            if alone and pinned + self.growth() > self.pool:
                self.note_lost_pins()
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
        for held, (seconds, until) in self.pins.items():
            if self.now < until and tuple(prompt[: len(held)]) == held:
                self.pins[held] = (seconds, self.now + seconds)
        self.slots[slot] = prompt[:expected]
        self.compute(slot, prompt[expected:])

    @rule(pick=picks, new=tokens, wrong=st.integers(0, 3))
    @some_open
    def grow(self, pick, new, wrong):
        self.compute(self.opened(pick), new, wrong)

    def compute(self, slot, new, wrong=0):
        """A step that adds `new`, and computes `wrong` more tokens that are not accepted."""
        held = self.slots[slot]
        count = len(held) + len(new)
        if count > self.reserved[slot] and not self.reserve(slot, count):
            return
        wrong = min(wrong, self.reserved[slot] - count)
        sequence = self.cache.handle(slot)
        self.cache.prepare({slot: len(new) + wrong})
        self.store.compute(sequence, [*new, *[9] * wrong])
        able = wrong == 0 or self.store.intact(sequence, count + wrong, count)
        assert self.cache.commit(slot, new, computed=len(new) + wrong) == able
        if not able:
            del self.slots[slot]
            self.reserved[slot] = 0
            return
        held += new
        self.said = [*self.said[-9:], list(held)]

    @rule(slot=st.integers(0, SLOTS - 1), count=st.integers(0, CONTEXT + 1))
    def reserve_some(self, slot, count):
        self.reserve(slot, count)

    @rule(pick=picks)
    @some_open
    def checkpoint(self, pick):
        before = self.cache.cells
        self.cache.checkpoint(self.opened(pick))
        assert self.cache.cells <= before

    @rule(seconds=st.integers(1, 6))
    def wait(self, seconds):
        self.now += seconds

    @rule(pick=picks, count=st.integers(1, CONTEXT), seconds=st.sampled_from([4, 4, 10]))
    @precondition(lambda self: any(self.slots.values()))
    def pin(self, pick, count, seconds):
        slots = [slot for slot in sorted(self.slots) if self.slots[slot]]
        slot = slots[pick % len(slots)]
        held = tuple(self.slots[slot][:count])
        self.drop_ended_pins()
        before, cells = dict(self.pins), self.store.cells
        granted = self.cache.pin(slot, len(held), seconds)
        assert self.store.cells <= cells, "a pin copies nothing"
        if held in before:
            assert granted
            seconds = max(seconds, before[held][0])
        if granted:
            self.pins[held] = (seconds, self.now + seconds)
            self.note_lost_pins()
            lost = [one for one in before if one not in self.pins]
            assert not lost or (len(lost) == 1 and len(before) == self.most_pins)
            assert all(held[: len(one)] == one and before[one][0] <= seconds for one in lost)
        able = self.store.keeps_past or len(held) == len(self.slots[slot])
        able = able and len(before) < self.most_pins
        able = able and len(self.slots) + len(before) < self.store.sequences
        most = min(self.kept_tokens, self.pool // 2) if cells <= self.pool else 0
        if able and sum(map(len, [held, *before])) <= most:
            assert granted

    def drop_ended_pins(self):
        self.pins = {held: pin for held, pin in self.pins.items() if self.now < pin[1]}

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
        fits = more <= self.free(slot)
        self.store.refuses_restore = refuses
        alone = not self.slots.keys() - {slot}
        restored = self.cache.restore(slot, state, known)
        if alone and fits:
            self.drop_ended_pins()
            self.note_lost_pins()
        assert restored == (fits and not refuses)
        if restored:
            self.slots[slot] = list(known)
            self.reserved[slot] = max(self.reserved[slot], len(known))

    @rule(pick=picks)
    @some_open
    def lose(self, pick):
        slot = self.opened(pick)
        self.store.cut(self.cache.handle(slot), 0)
        self.cache.release(slot, keep=False)
        del self.slots[slot]
        self.reserved[slot] = 0

    @rule()
    @precondition(lambda self: self.cache.stats().kept_prefixes > 3)
    def clear(self):
        self.cache.clear()
        self.pins.clear()
        assert self.cache.cells == self.live_cells()
        assert self.cache.stats().kept_prefixes == 0

    @rule(pool=st.integers(20, POOL))
    @precondition(lambda self: self.pool == POOL)
    def limit(self, pool):
        self.drop_ended_pins()
        self.cache.limit(pool)
        self.pool = pool
        self.note_lost_pins()
        if self.live_cells() + self.growth() > self.pool:
            self.reserved = {slot: len(self.slots.get(slot, ())) for slot in self.reserved}

    @invariant()
    def everything_agrees(self):
        self.cache.check_integrity()
        for slot in range(SLOTS):
            assert self.cache.length(slot) == len(self.slots.get(slot, ()))
            if slot in self.slots:
                assert self.store.tokens(self.cache.handle(slot)) == self.slots[slot]
        stats = self.cache.stats()
        assert self.cache.cells == self.store.cells == stats.live_tokens + stats.kept_tokens
        assert stats.live_tokens == self.live_cells()
        assert stats.kept_tokens <= self.kept_tokens
        assert self.cache.free_tokens() == self.free()
        self.drop_ended_pins()
        pinned = self.pinned()
        assert sorted(self.pins) == sorted(tuple(self.store.tokens(one)) for one in pinned)
        assert stats.pinned_tokens == self.store.cells_of(pinned)
        assert stats.pinned_tokens <= min(self.kept_tokens, self.pool // 2)
        for held in self.pins:
            assert self.cache.match([*held, 0]) >= len(held)

    def teardown(self):
        if not hasattr(self, "cache"):
            return
        for slot in list(self.slots):
            self.cache.release(slot, keep=True)
        self.cache.clear()
        self.cache.check_integrity()
        assert self.store.cells == self.cache.cells == 0


class TestRules(CacheMachine.TestCase):
    """Random orders of all rules."""

    settings = settings(
        max_examples=100,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
