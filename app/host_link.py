"""The synchronous interface to the host and to remote models: an iterator of events that Ctrl+C can
interrupt.

The connection runs in a thread with its own event loop, also while the main thread waits for input.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, aclosing
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hearth.app.host_connection import HostConnection
from hearth.backends.contract.events import Event, Failed, Finished
from hearth.backends.contract.loaded import HostStats, ModelInfo
from hearth.backends.contract.models import HostLimits, ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.errors import InternalError, to_info
from hearth.backends.machine.local_socket import HostPlace

if TYPE_CHECKING:
    from hearth.backends.remote.server import RemoteServer

T = TypeVar("T")

# A wait without a timeout would miss a Ctrl+C that comes just before it begins: CPython runs signal
# handlers between bytecodes only. On Windows, Ctrl+C does not end such a wait.
_WAIT_S = 0.2


class LoopThread:
    """An event loop in its own thread, which runs from construction until `close`.

    Args:
        name: name of the thread.
        last: runs in the loop before it ends.
    """

    def __init__(self, name: str, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._last = last
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` in the thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the thread and return its result or raise its error. Ctrl+C cancels it."""
        future = self.begin(work)
        try:
            return wait_for(future)
        except BaseException:
            future.cancel()
            raise

    def soon(self, do: Callable[[], None]) -> None:
        """Call `do` in the thread soon. Safe in a signal handler."""
        self._loop.call_soon_threadsafe(do)

    def close(self) -> None:
        """End what is running, the loop and the thread. Raises what `last` raises."""
        # `asyncio.run` may start a thread as it ends, which is refused when the interpreter exits.
        try:
            self.begin(self._end()).result()
        finally:
            self.soon(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        try:
            await self._last()
        finally:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)


class HostLink(LoopThread, AbstractContextManager["HostLink"]):
    """A connection to the host from its first use to the end of the `with` block, renewed after it
    is lost. Remote models need no host.

    Args:
        place: where the host's socket is.
        host_idle_s: how long a host started here stays when it is idle and no front end is
            attached.
        limits: new limits of what the host may have loaded; None: unchanged.
        remotes: the models of other machines, by lower-case name.

    Attributes:
        connection: for use by coroutines passed to `run`.
    """

    def __init__(
        self,
        place: HostPlace,
        host_idle_s: float,
        limits: HostLimits | None = None,
        remotes: Mapping[str, RemoteServer] | None = None,
    ) -> None:
        self.connection = HostConnection(place, host_idle_s, limits, remotes)
        super().__init__("host link", self.connection.close)

    def __exit__(self, *_: object) -> None:
        self.close()

    def info(self, spec: ModelSpec) -> ModelInfo:
        """Load the model of `spec` if needed, and describe it. Raises `HostUnreachable`."""

        async def ask() -> ModelInfo:
            return await (await self.connection.backend(spec)).info()

        return self.run(ask())

    def stats(self) -> HostStats | None:
        """As `HostConnection.stats`: None if no host is running. Does not start one."""
        return self.run(self.connection.stats())

    def unload(self, model: str) -> int:
        """Unload the model with this path or name; returns how many models were unloaded."""
        return self.run(self.connection.unload(model))

    def stream(self, spec: ModelSpec, request: Request) -> EventStream:
        """The events of `request`; use it in a `with` block."""
        return EventStream(self, spec, request)


class EventStream(AbstractContextManager["EventStream"]):
    """The events of one request, ending with `Finished` or `Failed`; fewer after `interrupt`.

    Use it in a `with` block; leaving the block cancels the request if it is still running.
    """

    def __init__(self, link: HostLink, spec: ModelSpec, request: Request) -> None:
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self._pump = link.begin(self._run(link.connection, spec, request))

    async def _run(self, connection: HostConnection, spec: ModelSpec, request: Request) -> None:
        try:
            backend = await connection.backend(spec)
            generated = cast(AsyncGenerator[Event, None], backend.generate(request))
            async with aclosing(generated) as events:
                async for event in events:
                    self._events.put(event)
                    if isinstance(event, Finished | Failed):
                        return
            raise InternalError("A stream ended without a last event.")
        except Exception as error:  # noqa: BLE001 - the reader, in another thread, gets it as an event
            self._events.put(Failed(to_info(error)))

    def interrupt(self) -> None:
        """End the iteration after the events received so far. Safe in a signal handler."""
        self._events.put(None)

    def __exit__(self, *_: object) -> None:
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
