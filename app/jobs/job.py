"""The waiting side of a job: in an event loop, or in a command that Ctrl+C stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from hearth.app.jobs.child import STOPPED, Stopped, Values, Work
from hearth.backends.errors import ErrorInfo, HearthError, InternalError, from_info
from hearth.backends.machine.logs import open_log

_MOST_LINE_BYTES: Final = 256 << 20
"""An answer is one line; that of `evaluate_job.quality` has some 80 bytes per token."""


class Job:
    """One job in a child process. Create it with `start`, read its `updates` to the end, then its
    `result`. Call `close` to end it early.
    """

    def __init__(self, process: asyncio.subprocess.Process, work: Work) -> None:
        self._process = process
        self._module = work.__module__
        self._outcome: asyncio.Future[Values] = asyncio.get_running_loop().create_future()
        self._updates: asyncio.Queue[Values | None] = asyncio.Queue()
        self._is_stopped = False
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, work: Work, question: Values, log_dir: Path | None = None) -> Job:
        """Start a process that runs `work` on `question`.

        Args:
            question: JSON values.
            log_dir: folder of `jobs.log`, which receives its stderr; None: the output is dropped.
        """
        log = open_log(log_dir / "jobs.log") if log_dir is not None else None
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "hearth.app.jobs.child"),
                *(work.__module__, work.__name__),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log if log is not None else asyncio.subprocess.DEVNULL,
                limit=_MOST_LINE_BYTES,
                env=dict(os.environ),
                start_new_session=True,  # Ctrl+C in the terminal is meant for the waiting process.
            )
        finally:
            if log is not None:
                log.close()
        assert process.stdin is not None
        process.stdin.write(json.dumps(question).encode() + b"\n")
        return cls(process, work)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def updates(self) -> AsyncIterator[Values]:
        """The progress that the job reports, until the job ends."""
        while (values := await self._updates.get()) is not None:
            yield values

    async def result(self) -> Values:
        """The job's answer. Raises the `HearthError` that it ended with."""
        return await asyncio.shield(self._outcome)

    def stop(self) -> None:
        """Ask the job to end. Its outcome is then `child.Stopped`, even if it has to be killed."""
        self._is_stopped = True
        stdin = self._process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.close()

    async def close(self) -> None:
        """End the job at once, if it is still running."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._reading
        if self._outcome.done() and not self._outcome.cancelled():
            self._outcome.exception()  # Marks it as retrieved, so that asyncio logs nothing.

    async def _read(self) -> None:
        assert self._process.stdout is not None
        outcome: Values | HearthError | None = None
        try:
            async for line in self._process.stdout:
                message = json.loads(line)
                if "progress" in message:
                    self._updates.put_nowait(message["progress"])
                elif "done" in message:
                    outcome = message["done"]
                else:
                    outcome = from_info(ErrorInfo(**message["failed"]))
        except asyncio.CancelledError:  # The event loop is closing, and needs the pipes closed.
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.communicate()
            raise
        except ValueError as error:
            outcome = InternalError(f"{self._module} said something unreadable: {error}.")
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        code = await self._process.wait()
        if outcome is None:
            outcome = self._without_answer(code)
        self.stop()
        assert self._process.stdin is not None
        # Otherwise its pipe may be closed only after the event loop.
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.wait_closed()
        self._updates.put_nowait(None)
        if isinstance(outcome, HearthError):
            self._outcome.set_exception(outcome)
        else:
            self._outcome.set_result(outcome)

    def _without_answer(self, code: int) -> HearthError:
        """The error of a process that exited with `code` without an answer."""
        if self._is_stopped:
            return Stopped(*STOPPED)
        how, hint = f"exit code {code}", "Try again; `hearth doctor` shows where its log is."
        if code < 0:
            how = f"signal {-code}: {signal.strsignal(-code)}"
            hint = "Try again; if it is killed again, the system may be short of memory."
        name = self._module.rpartition(".")[2]
        return InternalError(f"The process of {name} ended without an answer ({how}).", hint)


async def follow_job(
    work: Work,
    question: Values,
    on_progress: Callable[[Values], None] = lambda values: None,
    log_dir: Path | None = None,
    *,
    is_command: bool = False,
) -> Values:
    """Run a job and return its answer; see `Job.start`. Cancellation ends the job.

    Args:
        on_progress: called with each progress report.
        is_command: let Ctrl+C stop the job.

    Raises:
        HearthError: the error that the job ended with; `child.Stopped` after Ctrl+C.
    """
    job = await Job.start(work, question, log_dir)
    if is_command and sys.platform != "win32":
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, job.stop)
    try:
        async for values in job.updates():
            on_progress(values)
        return await job.result()
    finally:
        await job.close()


def run_job(
    work: Work,
    question: Values,
    on_progress: Callable[[Values], None],
    log_dir: Path | None = None,
) -> Values:
    """`follow_job` for a command, which has no event loop."""
    return asyncio.run(follow_job(work, question, on_progress, log_dir, is_command=True))
