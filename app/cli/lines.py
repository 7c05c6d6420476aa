"""Reading what a person types: one line, or several by a trailing backslash or triple quotes."""

from __future__ import annotations

import importlib
import sys

from hearth.app.cli.prompt import clean, decode
from hearth.app.cli.streams import is_terminal

PROMPT = "> "
CONTINUED = ". "
_QUOTES = '"""'


class LineReader:
    """Reads messages from stdin; a person who types has readline's editing, where there is one."""

    def __init__(self) -> None:
        self.interactive = is_terminal(sys.stdin)
        self._edited = self.interactive and is_terminal(sys.stdout) and _has_readline()

    def read(self) -> str | None:
        """The next message, its lines joined by newlines; None at the end of input.

        Raises:
            KeyboardInterrupt: Ctrl+C; what was typed of the message is dropped.
            UsageError: piped text that is not UTF-8.
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
    """Switch on line editing for `input`; Windows consoles have their own."""
    try:
        importlib.import_module("readline")
    except ImportError:
        return sys.platform == "win32"
    return True
