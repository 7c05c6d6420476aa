"""The bar on top of every screen: where one is, and where one can go."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Static

SCREENS = ("chat", "library", "quantize", "engine", "endpoint", "settings", "doctor")


class TopBar(Horizontal):
    """Names of the screens, the current one marked; a click goes there."""

    DEFAULT_CSS = """
    TopBar {
        height: 1;
        background: $panel;
        color: $text-muted;
    }
    TopBar > Static { width: auto; padding: 0 1; }
    TopBar > .brand { color: $primary; text-style: bold; }
    TopBar > .current { color: $text; text-style: bold reverse; }
    """

    class Wanted(Message):
        """The user wants the screen called `name`."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, current: str) -> None:
        super().__init__()
        self._current = current

    def compose(self) -> ComposeResult:
        yield Static("hearth", classes="brand", markup=False)
        for name in SCREENS:
            mark = "current" if name == self._current else ""
            yield Static(name, id=f"to-{name}", classes=mark, markup=False)

    def on_click(self, event: object) -> None:
        widget = getattr(event, "widget", None)
        name = (getattr(widget, "id", None) or "").removeprefix("to-")
        if name in SCREENS and name != self._current:
            self.post_message(self.Wanted(name))
