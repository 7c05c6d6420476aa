"""`/api/tags`, `/api/show`, `/api/ps` and `/api/version` of Ollama's API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.chosen import Chosen
from hearth.app.library.local import FoundModel, LocalModel
from hearth.app.server import answers
from hearth.app.server.exchange import read_body
from hearth.app.server.ollama import LATEST
from hearth.app.server.ollama_facts import digest, file_facts
from hearth.app.server.services import services_of, worker_of, workers_of
from hearth.app.server.tables.ollama import SHOW
from hearth.app.settings import ModelUse
from hearth.backends.contract import ModelInfo, WorkerStats
from hearth.backends.version import hearth_version

Json = dict[str, Any]

OLLAMA_VERSION: Final = "0.14.2"
"""The version of Ollama whose API this follows: clients refuse servers that are older than the
features that they use (VS Code: 0.6.4).
"""
_FOR_EVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
_PARAMETERS: Final = {
    "repetition_penalty": "repeat_penalty",
    "repetition_window": "repeat_last_n",
    **{
        name: name
        for name in (
            *("temperature", "top_k", "top_p", "min_p", "typical_p", "seed"),
            *("presence_penalty", "frequency_penalty"),
        )
    },
}
"""Ollama's names of sampling settings."""


async def tags(http: HttpRequest) -> Response:
    """Every model."""
    services = services_of(http)
    models = await services.catalog.models()
    facts = await services.catalog.facts_of_all(models)
    return JSONResponse({"models": await asyncio.to_thread(_models, models, facts)})


async def show(http: HttpRequest) -> Response:
    """One model, which is not loaded for it."""
    services = services_of(http)
    given, reading = await read_body(http, SHOW)
    name = given.get("model", "").removesuffix(LATEST) or services.catalog.default.name
    chosen = await services.catalog.find(name)
    facts = await services.catalog.facts(chosen.found)
    worker = await worker_of(await services.host_stats_if_any(), chosen.found)
    shown = await asyncio.to_thread(_shown, chosen, facts, verbose=given.get("verbose", False))
    shown["parameters"] = "\n".join(_parameters(chosen.use, worker.info if worker else None))
    notices = [*reading.notices, *shown.pop("notices")]
    return JSONResponse(shown | answers.notices(notices))


async def ps(http: HttpRequest) -> Response:
    """The loaded models."""
    services = services_of(http)
    stats = await services.host_stats()
    models = await services.catalog.models()
    workers = await asyncio.to_thread(workers_of, stats, models)
    loaded = []
    for model, worker in zip(models, workers, strict=True):
        if worker is not None and worker.info is not None:
            chosen = await services.catalog.find(model.name)
            facts = await services.catalog.facts(model)
            loaded.append(await asyncio.to_thread(_loaded, chosen, facts, worker, worker.info))
    return JSONResponse({"models": loaded})


async def version(http: HttpRequest) -> Response:
    """The version of Ollama whose API is served, and Hearth's own."""
    return JSONResponse({"version": OLLAMA_VERSION, "hearth": hearth_version()})


def _models(models: Sequence[FoundModel], facts: Sequence[LocalModel]) -> list[Json]:
    return [_model(model, known) for model, known in zip(models, facts, strict=True)]


def _model(model: FoundModel, facts: LocalModel) -> Json:
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": _modified(model),
        "size": facts.size_bytes,
        "digest": digest(model),
        "details": _details(facts),
    }


def _details(facts: LocalModel) -> Json:
    return {
        "parent_model": "",
        "format": "safetensors" if facts.path.is_dir() else "gguf",
        "family": facts.architecture,
        "families": [facts.architecture] if facts.architecture else [],
        "parameter_size": _size(facts.parameters),
        "quantization_level": facts.file_type,
    }


def _size(parameters: int) -> str:
    """Such as "7.1M"; empty if unknown."""
    for unit, divisor in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if parameters >= divisor:
            return f"{parameters / divisor:.1f}{unit}"
    return str(parameters or "")


def _modified(model: FoundModel) -> str | None:
    try:
        return datetime.fromtimestamp(model.path.stat().st_mtime, UTC).isoformat()
    except OSError:
        return None  # Deleted since it was listed, or on another machine.


def _shown(chosen: Chosen, facts: LocalModel, *, verbose: bool) -> Json:
    of_file = file_facts(chosen.found, chosen.spec.settings, arrays=verbose)
    info: Json = {"general.architecture": facts.architecture, **of_file.metadata}
    if facts.parameters:
        info["general.parameter_count"] = facts.parameters
    if facts.context:
        info[f"{facts.architecture}.context_length"] = facts.context
    return {
        "details": _details(facts),
        "model_info": info,
        "capabilities": list(of_file.capabilities),
        "modified_at": _modified(chosen.found),
        "template": of_file.template,
        "license": of_file.licence,
        "notices": [of_file.problem] if of_file.problem else [],
    }


def _parameters(use: ModelUse, info: ModelInfo | None) -> Iterator[str]:
    """Lines as in a Modelfile: the context if known, and sampling parameters that are set."""
    context = use.load.context if info is None else info.context
    if context:
        yield f"{'num_ctx':<30} {context}"
    for ours, theirs in _PARAMETERS.items():
        value = getattr(use.sampling, ours)
        if use.origins[ours] != "default" and value is not None:
            yield f"{theirs:<30} {value}"
    if use.max_tokens is not None:
        yield f"{'num_predict':<30} {use.max_tokens}"
    for text in use.stop:
        yield f"{'stop':<30} {json.dumps(text)}"


def _loaded(chosen: Chosen, facts: LocalModel, worker: WorkerStats, info: ModelInfo) -> Json:
    """A loaded model; its size is that of its weights and KV cache in memory."""
    size_bytes = info.size_bytes
    if worker.engine is not None:
        size_bytes += worker.engine.allocated_tokens * worker.engine.kv_bytes_per_token
    expires = _FOR_EVER
    if worker.keep_alive_s is not None and worker.keep_alive_s >= 0:
        left_s = max(0.0, worker.keep_alive_s - worker.idle_s)
        expires = min(_FOR_EVER, datetime.now(UTC) + timedelta(seconds=min(left_s, 1e9)))
    return {
        **_model(chosen.found, facts),
        "size": size_bytes,
        "size_vram": round(size_bytes * _gpu_share(chosen, info)),
        "expires_at": expires.isoformat(),
        "context_length": info.context,
    }


def _gpu_share(chosen: Chosen, info: ModelInfo) -> float:
    """The share of the model's layers that is on a GPU, in [0, 1]."""
    if not info.gpu_layers:
        return 0.0
    layers = file_facts(chosen.found, chosen.spec.settings).layers
    return min(1.0, info.gpu_layers / (layers + 1)) if layers else 1.0
