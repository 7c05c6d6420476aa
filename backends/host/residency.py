"""Which models may be loaded at the same time: room, given in the order in which it was asked for.

Pure bookkeeping in one event loop: it knows models by key, what they need in bytes, and who uses
them, but no process. The rules:

- A call goes ahead at once if its model has room, loading or loaded, unless somebody who came
  earlier waits for that very room (below).
- A model without room waits for its turn. Turns come in the order of the oldest waiting call of
  each model, and no model without room overtakes another, however small it is. All who wait for a
  model when its turn comes go together: one load for all of them.
- Whose turn it is gets room when the model fits beside the others. Otherwise others are unloaded,
  those that nobody uses and were used least recently first, and no more than need be. A model that
  somebody uses is never unloaded: its users are waited for. From then on later calls for a model
  that must make way wait too, behind who waits for it, so that a steady stream of calls for one
  model keeps no other out for ever.
- Nobody is unloaded for somebody who left. What is being unloaded is not used any more.
- A model that needs more than there is gets everything: it has room when it is alone, and the
  worker decides whether it fits.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from hearth.backends.contract.models import HostLimits

log = logging.getLogger(__name__)

AUTO_SHARE = 0.9
"""Of the free memory, for models, where nobody said how much; the rest is for growth of others."""

Need = Callable[[], Awaitable[int | None]]
"""Says how many bytes a model needs; None: it takes no memory here, or nobody can say."""


@dataclass(slots=True, eq=False)
class _Resident:
    """A model that has room."""

    key: str
    need: asyncio.Future[int | None]
    users: int = 0
    used: int = 0
    """When it was used last: when the last call came or, if nobody uses it, when the last one left,
    by the count of calls.
    """
    measured: int = 0
    """Bytes that it was seen to take."""
    leaving: asyncio.Task[None] | None = None

    @property
    def weighs(self) -> bool:
        """Does it count? Not a model that takes no memory here."""
        return not self.need.done() or self.need.result() is not None

    @property
    def bytes(self) -> int:
        """What it was given or takes, whichever is more."""
        return max(self.need.result() or 0, self.measured) if self.need.done() else self.measured


@dataclass(slots=True, eq=False)
class _Waiting:
    """A model that waits for room, and all who wait for it."""

    key: str
    need: asyncio.Task[int | None]
    callers: dict[asyncio.Future[None], int] = field(default_factory=dict)
    """Each with its number in the order of arrival."""

    @property
    def since(self) -> int:
        return min(self.callers.values())


class Residency:
    """Room for the models of one host. Not thread-safe: it lives in the host's event loop.

    Args:
        is_loaded: does the model take memory: is it loading, loaded, or not gone yet?
        free: unloads a model without calls; returns when its memory is free.
        free_bytes: memory that models may still take, asked while nothing is loaded.
    """

    def __init__(
        self,
        is_loaded: Callable[[str], bool],
        free: Callable[[str], Awaitable[None]],
        free_bytes: Callable[[], int],
    ) -> None:
        self._is_loaded = is_loaded
        self._free = free
        self._free_bytes = free_bytes
        self._limits = HostLimits()
        self._auto_bytes = 0
        self._residents: dict[str, _Resident] = {}
        self._queue: dict[str, _Waiting] = {}
        self._clock = itertools.count(1)
        self._background: set[asyncio.Future[Any]] = set()

    def limit(self, limits: HostLimits) -> None:
        """How much may be loaded, from the next model that needs room."""
        self._limits = limits
        self.settle()

    @asynccontextmanager
    async def stay(self, key: str, need: Need, ended: asyncio.Future[None]) -> AsyncIterator[bool]:
        """Use the model `key` inside the block, once it has room; False, without it, if `ended`
        came first.

        Args:
            need: asked at most once for all who wait for the same room.
        """
        entered = await self._enter(key, need, ended)
        try:
            yield entered
        finally:
            if entered:
                self._leave(key)

    def users(self, key: str) -> int:
        """Calls that use the model now."""
        resident = self._residents.get(key)
        return resident.users if resident is not None else 0

    @property
    def waiting(self) -> dict[str, int]:
        """How many calls wait for room, by the key of their model, in the order of turns."""
        return {waiting.key: len(waiting.callers) for waiting in self._turns()}

    def measured(self, key: str, taken_bytes: int) -> None:
        """The model is seen to take so much; less than it was given room for changes nothing."""
        if (resident := self._residents.get(key)) is not None:
            resident.measured = taken_bytes

    def dismiss(self, key: str) -> asyncio.Task[None] | None:
        """Unload the model if nobody uses it: whoever comes now waits for room anew. Returns the
        unloading, if there is something to unload.
        """
        resident = self._residents.get(key)
        if resident is None or resident.users or resident.leaving is not None:
            return None
        return self._unload(resident)

    async def make_way(self, key: str, missing_bytes: int) -> bool:
        """The model `key` has room and still does not fit: unload others that nobody uses, least
        recently used first, until `missing_bytes` are free; False if there was none.
        """
        if await asyncio.shield(self._residents[key].need) is None:
            return False  # What it lacks is not memory.
        others = [one for one in self._residents.values() if one.key != key]
        leaving = {one.leaving for one in others if one.leaving is not None}
        missing_bytes -= sum(one.bytes for one in others if one.leaving is not None)
        for resident in self._by_last_use():
            if leaving and missing_bytes <= 0:
                break
            if resident.key != key and not resident.users:
                missing_bytes -= resident.bytes
                leaving.add(self._unload(resident))
        if leaving:
            await asyncio.wait(leaving)
        return bool(leaving)

    def settle(self) -> None:
        """Give room to whoever can have it now. To be called when a model is gone by itself."""
        for resident in list(self._residents.values()):
            is_used = resident.users or resident.leaving is not None
            if not is_used and not self._is_loaded(resident.key):
                del self._residents[resident.key]
        while (waiting := self._next()) is not None:
            self._admit(waiting)

    # ---- coming and going

    async def _enter(self, key: str, need: Need, ended: asyncio.Future[None]) -> bool:
        if ended.done():
            return False
        resident = self._residents.get(key)
        if resident is not None and self._is_open(resident):
            self._use(resident)
            return True
        turn = self._wait_for(key, need)
        either: set[asyncio.Future[Any]] = {turn, ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._give_up(key, turn)
            raise
        if ended.done():
            self._give_up(key, turn)
            return False
        return True

    def _wait_for(self, key: str, need: Need) -> asyncio.Future[None]:
        """A place in the queue; done when the model has room and this call counts as its user."""
        waiting = self._queue.get(key)
        if waiting is None:
            task = asyncio.create_task(_said(need))
            task.add_done_callback(lambda _: self.settle())
            waiting = self._queue[key] = _Waiting(key, task)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.callers[turn] = next(self._clock)
        self.settle()
        return turn

    def _give_up(self, key: str, turn: asyncio.Future[None]) -> None:
        """Whoever waited for `turn` is gone; it may have come meanwhile."""
        if turn.done():
            self._leave(key)
            return
        waiting = self._queue[key]
        del waiting.callers[turn]
        if not waiting.callers:
            del self._queue[key]
            waiting.need.cancel()
        self.settle()

    def _use(self, resident: _Resident) -> None:
        resident.users += 1
        resident.used = next(self._clock)

    def _leave(self, key: str) -> None:
        resident = self._residents[key]
        resident.users -= 1
        if not resident.users:
            # Not before: whoever is to make way stays it while its users leave one by one.
            resident.used = next(self._clock)
        self.settle()

    def _admit(self, waiting: _Waiting) -> None:
        """Its turn has come, for all who wait for it."""
        del self._queue[waiting.key]
        resident = self._residents.get(waiting.key)
        if resident is None:
            resident = self._residents[waiting.key] = _Resident(waiting.key, waiting.need)
        for turn in waiting.callers:
            self._use(resident)
            turn.set_result(None)

    # ---- who is next, and who makes way

    def _turns(self) -> list[_Waiting]:
        """Who waits, in the order of their oldest calls."""
        return sorted(self._queue.values(), key=lambda waiting: waiting.since)

    def _next(self) -> _Waiting | None:
        """Who can have a turn now. Where the first can have it once others are unloaded, these
        begin to leave.
        """
        turns = self._turns()
        for waiting in turns:
            resident = self._residents.get(waiting.key)
            if resident is not None:
                if self._is_open(resident):
                    return waiting
            elif waiting.need.done() and waiting.need.result() is None:
                return waiting
        if not turns or turns[0].key in self._residents:
            return None  # What it wants is still being unloaded.
        first = turns[0]
        if not any(resident.weighs for resident in self._residents.values()):
            # Nothing is loaded: what is free now is what models may have.
            self._auto_bytes = int(AUTO_SHARE * self._free_bytes())
            return first
        making_way = self._making_way()
        if making_way is None or any(resident.users for resident in making_way):
            return None
        for resident in making_way:
            self._unload(resident)
        if making_way or not self._fits(first, list(self._residents.values())):
            return None
        return first

    def _is_open(self, resident: _Resident) -> bool:
        """May a call that comes now use it? Not before it is known whether it must make way."""
        if resident.leaving is not None or not resident.weighs:
            return resident.leaving is None
        making_way = self._making_way()
        return making_way is not None and resident not in making_way

    def _making_way(self) -> Collection[_Resident] | None:
        """The models that must be unloaded for whose turn it is, beside those that are leaving
        already; None while it is not known how much somebody needs.
        """
        turns = self._turns()
        if not turns or turns[0].key in self._residents:
            return ()
        first = turns[0]
        needs = (first.need, *(resident.need for resident in self._residents.values()))
        if not all(need.done() for need in needs):
            return None
        making_way: list[_Resident] = []
        staying = self._by_last_use()
        while not self._fits(first, staying):
            making_way.append(staying.pop(0))
        for resident in reversed(making_way):
            if self._fits(first, [*staying, resident]):
                making_way.remove(resident)
                staying.append(resident)
        return making_way

    def _by_last_use(self) -> list[_Resident]:
        """Those that count and are not leaving: first those that nobody uses, the least recently
        used first.
        """
        staying = [one for one in self._residents.values() if one.weighs and one.leaving is None]
        return sorted(staying, key=lambda one: (one.users > 0, one.used))

    def _fits(self, waiting: _Waiting, others: list[_Resident]) -> bool:
        """Is there room for one more beside `others`? Alone it always fits."""
        beside = [resident for resident in others if resident.weighs]
        if not beside:
            return True
        most = self._limits.max_models
        if most is not None and len(beside) >= most:
            return False
        needed = (waiting.need.result() or 0) + sum(resident.bytes for resident in beside)
        budget = self._limits.models_memory_bytes
        return needed <= (self._auto_bytes if budget is None else budget)

    def _unload(self, resident: _Resident) -> asyncio.Task[None]:
        task = resident.leaving = asyncio.create_task(self._gone(resident))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _gone(self, resident: _Resident) -> None:
        try:
            await self._free(resident.key)
        except Exception:
            log.exception("unloading %s", resident.key)
        del self._residents[resident.key]
        self.settle()


async def _said(need: Need) -> int | None:
    """What `need` says; None where it fails: then the worker says what is wrong with the model."""
    try:
        return await need()
    except Exception:
        log.exception("reading what a model needs")
        return None
