"""Chat templates rendered in a process that can be killed: bounded in time, memory and output."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final, cast

from hearth.backends.contract import Message
from hearth.backends.errors import HearthError, InternalError, InvalidParameter, TemplateError
from hearth.backends.text import framing

_SUSPICION: Final = 0.25
"""After this share of a template's time the next helper is started, so that it is ready if the
template must be killed."""
_START_S: Final = 20.0
"""How long the helper may take to start: some 0.2 s, unless the machine is overloaded."""
_RESERVED: Final = frozenset(("messages", "add_generation_prompt", "bos_token", "eos_token"))
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
_HINT: Final = "Give another template in the model's settings, or use --raw to go without one."


class Renderer:
    """Renders chat templates in one helper process, one at a time. Thread-safe.

    The helper is started by `start` or by the first render, is kept, and is killed and started
    again when a template takes too long or brings it down. One thread of the renderer does all
    this: it outlives every helper, because Linux kills a helper with the thread that started it.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._keeper: threading.Thread | None = None
        self._helper: _Helper | None = None
        self._next_helper: _Helper | None = None
        self._suspicious_at: float | None = None
        self._deadline: float | None = None
        self._overdue = False
        self._start_failed = False
        self._closed = False

    def start(self) -> None:
        """Start the helper in the background, so that the first render need not wait for it."""
        with self._changed:
            if self._keeper is None and not self._closed:
                self._keeper = threading.Thread(
                    target=self._keep, name="template-renderer", daemon=True
                )
                self._keeper.start()

    @property
    def helper_pid(self) -> int | None:
        """The process that would do the next render; None while there is none."""
        with self._changed:
            return None if self._helper is None else self._helper.pid

    def render(
        self,
        template: str,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        bos_token: str = "",
        eos_token: str = "",
        extra: Mapping[str, Any] | None = None,
        timeout_s: float = 1.0,
    ) -> str:
        """The prompt that the Jinja source `template` makes of `messages`.

        Args:
            extra: further variables (JSON values), e.g. {"enable_thinking": False}.
            timeout_s: wall-clock time that the template may take.

        Raises:
            TemplateError: the template is wrong, refuses, or exceeds a bound; `reason` in `data` is
                as in `template.render`, or "timeout", or "crashed".
            InvalidParameter: `extra` has a reserved name, or the conversation is over 64 MiB.
            InternalError: the helper cannot be started, or the renderer is closed.
        """
        request = _request(template, messages, add_generation_prompt, bos_token, eos_token, extra)
        self.start()
        with self._turn:
            answer = self._ask(request, timeout_s)
        if "text" in answer:
            return str(answer["text"])
        raise TemplateError(answer["error"], answer["hint"], **answer["data"])

    def close(self) -> None:
        """End the helper; a render that is under way fails."""
        with self._changed:
            self._closed = True
            for helper in (self._helper, self._next_helper):
                if helper is not None:
                    helper.kill()
            self._changed.notify_all()
            keeper = self._keeper
        if keeper is not None:
            keeper.join()
        with self._turn, self._changed:
            for helper in (self._helper, self._next_helper):
                if helper is not None:
                    helper.close()
            self._helper = self._next_helper = None

    def _ask(self, request: bytes, timeout_s: float) -> dict[str, Any]:
        helper = self._ready_helper()
        with self._changed:
            self._overdue = False
            now = time.monotonic()
            self._deadline = now + timeout_s
            self._suspicious_at = now + _SUSPICION * timeout_s
            self._changed.notify_all()
        try:
            answer = helper.ask(request)
        except (EOFError, OSError, ValueError) as error:
            raise self._failure(self._retire(helper), timeout_s) from error
        with self._changed:
            self._deadline = self._suspicious_at = None
            overdue = self._overdue
        if overdue:  # killed just after it answered
            self._retire(helper)
        return answer

    def _ready_helper(self) -> _Helper:
        """A running helper; waits for the keeper to start one."""
        with self._changed:
            idle = self._helper
        if idle is not None and not idle.is_alive():
            self._retire(idle)
        with self._changed:
            self._start_failed = False
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._helper is not None or self._start_failed or self._closed, _START_S
            )
            if self._helper is None or self._closed:
                why = "is closed" if self._closed else "could not start its helper process"
                raise InternalError(f"The renderer of chat templates {why}.")
            return self._helper

    def _retire(self, helper: _Helper) -> bool:
        """Let the keeper start another helper; returns whether this one was killed for its time."""
        with self._changed:
            overdue = self._overdue
            self._overdue = False
            self._deadline = self._suspicious_at = None
            self._helper = None
            self._changed.notify_all()
        helper.close()
        return overdue

    def _failure(self, overdue: bool, timeout_s: float) -> HearthError:
        if self._closed:
            return InternalError("The renderer of chat templates was closed.")
        if overdue:
            return TemplateError(
                f"The chat template took more than {timeout_s:g} s.", _HINT, reason="timeout"
            )
        return TemplateError(
            "The chat template brought down the process that rendered it.", _HINT, reason="crashed"
        )

    def _keep(self) -> None:
        """The keeper's loop: start helpers where they are needed, kill the one that is overdue."""
        while self._wait_for_work():
            with self._changed:
                helper = self._next_helper
                needed = self._helper is None
            if helper is None:
                helper = self._spawned()
            if needed and helper is not None and not _comes_up(helper):
                helper.close()
                helper = None
            with self._changed:
                self._next_helper = None if needed else helper
                if needed:
                    self._helper = helper
                    self._start_failed = helper is None
                self._changed.notify_all()

    def _wait_for_work(self) -> bool:
        """True when a helper has to be started, False when the renderer closes."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                if self._helper is None and not self._start_failed:
                    return True
                if self._helper is not None and self._deadline is not None:
                    if now >= self._deadline:
                        self._overdue = True
                        self._deadline = self._suspicious_at = None
                        self._helper.kill()
                    elif self._suspicious_at is not None and now >= self._suspicious_at:
                        self._suspicious_at = None
                        if self._next_helper is None:
                            return True
                alarm = self._suspicious_at or self._deadline
                self._changed.wait(None if alarm is None else max(0.0, alarm - now))
            return False

    def _spawned(self) -> _Helper | None:
        """A new helper, not ready yet; None if the system has no memory or process left for one."""
        try:
            helper = _Helper()
        except OSError:
            return None
        with self._changed:
            self._next_helper = helper
            if self._closed:
                helper.kill()
        return helper


def _comes_up(helper: _Helper) -> bool:
    """Wait for a new helper; one that hangs is killed after `_START_S`."""
    alarm = threading.Timer(_START_S, helper.kill)
    alarm.daemon = True
    alarm.start()
    try:
        return helper.wait_ready()
    finally:
        alarm.cancel()


class _Helper:
    """One helper process. Its calls block; `kill` from another thread frees whoever waits."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hearth.backends.text.render_helper", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
        )
        self._requests = cast(BinaryIO, self._process.stdin)
        self._answers = cast(BinaryIO, self._process.stdout)

    @property
    def pid(self) -> int:
        return self._process.pid

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
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process; whoever reads from it meets the end of the stream."""
        self._process.kill()

    def close(self) -> None:
        """End the process and free its pipes; only once nobody is in `ask`."""
        self._process.kill()
        self._process.wait()
        self._answers.close()
        with contextlib.suppress(OSError):  # bytes that it never took
            self._requests.close()


def _request(
    template: str,
    messages: Sequence[Message],
    add_generation_prompt: bool,
    bos_token: str,
    eos_token: str,
    extra: Mapping[str, Any] | None,
) -> bytes:
    reserved = _RESERVED.intersection(extra or ())
    if reserved:
        raise InvalidParameter(
            "extra",
            f"{', '.join(sorted(reserved))} cannot be given to a chat template as extra variables.",
            "Use other names.",
        )
    try:
        return framing.frame(
            {
                "template": template,
                "messages": [{"role": one.role, "content": one.content} for one in messages],
                "add_generation_prompt": add_generation_prompt,
                "bos_token": bos_token,
                "eos_token": eos_token,
                "extra": dict(extra or {}),
            }
        )
    except ValueError as error:
        raise InvalidParameter(
            "messages",
            f"The conversation is too large for a template: {error}.",
            "Shorten it.",
        ) from error
