"""The headless host process, one per user: it serves front ends on a private local socket and owns
the workers.

The first front end (`client`) starts it. It exits when no front end is attached and no model is
loaded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

from hearth.backends.contract.events import Failed
from hearth.backends.contract.loaded import HostStats
from hearth.backends.contract.version import hearth_version
from hearth.backends.contract.wire import (
    MAX_FRAME_BYTES,
    RELAYED,
    Body,
    Cancel,
    Check,
    ClearCache,
    EndRequest,
    GetStats,
    Hello,
    Leave,
    Load,
    Sealed,
    Text,
    Unload,
    Welcome,
    WireError,
    encode_answer,
    is_last,
    sealed_frames,
    unreadable,
)
from hearth.backends.errors import Busy, HearthError, InternalError, to_info
from hearth.backends.host.supervisor import Supervisor
from hearth.backends.host.worker_process import Stream
from hearth.backends.machine.local_socket import HostPlace, listen
from hearth.backends.machine.lock import LockFile

log = logging.getLogger(__name__)

_TICK_S = 0.5
_MOST_UNSENT_BYTES = 1 << 20
"""Limit of the unread bytes of one stream; a stream that exceeds it is ended."""
_MOST_ANSWER_BYTES = 2 * MAX_FRAME_BYTES
"""Limit of the unread bytes of all answers; further answers are replaced by errors."""


class Client:
    """One attached front end: its calls, and the streams that answer them.

    Calls that a worker answers, and their answers, are relayed as bytes.
    """

    def __init__(
        self, host: Host, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._host = host
        self._reader = reader
        self._writer = writer
        self._streams: dict[int, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._outgoing: list[bytes] = []
        self._unsent: dict[int, int] = {}
        """Bytes in `_outgoing` that wait for the front end to read, by the id of the call."""
        self._unsent_bytes = 0
        self._sending: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Answer frames until the front end disconnects, then end all of its calls."""
        try:
            async for frames in sealed_frames(self._reader):
                for sealed in frames:
                    self._take(sealed)
        except WireError as error:
            log.warning("a front end sent a malformed frame: %s", error)
        except OSError:
            log.info("a front end is gone")
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            self._flush()
            if self._sending is not None:
                self._sending.cancel()
            self._writer.close()

    def _take(self, sealed: Sealed) -> None:
        body: Body | Sealed = sealed
        if sealed.kind not in RELAYED:
            try:
                body = sealed.open()
            except WireError as error:
                self._send(sealed.id, unreadable(error))
                return
        if isinstance(body, Hello):
            if body.limits is not None:
                self._host.supervisor.limit(body.limits)
            self._send(sealed.id, Welcome(hearth_version(), os.getpid()))
        elif isinstance(body, Cancel):
            if (stream := self._streams.get(sealed.id)) is not None:
                stream.cancel()
        elif isinstance(body, Leave):
            self._send(sealed.id, self._host.leave())
        else:
            # Before the task runs, so that a cancel that comes right after the call finds it.
            stream = self._streams[sealed.id] = Stream(partial(self._send, sealed.id))
            task = asyncio.create_task(self._answer(sealed, body, stream))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, sealed: Sealed, body: Body | Sealed, stream: Stream) -> None:
        try:
            if isinstance(body, Unload):
                count = await self._host.supervisor.unload(body.model)
                self._send(sealed.id, Text(str(count)))
            elif isinstance(body, EndRequest):
                count = self._host.supervisor.end_request(body.pid, body.request)
                self._send(sealed.id, Text(str(count)))
            elif isinstance(body, Check) and sealed.model:
                self._host.supervisor.check(sealed.model, body.of)
                self._send(sealed.id, Text(""))
            elif isinstance(body, GetStats):
                self._send(sealed.id, await self._host.stats())
            elif isinstance(body, (Sealed, Load, ClearCache)) and sealed.model:
                await self._host.supervisor.call(
                    sealed.model, body, stream, sealed.session, sealed.cost
                )
            else:
                raise InternalError(f"A {sealed.kind} frame cannot be answered here.")
        except HearthError as error:
            self._send(sealed.id, Failed(to_info(error)))
        except WireError as error:
            self._send(sealed.id, unreadable(error))
        except Exception as error:
            log.exception("answering a %s frame", sealed.kind)
            self._send(sealed.id, Failed(to_info(error)))
        finally:
            self._streams.pop(sealed.id, None)

    def _send(self, ident: int, body: Body | Sealed) -> None:
        """Send `body`. Frames of one iteration of the event loop, such as those of a model's step,
        are written together. What a front end does not read is held up to a limit.
        """
        data = body.relayed(ident) if isinstance(body, Sealed) else encode_answer(ident, body)
        if self._sending is None:
            if not self._outgoing:
                asyncio.get_running_loop().call_soon(self._flush)
            self._outgoing.append(data)
            return
        if is_last(body):  # type: ignore[arg-type]
            self._unsent.pop(ident, None)
            if self._unsent_bytes + len(data) > _MOST_ANSWER_BYTES:
                data = encode_answer(ident, Failed(to_info(_not_read())))
        else:
            held = self._unsent[ident] = self._unsent.get(ident, 0) + len(data)
            if held > _MOST_UNSENT_BYTES and (stream := self._streams.get(ident)) is not None:
                del self._unsent[ident]
                log.warning("a front end does not read the answer to call %d: it is ended", ident)
                stream.fail(_not_read())
                return
        self._unsent_bytes += len(data)
        self._outgoing.append(data)

    def _flush(self) -> None:
        """Write the held frames, unless the front end is still reading earlier ones."""
        if self._sending is not None or not self._outgoing:
            return
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._writer.is_closing():
            return
        self._writer.write(data)
        if self._writer.transport.get_write_buffer_size():
            self._sending = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        """Wait until the front end has read, then write the frames that were added meanwhile."""
        with contextlib.suppress(OSError):  # The front end is gone, which `serve` notices.
            await self._writer.drain()
        self._sending = None
        self._flush()


