"""The last lines of a log, followed while one is at their end."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import RichLog, Static

from hearth.app.log_file import MOST_LINES
from hearth.app.terminal import safe_text


class LogTail(Vertical):
    """A title and lines as they come; whoever has scrolled up is not moved."""

    DEFAULT_CSS = """
    LogTail { height: 1fr; min-height: 3; padding: 0 1; }
    LogTail > .log-tail--title { height: 1; text-style: bold; }
    LogTail > RichLog {
        height: 1fr; background: transparent; color: $text-muted; scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
    }
    LogTail > RichLog:focus { background-tint: $foreground 3%; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] | None = None

    def compose(self) -> ComposeResult:
        yield Static("", classes="log-tail--title", markup=False)
        yield RichLog(max_lines=MOST_LINES, markup=False, highlight=False, wrap=False, min_width=1)

    def show(self, title: str, lines: Sequence[str]) -> None:
        """Show these lines of the log called `title`."""
        self.query_one(".log-tail--title", Static).update(title)
        log = self.query_one(RichLog)
        if self._lines == list(lines) or not log.size.width:
            return
        follows = log.is_vertical_scroll_end
        at = log.scroll_y
        log.clear()
        for line in lines or ["Nothing has been written yet."]:
            log.write(Text(safe_text(line).expandtabs(4)), scroll_end=False)
        if follows or self._lines is None:
            log.scroll_end(animate=False, immediate=True)
        else:
            log.scroll_to(y=at, animate=False, immediate=True)
        self._lines = list(lines)
