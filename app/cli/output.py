"""The output of commands: data to stdout, made safe on a terminal, and narration to stderr, always
made safe because other programs show it on their terminals.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from hearth.app.format import duration, size
from hearth.app.terminal import SafeStream, is_terminal, safe_text

if TYPE_CHECKING:
    from pathlib import Path

    from hearth.app.jobs.child import Work
    from hearth.backends.errors import HearthError

_WONDER_S = 0.7
_DIM, _RED, _PLAIN = "\x1b[2m", "\x1b[31m", "\x1b[0m"
_BAR_COLUMNS = 24


class Output:
    """stdout and stderr of one command."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ

    @property
    def to_terminal(self) -> bool:
        """Whether stdout is a terminal."""
        return is_terminal(sys.stdout)

    @property
    def narrates_to_terminal(self) -> bool:
        """Whether stderr is a terminal."""
        return is_terminal(sys.stderr)

    def data(self, text: str, end: str = "\n") -> None:
        """Write to stdout: unchanged into a pipe or file, made safe on a terminal."""
        print(safe_text(text) if self.to_terminal else text, end=end, flush=True)

    def json(self, value: Any) -> None:
        """Write one JSON document to stdout."""
        indent = 2 if self.to_terminal else None
        self.data(json.dumps(value, ensure_ascii=self.to_terminal, indent=indent))

    def stream(self) -> StreamWriter:
        """A writer to stdout for text that arrives in pieces."""
        return StreamWriter(sys.stdout, safe=self.to_terminal)

    def thoughts(self) -> StreamWriter:
        """A writer to stderr for the reasoning of a model, which is not part of the data."""
        return StreamWriter(sys.stderr, safe=True)

    def note(self, text: str) -> None:
        """Write a line of narration to stderr."""
        self._narrate(text, _DIM)

    @contextmanager
    def note_if_slow(self, text: str) -> Iterator[None]:
        """Show `text` on a terminal if the block takes long enough to be noticed."""
        if not self.narrates_to_terminal:
            yield
            return
        timer = threading.Timer(_WONDER_S, self.note, [text])
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def problem(self, text: str) -> None:
        """Write a line to stderr that reports a problem."""
        self._narrate(text, _RED)

    def error(self, error: HearthError) -> None:
        """Write to stderr what went wrong and what to do next."""
        self.problem(f"error: {error.message}")
        if error.hint:
            self.note(error.hint)

    def _narrate(self, text: str, style: str) -> None:
        text = safe_text(text)
        if self.narrates_to_terminal and text and self._styled():
            text = f"{style}{text}{_PLAIN}"
        print(text, file=sys.stderr, flush=True)

    def _styled(self) -> bool:
        if self._environ.get("NO_COLOR") or self._environ.get("TERM") == "dumb":
            return False
        return sys.platform != "win32" or "WT_SESSION" in self._environ

    def table(self, rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
        """Write columns of text to stdout, the first row being the header. Columns whose numbers
        are in `right` are right-aligned.
        """
        if self.to_terminal:
            rows = [[safe_text(cell) for cell in row] for row in rows]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            cells = [
                cell.rjust(width) if column in right else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            self.data("  ".join(cells).rstrip())


class StreamWriter:
    """Writes pieces of untrusted text at once, and tracks whether the line is complete."""

    def __init__(self, stream: TextIO, *, safe: bool) -> None:
        self._stream = stream
        self._safe = SafeStream() if safe else None
        self._last = "\n"

    def write(self, text: str) -> None:
        """Write a piece."""
        self._put(self._safe.feed(text) if self._safe else text)

    def end(self) -> None:
        """End the text; the next output begins on a new line."""
        if self._safe:
            self._put(self._safe.flush())
        if self._last != "\n":
            self._put("\n")

    def _put(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._stream.flush()
            self._last = text[-1]


class ProgressLine(AbstractContextManager["ProgressLine"]):
    """The progress of a long command, shown in one line on stderr that is rewritten in place. Shown
    on a terminal only.

    Use it in a `with` block, which removes the line at its end.

    Args:
        title: describes the work.
    """

    def __init__(self, title: str) -> None:
        self._shown = is_terminal(sys.stderr)
        self._title = safe_text(title)
        self._width = 0

    def __exit__(self, *_: object) -> None:
        if self._width:
            self._write("")
            print("\r", end="", file=sys.stderr, flush=True)

    def show(
        self,
        done: int,
        total: int,
        *,
        after: str = "",
        amount: Callable[[int], str] = size,
    ) -> None:
        """Show `done` of `total`, followed by `after`. `amount` formats the two; default: bytes."""
        if not self._shown:
            return
        share = min(1.0, done / total) if total else 1.0
        bar = "=" * round(share * _BAR_COLUMNS)
        parts = [
            self._title,
            f"[{bar:{_BAR_COLUMNS}}]",
            f"{share:4.0%}",
            f"{amount(done)} of {amount(total)}",
            safe_text(after),
        ]
        self._write("  ".join(part for part in parts if part))

    def _write(self, text: str) -> None:
        """Replace the line. Cut to the window, since a line that wraps cannot be rewritten."""
        from shutil import get_terminal_size  # Imported here: it loads every archive format.

        text = text[: max(1, get_terminal_size().columns - 1)]
        print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)
        self._width = len(text)


def run_shown(
    work: Work,
    question: dict[str, Any],
    title: str,
    log_dir: Path,
    amount: Callable[[int], str] = size,
) -> dict[str, Any]:
    """`run_job` with a progress line. Raises as `run_job` does."""
    from hearth.app.jobs.job import run_job

    with ProgressLine(title) as line:

        def show(values: dict[str, Any]) -> None:
            line.show(values["done"], values["total"], amount=amount)

        return run_job(work, question, show, log_dir)


def run_pausable(
    output: Output,
    work: Work,
    question: dict[str, Any],
    log_dir: Path,
    amount: Callable[[int], str] = size,
) -> dict[str, Any]:
    """`run_job` for a job that the same command resumes, with a line that shows the progress of
    each phase and the time left. Raises `Stopped` after Ctrl+C; completed parts are kept.
    """
    from hearth.app.jobs.child import Stopped
    from hearth.app.jobs.job import run_job

    last: dict[str, Any] = {"done": 0, "total": 0, "phase": "", "note": ""}
    with ProgressLine(os.path.basename(question["target"])) as line:

        def show(values: dict[str, Any]) -> None:
            if (note := values.get("note")) and note != last["note"]:
                output.note(note)
            last.update(values)
            left = "" if values["eta_s"] is None else f"{duration(values['eta_s'])} left"
            after = ", ".join(filter(None, (values["phase"], left)))
            line.show(values["done"], values["total"], after=after, amount=amount)

        try:
            return run_job(work, question, show, log_dir)
        except Stopped as stopped:
            share = last["done"] / max(1, last["total"])
            of_phase = f" of {last['phase']}" if last["phase"] else ""
            raise Stopped(
                f"Paused at {share:.0%}{of_phase}; run the same command again to resume.",
                share=share,
            ) from stopped
