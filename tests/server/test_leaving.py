"""Work is cancelled when its client disconnects."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from async_tests import in_loop
from hearth.app.server.errors import ClientGone
from hearth.app.server.leaving import until_gone

GONE = {"type": "http.disconnect"}


class Client:
    """Disconnects when `left` is set."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self):
        await self.left.wait()
        return GONE


def test_what_is_done_in_time_is_returned() -> None:
    async def ask():
        client = Client()
        return await until_gone(client.receive, asyncio.sleep(0, "done"))

    assert asyncio.run(ask()) == "done"


def test_a_client_that_leaves_ends_the_work() -> None:
    ended = []

    async def ask() -> None:
        client = Client()

        async def work() -> None:
            client.left.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        with pytest.raises(ClientGone):
            await until_gone(client.receive, work())
        assert asyncio.current_task().cancelling() == 0
        await asyncio.sleep(0)  # Nothing is left to be cancelled.

    asyncio.run(ask())
    assert ended == [True]


def test_a_client_that_leaves_when_the_work_is_done_ends_nothing_else() -> None:
    async def ask():
        client = Client()

        async def work() -> str:
            client.left.set()
            await asyncio.sleep(0)
            return "done"

        found = None
        with suppress(ClientGone):
            found = await until_gone(client.receive, work())
        for _ in range(5):
            await asyncio.sleep(0)
        assert asyncio.current_task().cancelling() == 0
        return found

    assert asyncio.run(ask()) in ("done", None)


@in_loop
async def test_what_the_work_raises_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        await until_gone(Client().receive, fail())


@pytest.mark.parametrize("leaves", [False, True])
def test_somebody_else_may_cancel_as_well(leaves) -> None:
    async def ask():
        client = Client()
        begun = asyncio.Event()

        async def work() -> None:
            begun.set()
            if leaves:
                client.left.set()
            await asyncio.Event().wait()

        asking = asyncio.create_task(until_gone(client.receive, work()))
        await begun.wait()
        asking.cancel()
        await asyncio.wait([asking])
        return asking.cancelled()

    assert asyncio.run(ask())
