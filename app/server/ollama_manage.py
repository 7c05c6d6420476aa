"""`/api/pull`, `/api/delete` and `/api/copy`, and errors for operations that are not offered."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.library.manager import ModelManager, PullProgress
from hearth.app.server import answers, sse
from hearth.app.server.errors import Forbidden, NotOffered
from hearth.app.server.exchange import read_body
from hearth.app.server.leaving import until_gone
from hearth.app.server.ollama import LATEST, dialect, line
from hearth.app.server.services import Services, services_of
from hearth.app.server.tables.ollama import COPY, DELETE, PULL
from hearth.backends.errors import ModelNotFound

Json = dict[str, Any]

_SUCCESS: Final[Json] = {"status": "success"}
_HUB_PREFIXES: Final = ("hf.co/", "huggingface.co/")
"""Ollama's prefixes of repositories on the Hugging Face Hub."""


async def pull(http: HttpRequest) -> Response:
    """Download a model; its progress is streamed unless `stream` is false.

    Raises:
        Forbidden: the model is not in the library, and clients may not manage models.
        HearthError: as `ModelManager.pull`.
    """
    services = services_of(http)
    given, reading = await read_body(http, PULL)
    notices = answers.notices(reading.notices)
    name = given["model"].removesuffix(LATEST)
    for prefix in _HUB_PREFIXES:
        name = name.removeprefix(prefix)
    progress = _pulled(services, name)
    if given.get("stream", True):
        lines = _lines(progress, _SUCCESS | notices)
        return await sse.respond(http, lines, services, dialect({"status": "pulling"}))
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
    await manager.delete(given["model"].removesuffix(LATEST), loaded)
    return JSONResponse(_SUCCESS | answers.notices(reading.notices))


async def copy(http: HttpRequest) -> Response:
    """Copy a model into the library folder.

    Raises:
        Forbidden: clients may not manage models.
        HearthError: as `ModelManager.copy`.
    """
    services = services_of(http)
    given, reading = await read_body(http, COPY)
    names = (given[name].removesuffix(LATEST) for name in ("source", "destination"))
    await _manager(services).copy(*names)
    return JSONResponse(_SUCCESS | answers.notices(reading.notices))


def _manager(services: Services) -> ModelManager:
    if services.manager is None:
        raise Forbidden(
            "Clients of this server may not download, delete or copy models.",
            "Use `hearth pull`, `hearth rm` or `hearth import` on the server's machine, or start"
            " the server with --manage (setting serve_manage).",
        )
    return services.manager


async def create(http: HttpRequest) -> Response:
    """Raises `NotOffered`."""
    raise NotOffered(
        "Models cannot be created over HTTP.",
        "`hearth import FILE` adds a GGUF file or a folder of safetensors, `hearth quantize`"
        ' converts one, and [models."NAME"] in settings.toml sets a system prompt, template and'
        " sampling.",
    )


async def push(http: HttpRequest) -> Response:
    """Raises `NotOffered`."""
    raise NotOffered(
        "Models cannot be pushed from this server.",
        "Upload the file with another program, for example to the Hugging Face Hub.",
    )


async def blobs(http: HttpRequest) -> Response:
    """Raises `NotOffered`."""
    raise NotOffered(
        "Files cannot be uploaded over HTTP.",
        "Run `hearth import FILE` on the server's machine to add a GGUF file or a folder of"
        " safetensors.",
    )
