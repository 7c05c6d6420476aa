"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hearth.app.library.local import FoundModel, LocalModel
from hearth.app.server.loaded import host_stats_if_any, workers_of
from hearth.app.server.services import Services, services_of
from hearth.backends.contract import HostStats, WorkerStats


async def list_models(http: Request) -> Response:
    """Every model that requests can name, with the fields of OpenAI's, Anthropic's and vLLM's
    lists; further properties are under "hearth".
    """
    models = await describe_models(services_of(http))
    ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]}
    body = {"object": "list", "data": models, "has_more": False, **ends}
    return await asyncio.to_thread(JSONResponse, body)


async def describe_models(services: Services) -> list[dict[str, Any]]:
    """The entries of `GET /v1/models`."""
    models = [model for model in await services.catalog.models() if can_be_named(model)]
    facts = await services.facts.of_all(models)
    stats = await host_stats_if_any(services.hosts)
    return await asyncio.to_thread(_models, models, facts, stats)


async def retrieve_model(http: Request) -> Response:
    """One model. Raises `ModelNotFound`."""
    services = services_of(http)
    model = (await services.catalog.find(http.path_params["name"])).found
    facts = await services.facts.of(model)
    stats = await host_stats_if_any(services.hosts)
    [entry] = await asyncio.to_thread(_models, [model], [facts], stats)
    return JSONResponse(entry)


def can_be_named(model: FoundModel) -> bool:
    """Whether requests can name `model`: a file name that is not valid Unicode has no JSON form."""
    try:
        model.name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _models(
    models: Sequence[FoundModel], facts: Sequence[LocalModel], stats: HostStats | None
) -> list[dict[str, Any]]:
    """The entries of `models`; reads the disk for each."""
    workers = workers_of(stats, models) if stats is not None else [None] * len(models)
    return [
        _model(model, _known(known, stats, worker))
        for model, known, worker in zip(models, facts, workers, strict=True)
    ]


def _model(model: FoundModel, known: dict[str, Any]) -> dict[str, Any]:
    try:
        created = int(model.path.stat().st_mtime)
    except OSError:  # Removed since it was listed; a request for it gets an error.
        created = 0
    context = known["context"] or known["trained_context"]
    return {
        "id": model.name,
        "object": "model",
        "created": created,
        "owned_by": model.origin,
        "type": "model",
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
        "max_model_len": context,
        "hearth": known,
    }


def _known(
    facts: LocalModel, stats: HostStats | None, worker: WorkerStats | None
) -> dict[str, Any]:
    """Properties of the file and, if the model is loaded, of its backend; null: not known now."""
    info = worker.info if worker is not None else None
    return {
        "loaded": None if stats is None else info is not None,
        "size_bytes": facts.size_bytes or None,
        "architecture": facts.architecture or None,
        "quantization": facts.file_type or None,
        "parameters": facts.parameters or None,
        "trained_context": facts.context or None,
        "context": info.context if info is not None else None,
        "capabilities": list(info.capabilities) if info is not None else None,
        "error": facts.error or None,
    }
