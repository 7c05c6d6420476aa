"""The screen of a full-screen program in a pseudo-terminal, and the control sequences it sends."""

from __future__ import annotations

import codecs
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from rich.cells import cell_len

from terminals import PATIENCE_S, Terminal, open_terminal

SIZE = (100, 30)
ALTERNATE_ON, ALTERNATE_OFF = "\x1b[?1049h", "\x1b[?1049l"
_SEQUENCE = re.compile(
    "\x1b\\[(?P<arguments>[0-?]*)[ -/]*(?P<final>[@-~])"  # CSI
    "|\x1b(?P<string>[\\]PX^_])(?P<body>.*?)(?:\x07|\x1b\\\\)"  # OSC, DCS, SOS, PM, APC
    "|\x1b(?P<single>[ -/]*[0-OQ-WYZ`-~])"
    "|(?P<control>[\x00-\x1a\x1c-\x1f\x7f-\x9f])",
    re.DOTALL,
)
_COLOR = re.compile(r"(?:^|;)([34]8;(?:2;\d+;\d+;\d+|5;\d+))(?=;|$)")
_STRINGS = {"]": "OSC", "P": "DCS", "X": "SOS", "^": "PM", "_": "APC"}


def kinds(sent: bytes) -> set[str]:
    """The kinds of control sequences in `sent`, without their positions and colours."""
    found = set()
    for match in _SEQUENCE.finditer(sent.decode("utf-8", "replace")):
        if match["final"]:
            arguments = match["arguments"]
            named = arguments if match["final"] in "hl" or arguments[:1] in "?<=>" else ""
            found.add(f"CSI {named}{match['final']}")
        elif match["string"]:
            found.add(f"{_STRINGS[match['string']]} {match['body'].partition(';')[0]}")
        elif match["single"]:
            found.add(f"ESC {match['single']}")
        else:
            found.add(f"C {ord(match['control']):#x}")
    return found


class Drawn:
    """The characters on a terminal of this size, as drawn by a program."""

    def __init__(self, size: tuple[int, int] = SIZE) -> None:
        self.columns, self._rows = size
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = self._style = ""
        self._clear()

    @property
    def text(self) -> str:
        """The lines, without trailing spaces."""
        return "\n".join(self.lines)

    @property
    def lines(self) -> list[str]:
        """The lines of `text`, as a list."""
        return ["".join(row).rstrip() for row in self._cells]

    def background(self, row: int, column: int) -> str:
        """The background colour of a character as in the control sequence, with "7" added if it is
        swapped with the foreground; empty for the terminal's default.
        """
        style = self._styles[row][column]
        rest = _COLOR.sub("", style).split(";")
        behind = [one for one in _COLOR.findall(style) if one.startswith("48")]
        behind += [one for one in rest if one == "7" or one[:-1] in ("4", "10")]
        return ";".join(behind)

    def resize(self, size: tuple[int, int]) -> None:
        """Change the size of the terminal; the program then redraws everything."""
        self.columns, self._rows = size
        self._clear()

    def feed(self, sent: bytes) -> None:
        """Apply the output in `sent`."""
        text = self._rest + self._decoder.decode(sent)
        at = 0
        while at < len(text):
            match = _SEQUENCE.match(text, at)
            if match is not None:
                self._obey(match)
                at = match.end()
            elif text[at] == "\x1b":
                break  # The rest of the sequence has not arrived yet.
            else:
                self._put(text[at])
                at += 1
        self._rest = text[at:]

    def _clear(self) -> None:
        self._cells = [[" "] * self.columns for _ in range(self._rows)]
        self._styles = [[""] * self.columns for _ in range(self._rows)]
        self._row = self._column = 0

    def _obey(self, match: re.Match[str]) -> None:
        numbers = [int(one or 1) for one in (match["arguments"] or "").split(";") if one.isdigit()]
        if match["control"] == "\n":
            self._row, self._column = min(self._row + 1, self._rows - 1), 0
        elif match["control"] == "\r":
            self._column = 0
        elif match["final"] == "H":
            row, column = (*numbers, 1, 1)[:2]
            self._row, self._column = min(row, self._rows) - 1, min(column, self.columns) - 1
        elif match["final"] == "m":
            self._style = match["arguments"]
        elif match["final"] == "J" or (match["final"] == "h" and "1049" in match["arguments"]):
            self._clear()

    def _put(self, char: str) -> None:
        width = cell_len(char)
        row = self._cells[self._row]
        if not width:
            row[min(max(self._column - 1, 0), self.columns - 1)] += char
            return
        if self._column < self.columns:
            row[self._column : self._column + width] = [char, *[""] * (width - 1)]
            self._styles[self._row][self._column : self._column + width] = [self._style] * width
        self._column += width


