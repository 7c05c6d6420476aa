"""Input that is typed or piped in: prompts, answers to questions, chat lines, and Ctrl+C."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from hearth.app.terminal import is_terminal, safe_text

PROMPT = "> "
CONTINUED = ". "
_QUOTES = '"""'


def read_prompt(words: Sequence[str]) -> str:
    """Piped text followed by `words`, with an empty line between them. Raises `UsageError` if stdin
    is not UTF-8.
    """
    typed = clean(" ".join(words))
    if sys.stdin is None or is_terminal(sys.stdin):
        return typed
    piped = decode(sys.stdin.buffer.read()).rstrip("\r\n")
    return "\n\n".join(part for part in (piped, typed) if part)


def decode(data: bytes) -> str:
    """The text of piped bytes, without a byte order mark. Raises UsageError if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"The piped text is not UTF-8 (byte {data[error.start]:#04x} at {error.start})."
        ) from None


def clean(text: str) -> str:
    """`text` with the lone surrogates of undecodable arguments and key strokes replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def somebody_is_there() -> bool:
    """Whether a person can read a question and answer it."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def ask(question: str) -> str:
    """The line that is typed after `question`, stripped of surrounding spaces.

    Raises:
        Abort: end of input.
        KeyboardInterrupt: Ctrl+C.
    """
    print(safe_text(question), end=" ", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        print(file=sys.stderr)
        raise click.Abort
    return clean(line).strip()


def confirm(question: str, *, default: bool) -> bool:
    """Whether the answer to `question` is yes; Enter alone means `default`. Asks again until the
    answer is yes or no. Raises as `ask`.
    """
    choices = "[Y/n]" if default else "[y/N]"
    while True:
        answer = ask(f"{question} {choices}").lower()
        if not answer:
            return default
        if answer in ("y", "yes", "n", "no"):
            return answer.startswith("y")


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Make Ctrl+C call `stop` instead of raising KeyboardInterrupt; in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        stop()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class LineReader:
    """Reads messages from stdin, with readline's editing at a terminal if it is available."""

    def __init__(self) -> None:
        self.interactive = is_terminal(sys.stdin)
        self._edited = self.interactive and is_terminal(sys.stdout) and _has_readline()

    def read(self) -> str | None:
        """The next message, its lines joined by newlines; None at the end of input.

        Raises:
            KeyboardInterrupt: Ctrl+C; the part of the message typed so far is dropped.
            UsageError: piped text is not UTF-8.
        """
        line = self._line(PROMPT)
        if line is None:
            return None
        if line.lstrip().startswith(_QUOTES):
            return self._quoted(line.lstrip()[len(_QUOTES) :])
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            following = self._line(CONTINUED)
            if following is None:
                break
            lines.append(following)
        return "\n".join(lines)

    def _quoted(self, first: str) -> str:
        lines: list[str] = []
        line: str | None = first
        while line is not None:
            if line.rstrip().endswith(_QUOTES):
                lines.append(line.rstrip()[: -len(_QUOTES)])
                break
            lines.append(line)
            line = self._line(CONTINUED)
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str | None:
        if self._edited:
            try:
                return clean(input(prompt))
            except EOFError:
                return None
        if sys.stdin is None:
            return None
        if not self.interactive:
            data = sys.stdin.buffer.readline()
            return decode(data).rstrip("\r\n") if data else None
        print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        return clean(line.rstrip("\r\n")) if line else None


def _has_readline() -> bool:
    """Turn on line editing for `input`; Windows consoles have their own."""
    try:
        importlib.import_module("readline")
    except ImportError:
        return sys.platform == "win32"
    return True
