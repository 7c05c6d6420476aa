"""The synchronous face of the host: a plain iterator of events that Ctrl+C can interrupt.

The connection lives in a thread with an event loop of its own, so that it is served while a person
types.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast

from hearth.backends.client import HostClient, HostPlace
from hearth.backends.contract import (
    Backend,
    Embeddings,
    Event,
    Failed,
    Finished,
    HostStats,
    ModelInfo,
    ModelSpec,
    Pooling,
    Prompt,
    Request,
    Scores,
)
from hearth.backends.errors import HostUnreachable, InternalError, to_info

T = TypeVar("T")

# A wait without a limit would miss a Ctrl+C that comes just before it begins: CPython runs signal
# handlers between bytecodes only. On Windows no Ctrl+C ends such a wait.
_WAIT_S = 0.2


class Host(Protocol):
    """What this module needs of `HostClient`."""

    def backend(self, spec: ModelSpec) -> Backend: ...

    async def stats(self) -> HostStats: ...

    async def unload(self, model: str | None = None) -> int: ...


class HostLink:
    """Attached to the host between `with` and its end; attaches again when the connection was lost.

    Args:
        place: where the host lives.
        host_idle_s: how long a host started here stays when it is idle and alone.
        start: start a host where none runs.

    Raises:
        HostUnreachable: on entering, when there is no host.
    """

    def __init__(self, place: HostPlace, host_idle_s: float, *, start: bool = True) -> None:
        self._place = place
        self._host_idle_s = host_idle_s
        self._start = start
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._host: Host | None = None
        self._leaving: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self._attach()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._detach()

    def _attach(self) -> None:
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._hold(ready)), name="host link", daemon=True
        )
        self._thread.start()
        wait_for(ready)

    async def _hold(self, ready: Future[None]) -> None:
        leaving = asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            async with HostClient.attach(
                self._place, start=self._start, host_idle_s=self._host_idle_s
            ) as host:
                self._loop, self._host, self._leaving = loop, host, leaving
                ready.set_result(None)
                await leaving.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)

    def _detach(self) -> None:
        if self._loop is not None and self._leaving is not None:
            self._loop.call_soon_threadsafe(self._leaving.set)
        if self._thread is not None:
            self._thread.join()
        self._thread = self._loop = self._host = self._leaving = None

    def model(self, spec: ModelSpec) -> LinkedModel:
        """The model of `spec`, loaded when it is first used."""
        return LinkedModel(self, spec)

    def stats(self) -> HostStats:
        """The host and its workers."""
        return self.call(lambda host: host.stats())

    def unload(self, model: str) -> int:
        """Unload the model with this path or name; returns how many were loaded."""
        return self.call(lambda host: host.unload(model))

    def call(self, question: Callable[[Host], Coroutine[Any, Any, T]]) -> T:
        """What the host answers to `question`. Raises what that raises; Ctrl+C gives it up."""
        if self._host is None:
            self._attach()
        assert self._host is not None and self._loop is not None
        future = asyncio.run_coroutine_threadsafe(question(self._host), self._loop)
        try:
            return wait_for(future)
        except HostUnreachable:
            self._detach()
            raise
        except KeyboardInterrupt:
            future.cancel()
            raise

    def stream(self, spec: ModelSpec, request: Request) -> EventStream:
        """The events of `request`; the caller closes the stream."""
        if self._host is None:
            self._attach()
        assert self._host is not None and self._loop is not None
        return EventStream(self._host.backend(spec), request, self._loop, self._detach)


class LinkedModel:
    """One model over a `HostLink`."""

    def __init__(self, link: HostLink, spec: ModelSpec) -> None:
        self._link = link
        self.spec = spec

    def info(self) -> ModelInfo:
        """Load the model if need be and say what it is."""
        return self._link.call(lambda host: host.backend(self.spec).info())

    def render(self, request: Request) -> Prompt:
        """What the model would get for `request`; nothing is generated."""
        return self._link.call(lambda host: host.backend(self.spec).render(request))

    def score(self, ids: Sequence[int]) -> Scores:
        """Log probability of each of `ids` (two or more) after those before it."""
        return self._link.call(lambda host: host.backend(self.spec).score(ids))

    def embed(self, texts: Sequence[str], *, pooling: Pooling = "model") -> Embeddings:
        """One vector a text; see `Backend.embed`."""
        return self._link.call(lambda host: host.backend(self.spec).embed(texts, pooling=pooling))

    def stream(self, request: Request) -> EventStream:
        """The events of `request`."""
        return self._link.stream(self.spec, request)


class EventStream:
    """The events of one request, the last a `Finished` or `Failed`; fewer after `interrupt`.

    Use it in a `with` block; leaving the block cancels what still runs.
    """

    def __init__(
        self,
        backend: Backend,
        request: Request,
        loop: asyncio.AbstractEventLoop,
        on_lost: Callable[[], None],
    ) -> None:
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self._on_lost = on_lost
        self._lost = False
        self._pump = asyncio.run_coroutine_threadsafe(self._run(backend, request), loop)

    async def _run(self, backend: Backend, request: Request) -> None:
        try:
            generated = cast(AsyncGenerator[Event, None], backend.generate(request))
            async with contextlib.aclosing(generated) as events:
                async for event in events:
                    self._events.put(event)
                    if isinstance(event, Finished | Failed):
                        return
            self._events.put(Failed(to_info(InternalError("A stream ended without a last event."))))
        except Exception as error:  # noqa: BLE001 - the reader, in another thread, gets it as an event
            self._events.put(Failed(to_info(error)))

    def interrupt(self) -> None:
        """End the iteration after what has arrived by now. Safe in a signal handler."""
        self._events.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pump.cancel()
        if self._lost:
            self._on_lost()

    def __iter__(self) -> Iterator[Event]:
        while (event := self._next()) is not None:
            if isinstance(event, Failed) and event.error.code == HostUnreachable.code:
                self._lost = True
            yield event
            if isinstance(event, Finished | Failed):
                return

    def _next(self) -> Event | None:
        while True:
            try:
                return self._events.get(timeout=_WAIT_S)
            except Empty:
                continue


def wait_for(future: Future[T]) -> T:
    """The result of `future`; Ctrl+C interrupts the wait."""
    while True:
        try:
            return future.result(timeout=_WAIT_S)
        except TimeoutError:
            if future.done():
                raise
