"""The host's side of one worker: the child process, its frames, and the streams that wait for
them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from hearth.backends.breaker import Breaker
from hearth.backends.contract import Failed, Finished, ModelInfo, ModelSpec, Progress, Token
from hearth.backends.errors import InternalError, WorkerDied, from_info, to_info
from hearth.backends.local_socket import HostPlace
from hearth.backends.logs import open_log
from hearth.backends.wire import Answer, Call, Cancel, Frame, Load, WireError, encode, read_frame

log = logging.getLogger(__name__)

_STOP_GRACE_S = 3.0
_NOT_LAST = (Progress, Token)


def is_last(answer: Answer) -> bool:
    """Does `answer` end its stream? Everything but `Started`, `Progress` and `Token` does."""
    return type(answer).__name__ not in ("Started", "Progress", "Token")


class Stream:
    """The answers to one call; ends with exactly one last answer, whatever happens to the
    worker.
    """

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Answer] = asyncio.Queue()
        self._worker: WorkerProcess | None = None
        self._ident = 0
        self._over = False
        self.started_at = time.monotonic()

    def put(self, answer: Answer) -> None:
        """Deliver `answer`; what comes after the last one is dropped."""
        if self._over:
            return
        self._over = is_last(answer)
        self._queue.put_nowait(answer)

    @property
    def over(self) -> bool:
        return self._over

    def bind(self, worker: WorkerProcess, ident: int) -> None:
        """The call was sent to `worker` under `ident`."""
        self._worker, self._ident = worker, ident

    def cancel(self) -> None:
        """Ask for an early end: the worker answers `Finished`, or the stream ends here if none has
        the call yet.
        """
        if self._over:
            return
        if self._worker is None:
            self.put(Finished("cancelled"))
        else:
            self._worker.send(Frame(self._ident, Cancel()))

    async def __aiter__(self) -> AsyncIterator[Answer]:
        while True:
            answer = await self._queue.get()
            yield answer
            if is_last(answer):
                return


class WorkerProcess:
    """One child process that runs one model. `start` makes it; it is alive until `died` is set."""

    def __init__(self, spec: ModelSpec, name: str, place: HostPlace, breaker: Breaker) -> None:
        self.spec = spec
        self.name = name
        self.info: ModelInfo | None = None
        self.last_active = time.monotonic()
        self.died = asyncio.Event()
        self._place = place
        self._breaker = breaker
        self._process: asyncio.subprocess.Process | None = None
        self._streams: dict[int, Stream] = {}
        self._idents = itertools.count(1)
        self._stopping = False

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def log_path(self) -> Path:
        return self._place.log_dir / "worker.log"

    @property
    def streams(self) -> int:
        """Calls that are not answered to the end yet."""
        return len(self._streams)

    async def start(self) -> ModelInfo:
        """Start the child and load the model. Raises what the worker says, or `WorkerDied`."""
        with open_log(self.log_path) as log_file:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "hearth.backends.worker"),
                *("--cache", str(self._place.cache_dir)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log_file,
            )
        self._reader = asyncio.create_task(self._read())
        async for answer in self.call(Load(), self.spec):
            if isinstance(answer, ModelInfo):
                self.info = answer
                return answer
            if isinstance(answer, Failed):
                await self.stop()
                raise from_info(answer.error)
        raise InternalError("The worker answered a load with something else.")

    def call(
        self, call: Call, spec: ModelSpec | None = None, stream: Stream | None = None
    ) -> Stream:
        """Send `call` and return the stream of its answers."""
        stream = stream or Stream()
        ident = next(self._idents)
        self._streams[ident] = stream
        stream.bind(self, ident)
        if self.died.is_set():
            self._fail_all()
        else:
            self.send(Frame(ident, call, spec))
        return stream

    def send(self, frame: Frame) -> None:
        """Write `frame`; a worker that is gone is noticed by the reader."""
        if self._process is None or self._process.stdin is None or self.died.is_set():
            return
        self.last_active = time.monotonic()
        self._process.stdin.write(encode(frame))

    async def stop(self) -> None:
        """Let the child leave (it does when its stdin ends), or kill it after a grace time."""
        self._stopping = True
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self.died.wait(), _STOP_GRACE_S)
        except TimeoutError:
            self._process.kill()
            await self.died.wait()

    async def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        try:
            while (frame := await read_frame(self._process.stdout)) is not None:
                if isinstance(frame.body, _NOT_LAST):
                    self._breaker.step()
                self._deliver(frame)
        except WireError:
            log.exception("worker %s sent a malformed frame", self.name)
            self._process.kill()
        except OSError:
            log.exception("reading from worker %s", self.name)
        if self._process.returncode is None and not self._stopping:
            # Its pipe ended, so it is leaving or broken; it must not linger.
            await asyncio.sleep(0)
            try:
                await asyncio.wait_for(self._process.wait(), _STOP_GRACE_S)
            except TimeoutError:
                self._process.kill()
        await self._process.wait()
        if not self._stopping:
            log.error("worker %s (pid %d) died: %s", self.name, self.pid, self._cause())
            self._breaker.death()
        self.died.set()
        self._fail_all()

    def _deliver(self, frame: Frame) -> None:
        stream = self._streams.get(frame.id)
        if stream is None:
            return
        body = frame.body
        assert not isinstance(body, Cancel)
        stream.put(body)  # type: ignore[arg-type]
        if stream.over:
            del self._streams[frame.id]
            self.last_active = time.monotonic()

    def _cause(self) -> str:
        code = self._process.returncode if self._process is not None else None
        if code is None:
            return "unknown cause"
        if code < 0:
            try:
                return signal.Signals(-code).name
            except ValueError:
                return f"signal {-code}"
        return f"exit code {code}"

    def _fail_all(self) -> None:
        if self._stopping:
            error = WorkerDied(f"{self.name} was unloaded.", "Ask again: it is loaded anew.")
        else:
            error = WorkerDied(
                f"The process that ran {self.name} died ({self._cause()}).",
                f"Ask again: it is restarted. Its log is {self.log_path}.",
                cause=self._cause(),
            )
        for stream in self._streams.values():
            stream.put(Failed(to_info(error)))
        self._streams.clear()
