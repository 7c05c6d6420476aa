"""Opens the terminal app: services, a terminal that only the app writes to, and a clean exit."""

from __future__ import annotations

import asyncio
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hearth.app.chats.store import ChatStore
from hearth.app.host_connection import HostConnection
from hearth.app.library.cache_layout import hub_cache
from hearth.app.library.downloads import Downloads
from hearth.app.library.hub import Hub
from hearth.app.library.local import Library
from hearth.app.paths import Paths, own_folder
from hearth.app.settings import Settings, load_settings
from hearth.app.tui.app import HearthApp
from hearth.app.tui.services import Services
from hearth.backends.machine.logs import open_log

if TYPE_CHECKING:
    from hearth.app.library.bandwidth import Bandwidth

_LOOK_S: Final = 1.0
"""Seconds between checks that the terminal still exists."""
_LEAVE_S: Final = 10.0
"""Seconds that the app has to exit once its terminal is gone; chats are saved by then."""


def open_app(
    paths: Paths, settings: Settings, library: Library, model: str, *, resume: bool = False
) -> int:
    """Run the terminal app until the user leaves; return the exit code.

    Args:
        settings: include the command-line flags, which apply to every chat.
        model: for new chats; empty for the one in the settings.
        resume: open the chat that changed last.

    Raises:
        HearthError: the settings, the history or the model cannot be used.
        Exception: the error that ended the app, if the user did not leave it.
    """

    def reload() -> Settings:
        return load_settings(paths.settings_file).with_flags(settings.flags)

    async def measure() -> Bandwidth:
        from hearth.app.library.bandwidth import measured_bandwidth
        from hearth.app.machine import this_machine

        return await measured_bandwidth(
            own_folder(paths.cache), this_machine(), own_folder(paths.log)
        )

    own_folder(paths.data)
    with ExitStack() as leaving:
        chats = leaving.enter_context(closing(ChatStore(paths.chats_file)))
        host = HostConnection(paths.host_place(), *settings.host_options)
        hub = Hub(offline=settings.offline)
        downloads = Downloads(paths.downloads_file, hub_cache(), hub, log_dir=paths.log)
        leaving.callback(downloads.close)
        services = Services(paths, settings, library, chats, host, hub, downloads, reload, measure)
        leaving.enter_context(own_screen(own_folder(paths.log) / "app.log"))
        newest = chats.newest() if resume else None
        thread = "" if newest is None else newest.id
        return asyncio.run(_run(HearthApp(services, thread, model), host))


async def _run(app: HearthApp, host: HostConnection) -> int:
    try:
        with left_on_signals(app):
            await app.run_async()
        if app.failure is not None:
            raise app.failure
        return app.return_code or 0
    finally:
        await app.sessions.close()
        await host.close()


@contextmanager
def left_on_signals(app: HearthApp) -> Iterator[None]:
    """On SIGTERM and SIGHUP, restore the terminal and save the chats, as when the user leaves.

    The exit code is 128 plus the signal number. A terminal that is gone counts as SIGHUP, because
    not every process receives that signal.
    """
    if sys.platform == "win32":
        yield
        return
    loop = asyncio.get_running_loop()
    leaving: set[asyncio.Task[None]] = set()

    async def leave(number: int) -> None:
        await app.sessions.close()
        app.exit(return_code=128 + number)

    def begin(number: int) -> None:
        leaving.add(loop.create_task(leave(number)))

    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(_LOOK_S):
            if _is_gone(0):
                loop.call_soon_threadsafe(begin, signal.SIGHUP)
                # Textual's loop may wait forever for the thread that writes to that terminal.
                if not is_over.wait(_LEAVE_S):
                    os._exit(128 + signal.SIGHUP)

    with ExitStack() as after:
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, begin, int(number))
            after.callback(loop.remove_signal_handler, number)
        threading.Thread(target=look, name="terminal", daemon=True).start()
        after.callback(is_over.set)
        yield


def _is_gone(terminal: int) -> bool:
    """Whether the other end is closed. Textual would then read empty input forever."""
    poll = select.poll()
    poll.register(terminal, 0)
    return any(events & (select.POLLHUP | select.POLLNVAL) for _, events in poll.poll(0))


class TerminalFile(io.FileIO):
    """The terminal as a file; writing does not fail once the terminal is gone.

    A write error would end Textual's writer thread, and the app would then wait forever for room in
    the queue of that thread.
    """

    def write(self, data: Any, /) -> int:
        """Write `data`; bytes that can no longer be written are dropped."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


@contextmanager
def own_screen(log: Path) -> Iterator[None]:
    """Let only Textual write to the terminal.

    What native code and libraries print to standard error goes to the file `log`.
    """
    terminal, before = os.dup(2), sys.__stderr__
    with open_log(log) as file:
        os.dup2(file.fileno(), 2)
    # Textual writes to `sys.__stderr__`.
    sys.__stderr__ = io.TextIOWrapper(  # type: ignore[misc]
        TerminalFile(terminal, "wb"), encoding="utf-8", write_through=True
    )
    try:
        yield
    finally:
        sys.__stderr__.flush()
        os.dup2(terminal, 2)
        sys.__stderr__ = before  # type: ignore[misc]
