"""A runner with its KV cache, driven by hand: each step is recorded in full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hearth.backends.engine.cached_runner import CachedRunner
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.kv.manager import KvManager
from hearth.backends.engine.runner import Row, Runner, StepPlan, StepResult


class Driven:
    """`runner` with its limits and abilities, and its `cache`."""

    def __init__(self, runner: Runner, clock: Callable[[], float] | None = None) -> None:
        self.runner = runner
        self._cached = CachedRunner(runner) if clock is None else CachedRunner(runner, clock)

    def engine(self, **how: Any) -> Engine:
        """An engine over the runner; `cache` becomes the engine's cache, and begins empty."""
        self.cache.clear()
        engine = Engine(self.runner, **how)
        self._cached = engine._cached
        return engine

    @property
    def cache(self) -> KvManager:
        return self._cached.kv

    def row(self, slot: int, tokens: Sequence[int], outputs: int = 0, **how: Any) -> Row:
        """The row of `tokens` at the end of `slot`; reserves memory for them."""
        held = self.cache.length(slot)
        assert self.cache.reserve(slot, held + len(tokens))
        return Row(slot, held, tokens, outputs, **how)

    def step(self, plan: StepPlan) -> StepResult:
        return self._cached.advance(plan)

    def accept(self, row: Row, accepted: int) -> bool:
        """Compute `row`, of which only the first `accepted` tokens are accepted. Returns whether
        its slot still holds its contents.
        """
        self._cached.step(StepPlan((row,)))
        return self.cache.commit(row.slot, row.tokens[:accepted], computed=len(row.tokens))

    def beside(self, tokens: list[int], done: Callable[[], None] = lambda: None) -> Any:
        """Begin to compute `tokens` as a background prefill, if there is room for it."""
        background = self.runner.background
        if background is None or not background.room_for(len(tokens), 0):
            return None
        while not self.cache.has_memory(len(tokens)):
            if not self.runner.store.is_growing:
                return None
        return background.begin(tokens, None, 0, done)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)
