"""`GET /v1/models`, `/v1/models/{id}`, `/v1/model/info` and `/tokenizer_info`.

They respond with the models that requests can name and their properties, and load no model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hearth.app.chosen import Chosen
from hearth.app.library.local import FoundModel, LocalModel
from hearth.app.server.body import query
from hearth.app.server.services import Services, services_of, worker_of, workers_of
from hearth.backends.contract.loaded import HostStats, WorkerStats
from hearth.backends.errors import ModelNotFound, UnsupportedParameter
from hearth.backends.text.chat_templates import ChatTemplates, template_for, templates_of
from hearth.quant.convert.folder_files import (
    TOKENIZER_CONFIG,
    chat_templates,
    optional_fields,
    token_text,
)
from hearth.quant.gguf.reader import read_header

_TOKENS: Final = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
}
"""vLLM's names of special tokens, and their names in the metadata of a GGUF file."""
_OF_FILES: Final = {
    "architecture": "architecture",
    "quantization": "file_type",
    "parameters": "parameters",
    "size_bytes": "size_bytes",
    "trained_context": "context",
}
"""Properties known of every model: fields of `ModelInfo`, and the same in `LocalModel`."""
_OF_LOADED: Final = {
    "backend": "backend",
    "backend_version": "backend_version",
    "batch_size": "max_batch_tokens",
    "max_sequence_length": "context",
    "max_sessions": "max_sessions",
    "kv_type": "kv_type",
    "kv_bytes_per_token": "kv_bytes_per_token",
    "gpu_layers": "gpu_layers",
    "threads": "threads",
    "load_s": "load_s",
    "capabilities": "capabilities",
    "notices": "notices",
}
"""Properties of a loaded model, and the fields of `ModelInfo` they come from.

Before it is loaded, only those that the settings fix are known.
"""


async def list_models(http: Request) -> Response:
    """Every model that requests can name.

    Entries have the fields of OpenAI's, Anthropic's and vLLM's lists, and further properties under
    "hearth".
    """
    models = await describe_models(services_of(http))
    ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]}
    body = {"object": "list", "data": models, "has_more": False, **ends}
    return await asyncio.to_thread(JSONResponse, body)


async def describe_models(services: Services) -> list[dict[str, Any]]:
    """The entries of `GET /v1/models`."""
    models = await services.catalog.models()
    facts = await services.catalog.facts_of_all(models)
    return await asyncio.to_thread(_models, models, facts, await services.host_stats_if_any())


async def retrieve_model(http: Request) -> Response:
    """One model, or all if the path has no name. Raises `ModelNotFound`."""
    name = http.path_params["name"]
    if not name:
        return await list_models(http)
    services = services_of(http)
    model = (await services.catalog.find(name)).found
    facts = await services.catalog.facts(model)
    stats = await services.host_stats_if_any()
    [entry] = await asyncio.to_thread(_models, [model], [facts], stats)
    return JSONResponse(entry)


def _models(
    models: Sequence[FoundModel], facts: Sequence[LocalModel], stats: HostStats | None
) -> list[dict[str, Any]]:
    """The entries of `models`; reads the disk for each."""
    workers = workers_of(stats, models)
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
    """Properties of the file and, if the model is loaded, of its backend; null if unknown."""
    info = worker.info if worker is not None else None
    return {
        "loaded": None if stats is None else info is not None,
        **_of_files(facts),
        "context": info.context if info is not None else None,
        "capabilities": list(info.capabilities) if info is not None else None,
        "error": facts.error or None,
    }


async def _named(http: Request) -> Chosen:
    """The model that `?model=` names, else the default one."""
    catalog = services_of(http).catalog
    return await catalog.find(query(http, "model").get("model", catalog.default.name))


async def get_model_info(http: Request) -> Response:
    """The properties of a model, and how it is loaded.

    The model is the one that `?model=` names, else the default one.

    Raises:
        ModelNotFound: there is no model of that name.
        InvalidParameter: a query parameter is given twice.
        HostUnreachable: the host does not respond.
    """
    services = services_of(http)
    chosen = await _named(http)
    worker = await worker_of(await services.host_stats(), chosen.found)
    info = worker.info if worker is not None else None
    named = {"model_name": chosen.found.name, "loaded": info is not None}
    if info is not None:
        loaded = {ours: getattr(info, theirs) for ours, theirs in _OF_LOADED.items()}
        known = {name: getattr(info, name) for name in _OF_FILES}
        return JSONResponse({**named, **known, **loaded, "error": None})
    facts = await services.catalog.facts(chosen.found)
    unknown = dict.fromkeys(_OF_LOADED) | {
        "backend": chosen.spec.backend,
        "max_sequence_length": chosen.use.load.context,
        "notices": [],
    }
    error = {"error": facts.error or None}
    return JSONResponse({**named, **_of_files(facts), **unknown, **error})


def _of_files(facts: LocalModel) -> dict[str, Any]:
    return {ours: getattr(facts, theirs) or None for ours, theirs in _OF_FILES.items()}


async def get_tokenizer_info(http: Request) -> Response:
    """Special tokens, and the chat template that the settings select, as in vLLM's API.

    Raises:
        ModelNotFound: there is no model of that name.
        UnsupportedParameter: the model is on another machine.
        CorruptFile: the model's files cannot be read.
    """
    chosen = await _named(http)
    model = chosen.found
    if model.remote is not None:
        raise UnsupportedParameter(
            "model",
            f"{model.name} is a remote model, whose tokenizer is unknown.",
            "Request it from the server that runs the model.",
        )
    return JSONResponse({"model": model.name, **await asyncio.to_thread(_tokenizer, chosen)})


def _tokenizer(chosen: Chosen) -> dict[str, Any]:
    model = chosen.found
    try:
        read = _tokenizer_of_folder if model.path.is_dir() else _tokenizer_of_gguf
        tokens, own = read(model.path)
    except FileNotFoundError:  # Deleted since the library was listed.
        raise ModelNotFound(
            f'There is no model "{model.name}" any more.', "GET /v1/models lists the names."
        ) from None
    templates = templates_of(chosen.spec.settings, own)
    return {**tokens, "chat_template": template_for(templates, tools=False)}


def _tokenizer_of_folder(folder: Path) -> tuple[dict[str, Any], ChatTemplates]:
    fields = optional_fields(folder, TOKENIZER_CONFIG)
    return {name: token_text(fields, name) for name in _TOKENS}, chat_templates(folder)


def _tokenizer_of_gguf(path: Path) -> tuple[dict[str, Any], ChatTemplates]:
    header = read_header(path)
    texts = header.value("tokenizer.ggml.tokens", ())
    tokens: dict[str, Any] = {}
    for name, stem in _TOKENS.items():
        ident = header.value(f"tokenizer.ggml.{stem}_token_id")
        known = isinstance(ident, int) and 0 <= ident < len(texts)
        tokens[name] = texts[ident] if known else None
    return tokens, header.chat_templates
