"""Work that is cancelled when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

from hearth.app.server.errors import ClientGone

T = TypeVar("T")


async def until_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects.

    Args:
        receive: the request's `receive`, after its body has been read completely.

    Raises:
        ClientGone: the client disconnected first.
    """
    try:
        async with asyncio.timeout(None) as limit:
            watching = asyncio.create_task(_watch(receive, limit))
            try:
                return await work
            finally:
                watching.cancel()
    except TimeoutError as error:
        if limit.expired():
            raise ClientGone("The client disconnected.") from error
        raise


async def _watch(receive: Receive, limit: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    limit.reschedule(0)
