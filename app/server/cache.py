"""`GET /v1/cache/stats` and `DELETE /v1/cache`: the KV cache of loaded models, and its use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hearth.app.server.body import query
from hearth.app.server.services import services_of, worker_of
from hearth.backends.contract.loaded import EngineStats, WorkerStats
from hearth.backends.contract.models import ModelSpec
from hearth.backends.errors import Busy, ModelNotFound

_MB: Final = 1_000_000
_TIERS: Final = ("live", "kept", "pinned", "offloaded", "disk")
_CLEAR_TIMEOUT_S: Final = 30.0
"""The engine clears its cache between two steps, and a step may be long."""


async def get_cache_stats(http: Request) -> Response:
    """The contents of the KV cache of every loaded model, or of the one that `?model=` names.

    Entries and total size are those of cached prefixes in memory; the tokens of running requests
    are in the tier "live". Models whose engine does not respond at once are left out.

    Raises:
        ModelNotFound: there is no model of that name.
        InvalidParameter: a query parameter is given twice.
        HostUnreachable: the host does not respond.
    """
    engines = [
        (worker.name, worker.engine) for worker in await _loaded(http) if worker.engine is not None
    ]
    return JSONResponse(
        {
            **_counted([engine for _, engine in engines]),
            "models": [{"model": name, **_counted([engine])} for name, engine in engines],
        }
    )


async def clear_cache(http: Request) -> Response:
    """Drop the cached prefixes of every loaded model, or of the one that `?model=` names.

    Prefixes on disk are dropped too. The response reports how much was freed. No model is loaded,
    and running requests keep their cache.

    Raises:
        ModelNotFound: there is no model of that name.
        InvalidParameter: a query parameter is given twice.
        HostUnreachable: the host does not respond.
        Busy: an engine did not clear its cache in time.
    """
    host = await services_of(http).hosts.host()
    cleared = []
    for worker in await _loaded(http):
        try:
            async with asyncio.timeout(_CLEAR_TIMEOUT_S):
                left = await host.clear_cache(ModelSpec(worker.path, worker.name), load=False)
        except ModelNotFound:
            continue  # It was unloaded meanwhile, together with its cache.
        except TimeoutError as error:
            raise Busy(
                f"{worker.name} did not clear its cache within {_CLEAR_TIMEOUT_S:.0f} s.",
                "Try again later.",
                retry_after_s=_CLEAR_TIMEOUT_S,
            ) from error
        cleared.append(_freed(worker.name, worker.engine or left, left))
    return JSONResponse(
        {
            "freed_entries": sum(model["freed_entries"] for model in cleared),
            "freed_size_mb": sum(model["freed_size_mb"] for model in cleared),
            "freed_disk_mb": sum(model["freed_disk_mb"] for model in cleared),
            "models": cleared,
        }
    )


async def _loaded(http: Request) -> Sequence[WorkerStats]:
    """The loaded models, or only the one that the URL names."""
    services = services_of(http)
    given = query(http, "model")
    model = (await services.catalog.find(given["model"])).found if "model" in given else None
    stats = await services.host_stats()
    workers = stats.workers if model is None else (await worker_of(stats, model),)
    return [worker for worker in workers if worker is not None and worker.info is not None]


def _counted(engines: Sequence[EngineStats]) -> dict[str, Any]:
    return {
        "total_entries": sum(map(_entries, engines)),
        "total_size_mb": sum(_size_mb(engine, _kept_tokens(engine)) for engine in engines),
        "hit_rate": hit_rate(engines),
        "tiers": {tier: _tier(tier, engines) for tier in _TIERS},
        "disk_read_tokens": sum(engine.disk_read_tokens for engine in engines),
        "disk_written_mb": sum(engine.disk_written_bytes for engine in engines) / _MB,
        "speculation": _speculation(engines),
    }


def _speculation(engines: Sequence[EngineStats]) -> dict[str, Any]:
    """Counts of drafted and accepted tokens, by position in a draft and by drafter."""
    drafted = summed([engine.drafted_tokens for engine in engines])
    accepted = summed([engine.accepted_tokens for engine in engines])
    generated = sum(engine.generated_tokens for engine in engines)
    by: dict[str, dict[str, int]] = {}
    for engine in engines:
        for name, counts in engine.drafts_by.items():
            sums = by.setdefault(name, {"drafted": 0, "accepted": 0})
            sums["drafted"] += counts[0]
            sums["accepted"] += counts[1]
    return {
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "acceptance": [right / made for right, made in zip(accepted, drafted, strict=True)],
        "tokens_per_step": generated / (generated - sum(accepted)) if generated else None,
        "drafters": by,
        "declined_drafts": sum(engine.declined_drafts for engine in engines),
    }


def summed(counts: Sequence[Sequence[int]]) -> list[int]:
    """The sums at each position; shorter sequences count as 0 at the last positions."""
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]


def _tier(tier: str, engines: Sequence[EngineStats]) -> dict[str, Any]:
    return {
        "tokens": sum(tokens_by_state(engine)[tier] for engine in engines),
        "size_mb": sum(bytes_by_state(engine)[tier] for engine in engines) / _MB,
    }


def _entries(engine: EngineStats) -> int:
    return engine.kept_prefixes + engine.offloaded_prefixes


def _kept_tokens(engine: EngineStats) -> int:
    """Tokens of cached prefixes, offloaded ones included."""
    return engine.kept_tokens + engine.offloaded_tokens


def _size_mb(engine: EngineStats, tokens: int) -> float:
    return tokens * engine.kv_bytes_per_token / _MB


def _freed(name: str, before: EngineStats, after: EngineStats) -> dict[str, Any]:
    """The difference between `before` and `after`.

    It is never negative, although requests that end meanwhile add new prefixes.
    """
    tokens = max(0, _kept_tokens(before) - _kept_tokens(after))
    return {
        "model": name,
        "freed_entries": max(0, _entries(before) - _entries(after)),
        "freed_tokens": tokens,
        "freed_size_mb": _size_mb(after, tokens),
        "freed_disk_mb": max(0, before.disk_bytes - after.disk_bytes) / _MB,
    }


def tokens_by_state(engine: EngineStats) -> dict[str, int]:
    """Tokens in the KV cache, by state.

    "live" (running sequences), "kept" (cached prefixes that can be evicted) and "pinned" (cached
    prefixes that cannot be evicted yet) do not overlap. The others are "offloaded" (prefixes in the
    host KV tier), "disk" (prefixes on disk), "allocated" (present capacity) and "pool" (maximum
    capacity).
    """
    return {
        "live": engine.live_tokens,
        "kept": engine.kept_tokens - engine.pinned_tokens,
        "pinned": engine.pinned_tokens,
        "offloaded": engine.offloaded_tokens,
        "disk": engine.disk_tokens,
        "allocated": engine.allocated_tokens,
        "pool": engine.pool_tokens,
    }


def bytes_by_state(engine: EngineStats) -> dict[str, int]:
    """The bytes of the tokens in `tokens_by_state`, in layers with full attention.

    "allocated" and "pool" include layers with sliding-window attention.
    """
    token = engine.kv_bytes_per_token
    return {
        **{state: count * token for state, count in tokens_by_state(engine).items()},
        "disk": engine.disk_bytes,
        "allocated": engine.allocated_bytes,
        "pool": engine.pool_bytes,
    }


def hit_rate(engines: Iterable[EngineStats]) -> float | None:
    """The share of prompt tokens found in the cache since the models were loaded, in [0, 1].

    None before the first prompt.
    """
    cached = total = 0
    for engine in engines:
        cached += engine.cached_tokens
        # Generated tokens are computed too, but belong to no prompt.
        total += engine.cached_tokens + max(0, engine.computed_tokens - engine.generated_tokens)
    return cached / total if total else None
