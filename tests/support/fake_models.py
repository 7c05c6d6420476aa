"""Models without processes, and calls that use them, for tests of the rules of `residency`."""

from __future__ import annotations

import asyncio
import contextlib

from hearth.backends.contract.models import HostLimits
from hearth.backends.host.residency import Residency

GB = 10**9


class FakeModels:
    """Models by name, each with its bytes or a future of them; unloaded when the test allows it."""

    def __init__(self, **needs):
        self.needs = needs
        self.loaded = set()
        self.unloading = {}
        self.unloaded = []

    def is_loaded(self, key):
        return key in self.loaded

    async def free(self, key):
        self.unloaded.append(key)
        gone = self.unloading[key] = asyncio.Event()
        await gone.wait()
        del self.unloading[key]
        self.loaded.discard(key)

    def let_go(self, key):
        self.unloading[key].set()


class Caller:
    """One call: it arrives, gets room, uses its model until `done`, and ends."""

    def __init__(self, supervisor, key):
        self.key = key
        self.ended = asyncio.get_running_loop().create_future()
        self.has_room = False
        self.may_go = asyncio.Event()
        self.task = asyncio.create_task(self._call(supervisor))

    async def _call(self, supervisor):
        async def need():
            needed = supervisor.models.needs[self.key]
            return await needed if isinstance(needed, asyncio.Future) else needed

        async with supervisor.residency.stay(self.key, need, self.ended) as entered:
            if entered:
                self.has_room = True
                supervisor.entered.append(self)
                supervisor.models.loaded.add(self.key)
                assert self.key not in supervisor.models.unloading, "sent into a stopping model"
                await self.may_go.wait()

    async def done(self):
        self.may_go.set()
        await self.task

    async def left(self):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


class FakeSupervisor:
    """A residency over fake models; `entered` are the calls that got room, in order."""

    def __init__(self, models, limits=None, free=10 * GB):
        self.models = models
        self.residency = Residency(models.is_loaded, models.free, lambda: free)
        if limits is not None:
            self.residency.limit(limits)
        self.entered = []

    async def call(self, key):
        caller = Caller(self, key)
        await calm()
        return caller

    async def used(self, key):
        """Run one call from start to end."""
        caller = await self.call(key)
        await caller.done()
        await calm()

    async def unload(self, *keys):
        for key in keys:
            self.models.let_go(key)
        await calm()


def one_at_a_time(**needs):
    """A residency that allows one loaded model, over models a, b and c or those of `needs`."""
    return FakeSupervisor(
        FakeModels(**(needs or {"a": 1, "b": 1, "c": 1})), HostLimits(max_models=1)
    )


async def calm():
    """Let every pending task of the event loop run."""
    for _ in range(20):
        await asyncio.sleep(0)
