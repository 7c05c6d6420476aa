"""`GET /health`: whether the server is ready."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hearth.app.server.loaded import host_stats
from hearth.app.server.server_state import RETRY_S
from hearth.app.server.services import services_of
from hearth.backends.contract import HostStats
from hearth.backends.version import hearth_version


async def health(http: Request) -> Response:
    """`{"status", "version", "backends"}`: 200 and "ok" if requests are accepted and the host
    responds, 503 and "loading" or "draining" otherwise. `backends` maps the backend of each loaded
    model to the version of its library.

    Raises:
        HostUnreachable: the host does not respond within a few seconds.
    """
    services = services_of(http)
    status = services.state.status
    body: dict[str, Any] = {"status": status, "version": hearth_version()}
    if status != "ok":
        return JSONResponse(body, 503, {"retry-after": str(RETRY_S)})
    return JSONResponse({**body, "backends": _backends(await host_stats(services.hosts))})


def _backends(stats: HostStats) -> dict[str, str]:
    loaded = (worker.info for worker in stats.workers if worker.info is not None)
    return {info.backend: info.backend_version for info in loaded}
