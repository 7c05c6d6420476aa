"""The synchronous face of the host and of remote models: a plain iterator of events that Ctrl+C
can interrupt.

A connection lives in a thread with an event loop of its own, so that it is served while a person
types.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast

from hearth.backends.client import HostClient, HostPlace
from hearth.backends.contract import (
    Backend,
    Embeddings,
    Event,
    Failed,
    Finished,
    HostLimits,
    HostStats,
    ModelInfo,
    ModelSpec,
    Pooling,
    Prompt,
    Request,
    Scores,
)
from hearth.backends.errors import HostUnreachable, InternalError, to_info

if TYPE_CHECKING:
    from hearth.backends.remote.backend import RemoteBackends
    from hearth.backends.remote.server import RemoteServer

T = TypeVar("T")
H = TypeVar("H")

# A wait without a limit would miss a Ctrl+C that comes just before it begins: CPython runs signal
# handlers between bytecodes only. On Windows no Ctrl+C ends such a wait.
_WAIT_S = 0.2


class Host(Protocol):
    """What this module needs of `HostClient`."""

    def backend(self, spec: ModelSpec) -> Backend: ...

    async def stats(self) -> HostStats: ...

    async def unload(self, model: str | None = None) -> int: ...


class _Held(Generic[H]):
    """Something asynchronous that is open in a thread with an event loop of its own.

    Args:
        opened: opens it.
        name: of the thread.
    """

    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[H]], name: str) -> None:
        self._opened = opened
        self._name = name
        self._thread: threading.Thread | None = None
        self._inside: tuple[H, asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def open(self) -> tuple[H, asyncio.AbstractEventLoop]:
        """It and its loop, opened now if need be. Raises what opening it raises."""
        if self._inside is None:
            ready: Future[None] = Future()
            self._thread = threading.Thread(
                target=lambda: asyncio.run(self._hold(ready)), name=self._name, daemon=True
            )
            self._thread.start()
            wait_for(ready)
        assert self._inside is not None
        return self._inside[:2]

    async def _hold(self, ready: Future[None]) -> None:
        leaving = asyncio.Event()
        try:
            async with self._opened() as held:
                self._inside = held, asyncio.get_running_loop(), leaving
                ready.set_result(None)
                await leaving.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)

    def close(self) -> None:
        """Close it; it is opened again when it is needed."""
        if self._inside is not None:
            _, loop, leaving = self._inside
            loop.call_soon_threadsafe(leaving.set)
        if self._thread is not None:
            self._thread.join()
        self._thread = self._inside = None

    def call(self, question: Callable[[H], Coroutine[Any, Any, T]]) -> T:
        """What it answers to `question`. Raises what that raises; Ctrl+C gives it up."""
        held, loop = self.open()
        future = asyncio.run_coroutine_threadsafe(question(held), loop)
        try:
            return wait_for(future)
        except KeyboardInterrupt:
            future.cancel()
            raise


class HostLink:
    """Attached to the host from the first need of it to the end of the block, and again when the
    connection was lost. Remote models need no host.

    Args:
        place: where the host lives.
        host_idle_s: how long a host started here stays when it is idle and alone.
        limits: how much the host may have loaded, from now on; None: what holds already.
        remotes: the models of other machines, by lower-case name.
        start: start a host where none runs. If not, it is attached to on entering.

    Raises:
        HostUnreachable: when it is needed, and on entering without `start`: there is no host.
    """

    def __init__(
        self,
        place: HostPlace,
        host_idle_s: float,
        limits: HostLimits | None = None,
        *,
        remotes: Mapping[str, RemoteServer] | None = None,
        start: bool = True,
    ) -> None:
        def attach() -> AbstractAsyncContextManager[Host]:
            return HostClient.attach(place, start=start, host_idle_s=host_idle_s, limits=limits)

        self._start = start
        self._host: _Held[Host] = _Held(attach, "host link")
        self._remotes: _Held[RemoteBackends] = _Held(lambda: _remote(remotes or {}), "remotes")

    def __enter__(self) -> Self:
        if not self._start:
            self._host.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._host.close()
        self._remotes.close()

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
        try:
            return self._host.call(question)
        except HostUnreachable:
            self._host.close()
            raise

    def ask(self, spec: ModelSpec, question: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
        """What the model of `spec` answers to `question`; as `call`."""
        if spec.backend == "remote":
            return self._remotes.call(lambda remotes: question(remotes.backend(spec)))
        return self.call(lambda host: question(host.backend(spec)))

    def stream(self, spec: ModelSpec, request: Request) -> EventStream:
        """The events of `request`; the caller closes the stream."""
        held = self._remotes if spec.backend == "remote" else self._host
        backends, loop = held.open()
        return EventStream(backends.backend(spec), request, loop, self._host.close)


@asynccontextmanager
async def _remote(servers: Mapping[str, RemoteServer]) -> AsyncIterator[RemoteBackends]:
    from hearth.backends.remote.backend import RemoteBackends

    backends = RemoteBackends(servers)
    try:
        yield backends
    finally:
        await backends.close()


class LinkedModel:
    """One model over a `HostLink`."""

    def __init__(self, link: HostLink, spec: ModelSpec) -> None:
        self._link = link
        self.spec = spec

    def info(self) -> ModelInfo:
        """Load the model if need be and say what it is."""
        return self._link.ask(self.spec, lambda model: model.info())

    def render(self, request: Request) -> Prompt:
        """What the model would get for `request`; nothing is generated."""
        return self._link.ask(self.spec, lambda model: model.render(request))

    def score(self, ids: Sequence[int]) -> Scores:
        """Log probability of each of `ids` (two or more) after those before it."""
        return self._link.ask(self.spec, lambda model: model.score(ids))

    def embed(self, texts: Sequence[str], *, pooling: Pooling = "model") -> Embeddings:
        """One vector a text; see `Backend.embed`."""
        return self._link.ask(self.spec, lambda model: model.embed(texts, pooling=pooling))

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
