"""`GET /health`: does the host answer?"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hearth.app.server.services import services_of
from hearth.backends.errors import HostUnreachable

_PATIENCE_S: Final = 5.0


async def health(http: Request) -> Response:
    """200 and `{"status": "ok"}` when the host answers.

    Raises:
        HostUnreachable: it does not, within a few seconds.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await (await services_of(http).hosts.host()).stats()
    except TimeoutError as error:
        raise HostUnreachable(f"The host has not answered for {_PATIENCE_S:.0f} s.") from error
    return JSONResponse({"status": "ok"})
