"""`GET /v1/model/info`: the properties of a model, and how it is loaded."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hearth.app.chosen import Chosen
from hearth.app.library.local import LocalModel
from hearth.app.server.loaded import host_stats, worker_of
from hearth.app.server.query import query
from hearth.app.server.services import services_of
from hearth.backends.contract import ModelInfo


async def get_model_info(http: Request) -> Response:
    """The default model, or the one that `?model=` names. It is not loaded.

    Raises:
        ModelNotFound: there is no model of that name.
        InvalidParameter: a query parameter is given twice.
        HostUnreachable: the host does not respond.
    """
    services = services_of(http)
    name = query(http, "model").get("model", services.catalog.default.name)
    chosen = await services.catalog.find(name)
    worker = await worker_of(await host_stats(services.hosts), chosen.found)
    if worker is not None and worker.info is not None:
        return JSONResponse(_of_loaded(chosen, worker.info))
    return JSONResponse(_of_file(chosen, await services.facts.of(chosen.found)))


def _of_loaded(chosen: Chosen, info: ModelInfo) -> dict[str, Any]:
    return {
        "model_name": chosen.found.name,
        "loaded": True,
        "architecture": info.architecture,
        "quantization": info.quantization,
        "parameters": info.parameters,
        "size_bytes": info.size_bytes,
        "trained_context": info.trained_context,
        "backend": info.backend,
        "backend_version": info.backend_version,
        "batch_size": info.max_batch_tokens,
        "max_sequence_length": info.context,
        "max_sessions": info.max_sessions,
        "kv_type": info.kv_type,
        "kv_bytes_per_token": info.kv_bytes_per_token,
        "gpu_layers": info.gpu_layers,
        "threads": info.threads,
        "load_s": info.load_s,
        "capabilities": list(info.capabilities),
        "notices": list(info.notices),
        "error": None,
    }


def _of_file(chosen: Chosen, facts: LocalModel) -> dict[str, Any]:
    """The properties from the file; null for those that are known only of a loaded model."""
    return {
        "model_name": chosen.found.name,
        "loaded": False,
        "architecture": facts.architecture or None,
        "quantization": facts.file_type or None,
        "parameters": facts.parameters or None,
        "size_bytes": facts.size_bytes or None,
        "trained_context": facts.context or None,
        "backend": chosen.spec.backend,
        "backend_version": None,
        "batch_size": None,
        "max_sequence_length": None,
        "max_sessions": None,
        "kv_type": None,
        "kv_bytes_per_token": None,
        "gpu_layers": None,
        "threads": None,
        "load_s": None,
        "capabilities": None,
        "notices": [],
        "error": facts.error or None,
    }
