"""The working side of a job: reads a question from stdin and writes progress and the answer.
`python -m hearth.app.jobs.child MODULE FUNCTION` is its process.

Both directions carry lines of JSON. In: the question, then possibly `"stop"`. Out: any number of
`{"progress": …}`, then exactly one `{"done": …}` or `{"failed": …}`. The end of stdin means that
the waiting process is gone, and has the same effect as `"stop"`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from typing import Any, BinaryIO, Final

from hearth.app.library.errors import FileTrouble
from hearth.backends.errors import HearthError, InternalError, to_info
from hearth.backends.machine.process import take_private_pipes

log = logging.getLogger(__name__)

_REPORT_EVERY_S: Final = 0.1
_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)
"""Errors of a disk; when they concern an open file, they do not name it."""
_STOP_GRACE_S: Final = 20.0
"""How long the work may take to notice a stop."""

Values = dict[str, Any]


class Stopped(HearthError):
    """The job was stopped before it was done; what it had finished is kept."""

    code = "job_stopped"
    exit_code = 130


STOPPED: Final = ("The job was stopped.", "Start it again: it goes on from where it was.")
"""Message and hint of `Stopped`."""


class Reporter:
    """Reports the progress of the work, and tells the work whether to stop. Thread-safe."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._reported_at = 0.0
        self._held_back: Values | None = None
        self._stop = threading.Event()

    @property
    def stopped(self) -> bool:
        """Whether the work should end soon, because its result is no longer wanted."""
        return self._stop.is_set()

    def check(self) -> None:
        """Raise `Stopped` if the work should end."""
        if self.stopped:
            raise Stopped(*STOPPED)

    def progress(self, **values: Any) -> None:
        """Report progress as JSON values. At most ten reports per second are sent; a later report
        replaces one that was held back, and the last is sent before the outcome.
        """
        with self._lock:
            self._held_back = values
            if time.monotonic() - self._reported_at >= _REPORT_EVERY_S:
                self._flush()

    def report_now(self, **values: Any) -> None:
        """As `progress`, but sent at once and never replaced by a later report."""
        with self._lock:
            self._flush()
            self._write({"progress": values})

    def stop(self) -> None:
        """Ask the work to end."""
        self._stop.set()

    def end(self, **outcome: Any) -> None:
        """Send the last progress and the outcome."""
        with self._lock:
            self._flush()
            self._write(outcome)

    def _flush(self) -> None:
        if self._held_back is not None:
            values, self._held_back = self._held_back, None
            self._reported_at = time.monotonic()
            self._write({"progress": values})

    def _write(self, message: Values) -> None:
        try:
            self._output.write(json.dumps(message).encode() + b"\n")
            self._output.flush()
        except BrokenPipeError:
            self._stop.set()


Work = Callable[[Values, Reporter], Values]
"""The function of a job, defined at the top level of a module. It gets the question and a
`Reporter`, and returns JSON values. It should check `Reporter.stopped` at least once a second, and
leave nothing incomplete under a final name. A `HearthError` that it raises reaches the waiting
process; an `OSError` of a file or disk reaches it as `FileTrouble`."""


def serve(work: Work) -> None:
    """Run `work` on the question from stdin and report the outcome; the body of a job's process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    input_fd, output_fd = take_private_pipes()
    questions, answers = os.fdopen(input_fd, "rb"), os.fdopen(output_fd, "wb")
    line = questions.readline()
    if not line:
        return
    reporter = Reporter(answers)
    threading.Thread(
        target=_listen, args=(questions, reporter), name="job control", daemon=True
    ).start()
    try:
        reporter.end(done=work(json.loads(line), reporter))
    except HearthError as error:
        reporter.end(failed=asdict(to_info(error)))
    except Exception as error:
        log.exception("a job failed")
        reporter.end(failed=asdict(to_info(_failure(error))))


def _failure(error: Exception) -> HearthError:
    """The typed error to report for an untyped one."""
    if isinstance(error, OSError) and (error.filename is not None or error.errno in _DISK):
        return FileTrouble(
            f"{error.filename or 'A file cannot be read or written'}: {error.strerror or error}.",
            "Check the path, its permissions and the space on the disk, or use another path.",
        )
    return InternalError(f"The job failed: {type(error).__name__}: {error}")


def _listen(questions: BinaryIO, reporter: Reporter) -> None:
    """Stop the work on request, or when the parent process is gone."""
    questions.readline()
    reporter.stop()
    time.sleep(_STOP_GRACE_S)
    log.error("a job that was told to stop did not")
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    serve(getattr(import_module(sys.argv[1]), sys.argv[2]))
