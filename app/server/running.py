"""Serves the application with uvicorn until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Final

import uvicorn
from starlette.applications import Starlette

from hearth.app.server.protocol import Connection, Releases
from hearth.app.server.services import ServerState

DRAIN_S: Final = 30
"""How long running requests may continue after the first signal; a second one stops them."""
_KEEP_CONNECTION_S: Final = 75
_TICK_S: Final = 0.1
_CANCEL_S: Final = 5.0
"""How long cancelled requests may take to send their error."""
_FLUSH_S: Final = 1.0
"""How long written data may take to reach a client at shutdown."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SWITCH_S: Final = 0.001
"""Switch interval of the interpreter: the event loop competes with threads that parse large bodies,
and would wait 5 ms, Python's default, several times for each small request.
"""


class Server(uvicorn.Server):
    """uvicorn with a different shutdown.

    It keeps listening while running requests finish, so that new requests get an error response
    (from the application, which shares `state`).
    """

    def __init__(self, application: Starlette, state: ServerState) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                loop="asyncio",
                http=partial(Connection, releases=Releases()),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_CONNECTION_S,
            )
        )
        self._state = state
        self._ends_at: float | None = None
        self._woken = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `on_signals`.

        uvicorn re-raises them, which ends the process before everything is closed.
        """
        yield

    def end(self, *, at_once: bool = False) -> None:
        """Accept no more requests, and stop when the running ones have ended or after `DRAIN_S`.

        A second call stops at once.
        """
        at_once = at_once or self._state.draining
        self._state.draining = True
        self._ends_at = time.monotonic() + (0 if at_once else DRAIN_S)
        self._woken.set()

    async def serve_on(
        self, listeners: Sequence[socket.socket], startup: Coroutine[None, None, None]
    ) -> None:
        """Serve until `end`, and run `startup` concurrently; it is cancelled at the end.

        An exception of `startup` stops the server at once, and is raised.
        """
        sys.setswitchinterval(_SWITCH_S)
        gc.freeze()  # Imported modules are never freed, so garbage collection can skip them.
        starting = asyncio.create_task(startup)
        starting.add_done_callback(self._end_if_failed)
        try:
            await self.serve(sockets=list(listeners))
        finally:
            starting.cancel()
            await asyncio.wait([starting])
        if not starting.cancelled():
            starting.result()

    def _end_if_failed(self, done: asyncio.Task[None]) -> None:
        if not done.cancelled() and done.exception() is not None:
            self.end(at_once=True)

    async def main_loop(self) -> None:
        """Tick ten times a second, as uvicorn does, and as soon as `end` is called."""
        counter = 0
        while not (await self.on_tick(counter) or self._is_over()):
            counter += 1
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), _TICK_S)

    def _is_over(self) -> bool:
        """Whether `end` was called, and the running requests have ended or their time is over."""
        if self._ends_at is None:
            return False
        return self._state.busy == 0 or time.monotonic() >= self._ends_at

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listeners, cancel running requests, and close all connections.

        A connection is closed when its data has been sent, or after `_FLUSH_S`.
        """
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        left = list(self.server_state.tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_CANCEL_S)
        for connection in list(self.server_state.connections):
            connection.transport.close()
        until = time.monotonic() + _FLUSH_S
        while self.server_state.connections and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


@contextlib.contextmanager
def on_signals(do: Callable[[], None]) -> Iterator[None]:
    """Call `do` in the running event loop at each SIGINT and SIGTERM within the block."""
    loop = asyncio.get_running_loop()
    if sys.platform != "win32":  # Wakes a waiting loop, unlike `signal.signal`.
        for number in _SIGNALS:
            loop.add_signal_handler(number, do)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
        return

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(do)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
