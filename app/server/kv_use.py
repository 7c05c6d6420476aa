"""What the key-value memory of loaded models holds, and what the models make of their steps."""

from __future__ import annotations

from collections.abc import Iterable

from hearth.backends.contract import EngineStats, WorkerStats


def tokens_by_state(engine: EngineStats) -> dict[str, int]:
    """Tokens of memory: of "live" (running sequences), "kept" (prefixes, as long as nobody needs
    the room) and "pinned" (prefixes that must stay for a while), which share none; "shelved",
    of prefixes that are kept outside of it; "allocated", for which there is memory now, and "pool",
    for which there may be.
    """
    return {
        "live": engine.live_tokens,
        "kept": engine.kept_tokens - engine.pinned_tokens,
        "pinned": engine.pinned_tokens,
        "shelved": engine.shelved_tokens,
        "allocated": engine.allocated_tokens,
        "pool": engine.pool_tokens,
    }


def bytes_by_state(engine: EngineStats) -> dict[str, int]:
    """What these tokens take in layers that see everything; "allocated" and "pool" with all layers,
    those that see a window only too.
    """
    token = engine.kv_bytes_per_token
    return {
        **{state: count * token for state, count in tokens_by_state(engine).items()},
        "allocated": engine.allocated_bytes,
        "pool": engine.pool_bytes,
    }


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
    """Sequences that ran together in a step, on average, as a share of those that could, in [0,
    1]; None before the first step.
    """
    rows = room = 0
    for worker in workers:
        if worker.engine is not None and worker.info is not None:
            rows += worker.engine.rows
            room += worker.engine.steps * worker.info.max_sessions
    return rows / room if room else None
