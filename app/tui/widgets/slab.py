"""One widget for many lines of text: cheap to mount, and only what changed is drawn again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.selection import Selection
from textual.widget import Widget

from hearth.app.tui.widgets.lines import Line, Lines, selected

FULL: Final = 40
"""Lines; where more come, the next slab takes them, so that none is drawn at great cost."""


class LinkAsked(Message):
    """Somebody clicked a link; nothing is opened before somebody says so.

    Attributes:
        url: its address, as the text gives it.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url


class Slab(Widget):
    """Lines of text, of which the last ones may still change.

    Args:
        lines: what it shows from the start.
    """

    DEFAULT_CSS = """
    Slab { width: 1fr; height: auto; }
    """

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        super().__init__()
        self.auto_links = False
        self._fixed_lines = list(lines)
        self._open_lines: list[Line] = []
        self._visual_lines = Lines(self._fixed_lines)
        self._measured = (-1, 0)  # width and the height there

    @property
    def lines(self) -> list[Line]:
        """All lines, the open ones too."""
        return [*self._fixed_lines, *self._open_lines]

    @property
    def open_text(self) -> str:
        """The text of the lines that may change."""
        return "\n".join(line.content.plain for line in self._open_lines)

    @property
    def is_full(self) -> bool:
        """No more lines should be added."""
        return len(self._fixed_lines) >= FULL

    def add(self, lines: Iterable[Line]) -> None:
        """Add lines that will not change; they take the place of the open ones."""
        self._fixed_lines += lines
        self._changed([])

    def show_open(self, lines: list[Line]) -> None:
        """Show lines at the end that will change."""
        if lines or self._open_lines:
            self._changed(lines)

    def replace(self, lines: Iterable[Line]) -> None:
        """Show other lines instead of all."""
        self._fixed_lines = list(lines)
        self._changed([])

    def remeasured(self) -> None:
        """The height may have changed without a change of the lines: a table's columns."""
        self._changed(self._open_lines)

    def _changed(self, opened: list[Line]) -> None:
        self._open_lines = opened
        self._visual_lines = Lines(self.lines)
        width, before = self._measured
        if self.is_attached:
            # The whole screen is arranged only where the height changed.
            layout = width < 0 or self._visual_lines.get_height({}, width) != before
            if layout:
                self._measured = (-1, 0)
                self.clear_cached_dimensions()
            self.refresh(layout=layout)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """The rows of all lines at a width."""
        if self._measured[0] != width:
            self._measured = (width, self._visual_lines.get_height({}, width))
        return self._measured[1]

    def render(self) -> Lines:
        self._visual_lines.is_ansi = self.app.native_ansi_color
        return self._visual_lines

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selected(self.lines, selection), "\n"

    def notify_style_update(self) -> None:
        for line in self.lines:
            line.forget()
        super().notify_style_update()

    def on_click(self, event: events.Click) -> None:
        url = event.style.meta.get("url")
        if isinstance(url, str) and url:
            event.stop()
            self.post_message(LinkAsked(url))
