"""Commands in a pseudo-terminal: input, output, and whether the terminal is restored."""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

PATIENCE_S = 30.0


@dataclass
class Terminal:
    """A command in a pseudo-terminal; `seen` has all of its output."""

    process: subprocess.Popen[bytes]
    fd: int
    seen: bytes = b""
    read_to: int = field(default=0)

    def expect(self, text: str) -> None:
        """Wait until `text` appears after the last expected text."""
        wanted = text.encode()
        until = time.monotonic() + PATIENCE_S
        while (at := self.seen.find(wanted, self.read_to)) < 0:
            if time.monotonic() > until or not self._read(until):
                pytest.fail(f"{text!r} never came; seen: {self.seen[self.read_to :]!r}")
        self.read_to = at + len(wanted)

    def send(self, text: str) -> None:
        """Type `text` and Enter."""
        os.write(self.fd, text.encode() + b"\r")

    def press(self, control: str) -> None:
        """Press Ctrl and a letter."""
        os.write(self.fd, bytes([ord(control.upper()) - 64]))

    def interrupt_until(self, text: str) -> None:
        """Press Ctrl+C, as a person does, again if nothing happens, until `text` appears.

        CPython's readline loop loses a signal that comes between the drawing of the prompt and
        its `select` (Modules/readline.c): the next one is seen.
        """
        wanted = text.encode()
        for _ in range(int(PATIENCE_S)):
            self.press("C")
            until = time.monotonic() + 1.0
            while (at := self.seen.find(wanted, self.read_to)) < 0 and self._read(until):
                pass
            if at >= 0:
                self.read_to = at + len(wanted)
                return
        pytest.fail(f"{text!r} never came; seen: {self.seen[self.read_to :]!r}")

    def finish(self) -> int:
        """Wait for the end; returns the exit code."""
        until = time.monotonic() + PATIENCE_S
        while self._read(until):
            assert time.monotonic() < until, f"still running; seen: {self.seen!r}"
        return self.process.wait(timeout=PATIENCE_S)

    def _read(self, until: float) -> bool:
        ready, _, _ = select.select([self.fd], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # Linux says EIO when the other side is closed
            return False
        self.seen += data
        return bool(data)

    def modes(self) -> list[Any]:
        """The terminal's modes (termios), e.g. to check that they are restored."""
        import termios

        return termios.tcgetattr(self.fd)

    def resize(self, size: tuple[int, int]) -> None:
        """Give the terminal this many columns and lines; the command gets a signal."""
        _set_size(self.fd, size)

    def close(self) -> None:
        """Kill the command if it still runs, and close the terminal."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self.fd)


def open_terminal(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    size: tuple[int, int] = (80, 24),
) -> Terminal:
    """Start `command` in its own pseudo-terminal, with this many columns and lines."""
    import pty

    ours, theirs = pty.openpty()
    _set_size(ours, size)
    inherited = {key: text for key, text in os.environ.items() if key not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_take_terminal,
        env={**inherited, "TERM": "xterm", "LC_ALL": "C.UTF-8", **(env or {})},
    )
    os.close(theirs)
    return Terminal(process, ours)


def _set_size(fd: int, size: tuple[int, int]) -> None:
    import fcntl
    import termios

    columns, lines = size
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def _take_terminal() -> None:
    """In the child: make its stdin the controlling terminal, so that Ctrl+C is a signal, and
    restore the default handling of that signal in case this test run itself ignores it.
    """
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