class AppTerminal:
    """The terminal app in its own pseudo-terminal, or the shell `command` to start it from."""

    def __init__(
        self,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        program: Sequence[str] = ("-m", "hearth.app.cli.main"),
        wrapper: Sequence[str] = (),
        command: Sequence[str] = (),
        size: tuple[int, int] = SIZE,
    ) -> None:
        self._drawn = Drawn(size)
        self._fed = 0
        self.terminal: Terminal = open_terminal(
            command or [*wrapper, sys.executable, *program, *arguments],
            {
                "TERM": "xterm-256color",
                "TEXTUAL_ANIMATIONS": "none",
                **(env or {}),
            },
            size,
        )

    def __enter__(self) -> AppTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminal.close()

    @property
    def pid(self) -> int:
        """Process id of the app."""
        return self.terminal.process.pid

    @property
    def sent(self) -> bytes:
        """All output that reached the terminal."""
        return self.terminal.seen

    @property
    def drawn(self) -> Drawn:
        """The current screen."""
        self._drawn.feed(self.terminal.seen[self._fed :])
        self._fed = len(self.terminal.seen)
        return self._drawn

    @property
    def text(self) -> str:
        """The current text on the screen."""
        return self.drawn.text

    def type(self, text: str) -> None:
        """Press these keys."""
        os.write(self.terminal.fd, text.encode())

    def resize(self, size: tuple[int, int]) -> None:
        """Change the size of the terminal."""
        self.drawn.resize(size)  # Earlier output is drawn at the earlier size.
        self.terminal.resize(size)

    def say(self, text: str) -> None:
        """Write `text` into the prompt box and send it."""
        self.type(text)
        self.until(lambda: _without_breaks(text) in _without_breaks(self.text))
        self.type("\r")

    def until(self, holds: Callable[[], object]) -> None:
        """Read what the app draws until `holds()` is true."""
        until = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > until:
                pytest.fail(f"it never came to that; the terminal:\n{self.text}")
            self.terminal._read(time.monotonic() + 0.05)

    def look(self, for_s: float) -> None:
        """Read what the app draws, for `for_s` seconds."""
        until = time.monotonic() + for_s
        while self.terminal._read(until):
            pass

    def until_shown(self, *texts: str) -> None:
        """Wait until all of `texts` are on the screen."""
        self.until(lambda: all(text in self.text for text in texts))

    def until_ready(self) -> None:
        """Wait for the prompt box."""
        self.until_shown("Message, or /")

    def leave(self) -> int:
        """Quit with keys; returns the exit code, and prints the output of a failure."""
        self.type("\x11")
        code = self.terminal.finish()
        if code:
            print(self.sent.decode("utf-8", "replace").rpartition(ALTERNATE_OFF)[2])
        return code

    def check_left(self) -> None:
        """Require that the app has ended and the terminal is in its original state."""
        assert self.terminal.modes() == fresh_modes()
        sent = self.sent.decode("utf-8", "replace")
        assert sent.rfind(ALTERNATE_OFF) > sent.rfind(ALTERNATE_ON) >= 0
        assert sent.rfind("\x1b[?25h") > sent.rfind("\x1b[?25l")
        for mode in ("1000", "1003", "1006", "2004"):
            assert sent.rfind(f"\x1b[?{mode}l") >= sent.rfind(f"\x1b[?{mode}h"), mode


def _without_breaks(text: str) -> str:
    """`text` without white space and without the edge of the prompt box."""
    return re.sub(r"[\s▌]", "", text)


def fresh_modes() -> list[Any]:
    """The modes of an unused terminal."""
    import pty
    import termios

    ours, theirs = pty.openpty()
    try:
        return termios.tcgetattr(theirs)
    finally:
        os.close(ours)
        os.close(theirs)
