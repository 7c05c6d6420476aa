"""A line on stderr that says how far a long command is, rewritten in place; on a terminal only."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import Self

from hearth.app.cli import words
from hearth.app.cli.state import State
from hearth.app.terminal import safe_text

_BAR_COLUMNS = 24


class ProgressLine:
    """Use it in a `with` block; the line is gone after it.

    Args:
        title: what is worked on.
    """

    def __init__(self, state: State, title: str) -> None:
        self._shown = state.output.narrates_to_terminal
        self._title = safe_text(title)
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._width:
            self._write("")
            print("\r", end="", file=sys.stderr, flush=True)

    def show(self, done_bytes: int, total_bytes: int, *, after: str = "") -> None:
        """Show `done_bytes` of `total_bytes`, and the words `after` them."""
        if not self._shown:
            return
        share = min(1.0, done_bytes / total_bytes) if total_bytes else 1.0
        bar = "=" * round(share * _BAR_COLUMNS)
        parts = [
            self._title,
            f"[{bar:{_BAR_COLUMNS}}]",
            f"{share:4.0%}",
            f"{words.size(done_bytes)} of {words.size(total_bytes)}",
            safe_text(after),
        ]
        self._write("  ".join(part for part in parts if part))

    def _write(self, text: str) -> None:
        """Over what stood there. Cut to the window, since a line that wraps cannot be rewritten."""
        text = text[: max(1, shutil.get_terminal_size().columns - 1)]
        print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)
        self._width = len(text)
