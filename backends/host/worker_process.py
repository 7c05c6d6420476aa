"""The host's side of one worker: the child process, its frames, and the streams of answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from hearth.backends.contract.events import (
    Embeddings,
    Failed,
    Finished,
    Progress,
    Ranks,
    Scores,
    Token,
    ToolCallPart,
)
from hearth.backends.contract.loaded import EngineStats, ModelInfo
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.wire import (
    Answer,
    Call,
    Cancel,
    Cost,
    Frame,
    GetEngineStats,
    Load,
    Sealed,
    WireError,
    encode,
    is_last,
    sealed_frames,
    unsealed,
)
from hearth.backends.errors import HearthError, InternalError, WorkerDied, from_info, to_info
from hearth.backends.host.breaker import Breaker
from hearth.backends.host.progress_watch import LONGEST_STEP_S, STALL_S, ProgressWatch
from hearth.backends.machine.local_socket import HostPlace
from hearth.backends.machine.logs import open_log
from hearth.backends.machine.process import signal_name, with_huge_pages

log = logging.getLogger(__name__)

_STOP_GRACE_S = 3.0
_STATS_TIMEOUT_S = 0.5
"""The longest wait for a worker's statistics; it may hang."""
_STEPS = frozenset(
    kind.__name__ for kind in (Progress, Token, ToolCallPart, Scores, Embeddings, Ranks)
)
"""Answers that show that the worker has computed a step."""


