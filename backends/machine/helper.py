"""A helper process that can be killed, for work on untrusted input, bounded in time and memory.

The helper's side is `hearth.backends.machine.helper_child`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any, BinaryIO, Final, TypeVar, cast

from hearth.backends.errors import InternalError
from hearth.backends.machine.helper_child import MOST_MEMORY_BYTES, line_of, read_line

_T = TypeVar("_T")
_START_S: Final = 20.0
"""Limit of the time to start a helper; it takes about 0.2 s unless the machine is overloaded."""
_LOOK_EVERY_S: Final = 0.05
"""Interval of checks of a helper's memory, because not every system can limit it."""
_KEPT_VARIABLES: Final = (
    "DYLD_LIBRARY_PATH",
    "HOME",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONUSERBASE",
    "SYSTEMROOT",
    "TZ",
    "USERPROFILE",
)
"""Environment variables that Python needs to find its libraries, and the time zone; no tokens or
keys.
"""


class HelperLost(Exception):
    """The helper gave no answer: it died, or was killed because it took too much time (`overdue`)
    or memory.
    """

    def __init__(self, *, overdue: bool) -> None:
        super().__init__("the helper was killed" if overdue else "the helper died")
        self.overdue = overdue


class Helper:
    """One helper process that answers one question at a time. Thread-safe.

    The process is started by `start` or by the first question and is then kept. It is started again
    if it was killed because a question took too long, or if it died. One thread starts all
    processes and talks to them; it outlives them, because Linux kills a helper with the thread that
    started it.

    Args:
        module: the module that the process runs, e.g. "hearth.backends.text.render_helper".
        owner: subject of error messages, e.g. "The renderer of chat templates".
    """

    def __init__(self, module: str, owner: str) -> None:
        self._module = module
        self._owner = owner
        self._lock = threading.Lock()
        """Held while a question is in progress."""
        self._thread = ThreadPoolExecutor(1, module.rpartition(".")[2])
        self._process: _Process | None = None
        self._closed = False

    def start(self) -> None:
        """Start the helper in the background, so that the first question need not wait for it."""
        with contextlib.suppress(RuntimeError):  # The helper is closed.
            self._thread.submit(self._running)

    @property
    def pid(self) -> int | None:
        """Id of the process that would answer the next question; None while there is none."""
        process = self._process
        return None if process is None else process.pid

    def ask(self, question: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The helper's answer to `question`, both of JSON values.

        Args:
            timeout_s: wall-clock time that the answer may take.

        Raises:
            HelperLost: there is no answer; the next question goes to a new helper process.
            ValueError: the question is too large.
            InternalError: the helper cannot be started, or is closed.
        """
        line = line_of(question)
        with self._lock:
            try:
                process = self._within(_START_S, self._running)
            except HelperLost as lost:
                raise InternalError(f"{self._owner} could not start its helper process.") from lost
            try:
                return self._within(timeout_s, partial(process.ask, line))
            except HelperLost:
                self.start()
                raise

    def close(self) -> None:
        """End the process; a question in progress fails."""
        self._closed = True
        self._kill()
        self._thread.shutdown()
        if self._process is not None:
            self._process.close()
            self._process = None

    def _within(self, timeout_s: float, work: Callable[[], _T]) -> _T:
        """The result of `work` in the thread; the process is killed if it takes too much time or
        memory.

        Raises:
            HelperLost: the process was killed, died, or could not be started.
            InternalError: the helper is closed.
        """
        overdue = False
        try:
            future = self._thread.submit(work)
            while not wait((future,), min(timeout_s, _LOOK_EVERY_S)).done:
                timeout_s -= _LOOK_EVERY_S
                overdue = timeout_s <= 0
                if overdue or self._takes_too_much():
                    self._kill()
                    break
            return future.result()
        except (EOFError, OSError, ValueError, RuntimeError) as error:
            if self._closed:
                raise InternalError(f"{self._owner} is closed.") from error
            raise HelperLost(overdue=overdue) from error

    def _running(self) -> _Process:
        """The process, started if there is none. Raises `OSError` or `EOFError` if that fails."""
        if self._process is not None and self._process.is_alive():
            return self._process
        if self._process is not None:
            self._process.close()
        self._process = _Process(self._module)
        if self._closed:
            self._process.kill()
        self._process.ask(b"")  # It reports that it is ready without a question.
        return self._process

    def _takes_too_much(self) -> bool:
        import psutil  # Not needed where only steps run (tests/native/test_alone.py).

        try:
            return bool(self.pid and psutil.Process(self.pid).memory_info().rss > MOST_MEMORY_BYTES)
        except psutil.Error:
            return False  # The process is gone, which the thread notices.

    def _kill(self) -> None:
        """End the process; the thread gets the end of the stream if it is reading."""
        if self._process is not None:
            self._process.kill()


class _Process:
    """One helper process. `ask` blocks; `kill` from another thread ends the wait."""

    def __init__(self, module: str) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
        )
        self._killed = False
        self._requests = cast(BinaryIO, self._popen.stdin)
        self._answers = cast(BinaryIO, self._popen.stdout)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def ask(self, line: bytes) -> dict[str, Any]:
        """The answer to `line`; raises `EOFError`, `OSError` or `ValueError` if the helper dies."""
        try:
            self._requests.write(line)
            self._requests.flush()
            answer: dict[str, Any] = read_line(self._answers)
        except BaseException:
            self.close()  # It may still be dying.
            raise
        return answer

    def is_alive(self) -> bool:
        return not self._killed and self._popen.poll() is None

    def kill(self) -> None:
        """End the process; a reader of its output gets the end of the stream."""
        self._killed = True
        self._popen.kill()

    def close(self) -> None:
        """End the process and free its pipes; not to be called while another thread is in `ask`."""
        self.kill()
        self._popen.wait()
        self._answers.close()
        with contextlib.suppress(OSError):  # The process may not have read all bytes.
            self._requests.close()
