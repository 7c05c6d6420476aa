"""A number and how it changed: the last minute as a line of small bars."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

_BARS = "▁▂▃▄▅▆▇█"


class SparklineRow(Horizontal):
    """A title, the value now, the last minute, and its highest value."""

    DEFAULT_CSS = """
    SparklineRow { height: 1; padding: 0 1; }
    SparklineRow > .sparkline-row--title { width: auto; text-style: bold; padding: 0 2 0 0; }
    SparklineRow > .sparkline-row--now { width: 9; text-align: right; padding: 0 2 0 0; }
    SparklineRow > .sparkline-row--bars { width: 1fr; color: $primary; }
    SparklineRow > .sparkline-row--peak {
        width: auto; color: $text-muted; padding: 0 0 0 2; text-align: right;
    }
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self._course: Sequence[float] = ()

    def compose(self) -> ComposeResult:
        yield Static(self._title, classes="sparkline-row--title", markup=False)
        for part in ("now", "bars", "peak"):
            yield Static("", classes=f"sparkline-row--{part}", markup=False)

    def show(self, now: float, course: Sequence[float]) -> None:
        """Show the value `now`, and its `course`, oldest first."""
        peak = max(course, default=0.0)
        self._course = course
        self._draw()
        self.query_one(".sparkline-row--now", Static).update(f"{now:,.1f}")
        self.query_one(".sparkline-row--peak", Static).update(
            f"peak {peak:,.0f} in the last minute"
        )
        self.call_after_refresh(self._draw)  # The peak may have taken or left room.

    def on_resize(self) -> None:
        """Draw the bars in the room that they have now."""
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        line = self.query_one(".sparkline-row--bars", Static)
        line.update(Content(bars(self._course, line.size.width)))


def bars(course: Sequence[float], width: int) -> str:
    """`course` in `width` cells, each from zero to the highest value; a space where it is zero."""
    peak = max(course, default=0.0)
    if not peak or not width:
        return ""
    shown = []
    for cell in range(width):
        begin = cell * len(course) // width
        value = max(course[begin : max((cell + 1) * len(course) // width, begin + 1)])
        shown.append(_BARS[round(value / peak * (len(_BARS) - 1))] if value else " ")
    return "".join(shown)
