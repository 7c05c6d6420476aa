"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hearth.app.library.local import FoundModel, LocalModel
from hearth.app.server.loaded import host_stats_if_any, worker_of
from hearth.app.server.services import Services, services_of
from hearth.backends.contract import HostStats


async def list_models(http: Request) -> Response:
    """Every model that requests may name, with the fields of OpenAI's, Anthropic's and vLLM's
    lists; what Hearth knows of it is under "hearth".
    """
    models = await describe_models(services_of(http))
    ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]}
    return JSONResponse({"object": "list", "data": models, "has_more": False, **ends})


async def describe_models(services: Services) -> list[dict[str, Any]]:
    """The entries of `GET /v1/models`."""
    models = [model for model in services.catalog.found() if can_be_named(model)]
    facts = await services.facts.of_all(models)
    stats = await host_stats_if_any(services.hosts)
    return [_model(model, known, stats) for model, known in zip(models, facts, strict=True)]


async def retrieve_model(http: Request) -> Response:
    """One model. Raises `ModelNotFound`."""
    services = services_of(http)
    found = services.catalog.find(http.path_params["name"]).found
    facts = await services.facts.of(found)
    return JSONResponse(_model(found, facts, await host_stats_if_any(services.hosts)))


def can_be_named(model: FoundModel) -> bool:
    """A file's name that is no Unicode stands in no JSON text, so no request can name it."""
    try:
        model.name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _model(model: FoundModel, facts: LocalModel, stats: HostStats | None) -> dict[str, Any]:
    try:
        created = int(model.path.stat().st_mtime)
    except OSError:  # Removed since it was listed; asking for it will say so.
        created = 0
    known = _known(model, facts, stats)
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


def _known(model: FoundModel, facts: LocalModel, stats: HostStats | None) -> dict[str, Any]:
    """What the file says and, where the model is loaded, what it can do; null: not known now."""
    worker = worker_of(stats, model) if stats is not None else None
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
