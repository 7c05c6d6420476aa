"""A queue between two tasks, without the cost of `asyncio.Queue`."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Items for one reader, which takes all of them at once. Must be created in the event loop of
    its reader.

    `asyncio.Queue` and `asyncio.Event` look up the running loop whenever they wait, which is a
    system call in Python 3.11, and a token passes several queues.
    """

    def __init__(self) -> None:
        self._items: list[T] = []
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: T) -> None:
        """Add `item`; never waits."""
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[T]:
        """All items since the last call; waits for one if there is none."""
        if not self._items:
            self._waiter = self._loop.create_future()
            await self._waiter
        items, self._items = self._items, []
        return items
