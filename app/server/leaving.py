"""Work that is cancelled when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from starlette.types import Receive

from hearth.app.server.errors import ClientGone

S = TypeVar("S")
T = TypeVar("T")


async def until_gone(receive: Receive, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects.

    Args:
        receive: of the request, whose body has been read completely.

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


async def all_of(
    do: Callable[[S], Coroutine[Any, Any, T]], items: Iterable[S], at_once: int
) -> list[T]:
    """The results of `do` for each of `items`, `at_once` of them at the same time; if one fails,
    the others are cancelled.
    """
    slots = asyncio.Semaphore(at_once)

    async def one(item: S) -> T:
        async with slots:
            return await do(item)

    tasks = [asyncio.create_task(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel(*tasks)


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel `tasks`, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
