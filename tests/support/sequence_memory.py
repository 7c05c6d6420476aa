"""The memory manager of whole sequences over a store without a model."""

from __future__ import annotations

from fake_store import FakeStore
from hearth.backends.engine.kv.manager import KvLimits, KvManager


class Memory:
    """A cache and its store, with the calls that a runner and a scheduler make on them."""

    def __init__(
        self,
        *,
        slots=2,
        kept=4,
        pool=200,
        context=200,
        kept_tokens=100,
        kept_while_running=None,
        part_tokens=16,
        available_bytes=None,
        disk=None,
        **store,
    ):
        self.now = 0.0
        """Seconds, for pins and copies."""
        self.copied = []
        """Tokens of each part that was copied."""
        self.part_s = 0.0
        """Seconds that each part takes."""
        self.store = FakeStore(
            slots + kept,
            pool,
            on_copy=self._note_copy,
            available_bytes=available_bytes,
            **store,
        )
        self.cache = KvManager(
            self.store,
            KvLimits(
                slots=slots,
                pool_tokens=pool,
                context=context,
                kept_tokens=kept_tokens,
                kept_while_running=kept_while_running,
                part_tokens=part_tokens,
            ),
            clock=lambda: self.now,
            disk=disk,
        )

    def run(self, slot, tokens):
        """Open `slot` with `tokens` and compute what was not found; returns how many were."""
        expected = self.cache.match(tokens)
        found = self.cache.open(slot, tokens)
        assert found + self.cache.arriving(slot) == expected
        assert self.cache.reserve(slot, len(tokens))
        found += self.tend().get(slot, 0)
        while self.cache.arriving(slot):
            found += self.tend()[slot]
        self.compute(slot, tokens[found:])
        return found

    def tend(self):
        """The scheduler's calls before each step."""
        arrived = self.cache.tend()
        self.check()
        return arrived

    def _note_copy(self, tokens):
        self.copied.append(tokens)
        self.now += self.part_s

    def compute(self, slot, tokens):
        self.cache.prepare({slot: len(tokens)})
        self.store.compute(self.cache.handle(slot), tokens)
        assert self.cache.commit(slot, tokens)
        self.check()

    def keep(self, tokens, slot=0):
        """Compute `tokens` and release them."""
        self.run(slot, tokens)
        self.cache.release(slot, keep=True)
        self.tend()

    def held(self, slot):
        return self.store.tokens(self.cache.handle(slot))

    def check(self):
        self.cache.check_integrity()
        assert self.store.cells == self.cache.cells

    @property
    def stats(self):
        self.check()
        return self.cache.stats()
