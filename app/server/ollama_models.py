"""`/api/tags`, `/api/show`, `/api/ps` and `/api/version`: what there is, as Ollama says it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.library.local import FoundModel, LocalModel
from hearth.app.server.body import read_object
from hearth.app.server.loaded import host_stats, host_stats_if_any, worker_of, workers_of
from hearth.app.server.models import can_be_named
from hearth.app.server.services import services_of
from hearth.app.server.tables.ollama import SHOW
from hearth.backends.contract import WorkerStats
from hearth.backends.version import hearth_version
from hearth.quant.gguf.file import ENCODERS

Json = dict[str, Any]
_FOR_EVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
_WORDS: Final = {"chat": "completion", "tools": "tools", "thinking": "thinking"}
_WORDS_TOO: Final = {"infill": "insert", "embed": "embedding"}


async def tags(http: HttpRequest) -> Response:
    """Every model."""
    services = services_of(http)
    found = [model for model in await services.catalog.models() if can_be_named(model)]
    facts = await services.facts.of_all(found)
    return await asyncio.to_thread(
        lambda: JSONResponse(
            {"models": [_model(model, known) for model, known in zip(found, facts, strict=True)]}
        )
    )


async def show(http: HttpRequest) -> Response:
    """One model. Nothing is loaded for it; what it can do is known once it is."""
    services = services_of(http)
    name = (await read_object(http, SHOW.read))["model"]
    found = (await services.catalog.find(name.removesuffix(":latest"))).found
    facts = await services.facts.of(found)
    stats = await host_stats_if_any(services.hosts)
    worker = await worker_of(stats, found) if stats is not None else None
    can = worker.info.capabilities if worker is not None and worker.info is not None else ()
    words = _WORDS | _WORDS_TOO
    unloaded = "embedding" if facts.architecture in ENCODERS else "completion"
    info: Json = {"general.architecture": facts.architecture}
    if facts.parameters:
        info["general.parameter_count"] = facts.parameters
    if facts.context:
        info[f"{facts.architecture}.context_length"] = facts.context
    return JSONResponse(
        {
            "details": await asyncio.to_thread(_details, facts),
            "model_info": info,
            "capabilities": [words[one] for one in can if one in words] or [unloaded],
            "modified_at": await asyncio.to_thread(_modified, found),
        }
    )


async def ps(http: HttpRequest) -> Response:
    """What is loaded."""
    services = services_of(http)
    stats = await host_stats(services.hosts)
    models = [model for model in await services.catalog.models() if can_be_named(model)]
    workers = await asyncio.to_thread(workers_of, stats, models)
    loaded = []
    for model, worker in zip(models, workers, strict=True):
        if worker is not None and worker.info is not None:
            facts = await services.facts.of(model)
            loaded.append(await asyncio.to_thread(_model, model, facts) | _running(worker))
    return JSONResponse({"models": loaded})


async def version(http: HttpRequest) -> Response:
    """Hearth's version."""
    return JSONResponse({"version": hearth_version()})


def _model(model: FoundModel, facts: LocalModel) -> Json:
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": _modified(model),
        "size": facts.size_bytes,
        "details": _details(facts),
    }


def _details(facts: LocalModel) -> Json:
    return {
        "format": "safetensors" if facts.path.is_dir() else "gguf",
        "family": facts.architecture,
        "families": [facts.architecture] if facts.architecture else [],
        "parameter_size": _size(facts.parameters),
        "quantization_level": facts.file_type,
    }


def _size(parameters: int) -> str:
    """Such as "7.1M"; empty where it is not known."""
    for unit, divisor in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if parameters >= divisor:
            return f"{parameters / divisor:.1f}{unit}"
    return str(parameters or "")


def _modified(model: FoundModel) -> str | None:
    try:
        return datetime.fromtimestamp(model.path.stat().st_mtime, UTC).isoformat()
    except OSError:
        return None  # Gone since it was listed, or on another machine.


def _running(worker: WorkerStats) -> Json:
    expires = _FOR_EVER
    if worker.keep_alive_s is not None and worker.keep_alive_s >= 0:
        left_s = max(0.0, worker.keep_alive_s - worker.idle_s)
        expires = min(_FOR_EVER, datetime.now(UTC) + timedelta(seconds=min(left_s, 1e9)))
    assert worker.info is not None
    found: Json = {"expires_at": expires.isoformat(), "context_length": worker.info.context}
    # How much of a model with layers on a GPU lies there is not known; none is.
    return found if worker.info.gpu_layers else {**found, "size_vram": 0}
