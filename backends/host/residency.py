"""Which models may be loaded at the same time: memory is granted in the order of requests for it.

This is pure bookkeeping in one event loop. It knows the keys of models, the bytes that they need
and the number of their users, but no processes. A model "has room" if memory is granted to it. The
rules:

- A call proceeds at once if its model has room, whether loading or loaded, unless an earlier call
  for another model waits for that room (see below).
- A model without room waits in a queue, ordered by the oldest waiting call of each model. No model
  without room overtakes another, however small it is. All calls that wait for a model proceed
  together: one load serves all of them.
- The first model in the queue gets room when it fits next to the loaded models. If it does not fit,
  others are unloaded: only models without users, the least recently used first, and no more than
  needed. A model in use is never unloaded; the queue waits until its users have left. From then on,
  later calls for a model that is to be unloaded wait too, behind the calls that wait for its room,
  so that a steady stream of calls for one model cannot keep another model out forever.
- No model is unloaded for a call that was cancelled. A model that is being unloaded gets no new
  users.
- A model that needs more memory than there is has room when no other model is loaded; the worker
  then decides whether it fits.
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
"""Share of the free memory that models may take if no limit is set; the rest is left for other
processes to grow.
"""

Need = Callable[[], Awaitable[int | None]]
"""Returns the bytes that a model needs; None: it takes no memory here, or its need is unknown."""


@dataclass(slots=True, eq=False)
class _Resident:
    """A model that has room."""

    key: str
    need: asyncio.Future[int | None]
    users: int = 0
    used: int = 0
    """Time of its last use, as a count of events: the arrival of the last call, or, if it has no
    users, the departure of the last one.
    """
    measured: int = 0
    """Bytes that it was measured to take."""
    leaving: asyncio.Task[None] | None = None

    @property
    def weighs(self) -> bool:
        """Whether the model counts against the limits: it does unless it takes no memory here."""
        return not self.need.done() or self.need.result() is not None

    @property
    def bytes(self) -> int:
        """Bytes granted or measured, whichever is more."""
        return max(self.need.result() or 0, self.measured) if self.need.done() else self.measured


@dataclass(slots=True, eq=False)
class _Waiting:
    """A model that waits for room, and all calls that wait for it."""

    key: str
    need: asyncio.Task[int | None]
    callers: dict[asyncio.Future[None], int] = field(default_factory=dict)
    """Futures of the waiting calls, with their numbers in the order of arrival."""

    @property
    def since(self) -> int:
        return min(self.callers.values())


class Residency:
    """Memory for the models of one host. Not thread-safe: it is used in the host's event loop only.

    Args:
        is_loaded: whether the model takes memory: it is loading, loaded, or its process has not
            ended yet.
        free: unloads a model without calls; returns when its memory is free.
        free_bytes: memory that models may still take; called while nothing is loaded.
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
        """Set how much may be loaded; applies from the next model that needs room."""
        self._limits = limits
        self.settle()

    @asynccontextmanager
    async def stay(self, key: str, need: Need, ended: asyncio.Future[None]) -> AsyncIterator[bool]:
        """Use the model `key` inside the block, once it has room. Yields False if `ended` was done
        first; then the model is not used.

        Args:
            need: called at most once for all calls that wait for the same room.
        """
        entered = await self._enter(key, need, ended)
        try:
            yield entered
        finally:
            if entered:
                self._leave(key)

    def users(self, key: str) -> int:
        """Number of calls that use the model now."""
        resident = self._residents.get(key)
        return resident.users if resident is not None else 0

    @property
    def waiting(self) -> dict[str, int]:
        """Number of calls that wait for room, by the key of their model, in queue order."""
        return {waiting.key: len(waiting.callers) for waiting in self._turns()}

    def measured(self, key: str, taken_bytes: int) -> None:
        """The model was measured to take `taken_bytes`; less than it was granted has no effect."""
        if (resident := self._residents.get(key)) is not None:
            resident.measured = taken_bytes

    def dismiss(self, key: str) -> asyncio.Task[None] | None:
        """Unload the model if it has no users; later calls have to wait for room again. Returns the
        unloading task, or None if there is nothing to unload.
        """
        resident = self._residents.get(key)
        if resident is None or resident.users or resident.leaving is not None:
            return None
        return self._unload(resident)

    async def make_way(self, key: str, missing_bytes: int) -> bool:
        """Unload other models without users, least recently used first, until `missing_bytes` are
        free, because the model `key` has room and still does not fit; False if there was none to
        unload.
        """
        if await asyncio.shield(self._residents[key].need) is None:
            return False  # The model does not lack memory of this machine.
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
        """Give room to the models that can have it now.

        To be called when a worker has ended without being unloaded here.
        """
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
        """A place in the queue: a future that is done when the model has room and this call counts
        as its user.
        """
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
        """The call that waited for `turn` is cancelled; `turn` may be done by now."""
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
            # Not before: the choice of the model to unload stays the same while its users leave.
            resident.used = next(self._clock)
        self.settle()

    def _admit(self, waiting: _Waiting) -> None:
        """Give the model room, and let all calls that wait for it proceed."""
        del self._queue[waiting.key]
        resident = self._residents.get(waiting.key)
        if resident is None:
            resident = self._residents[waiting.key] = _Resident(waiting.key, waiting.need)
        for turn in waiting.callers:
            self._use(resident)
            turn.set_result(None)

    # ---- who is next, and who makes way

    def _turns(self) -> list[_Waiting]:
        """The waiting models, in the order of their oldest calls."""
        return sorted(self._queue.values(), key=lambda waiting: waiting.since)

    def _next(self) -> _Waiting | None:
        """The waiting model that can have room now. If the first one can have it after others are
        unloaded, their unloading is started.
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
            return None  # The model itself is still being unloaded.
        first = turns[0]
        if not any(resident.weighs for resident in self._residents.values()):
            # Nothing is loaded, so the memory that is free now is what models may take.
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
        """Whether a new call may use the model; not while it is unknown whether it must be
        unloaded.
        """
        if resident.leaving is not None or not resident.weighs:
            return resident.leaving is None
        making_way = self._making_way()
        return making_way is not None and resident not in making_way

    def _making_way(self) -> Collection[_Resident] | None:
        """The models that must be unloaded for the first in the queue, in addition to those that
        are being unloaded already; None while the need of any model is unknown.
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
        """Models that count and are not being unloaded: those without users first, and among these
        the least recently used first.
        """
        staying = [one for one in self._residents.values() if one.weighs and one.leaving is None]
        return sorted(staying, key=lambda one: (one.users > 0, one.used))

    def _fits(self, waiting: _Waiting, others: list[_Resident]) -> bool:
        """Whether `waiting` fits next to `others`. Alone it always fits."""
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
    """The result of `need`; None if it fails: then the worker reports the error in the model."""
    try:
        return await need()
    except Exception:
        log.exception("reading what a model needs")
        return None
