"""Jump mode: a letter on each focusable widget moves the focus there."""

from __future__ import annotations

from itertools import product
from typing import ClassVar, Final

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Offset
from textual.widget import Widget
from textual.widgets import Static

from hearth.app.tui.screens.base import Dialog

_LETTERS: Final = "asdfghjklqwertyuiopzxcvbnm"
"""In order of preference."""


class JumpScreen(Dialog[None]):
    """Labels the widgets of the screen below; escape and other letters keep the focus."""

    DEFAULT_CSS = """
    JumpScreen { background: $background 50%; }
    JumpScreen > Static {
        position: absolute; width: auto; height: 1; padding: 0 1;
        background: $accent; color: $background; text-style: bold;
    }
    JumpScreen > Static.-passed { display: none; }
    JumpScreen > #jump-foot {
        dock: bottom; width: 100%; background: $panel; color: $text; text-style: none;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close", id="jump.close"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[str, Widget] = {}
        self._typed = ""

    def compose(self) -> ComposeResult:
        below = self.app.screen_stack[-2]
        widgets = [widget for widget in below.focus_chain if widget.region.area]
        names = labels(len(widgets))
        taken: set[Offset] = set()
        for name, widget in zip(names, widgets, strict=True):
            self._places[name] = widget
            at = widget.content_region.offset
            while at in taken:
                at += Offset(0, 1)
            taken.add(at)
            label = Static(name, id=f"jump-{name}", markup=False)
            label.styles.offset = at
            yield label
        yield Static("Press a letter to jump there, escape to stay.", id="jump-foot", markup=False)

    def on_key(self, event: events.Key) -> None:
        """Handle a letter of a label."""
        if event.character is None or not event.character.isalpha():
            return
        event.stop()
        self._typed += event.character.lower()
        if (widget := self._places.get(self._typed)) is not None:
            below = self.app.screen_stack[-2]
            self.dismiss()
            below.set_focus(widget)
            return
        left = [name for name in self._places if name.startswith(self._typed)]
        if not left:
            self.dismiss()
            return
        for name in self._places:
            self.query_one(f"#jump-{name}").set_class(name not in left, "-passed")


def labels(count: int) -> list[str]:
    """`count` labels, none a prefix of another: letters, or longer strings if needed."""
    length = 1
    while len(_LETTERS) ** length < count:
        length += 1
    candidates = ("".join(letters) for letters in product(_LETTERS, repeat=length))
    return [label for _, label in zip(range(count), candidates, strict=False)]
