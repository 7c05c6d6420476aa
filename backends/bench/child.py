"""The front end's side of the measuring process: starts it, reads what it says, and ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from hearth.backends.bench.job import (
    Done,
    Job,
    MalformedLine,
    Message,
    Problem,
    decode_message,
    encode_job,
)
from hearth.backends.errors import InternalError, WorkerDied, from_info
from hearth.backends.machine.logs import open_log

_GRACE_S = 3.0


class BenchProcess:
    """One measuring process for one job; use it in a `with` block, which ends the process.

    The process dies with this one, and ends when its stdin does. What it prints goes to the log.

    Args:
        job: what to measure.
        log_path: where stderr and everything printed goes; its folder exists.
    """

    def __init__(self, job: Job, log_path: Path) -> None:
        self._job = job
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id, inside the `with` block."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> BenchProcess:
        with open_log(self._log_path) as log_file:
            self._process = subprocess.Popen(
                # -P: nothing is imported from the folder that somebody happens to be in.
                [
                    *(sys.executable, "-P", "-m", "hearth.backends.bench"),
                    *("--parent", str(os.getpid())),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process, self._process = self._process, None
        if process is None or process.stdin is None or process.stdout is None:
            return
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def messages(self) -> Iterator[Message]:
        """What the process says, as it says it; ends after its `Done`.

        Raises:
            HearthError: what the process says went wrong.
            WorkerDied: it ended without a word.
            InternalError: it said something else than a message.
        """
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # that it died is seen below
            process.stdin.write(encode_job(self._job))
            process.stdin.flush()
        for line in process.stdout:
            try:
                message = decode_message(line)
            except MalformedLine as error:
                raise InternalError(
                    f"The measuring process said something that is no message: {error}."
                ) from error
            if isinstance(message, Problem):
                raise from_info(message.error)
            if isinstance(message, Done):
                return
            yield message
        raise WorkerDied(
            f"The process that measured {self._job.spec.name or self._job.spec.path} died "
            f"({_cause(process.wait())}).",
            f"Its log is {self._log_path}.",
        )


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
