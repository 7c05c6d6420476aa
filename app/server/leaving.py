"""Work for a client that may leave: it ends when the client does, and nothing runs for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from starlette.types import Receive

from hearth.app.server.errors import ClientGone

S = TypeVar("S")
T = TypeVar("T")


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects.

    Args:
        receive: the request's, its body read to the end.

    Raises:
        ClientGone: the client left first.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone("The client left.")
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def all_of(
    do: Callable[[S], Coroutine[Any, Any, T]], items: Iterable[S], at_once: int
) -> list[T]:
    """What `do` returns for each of `items`, of which `at_once` are under way; when one fails, the
    others are cancelled.
    """
    turn = asyncio.Semaphore(at_once)

    async def one(item: S) -> T:
        async with turn:
            return await do(item)

    tasks = [asyncio.create_task(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
