"""The last lines of a log, followed while the end is in view."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import RichLog, Static

from hearth.app.log_file import MOST_LINES
from hearth.app.terminal import safe_text


class LogTail(Vertical):
    """A title and wrapped lines; while the user has scrolled up, the position stays."""

    DEFAULT_CSS = """
    LogTail { height: 1fr; min-height: 3; padding: 0 1; }
    LogTail > .log-tail--title { height: 1; text-style: bold; }
    LogTail > RichLog {
        height: 1fr; background: transparent; color: $text-muted; scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0; scrollbar-gutter: stable;
    }
    LogTail > RichLog:focus { background-tint: $foreground 3%; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] | None = None
        self._width = 0
        self._follows = True

    def compose(self) -> ComposeResult:
        yield Static("", classes="log-tail--title", markup=False)
        yield RichLog(max_lines=MOST_LINES, markup=False, highlight=False, wrap=True, min_width=1)

    def on_mount(self) -> None:
        """Note whether the end is in view after each scroll."""
        self.watch(self.query_one(RichLog), "scroll_y", self._note_end, init=False)

    def _note_end(self) -> None:
        self._follows = self.query_one(RichLog).is_vertical_scroll_end

    def on_resize(self) -> None:
        """Wrap the lines again, once the log has its size."""
        if self._lines is not None:
            self.call_after_refresh(self._show, self._lines)

    def show(self, title: str, lines: Sequence[str]) -> None:
        """Show these lines of the log called `title`."""
        self.query_one(".log-tail--title", Static).update(title)
        self._show(lines)

    def _show(self, lines: Sequence[str]) -> None:
        log = self.query_one(RichLog)
        follows, at = self._follows, log.scroll_y
        if log.size.width and (self._lines != list(lines) or self._width != log.size.width):
            log.clear()
            for line in lines or ["The log is empty."]:
                text = Text(safe_text(line).expandtabs(4))
                log.write(text, width=log.scrollable_content_region.width, scroll_end=False)
            self._lines, self._width = list(lines), log.size.width
            if not follows:
                log.scroll_to(y=at, animate=False, immediate=True)
        if follows:
            log.scroll_end(animate=False, immediate=True)
        self._follows = follows
