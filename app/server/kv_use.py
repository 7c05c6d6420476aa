"""Use of the KV cache of loaded models, and how full their batches are."""

from __future__ import annotations

from collections.abc import Iterable

from hearth.backends.contract import EngineStats, WorkerStats


def tokens_by_state(engine: EngineStats) -> dict[str, int]:
    """Tokens in the KV cache: "live" (of running sequences), "kept" (cached prefixes that can be
    evicted), "pinned" (cached prefixes that cannot be evicted yet), which do not overlap; "shelved"
    (prefixes offloaded to the host KV tier); "allocated" (capacity now) and "pool" (capacity at
    most).
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
    """The bytes of these tokens in layers with full attention; "allocated" and "pool" include
    layers with sliding-window attention.
    """
    token = engine.kv_bytes_per_token
    return {
        **{state: count * token for state, count in tokens_by_state(engine).items()},
        "allocated": engine.allocated_bytes,
        "pool": engine.pool_bytes,
    }


def hit_rate(engines: Iterable[EngineStats]) -> float | None:
    """The share of prompt tokens since the models were loaded that was in the cache, in [0, 1];
    None before the first prompt.
    """
    cached = total = 0
    for engine in engines:
        cached += engine.cached_tokens
        # Generated tokens are computed too, but belong to no prompt.
        total += engine.cached_tokens + max(0, engine.computed_tokens - engine.generated_tokens)
    return cached / total if total else None


def batch_utilization(workers: Iterable[WorkerStats]) -> float | None:
    """The mean number of sequences in a step as a share of the maximum, in [0, 1]; None before the
    first step.
    """
    rows = capacity = 0
    for worker in workers:
        if worker.engine is not None and worker.info is not None:
            rows += worker.engine.rows
            capacity += worker.engine.steps * worker.info.max_sessions
    return rows / capacity if capacity else None