class Stream:
    """The answers to one call; ends with exactly one last answer, whatever happens to the worker.

    Args:
        listener: is called with each answer directly; scheduling a task would double the cost of
            every token.
    """

    def __init__(self, listener: Callable[[Answer | Sealed], None]) -> None:
        self._listener = listener
        self._worker: WorkerProcess | None = None
        self._ident = 0
        self.cancelled = False
        self.started = False
        """The worker has sent an answer, so the call is running there."""
        self.created_at = time.monotonic()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the last answer has come."""

    def put(self, answer: Answer | Sealed) -> None:
        """Deliver `answer`; answers after the last one are dropped."""
        if self.ended.done():
            return
        if is_last(answer):
            self.ended.set_result(None)
        else:
            self.started = True
        self._listener(answer)

    def fail(self, error: HearthError) -> None:
        """End the stream with `error`, and cancel the call in the worker."""
        self._cancel_in_worker()
        self.put(Failed(to_info(error)))

    def bind(self, worker: WorkerProcess, ident: int) -> None:
        """The call was sent to `worker` under `ident`."""
        self._worker, self._ident = worker, ident

    def cancel(self) -> None:
        """Request an early end: the worker answers `Finished`, or the stream ends here if the call
        has not been sent to a worker yet.
        """
        if self.ended.done():
            return
        self._cancel_in_worker()
        if self._worker is None:
            self.put(Finished("cancelled"))

    def _cancel_in_worker(self) -> None:
        self.cancelled = True
        if self._worker is not None:
            self._worker.send(Frame(self._ident, Cancel()))

    def abandon(self) -> None:
        """Cancel the call and drop further answers: there is no listener any more."""
        self._listener = lambda answer: None
        self.cancel()


class WorkerProcess:
    """One child process that runs one model. `start` creates it; it exists until `died` is set."""

    def __init__(self, spec: ModelSpec, name: str, place: HostPlace, breaker: Breaker) -> None:
        self.spec = spec
        self.name = name
        self.info: ModelInfo | None = None
        self.last_active = time.monotonic()
        self.died = asyncio.Event()
        self._place = place
        self._breaker = breaker
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._streams: dict[int, Stream] = {}
        self._questions: dict[int, Stream] = {}
        """`GetEngineStats` in progress. They do not count as calls, so that reading statistics does
        not keep a model from being unloaded.
        """
        self._idents = itertools.count(1)
        self._stopping = False
        self._has_stepped = False
        self._watch = ProgressWatch(STALL_S, LONGEST_STEP_S)
        self._ended_after_s: float | None = None
        """Seconds without progress, if the child was killed because of that."""

    @property
    def stalled_s(self) -> float:
        """Seconds without progress while calls wait for the worker, as of the last check."""
        return self._watch.idle_s if self._streams else 0.0

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def log_path(self) -> Path:
        return self._place.log_dir / "worker.log"

    @property
    def streams(self) -> int:
        """Number of calls whose last answer has not come yet."""
        return len(self._streams)

    @property
    def running(self) -> int:
        """Number of requests that hold a slot now; other calls wait or need no slot."""
        return sum(stream.started for stream in self._streams.values())

    @property
    def wanted(self) -> bool:
        """Whether any client waits for an answer. A cancelled call may still take a step to end."""
        return not all(stream.cancelled for stream in self._streams.values())

    @property
    def usable(self) -> bool:
        """The worker has not died and is not being stopped."""
        return not (self._stopping or self.died.is_set())

    async def start(self) -> ModelInfo:
        """Start the child and load the model; if this fails or is cancelled, the child is ended.

        Raises the error that the worker reports, or `WorkerDied`.
        """
        try:
            return await self._start()
        except BaseException:
            self._stopping = True
            self._kill()
            if self._process is None:
                self.died.set()
            raise

    async def _start(self) -> ModelInfo:
        try:
            self._process = await self._spawn()
        except OSError as error:
            raise WorkerDied(
                f"The process that runs {self.name} could not be started: {error}",
                "Free memory or disk space, then ask again.",
            ) from error
        self._reader = asyncio.create_task(self._read())
        if self._stopping:
            raise self._unloaded()
        answers: list[Answer | Sealed] = []
        stream = Stream(answers.append)
        self.call(Load(), stream, self.spec)
        await asyncio.wait((stream.ended,))
        answer = unsealed(answers[-1])
        if isinstance(answer, Failed):
            await self.stop()
            raise from_info(answer.error)
        if not isinstance(answer, ModelInfo):
            raise InternalError("The worker answered a load with something else.")
        self.info = answer
        self._watching = asyncio.create_task(self._watch_progress())
        return answer

    async def _spawn(self) -> asyncio.subprocess.Process:
        with open_log(self.log_path) as log_file:
            return await asyncio.create_subprocess_exec(
                # -P: nothing is imported from the current folder.
                *(sys.executable, "-P", "-m", "hearth.backends.worker"),
                *("--parent", str(os.getpid()), "--cache", str(self._place.cache_dir)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log_file,
                env=with_huge_pages(os.environ),
            )

    def call(
        self,
        call: Call[object] | Sealed,
        stream: Stream,
        spec: ModelSpec | None = None,
        session: str = "",
        cost: Cost | None = None,
    ) -> None:
        """Send `call`; `stream` gets its answers. Raises `WireError` if it cannot be encoded."""
        ident = next(self._idents)
        if not self._streams:
            self._watch.progress()
        self._streams[ident] = stream
        stream.bind(self, ident)
        if self.died.is_set():
            self._fail_all()
        else:
            try:
                self.send(Frame(ident, call, spec, session, cost))
            except WireError:
                del self._streams[ident]  # The worker has not received the call.
                raise

    def send(self, frame: Frame) -> None:
        """Write `frame`; if the worker is gone, the reader notices it."""
        self.last_active = time.monotonic()
        self._write(frame)

    def _write(self, frame: Frame) -> None:
        if self._process is None or self._process.stdin is None or self.died.is_set():
            return
        self._process.stdin.write(encode(frame))

    def end(self, request: int) -> bool:
        """End the call with this id in the worker as cancelled; False if it is over or already
        cancelled.
        """
        stream = self._streams.get(request)
        if stream is None or stream.cancelled:
            return False
        stream.cancel()
        return True

    async def engine_stats(self) -> EngineStats | None:
        """Statistics of the worker's engine; None while the worker is loading or exiting, or if it
        does not answer quickly.
        """
        if self.info is None or not self.usable:
            return None
        ident, answers = next(self._idents), list[Answer | Sealed]()
        stream = self._questions[ident] = Stream(answers.append)
        try:
            self._write(Frame(ident, GetEngineStats()))
            await asyncio.wait((stream.ended,), timeout=_STATS_TIMEOUT_S)
        finally:
            del self._questions[ident]
        stats = unsealed(answers[0]) if answers else None
        return stats if isinstance(stats, EngineStats) else None

    async def _watch_progress(self) -> None:
        """Kill the child if it has calls and makes no progress; this ends its streams."""
        process = psutil.Process(self.pid)
        checked_at = time.monotonic()
        while not self.died.is_set():
            await asyncio.sleep(self._watch.interval_s)
            now, passed_s = time.monotonic(), time.monotonic() - checked_at
            checked_at = now
            if not self._streams:
                continue
            stats = await self.engine_stats()
            marker = stats and (
                *(stats.steps, stats.computed_tokens, stats.running, stats.waiting),
                stats.live_tokens,  # It grows while a prefix is read from disk.
            )
            try:
                spent = process.cpu_times()
            except psutil.Error:
                return  # The child is gone, which `_read` notices.
            is_stalled = self._watch.check(marker, spent.user + spent.system, passed_s)
            idle_s, calls = self._watch.idle_s, len(self._streams)
            if is_stalled and self._streams:
                self._ended_after_s = idle_s
                log.error(
                    "worker %s (pid %d) made no progress for %.0f s with %d calls; it is killed",
                    *(self.name, self.pid, idle_s, calls),
                )
                self._kill()
                return
            if idle_s > STALL_S / 2:
                log.warning(
                    "worker %s (pid %d) has made no progress for %.0f s with %d calls",
                    *(self.name, self.pid, idle_s, calls),
                )

    async def stop(self) -> None:
        """Let the child exit, which it does when its stdin ends. It is killed after a grace period,
        even if this coroutine is cancelled.
        """
        self._stopping = True
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        asyncio.get_running_loop().call_later(_STOP_GRACE_S, self._kill)
        await self.died.wait()

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # It has ended already.
                self._process.kill()

    async def _read(self) -> None:
        """Deliver frames until the child is gone, then end its streams in any case."""
        assert self._process is not None
        try:
            await self._take_frames(self._process)
        except Exception:
            log.exception("reading from worker %s", self.name)
            self._kill()
        await self._process.wait()
        if not self._stopping:
            log.error("worker %s (pid %d) died: %s", self.name, self.pid, self._cause())
            self._breaker.death()
        self.died.set()
        if self._watching is not None:
            self._watching.cancel()
        self._fail_all()

    async def _take_frames(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            async for answers in sealed_frames(process.stdout):
                if not self._has_stepped and any(answer.kind in _STEPS for answer in answers):
                    self._has_stepped = True
                    self._breaker.step()
                self._deliver(answers)
        except WireError as error:
            log.error("worker %s: %s", self.name, error)
            # A child that died inside a frame keeps its exit signal: `kill` would reap it.
            if not process.stdout.at_eof():
                self._kill()
        if process.returncode is None:
            # Its pipe ended, so it is exiting or broken; it must not stay.
            asyncio.get_running_loop().call_later(_STOP_GRACE_S, self._kill)

    def _deliver(self, answers: Sequence[Sealed]) -> None:
        has_call = False
        for answer in answers:
            stream = self._streams.get(answer.id)
            if stream is None:
                if (question := self._questions.get(answer.id)) is not None:
                    question.put(answer)
                continue
            has_call = True
            stream.put(answer)
            if not answer.part:
                del self._streams[answer.id]
                self.last_active = time.monotonic()
        if has_call:
            self._watch.progress()

    def _cause(self) -> str:
        if self._ended_after_s is not None:
            return f"no progress for {self._ended_after_s:.0f} s"
        code = self._process.returncode if self._process is not None else None
        if code is None:
            return "unknown cause"
        return signal_name(-code) if code < 0 else f"exit code {code}"

    def _unloaded(self) -> WorkerDied:
        return WorkerDied(
            f"{self.name} was unloaded.",
            "Retry the request: the model is loaded again.",
            unloaded=True,
        )

    def _fail_all(self) -> None:
        if self._stopping:
            error = self._unloaded()
        else:
            error = WorkerDied(
                f"The process that ran {self.name} died ({self._cause()}).",
                f"Ask again: it is restarted. Its log is {self.log_path}.",
                cause=self._cause(),
            )
        for stream in (*self._streams.values(), *self._questions.values()):
            stream.put(Failed(to_info(error)))
        self._streams.clear()
