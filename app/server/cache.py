"""`GET /v1/cache/stats` and `DELETE /v1/cache`: the prefixes that loaded models keep."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hearth.app.server.kv_use import hit_rate, tokens_by_state
from hearth.app.server.loaded import host_stats, worker_of
from hearth.app.server.query import query
from hearth.app.server.services import services_of
from hearth.backends.contract import EngineStats, ModelSpec, WorkerStats
from hearth.backends.errors import Busy, ModelNotFound

_MB: Final = 1_000_000
_TIERS: Final = ("live", "kept", "pinned", "shelved")
_PATIENCE_S: Final = 30.0
"""A step of the engine may be a long one, and comes first."""


async def get_cache_stats(http: Request) -> Response:
    """What the key-value memory of every loaded model holds, or of the one that `?model=` names.

    Entries are kept prefixes, and the total size is theirs; what running requests hold ("live") is
    told beside. Models whose engine does not answer at once are left out.

    Raises:
        ModelNotFound: no model is called so.
        InvalidParameter: the URL has another parameter.
        HostUnreachable: nobody knows what is loaded.
    """
    asked = [
        (worker.name, worker.engine) for worker in await _loaded(http) if worker.engine is not None
    ]
    return JSONResponse(
        {
            **_counted([engine for _, engine in asked]),
            "models": [{"model": name, **_counted([engine])} for name, engine in asked],
        }
    )


async def clear_cache(http: Request) -> Response:
    """Forget the kept prefixes of every loaded model, or of the one that `?model=` names, and say
    what that freed. Nothing is loaded for it, and what running requests hold stays.

    Raises:
        ModelNotFound: no model is called so.
        InvalidParameter: the URL has another parameter.
        HostUnreachable: nobody knows what is loaded.
        Busy: an engine did not come to it.
    """
    host = await services_of(http).hosts.host()
    cleared = []
    for worker in await _loaded(http):
        try:
            async with asyncio.timeout(_PATIENCE_S):
                left = await host.clear_cache(ModelSpec(worker.path, worker.name), load=False)
        except ModelNotFound:
            continue  # It was unloaded meanwhile, with all that it kept.
        except TimeoutError as error:
            raise Busy(
                f"{worker.name} has not cleared its cache for {_PATIENCE_S:.0f} s.",
                "Try again later.",
                retry_after_s=_PATIENCE_S,
            ) from error
        cleared.append(_freed(worker.name, worker.engine or left, left))
    return JSONResponse(
        {
            "freed_entries": sum(model["freed_entries"] for model in cleared),
            "freed_size_mb": sum(model["freed_size_mb"] for model in cleared),
            "models": cleared,
        }
    )


async def _loaded(http: Request) -> Sequence[WorkerStats]:
    """The loaded models; only the one that the URL names, if it names one."""
    services = services_of(http)
    asked = query(http, "model")
    found = (await services.catalog.find(asked["model"])).found if "model" in asked else None
    stats = await host_stats(services.hosts)
    workers = stats.workers if found is None else (await worker_of(stats, found),)
    return [worker for worker in workers if worker is not None and worker.info is not None]


def _counted(engines: Sequence[EngineStats]) -> dict[str, Any]:
    return {
        "total_entries": sum(map(_entries, engines)),
        "total_size_mb": sum(_size_mb(engine, _kept_tokens(engine)) for engine in engines),
        "hit_rate": hit_rate(engines),
        "tiers": {tier: _tier(tier, engines) for tier in _TIERS},
    }


def _tier(tier: str, engines: Sequence[EngineStats]) -> dict[str, Any]:
    held = [(engine, tokens_by_state(engine)[tier]) for engine in engines]
    return {
        "tokens": sum(tokens for _, tokens in held),
        "size_mb": sum(_size_mb(engine, tokens) for engine, tokens in held),
    }


def _entries(engine: EngineStats) -> int:
    return engine.kept_prefixes + engine.shelved_prefixes


def _kept_tokens(engine: EngineStats) -> int:
    """In the key-value memory and outside of it."""
    return engine.kept_tokens + engine.shelved_tokens


def _size_mb(engine: EngineStats, tokens: int) -> float:
    return tokens * engine.kv_bytes_per_token / _MB


def _freed(name: str, before: EngineStats, after: EngineStats) -> dict[str, Any]:
    """What was kept `before` and is not `after`; who ends meanwhile leaves something new."""
    tokens = max(0, _kept_tokens(before) - _kept_tokens(after))
    return {
        "model": name,
        "freed_entries": max(0, _entries(before) - _entries(after)),
        "freed_tokens": tokens,
        "freed_size_mb": _size_mb(after, tokens),
    }
