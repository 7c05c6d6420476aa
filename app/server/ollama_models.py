"""The models in Ollama's API, and errors for operations that are not offered.

`/api/tags`, `/api/show`, `/api/ps`, `/api/version`, `/api/pull`, `/api/delete` and `/api/copy`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import re
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.chosen import Chosen
from hearth.app.format import count
from hearth.app.library.local import LATEST, FoundModel, LocalModel, without_hub
from hearth.app.library.manager import ModelManager, PullProgress
from hearth.app.server import answers, sse
from hearth.app.server.catalog import file_states
from hearth.app.server.endpoint import Handler
from hearth.app.server.errors import Forbidden, NotOffered
from hearth.app.server.exchange import read_body
from hearth.app.server.leaving import until_gone
from hearth.app.server.ollama import dialect, line
from hearth.app.server.services import Services, services_of, worker_of, workers_of
from hearth.app.server.tables.ollama import COPY, DELETE, PULL, SHOW
from hearth.app.settings import ModelUse
from hearth.backends.contract.loaded import ModelInfo, WorkerStats
from hearth.backends.contract.models import ModelSettings
from hearth.backends.contract.version import hearth_version
from hearth.backends.errors import HearthError, ModelNotFound
from hearth.backends.text.chat_templates import ChatTemplates, template_for, templates_of
from hearth.backends.text.output.families import takes_tools, thinks
from hearth.quant.convert.folder_files import chat_templates
from hearth.quant.gguf.file import ENCODERS, GgufFile, Value
from hearth.quant.gguf.quantize_file import manifest_path
from hearth.quant.gguf.reader import read_header

Json = dict[str, Any]

OLLAMA_VERSION: Final = "0.14.2"
"""The version of Ollama whose API is served.

Clients refuse servers that are older than the features they use (VS Code: 0.6.4).
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
_SUCCESS: Final[Json] = {"status": "success"}
_BLOB: Final = re.compile(r"(?:sha256-)?([0-9a-f]{64})")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_TEMPLATE: Final = "tokenizer.chat_template"


async def tags(http: HttpRequest) -> Response:
    """Every model."""
    services = services_of(http)
    models = await services.catalog.models()
    facts = await services.catalog.facts_of_all(models)
    names = _own_names(models)

    def listed() -> list[Json]:
        return [_model(model, known, names) for model, known in zip(models, facts, strict=True)]

    return JSONResponse({"models": await asyncio.to_thread(listed)})


async def show(http: HttpRequest) -> Response:
    """One model, which is not loaded."""
    services = services_of(http)
    given, reading = await read_body(http, SHOW)
    name = given.get("model") or services.catalog.default.name
    chosen = await services.catalog.find(name)
    facts = await services.catalog.facts(chosen.found)
    worker = await worker_of(await services.host_stats_if_any(), chosen.found)
    shown = await asyncio.to_thread(_shown, chosen, facts, verbose=given.get("verbose", False))
    shown["parameters"] = "\n".join(_parameters(chosen.use, worker.info if worker else None))
    notices = http.state.notices = [*reading.notices, *shown.pop("notices")]
    return JSONResponse(shown | answers.notices(notices))


async def ps(http: HttpRequest) -> Response:
    """The loaded models."""
    services = services_of(http)
    stats = await services.host_stats()
    models = await services.catalog.models()
    workers = await asyncio.to_thread(workers_of, stats, models)
    names = _own_names(models)
    loaded = []
    for model, worker in zip(models, workers, strict=True):
        if worker is not None and worker.info is not None:
            chosen = await services.catalog.find(model.name)
            facts = await services.catalog.facts(model)
            entry = await asyncio.to_thread(_model, model, facts, names)
            loaded.append(entry | await asyncio.to_thread(_loaded, chosen, worker, worker.info))
    return JSONResponse({"models": loaded})


async def version(http: HttpRequest) -> Response:
    """The version of Ollama whose API is served, and Hearth's own."""
    return JSONResponse({"version": OLLAMA_VERSION, "hearth": hearth_version()})


def _own_names(models: Iterable[FoundModel]) -> frozenset[str]:
    """The names of `models`, in lower case."""
    return frozenset(model.name.lower() for model in models)


