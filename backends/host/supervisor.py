"""Manages the loaded models: starts a worker when there is room for it (`residency`), restarts it
when it dies, unloads it when idle.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hearth.backends.contract.loaded import EngineStats, WorkerStats
from hearth.backends.contract.models import HostLimits, ModelSpec
from hearth.backends.contract.wire import Call, ClearCache, Cost, Load, Sealed, unsealed
from hearth.backends.errors import Busy, DoesNotFit, ModelNotFound
from hearth.backends.host.admission import Admission
from hearth.backends.host.breaker import Breaker
from hearth.backends.host.residency import Residency
from hearth.backends.host.worker_process import Stream, WorkerProcess
from hearth.backends.machine.local_socket import HostPlace
from hearth.backends.machine.memory import available_bytes
from hearth.backends.worker.footprint import Footprints

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Model:
    """One model file that was requested, across restarts of its worker."""

    key: str
    spec: ModelSpec
    name: str
    breaker: Breaker
    admission: Admission
    worker: WorkerProcess | None = None
    """The last worker: loading, loaded, about to exit, or dead."""
    loading: asyncio.Task[WorkerProcess] | None = None
    """The last load of `spec`; all calls with the same settings wait for it."""
    users: int = 0
    """Calls that wait for room or for the worker, or have a stream from it."""

    @property
    def is_loading(self) -> bool:
        return self.loading is not None and not self.loading.done()


class Supervisor:
    """Owns the workers of one host. Used in one event loop."""

    def __init__(self, place: HostPlace) -> None:
        self._place = place
        self._models: dict[str, _Model] = {}
        self._footprints = Footprints(place.cache_dir)
        self._room = Residency(self._takes_memory, self._free, available_bytes)
        self._watchers: set[asyncio.Task[None]] = set()

    def limit(self, limits: HostLimits) -> None:
        """Set how much may be loaded; applies from the next model that is not loaded yet."""
        self._room.limit(limits)

    async def call(
        self,
        spec: ModelSpec,
        call: Call[object] | Sealed,
        stream: Stream,
        session: str = "",
        wanted: Cost | None = None,
    ) -> None:
        """Let a worker answer `call`, up to the last answer. If the model is not loaded, the call
        waits in the queue for memory first. A call is never sent to a worker that is to be stopped.

        Args:
            stream: gets the answers; its `cancel` may be called at any time. It gets nothing more
                after this method has returned.
            session: the session of the call.
            wanted: the resources that the call may take, if the front end has computed them.

        Raises:
            Busy: the request cannot be admitted now, or the model is in use with other settings.
            PromptTooLong: the prompt is certainly longer than the context.
            WireError: the call cannot be decoded.
            WorkerDied: the model's breaker is open, or it was unloaded while it was loading.
            HearthError: any error of loading the model.
        """
        model = self._model(spec)
        model.admission.max_waiting = spec.settings.max_waiting  # The newest value applies.
        ticket = None
        model.users += 1
        try:
            if wanted is None and isinstance(opened := unsealed(call), Call):
                wanted = opened.cost()
            if wanted is not None:
                nbytes = len(call.content) if isinstance(call, Sealed) else 0
                ticket = model.admission.admit(
                    wanted, session, nbytes, check_length=_is_loaded(model, spec)
                )
            async with self._using(model, spec, call, stream) as worker:
                if worker is not None and isinstance(call, Load):
                    assert worker.info is not None
                    stream.put(worker.info)
                elif worker is not None:
                    worker.call(call, stream, session=session, cost=wanted)
                    if isinstance(call, Sealed):
                        call.drop()
                await asyncio.wait((stream.ended,))
        finally:
            stream.abandon()
            model.users -= 1
            if ticket is not None:
                took_s = time.monotonic() - stream.created_at if stream.started else None
                model.admission.release(ticket, took_s)
                # Not after a call that only prepares a request: the request follows.
                if ticket.cost.computes and model.spec.settings.keep_alive_s == 0:
                    self._room.dismiss(model.key)
            self._forget(model)

    def check(self, spec: ModelSpec, wanted: Cost) -> None:
        """Raises `PromptTooLong` if the model is loaded and a call of this cost cannot fit."""
        model = self._models.get(os.path.realpath(spec.path))
        if model is not None and _is_loaded(model, spec):
            model.admission.check_length(wanted.least)

    async def stats(self) -> tuple[WorkerStats, ...]:
        """The loaded models, with the statistics of each engine if it answers quickly; then the
        models that wait for room, in the order of the queue.
        """
        loaded = [
            (model, worker)
            for model in self._models.values()
            if (worker := _alive(model)) is not None
        ]
        engines = await asyncio.gather(*(worker.engine_stats() for _, worker in loaded))
        queued = self._room.waiting
        stats = [
            _worker_stats(model, worker, engine, queued.pop(model.key, 0))
            for (model, worker), engine in zip(loaded, engines, strict=True)
            if worker.usable  # It may have died meanwhile.
        ]
        stats += (_queued_stats(self._models[key], count) for key, count in queued.items())
        return tuple(stats)

    @property
    def busy(self) -> bool:
        """Whether any call is in progress."""
        return any(model.users for model in self._models.values())

    @property
    def loaded(self) -> int:
        return sum(_alive(model) is not None for model in self._models.values())

    async def unload(self, which: str | None) -> int:
        """Stop the worker of the model with this path or name (None: all workers); returns how many
        were stopped.
        """
        path = None if which is None else os.path.realpath(which)
        stopping: list[tuple[_Model, WorkerProcess]] = []
        for key, model in self._models.items():
            if which is not None and which != model.name and path != key:
                continue
            if (worker := _alive(model)) is not None:
                stopping.append((model, worker))
        await asyncio.gather(*(worker.stop() for _, worker in stopping))
        for model, _ in stopping:
            self._forget(model)
        return len(stopping)

    def end_request(self, pid: int, request: int) -> int:
        """End a call of the worker with process id `pid` as cancelled; returns the number of calls
        ended, 0 if it is already over.
        """
        workers = (_alive(model) for model in self._models.values())
        return sum(worker.end(request) for worker in workers if worker and worker.pid == pid)

    async def unload_idle(self) -> None:
        """Stop the workers that were idle for longer than their keep-alive time."""
        now = time.monotonic()
        for model in list(self._models.values()):
            self._forget(model)
        leaving: set[asyncio.Task[None]] = set()
        for model in list(self._models.values()):
            worker = _alive(model)
            if worker is None or model.users or worker.streams:
                continue
            keep_s = model.spec.settings.keep_alive_s
            if 0 <= keep_s <= now - worker.last_active:
                log.info("%s was idle for %.0f s", model.name, keep_s)
                if (unloading := self._room.dismiss(model.key)) is not None:
                    leaving.add(unloading)
        if leaving:
            await asyncio.wait(leaving)

    # ---- callbacks of `residency`

    def _takes_memory(self, key: str) -> bool:
        """Whether the model takes memory, or is about to."""
        model = self._models.get(key)
        if model is None:
            return False
        worker = model.worker
        return model.is_loading or (worker is not None and not worker.died.is_set())

    async def _free(self, key: str) -> None:
        """Stop the worker of a model that is not in use; returns when it is gone."""
        model = self._models.get(key)
        if model is None:
            return
        if model.loading is not None and model.is_loading:
            model.loading.cancel()
            await asyncio.wait({model.loading})
        if model.worker is not None and not model.worker.died.is_set():
            log.info("unloading %s", model.name)
            await model.worker.stop()

    async def _need(self, spec: ModelSpec) -> int | None:
        """Bytes that `spec` needs; the loaded models are measured first."""
        loaded = [model for model in self._models.values() if _alive(model) is not None]
        await asyncio.gather(*(self._measure(model) for model in loaded))
        return await asyncio.to_thread(self._footprints.of, spec)

    async def _measure(self, model: _Model) -> None:
        """Measure the bytes that a loaded model takes now, without its buffers."""
        worker = model.worker
        assert worker is not None
        engine = await worker.engine_stats()
        if engine is not None and worker.info is not None and worker is model.worker:
            self._room.measured(model.key, worker.info.size_bytes + engine.taken_bytes)

    # ---- one model

    def _model(self, spec: ModelSpec) -> _Model:
        key = os.path.realpath(spec.path)  # One file under two names is one model.
        model = self._models.get(key)
        if model is None:
            name = spec.name or Path(key).stem
            admission = Admission(spec.settings.max_sessions, spec.settings.max_waiting, name)
            model = self._models[key] = _Model(key, spec, name, Breaker(name), admission)
        return model

    def _forget(self, model: _Model) -> None:
        """Drop the entry of a model that is neither loaded nor requested, so that a client that
        requests one path after another does not fill memory. Entries with recent deaths are kept
        while the breaker needs them.
        """
        gone = model.worker is None or model.worker.died.is_set()
        is_used = model.users or model.is_loading or model.breaker.remembers
        # It may have been forgotten already and requested again since.
        if gone and not is_used and self._models.get(model.key) is model:
            del self._models[model.key]

    @asynccontextmanager
    async def _using(
        self, model: _Model, spec: ModelSpec, call: Call[object] | Sealed, stream: Stream
    ) -> AsyncIterator[WorkerProcess | None]:
        """The loaded worker for `call`, or None if the stream ended first.

        The worker is not stopped for another model inside the block.

        Raises the errors of `call`.
        """
        if isinstance(call, ClearCache) and not call.load:
            yield _loaded(model)
            return
        worker = _alive(model)
        if worker is not None and not model.is_loading and not _same_load(worker.spec, spec):
            if worker.wanted:
                raise _in_use(model)
            self._room.dismiss(model.key)  # With the new settings it may need more room.
        async with self._room.stay(model.key, lambda: self._need(spec), stream.ended) as has_room:
            yield await self._worker(model, spec, stream.ended) if has_room else None

    async def _worker(
        self, model: _Model, spec: ModelSpec, ended: asyncio.Future[None]
    ) -> WorkerProcess | None:
        """The loaded worker that runs `spec`; None if `ended` was done first.

        A load goes on after that; it is cancelled when all calls that wait for it are cancelled.

        Raises the errors of `call`.
        """
        while not ended.done():
            loading = model.loading
            if loading is None or loading.done():
                worker = _alive(model)
                if worker is not None and _same_load(worker.spec, spec):
                    model.spec = spec
                    return worker
                if worker is not None and worker.wanted:
                    raise _in_use(model)
                model.spec = spec
                loading = model.loading = asyncio.create_task(self._load(model, spec, worker))
            either: set[asyncio.Future[Any]] = {loading, ended}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                if self._room.users(model.key) == 1:
                    loading.cancel()
                    await asyncio.wait({loading})
                raise
            if loading.done() and not loading.cancelled() and _same_load(model.spec, spec):
                loading.result()
        return None

    async def _load(
        self, model: _Model, spec: ModelSpec, other: WorkerProcess | None
    ) -> WorkerProcess:
        """A new worker of `model`, in place of `other`, which no call waits for any more. If the
        model does not fit although there seemed to be room, other models are unloaded and the load
        is tried once more.
        """
        if other is not None:
            await other.stop()
        if model.worker is not None:
            await model.worker.died.wait()  # Its memory must be free first.
        model.breaker.check()
        try:
            return await self._start(model, spec)
        except DoesNotFit as error:
            if not await self._room.make_way(model.key, _missing_bytes(error)):
                raise
        return await self._start(model, spec)

    async def _start(self, model: _Model, spec: ModelSpec) -> WorkerProcess:
        worker = model.worker = WorkerProcess(spec, model.name, self._place, model.breaker)
        watcher = asyncio.create_task(self._watch(worker))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        info = await worker.start()
        model.admission.opened(info.context, spec.settings.max_sessions, info.longest_token_bytes)
        return worker

    async def _watch(self, worker: WorkerProcess) -> None:
        """Wait until the worker has ended, for any reason, and let others have its room."""
        await worker.died.wait()
        self._room.settle()


def _alive(model: _Model) -> WorkerProcess | None:
    """The worker of `model`, if it is usable or will be when it is loaded."""
    worker = model.worker
    return worker if worker is not None and worker.usable else None


def _is_loaded(model: _Model, spec: ModelSpec) -> bool:
    """Whether the model is loaded with the settings of `spec`, so that its context is known."""
    worker = _alive(model)
    return worker is not None and worker.info is not None and _same_load(worker.spec, spec)


def _loaded(model: _Model) -> WorkerProcess:
    """The worker of `model`, whatever its settings. Raises `ModelNotFound` if none is loaded."""
    worker = _alive(model)
    if worker is None or worker.info is None:
        raise ModelNotFound(f"{model.name} is not loaded.", "`hearth ps` shows what is.")
    return worker


def _in_use(model: _Model) -> Busy:
    return Busy(
        f"{model.name} is in use with other settings.",
        "Wait until it is idle, or ask for it with the same settings.",
        retry_after_s=1.0,
    )


def _missing_bytes(error: DoesNotFit) -> int:
    """Bytes that were missing, by the data of `error`; 0 if it does not have them."""
    needed, available = (error.data.get(f"{name}_bytes") for name in ("needed", "available"))
    if isinstance(needed, int) and isinstance(available, int):
        return needed - available
    return 0


def _queued_stats(model: _Model, waiting: int) -> WorkerStats:
    """Statistics of a model that waits for room and has no process yet."""
    return WorkerStats(
        name=model.name,
        path=model.spec.path,
        waiting=waiting,
        restarts=model.breaker.deaths,
        keep_alive_s=model.spec.settings.keep_alive_s,
    )


def _worker_stats(
    model: _Model, worker: WorkerProcess, engine: EngineStats | None, queued: int
) -> WorkerStats:
    """Statistics of a model with a worker. Running and waiting sequences are as the engine counts
    them, plus calls that wait because this model is to be unloaded; if the engine does not answer,
    calls are counted instead.
    """
    # A hanging worker may still run calls that no client waits for, hence the maximum.
    running, waiting = worker.running, max(0, model.users - worker.running)
    if engine is not None:
        running, waiting = engine.running, engine.waiting + queued
    return WorkerStats(
        name=model.name,
        path=worker.spec.path,
        pid=worker.pid,
        running=running,
        waiting=waiting,
        restarts=model.breaker.deaths,
        idle_s=0.0 if worker.streams else time.monotonic() - worker.last_active,
        info=worker.info,
        engine=engine,
        keep_alive_s=model.spec.settings.keep_alive_s,
        stalled_s=worker.stalled_s,
    )


def _same_load(one: ModelSpec, other: ModelSpec) -> bool:
    """Whether both specs load the model in the same way."""
    if one.backend != other.backend:
        return False
    # Most calls have exactly the loaded settings, and comparing those costs little.
    return one.settings == other.settings or one.settings.of_load == other.settings.of_load
