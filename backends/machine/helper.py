"""A helper process that can be killed: work that requests and models shape, bounded in time and
memory.

The helper's side is `hearth.backends.machine.helper_child`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO, Final, cast

from hearth.backends.errors import InternalError
from hearth.backends.machine import framing

_SUSPICION: Final = 0.25
"""After this share of the time of a question the next helper is started, so that it is ready if
this one must be killed."""
_START_S: Final = 20.0
"""How long a helper may take to start: some 0.2 s, unless the machine is overloaded."""
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
"""What Python needs to find its libraries, and the time zone; no tokens, no keys."""


class HelperLost(Exception):
    """The helper gave no answer: it died, or was killed because its time was over (`overdue`)."""

    def __init__(self, *, overdue: bool) -> None:
        super().__init__("the helper was killed" if overdue else "the helper died")
        self.overdue = overdue


class Helper:
    """One helper process that answers one question at a time. Thread-safe.

    It is started by `start` or by the first question, is kept, and is killed and started again when
    a question takes too long or brings it down.

    Args:
        module: what the process runs, e.g. "hearth.backends.text.render_helper".
        owner: subject of error messages, e.g. "The renderer of chat templates".
    """

    def __init__(self, module: str, owner: str) -> None:
        self._module = module
        self._owner = owner
        self._asking = threading.Lock()
        """Held for a question."""
        self._lock = threading.Lock()
        """Of the attributes below."""
        # Linux kills a helper with the thread that started it: this one outlives all of them.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix=module.rpartition(".")[2])
        self._process: _Process | None = None
        self._next: Future[_Process] | None = None
        self._closed = False

    def start(self) -> None:
        """Start a helper in the background, so that the next question that needs one need not wait
        for it.
        """
        with self._lock:
            if self._next is None and not self._closed:
                self._next = self._starter.submit(_Process, self._module)

    @property
    def pid(self) -> int | None:
        """The process that answered the last question; None while there is none."""
        process = self._process
        return None if process is None else process.pid

    def ask(self, question: bytes, timeout_s: float) -> dict[str, Any]:
        """What the helper answers to `question`, a frame of `framing`.

        Args:
            timeout_s: wall-clock time that the answer may take.

        Raises:
            HelperLost: there is no answer; the next question finds another helper.
            InternalError: the helper cannot be started, or is closed.
        """
        with self._asking:
            process = self._ready_process()
            answered, overdue = threading.Event(), threading.Event()

            def watch() -> None:
                if answered.wait(_SUSPICION * timeout_s):
                    return
                self.start()
                if not answered.wait((1 - _SUSPICION) * timeout_s):
                    overdue.set()
                    process.kill()

            watcher = threading.Thread(target=watch, name="helper watch", daemon=True)
            watcher.start()
            answer = None
            try:
                answer = process.ask(question)
            except (EOFError, OSError, ValueError) as error:
                if self._closed:
                    raise InternalError(f"{self._owner} was closed.") from error
            finally:
                answered.set()
                watcher.join()
                if answer is None or overdue.is_set():
                    self._retire(process)
            if answer is None:
                raise HelperLost(overdue=overdue.is_set())
            return answer

    def close(self) -> None:
        """End the process; a question that is under way fails."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
        with self._asking:
            self._starter.shutdown()
            if self._process is not None:
                self._process.close()
            if self._next is not None and self._next.exception() is None:
                self._next.result().close()
            self._process = self._next = None

    def _ready_process(self) -> _Process:
        """A running helper."""
        if self._process is not None:
            if self._process.is_alive():
                return self._process
            self._retire(self._process)
        self.start()
        with self._lock:
            starting, self._next = self._next, None
        if starting is None:
            raise InternalError(f"{self._owner} is closed.")
        try:
            process = starting.result()
        except OSError as error:  # The system has no memory or process left for one.
            raise self._not_started() from error
        with self._lock:
            self._process = process
            if self._closed:
                process.kill()
        alarm = threading.Timer(_START_S, process.kill)
        alarm.daemon = True
        alarm.start()
        is_ready = process.wait_ready()
        alarm.cancel()
        if not is_ready:
            self._retire(process)
            raise self._not_started()
        return process

    def _not_started(self) -> InternalError:
        why = "is closed" if self._closed else "could not start its helper process"
        return InternalError(f"{self._owner} {why}.")

    def _retire(self, process: _Process) -> None:
        """Let another helper answer the next question."""
        with self._lock:
            self._process = None
        process.close()
        self.start()


class _Process:
    """One helper process. Its calls block; `kill` from another thread frees whoever waits."""

    def __init__(self, module: str) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
        )
        self._requests = cast(BinaryIO, self._popen.stdin)
        self._answers = cast(BinaryIO, self._popen.stdout)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def wait_ready(self) -> bool:
        """Wait for its first word; False if it cannot start."""
        try:
            framing.read(self._answers)
        except (EOFError, ValueError):
            return False
        return True

    def ask(self, request: bytes) -> dict[str, Any]:
        """The answer; raises `EOFError`, `OSError` or `ValueError` if the helper dies."""
        framing.write(self._requests, request)
        answer: dict[str, Any] = framing.read(self._answers)
        return answer

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        """End the process; whoever reads from it meets the end of the stream."""
        self._popen.kill()

    def close(self) -> None:
        """End the process and free its pipes; only once nobody is in `ask`."""
        self._popen.kill()
        self._popen.wait()
        self._answers.close()
        with contextlib.suppress(OSError):  # bytes that it never took
            self._requests.close()