def _listed_name(model: FoundModel, own_names: Collection[str]) -> str:
    """The name of `model` in lists: with a tag, because clients look for one.

    `LATEST` is not added if that would make it the own name of another model, which requests with
    that name reach.
    """
    tagged = model.name + LATEST
    return model.name if ":" in model.name or tagged.lower() in own_names else tagged


def _model(model: FoundModel, facts: LocalModel, own_names: Collection[str]) -> Json:
    name = _listed_name(model, own_names)
    return {
        "name": name,
        "model": name,
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
        "parameter_size": count(facts.parameters).replace(" ", "").upper().strip("?"),
        "quantization_level": facts.file_type,
    }


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


def _loaded(chosen: Chosen, worker: WorkerStats, info: ModelInfo) -> Json:
    """Properties of a loaded model; its size is that of its weights and KV cache in memory."""
    size_bytes = info.size_bytes
    if worker.engine is not None:
        size_bytes += worker.engine.allocated_tokens * worker.engine.kv_bytes_per_token
    expires = _FOR_EVER
    if worker.keep_alive_s is not None and worker.keep_alive_s >= 0:
        left_s = max(0.0, worker.keep_alive_s - worker.idle_s)
        expires = min(_FOR_EVER, datetime.now(UTC) + timedelta(seconds=min(left_s, 1e9)))
    return {
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


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The properties of a model's files.

    Attributes:
        metadata: metadata of a GGUF file; arrays are None unless requested.
        layers: number of layers; 0 if unknown.
        problem: why the files could not be read; empty if they could.
    """

    template: str = ""
    licence: str = ""
    capabilities: tuple[str, ...] = ("completion",)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    layers: int = 0
    problem: str = ""


def file_facts(model: FoundModel, settings: ModelSettings, *, arrays: bool = False) -> FileFacts:
    """The facts of `model`, with the template that `settings` select. Reads the disk.

    Args:
        arrays: include arrays of the metadata, such as the vocabulary.
    """
    if model.remote is not None:
        return FileFacts(capabilities=("completion", "tools"))
    try:
        if model.path.is_dir():
            templates = templates_of(settings, chat_templates(model.path))
            return FileFacts(template_for(templates, tools=False) or "", "", _abilities(templates))
        return _of_gguf(read_header(model.path), settings, arrays=arrays)
    except (HearthError, OSError) as error:
        return FileFacts(problem=str(error))


def _of_gguf(header: GgufFile, settings: ModelSettings, *, arrays: bool) -> FileFacts:
    templates = templates_of(settings, header.chat_templates)
    architecture = header.architecture
    licence = header.value("general.license")
    layers = header.value(f"{architecture}.block_count")
    capabilities = _abilities(templates)
    if architecture in ENCODERS or header.value(f"{architecture}.pooling_type"):
        capabilities = ("embedding",)
    elif any(
        f"tokenizer.ggml.{name}_token_id" in header.metadata for name in ("fim_pre", "prefix")
    ):
        capabilities = (*capabilities, "insert")
    return FileFacts(
        template_for(templates, tools=False) or "",
        licence if isinstance(licence, str) else "",
        capabilities,
        {
            name: _json(value, arrays=arrays)
            for name, value in header.metadata.items()
            if not name.startswith(_TEMPLATE)
        },
        layers if isinstance(layers, int) else 0,
    )


def _abilities(templates: ChatTemplates) -> tuple[str, ...]:
    can = {
        "completion": True,
        "tools": takes_tools(template_for(templates, tools=True)),
        "thinking": thinks(template_for(templates, tools=False)),
    }
    return tuple(name for name, is_possible in can.items() if is_possible)


def _json(value: Value, *, arrays: bool) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, bool | int | float):
        return value
    return [_json(item, arrays=True) for item in value] if arrays else None


def digest(model: FoundModel) -> str:
    """64 hexadecimal digits that identify the files of `model`. Reads the disk.

    The SHA-256 of a single file if it is known without reading the file: the caches of the Hugging
    Face Hub and Ollama name files by it, and `hearth quantize` records it. Otherwise a hash of
    path, sizes and modification times.
    """
    if model.remote is not None:
        return _hashed("remote", model.remote.url, model.remote.name)
    path = Path(os.path.realpath(model.path))
    states = file_states(model.path)
    if len(states) == 1:
        if blob := _BLOB.fullmatch(path.name):
            return blob[1]
        if known := _quantized(path, states[0].st_size):
            return known
    return _hashed(str(path), *(f"{state.st_size} {state.st_mtime_ns}" for state in states))


def _quantized(path: Path, size_bytes: int) -> str:
    """The digest in the manifest of a quantized file; empty if there is none."""
    try:
        result = json.loads(manifest_path(path).read_bytes())["result"]
        sha256 = str(result["sha256"])
        is_of_it = result["size_bytes"] == size_bytes
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    return sha256 if is_of_it and _SHA256.fullmatch(sha256) else ""


def _hashed(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogateescape")).hexdigest()


async def pull(http: HttpRequest) -> Response:
    """Download a model; its progress is streamed unless `stream` is false.

    Raises:
        Forbidden: the model is not in the library, and clients may not manage models.
        HearthError: as `ModelManager.pull`.
    """
    services = services_of(http)
    given, reading = await read_body(http, PULL)
    notices = answers.notices(reading.notices)
    progress = _pulled(services, without_hub(given["model"]))
    if given.get("stream", True):
        lines = _lines(progress, _SUCCESS | notices)
        return await sse.respond(http, lines, dialect(line({"status": "pulling"})))
    await until_gone(http.receive, _complete(progress))
    return JSONResponse(_SUCCESS | notices)


async def _pulled(services: Services, name: str) -> AsyncGenerator[PullProgress, None]:
    if services.manager is None:
        try:
            await services.catalog.find(name)
        except ModelNotFound:
            _manager(services)
        return
    async with aclosing(services.manager.pull(name)) as progress:
        async for at in progress:
            yield at


async def _complete(progress: AsyncGenerator[PullProgress, None]) -> None:
    async with aclosing(progress):
        async for _ in progress:
            pass


async def _lines(progress: AsyncGenerator[PullProgress, None], last: Json) -> sse.Parts:
    """One line for each progress report, then `last`."""
    begun = False
    async with aclosing(progress):
        async for at in progress:
            if not begun:
                begun = True
                yield line({"status": "pulling manifest"})
            yield line(_progress(at))
    yield line(last)


def _progress(at: PullProgress) -> Json:
    kind = "sha256" if len(at.digest) == len("0" * 64) else "sha1"
    verb = {"checking": "verifying", "waiting": "waiting for"}.get(at.activity, "pulling")
    return {
        "status": f"{verb} {at.digest[:12]}",
        "digest": f"{kind}:{at.digest}",
        "total": at.total_bytes,
        "completed": at.done_bytes,
    }


async def delete(http: HttpRequest) -> Response:
    """Delete a model of the library folder or of the Hugging Face cache.

    Raises:
        Forbidden: clients may not manage models.
        HostUnreachable: it is unknown whether the model is loaded.
        HearthError: as `ModelManager.delete`.
    """
    services = services_of(http)
    given, reading = await read_body(http, DELETE)
    manager = _manager(services)
    loaded = [worker.path for worker in (await services.host_stats()).workers]
    await manager.delete(given["model"], loaded)
    return JSONResponse(_SUCCESS | answers.notices(reading.notices))


async def copy(http: HttpRequest) -> Response:
    """Copy a model into the library folder.

    Raises:
        Forbidden: clients may not manage models.
        HearthError: as `ModelManager.copy`.
    """
    services = services_of(http)
    given, reading = await read_body(http, COPY)
    await _manager(services).copy(given["source"], given["destination"].removesuffix(LATEST))
    return JSONResponse(_SUCCESS | answers.notices(reading.notices))


def _manager(services: Services) -> ModelManager:
    if services.manager is None:
        raise Forbidden(
            "Clients of this server may not download, delete or copy models.",
            "Use `hearth pull`, `hearth rm` or `hearth import` on the server's machine, or start"
            " the server with --manage (setting serve_manage).",
        )
    return services.manager


def not_offered(message: str, hint: str) -> Handler:
    """A handler that raises `NotOffered`."""

    async def refuse(http: HttpRequest) -> Response:
        raise NotOffered(message, hint)

    return refuse
