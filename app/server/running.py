"""Serving the application with uvicorn until a signal says to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn
from starlette.applications import Starlette

from hearth.backends.logs import open_log

DRAIN_S: Final = 30
"""How long running requests may go on after the first signal; a second one ends them."""
_KEEP_CONNECTION_S: Final = 75
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):
    """uvicorn without signal handlers of its own, which end the process by the signal that they
    caught, before anything is closed.
    """

    def __init__(self, application: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_CONNECTION_S,
                timeout_graceful_shutdown=DRAIN_S,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `on_signals`."""
        yield

    @property
    def busy(self) -> int:
        """Requests that are being answered."""
        return len(self.server_state.tasks)

    def end(self) -> None:
        """Take no more requests and end when the running ones have; at once when told again."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def serve_on(self, listener: socket.socket) -> None:
        """Serve until `end`; what still runs then is cancelled."""
        await self.serve(sockets=[listener])
        left = list(self.server_state.tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@contextlib.contextmanager
def on_signals(do: Callable[[], None]) -> Iterator[None]:
    """Call `do` in the running event loop at each SIGINT and SIGTERM within the block."""
    loop = asyncio.get_running_loop()
    if sys.platform != "win32":
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


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Write warnings and errors to the file `path` within the block, not to the terminal."""
    with open_log(path) as file, open(file.fileno(), "w", encoding="utf-8", closefd=False) as text:
        handler = logging.StreamHandler(text)
        handler.setLevel(logging.WARNING)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)
