"""`GET /health`: whether the server is ready."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hearth.app.server.server_state import RETRY_S
from hearth.app.server.services import services_of
from hearth.backends.contract import HostStats
from hearth.backends.errors import HostUnreachable
from hearth.backends.version import hearth_version

_PATIENCE_S: Final = 5.0


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
    try:
        async with asyncio.timeout(_PATIENCE_S):
            stats = await (await services.hosts.host()).stats()
    except TimeoutError as error:
        raise HostUnreachable(f"The host did not respond within {_PATIENCE_S:.0f} s.") from error
    return JSONResponse({**body, "backends": _backends(stats)})


def _backends(stats: HostStats) -> dict[str, str]:
    loaded = (worker.info for worker in stats.workers if worker.info is not None)
    return {info.backend: info.backend_version for info in loaded}
