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
    working = asyncio.current_task()
    assert working is not None
    cancelled_before = working.cancelling()
    is_over = has_left = False

    def leave(_: asyncio.Task[None]) -> None:
        nonlocal has_left
        if not is_over:
            has_left = True
            working.cancel()

    watching = asyncio.create_task(_gone(receive))
    watching.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError as error:
        # Somebody else may cancel as well, and must not be kept from it.
        if has_left and working.cancelling() == cancelled_before + 1:
            raise ClientGone("The client left.") from error
        raise
    finally:
        is_over = True
        if has_left:
            working.uncancel()
        watching.cancel()


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
