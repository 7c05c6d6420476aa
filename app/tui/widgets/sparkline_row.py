"""A number and how it came to be: the last minute as a line of small bars."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Sparkline, Static


class SparklineRow(Horizontal):
    """A title, the value now, the course of the last minute, and its highest value."""

    DEFAULT_CSS = """
    SparklineRow { height: 1; padding: 0 1; }
    SparklineRow > .sparkline-row--title { width: auto; text-style: bold; padding: 0 2 0 0; }
    SparklineRow > .sparkline-row--now { width: 9; text-align: right; padding: 0 2 0 0; }
    SparklineRow > Sparkline { width: 1fr; }
    SparklineRow > .sparkline-row--peak {
        width: auto; color: $text-muted; padding: 0 0 0 2; text-align: right;
    }
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def compose(self) -> ComposeResult:
        yield Static(self._title, classes="sparkline-row--title", markup=False)
        yield Static("0.0", classes="sparkline-row--now", markup=False)
        yield Sparkline([0.0])
        yield Static("", classes="sparkline-row--peak", markup=False)

    def show(self, now: float, course: Sequence[float]) -> None:
        """Show the value `now`, and its `course`, oldest first."""
        self.query_one(".sparkline-row--now", Static).update(f"{now:,.1f}")
        self.query_one(Sparkline).data = list(course)
        peak = max(course, default=0.0)
        self.query_one(".sparkline-row--peak", Static).update(
            f"peak {peak:,.0f} in the last minute"
        )
