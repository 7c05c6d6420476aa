"""The synchronous face of the host and of remote models: a plain iterator of events that Ctrl+C
can interrupt.

The connection is served in a thread with an event loop of its own, also while a person types.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from hearth.app.host_connection import HostConnection
from hearth.backends.contract import (
    Event,
    Failed,
    Finished,
    HostLimits,
    HostStats,
    ModelInfo,
    ModelSpec,
    Request,
)
from hearth.backends.errors import InternalError, to_info
from hearth.backends.local_socket import HostPlace

if TYPE_CHECKING:
    from hearth.backends.client import HostClient
    from hearth.backends.remote.server import RemoteServer

T = TypeVar("T")

# A wait without a limit would miss a Ctrl+C that comes just before it begins: CPython runs signal
# handlers between bytecodes only. On Windows no Ctrl+C ends such a wait.
_WAIT_S = 0.2


class HostLink:
    """Attached to the host from the first need of it to the end of the block, and again when the
    connection was lost. Remote models need no host.

    Args:
        place: of the host's socket.
        host_idle_s: how long a host started here stays when it is idle and alone.
        limits: how much the host may have loaded, from now on; None: unchanged.
        remotes: the models of other machines, by lower-case name.
        start: start a host where none runs. If not, it is attached to on entering.

    Attributes:
        connection: for coroutines that `run` runs.

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
        self.connection = HostConnection(place, host_idle_s, limits, remotes)
        self._start = start
        self._thread: threading.Thread | None = None
        self._inside: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def __enter__(self) -> Self:
        if not self._start:
            try:
                self.run(lambda: self.connection.host(start=False))
            except BaseException:
                self._close()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def info(self, spec: ModelSpec) -> ModelInfo:
        """Load the model of `spec` if need be, and describe it. Raises as `call`."""

        async def ask() -> ModelInfo:
            return await (await self.connection.backend(spec)).info()

        return self.run(ask)

    def stats(self) -> HostStats:
        """The host and its workers."""
        return self.call(lambda host: host.stats())

    def unload(self, model: str) -> int:
        """Unload the model with this path or name; returns how many were loaded."""
        return self.call(lambda host: host.unload(model))

    def call(self, question: Callable[[HostClient], Coroutine[Any, Any, T]]) -> T:
        """The host's answer to `question`. Raises what that raises; Ctrl+C cancels it."""

        async def ask() -> T:
            return await question(await self.connection.host(start=self._start))

        return self.run(ask)

    def stream(self, spec: ModelSpec, request: Request) -> EventStream:
        """The events of `request`; the caller closes the stream."""
        return EventStream(self.connection, spec, request, self._loop())

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`, in the thread of the connection. Raises what that raises; Ctrl+C
        cancels it.
        """
        future = asyncio.run_coroutine_threadsafe(work(), self._loop())
        try:
            return wait_for(future)
        except KeyboardInterrupt:
            future.cancel()
            raise

    def soon(self, do: Callable[[], None]) -> None:
        """Call `do` in the thread of the connection. Safe in a signal handler."""
        self._loop().call_soon_threadsafe(do)

    def _loop(self) -> asyncio.AbstractEventLoop:
        if self._inside is None:
            ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
            self._thread = threading.Thread(
                target=lambda: asyncio.run(self._serve(ready)), name="host link", daemon=True
            )
            self._thread.start()
            self._inside = wait_for(ready)
        return self._inside[0]

    async def _serve(self, ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
        leaving = asyncio.Event()
        ready.set_result((asyncio.get_running_loop(), leaving))
        await leaving.wait()
        await self.connection.close()

    def _close(self) -> None:
        if self._inside is not None and self._thread is not None:
            loop, leaving = self._inside
            loop.call_soon_threadsafe(leaving.set)
            self._thread.join()
        self._thread = self._inside = None


class EventStream:
    """The events of one request, the last a `Finished` or `Failed`; fewer after `interrupt`.

    Use it in a `with` block; leaving the block cancels the request if it still runs.
    """

    def __init__(
        self,
        connection: HostConnection,
        spec: ModelSpec,
        request: Request,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        work = self._run(connection, spec, request)
        self._pump = asyncio.run_coroutine_threadsafe(work, loop)

    async def _run(self, connection: HostConnection, spec: ModelSpec, request: Request) -> None:
        try:
            backend = await connection.backend(spec)
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
        """End the iteration after the events that have arrived. Safe in a signal handler."""
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

    def __iter__(self) -> Iterator[Event]:
        while (event := wait_for_item(self._events)) is not None:
            yield event
            if isinstance(event, Finished | Failed):
                return


def wait_for(future: Future[T]) -> T:
    """The result of `future`; Ctrl+C interrupts the wait."""
    while True:
        try:
            return future.result(timeout=_WAIT_S)
        except TimeoutError:
            if future.done():
                raise


def wait_for_item(queue: SimpleQueue[T]) -> T:
    """The next item of `queue`; Ctrl+C interrupts the wait."""
    while True:
        try:
            return queue.get(timeout=_WAIT_S)
        except Empty:
            continue
