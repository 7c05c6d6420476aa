"""A helper process that can be killed: work that strangers shape, bounded in time and memory.

The helper's side is `hearth.backends.machine.helper_child`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
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
    a question takes too long or brings it down. One thread does all this: it outlives every
    process, because Linux kills a helper with the thread that started it.

    Args:
        module: what the process runs, e.g. "hearth.backends.text.render_helper".
        owner: who speaks in errors, e.g. "The renderer of chat templates".
    """

    def __init__(self, module: str, owner: str) -> None:
        self._module = module
        self._owner = owner
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._keeper: threading.Thread | None = None
        self._process: _Process | None = None
        self._next_process: _Process | None = None
        self._wakes_at: float | None = None
        """When the keeper looks by itself; None: it must be told."""
        self._suspicious_at: float | None = None
        self._deadline: float | None = None
        self._overdue = False
        self._start_failed = False
        self._closed = False

    def start(self) -> None:
        """Start the helper in the background, so that the first question need not wait for it."""
        with self._changed:
            if self._keeper is None and not self._closed:
                self._keeper = threading.Thread(
                    target=self._keep, name=self._module.rpartition(".")[2], daemon=True
                )
                self._keeper.start()

    @property
    def pid(self) -> int | None:
        """The process that would answer the next question; None while there is none."""
        with self._changed:
            return None if self._process is None else self._process.pid

    def ask(self, question: bytes, timeout_s: float) -> dict[str, Any]:
        """What the helper answers to `question`, a frame of `framing`.

        Args:
            timeout_s: wall-clock time that the answer may take.

        Raises:
            HelperLost: there is no answer; the next question finds another helper.
            InternalError: the helper cannot be started, or is closed.
        """
        self.start()
        with self._turn:
            return self._ask(question, timeout_s)

    def close(self) -> None:
        """End the process; a question that is under way fails."""
        with self._changed:
            self._closed = True
            for helper in (self._process, self._next_process):
                if helper is not None:
                    helper.kill()
            self._changed.notify_all()
            keeper = self._keeper
        if keeper is not None:
            keeper.join()
        with self._turn, self._changed:
            for helper in (self._process, self._next_process):
                if helper is not None:
                    helper.close()
            self._process = self._next_process = None

    def _ask(self, question: bytes, timeout_s: float) -> dict[str, Any]:
        helper = self._ready_process()
        with self._changed:
            self._overdue = False
            now = time.monotonic()
            self._deadline = now + timeout_s
            self._suspicious_at = now + _SUSPICION * timeout_s
            # Most answers come long before: the keeper need not wake up for each.
            if self._wakes_at is None or self._wakes_at > self._suspicious_at:
                self._changed.notify_all()
        try:
            answer = helper.ask(question)
        except (EOFError, OSError, ValueError) as error:
            overdue = self._retire(helper)
            if self._closed:
                raise InternalError(f"{self._owner} was closed.") from error
            raise HelperLost(overdue=overdue) from error
        with self._changed:
            self._deadline = self._suspicious_at = None
            overdue = self._overdue
        if overdue:  # killed just after it answered
            self._retire(helper)
        return answer

    def _ready_process(self) -> _Process:
        """A running helper; waits for the keeper to start one."""
        with self._changed:
            idle = self._process
        if idle is not None and not idle.is_alive():
            self._retire(idle)
        with self._changed:
            self._start_failed = False
            if self._process is None:
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._process is not None or self._start_failed or self._closed,
                    _START_S,
                )
            if self._process is None or self._closed:
                why = "is closed" if self._closed else "could not start its helper process"
                raise InternalError(f"{self._owner} {why}.")
            return self._process

    def _retire(self, helper: _Process) -> bool:
        """Let the keeper start another helper; returns whether this one was killed for its time."""
        with self._changed:
            overdue = self._overdue
            self._overdue = False
            self._deadline = self._suspicious_at = None
            self._process = None
            self._changed.notify_all()
        helper.close()
        return overdue

    def _keep(self) -> None:
        """The keeper's loop: start helpers where they are needed, kill the one that is overdue."""
        while self._wait_for_work():
            with self._changed:
                helper = self._next_process
                needed = self._process is None
            if helper is None:
                helper = self._spawned()
            if needed and helper is not None and not _comes_up(helper):
                helper.close()
                helper = None
            with self._changed:
                self._next_process = None if needed else helper
                if needed:
                    self._process = helper
                    self._start_failed = helper is None
                self._changed.notify_all()

    def _wait_for_work(self) -> bool:
        """True when a helper has to be started, False when all of it closes."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                if self._process is None and not self._start_failed:
                    return True
                if self._process is not None and self._deadline is not None:
                    if now >= self._deadline:
                        self._overdue = True
                        self._deadline = self._suspicious_at = None
                        self._process.kill()
                    elif self._suspicious_at is not None and now >= self._suspicious_at:
                        self._suspicious_at = None
                        if self._next_process is None:
                            return True
                alarm = self._wakes_at = self._suspicious_at or self._deadline
                self._changed.wait(None if alarm is None else max(0.0, alarm - now))
                self._wakes_at = None
            return False

    def _spawned(self) -> _Process | None:
        """A new helper, not ready yet; None if the system has no memory or process left for one."""
        try:
            helper = _Process(self._module)
        except OSError:
            return None
        with self._changed:
            self._next_process = helper
            if self._closed:
                helper.kill()
        return helper


def _comes_up(helper: _Process) -> bool:
    """Wait for a new helper; one that hangs is killed after `_START_S`."""
    alarm = threading.Timer(_START_S, helper.kill)
    alarm.daemon = True
    alarm.start()
    try:
        return helper.wait_ready()
    finally:
        alarm.cancel()


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