def _not_read() -> Busy:
    return Busy(
        "The client does not read its answers, so this one was ended.",
        "Read answers as they come, or ask for fewer at a time.",
        retry_after_s=1.0,
    )


class Host:
    """Serves front ends until a front end ends it or it has been idle for `idle_s` seconds."""

    def __init__(self, place: HostPlace, idle_s: float) -> None:
        self.supervisor = Supervisor(place)
        self._place = place
        self._idle_s = idle_s
        self._clients: set[Client] = set()
        self._leaving = asyncio.Event()
        self._started_at = time.time()

    async def run(self) -> None:
        """Serve; returns when the workers are stopped and the socket is removed."""
        server = await listen(self._place, self._on_client)
        loop = asyncio.get_running_loop()
        if sys.platform != "win32":
            for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.add_signal_handler(signum, self._leaving.set)
        log.info("host %s listens on %s", hearth_version(), self._place.address)
        idle_since = time.monotonic()
        while not self._leaving.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), _TICK_S)
            await self.supervisor.unload_idle()
            if server is not None and not os.path.exists(self._place.address):
                log.warning("the socket was removed; listening again")
                server.close()
                self._place.prepare()
                server = await listen(self._place, self._on_client)
            if self._clients or self.supervisor.loaded or self.supervisor.busy:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since >= self._idle_s:
                self._leaving.set()
        if server is not None:
            server.close()
            Path(self._place.address).unlink(missing_ok=True)
        await self.supervisor.unload(None)
        log.info("host leaves")

    async def stats(self) -> HostStats:
        """Statistics of this process and its workers; a worker that does not answer delays them by
        at most half a second.
        """
        workers = await self.supervisor.stats()
        clients = len(self._clients)
        return HostStats(os.getpid(), hearth_version(), self._started_at, clients, workers)

    def leave(self) -> Text | Failed:
        """Exit, unless a call is in progress."""
        if self.supervisor.busy:
            return Failed(to_info(Busy("The host is answering somebody.", "Try again later.")))
        self._leaving.set()
        return Text("leaving")

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Client(self, reader, writer)
        self._clients.add(client)
        try:
            await client.serve()
        finally:
            self._clients.discard(client)


def main() -> None:
    """Entry of `python -m hearth.backends.host`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime", type=Path, required=True)
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--idle", type=float, default=10.0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    place = HostPlace(args.runtime, args.logs, args.cache)
    place.prepare()
    lock = LockFile(place.lock_path)
    if not lock.acquire():
        return  # Another host was quicker; the client that started this one attaches to that one.
    try:
        asyncio.run(Host(place, args.idle).run())
    finally:
        lock.release()
