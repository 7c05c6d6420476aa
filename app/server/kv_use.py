"""What the key-value memory of a loaded model holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hearth.backends.contract import EngineStats, WorkerStats


@dataclass(frozen=True, slots=True)
class KvUse:
    """Tokens and their bytes. `live`, `kept` and `pinned` share no token."""

    live_tokens: int = 0
    """Held by running sequences."""
    kept_tokens: int = 0
    """Held as prefixes to be found again, as long as nobody needs the room."""
    pinned_tokens: int = 0
    """Held as prefixes that must stay for a while."""
    allocated_tokens: int = 0
    """There is memory for so many now,"""
    pool_tokens: int = 0
    """and for so many at most."""
    live_bytes: int = 0
    kept_bytes: int = 0
    pinned_bytes: int = 0
    allocated_bytes: int = 0
    pool_bytes: int = 0

    @property
    def cached_bytes(self) -> int:
        """Held as prefixes."""
        return self.kept_bytes + self.pinned_bytes


STATES = ("live", "kept", "pinned", "allocated", "pool")


def kv_use(engine: EngineStats) -> KvUse:
    """Of one model."""
    each = engine.kv_bytes_per_token
    free_to_go = engine.kept_tokens - engine.pinned_tokens
    return KvUse(
        *(engine.live_tokens, free_to_go, engine.pinned_tokens),
        *(engine.allocated_tokens, engine.pool_tokens),
        *(each * engine.live_tokens, each * free_to_go, each * engine.pinned_tokens),
        *(each * engine.allocated_tokens, each * engine.pool_tokens),
    )


def hit_rate(engines: Iterable[EngineStats]) -> float | None:
    """Of the tokens of all prompts since the models were loaded, the share that was found and not
    computed, in [0, 1]; None before the first one.
    """
    found = wanted = 0
    for engine in engines:
        found += engine.cached_tokens
        # What is generated goes through the model as well, and is no part of a prompt.
        wanted += engine.cached_tokens + max(0, engine.computed_tokens - engine.generated_tokens)
    return found / wanted if wanted else None


def batch_utilization(workers: Iterable[WorkerStats]) -> float | None:
    """Sequences that ran together in a step, on average, as a share of those that could; None
    before the first step.
    """
    rows = room = 0
    for worker in workers:
        if worker.engine is not None and worker.info is not None:
            rows += worker.engine.rows
            room += worker.engine.steps * worker.info.max_sessions
    return rows / room if room else None
