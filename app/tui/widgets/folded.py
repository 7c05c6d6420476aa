"""What a model thought before it answered: folded into one line, or open."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content

from hearth.app.tui.widgets.lines import Line
from hearth.app.tui.widgets.prose import plain_lines
from hearth.app.tui.widgets.slab import FULL, Frame, Slab


class Thinking(Frame, can_focus=True):
    """Thoughts that may still be coming in; while they are folded, none of them is drawn.

    Args:
        is_open: shown from the start.
    """

    DEFAULT_CSS = """
    Thinking {
        width: 1fr;
        height: auto;
        layout: stream;
        margin-bottom: 1;
        &:focus { text-style: bold; background: $boost; }
        &:ansi:focus { background: transparent; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "fold", "thinking", id="thinking.toggle", show=False),
    ]

    def __init__(self, is_open: bool) -> None:
        super().__init__()
        self.is_open = is_open
        self.is_done = False
        self._thought = ""
        self._pending_thought = ""
        self._label = Slab()
        self._slabs: list[Slab] = []

    def compose(self) -> ComposeResult:
        yield self._label
        yield from self._slabs

    def feed(self, text: str) -> None:
        """Take more; cheap."""
        self._pending_thought += text

    @property
    def pending(self) -> bool:
        """There is text that `advance` has not looked at."""
        return bool(self._pending_thought)

    def advance(self, *, is_done: bool = False) -> None:
        """Show what came. `is_done`: no more will come."""
        self._thought += self._pending_thought
        pending, self._pending_thought = self._pending_thought, ""
        self.is_done = self.is_done or is_done
        if self.is_open:
            self._show(pending)
        self._show_label()

    @property
    def has_text(self) -> bool:
        """There are thoughts at all."""
        return bool(self._thought.strip())

    def action_fold(self) -> None:
        """Fold or unfold."""
        self.set_open(not self.is_open)

    def set_open(self, is_open: bool) -> None:
        """Fold or unfold."""
        if self.is_open == is_open:
            return
        self.is_open = is_open
        for slab in self._slabs:
            slab.remove()
        self._slabs = []
        if is_open:
            self._show(self._thought)
        self._show_label()

    def on_click(self, event: events.Click) -> None:
        if event.widget is self._label:
            event.stop()
            self.action_fold()

    def _show_label(self) -> None:
        words = len(self._thought.split())
        verb = "thought" if self.is_done else "thinking"
        mark = "▾" if self.is_open else "▸"
        label = Content.styled(f"{mark} {verb} · {words} word{'' if words == 1 else 's'}", ".muted")
        self._label.replace([Line(label)])

    def _show(self, text: str) -> None:
        """Show more lines; the last one stays open, since it may go on."""
        opened = "" if not self._slabs else self._slabs[-1].open_text
        lines = plain_lines((opened + text).lstrip("\n" if not self._slabs else ""), ".muted")
        *closed, last = lines
        while closed:
            slab = self._last_slab()
            room = max(FULL - len(slab.lines), 1)
            slab.add(closed[:room])
            closed = closed[room:]
        self._last_slab().show_open([last])

    def _last_slab(self) -> Slab:
        if not self._slabs or self._slabs[-1].is_full:
            if self._slabs:
                self._slabs[-1].show_open([])
            self._slabs.append(Slab())
            if self.is_attached:
                self.mount(self._slabs[-1])
        return self._slabs[-1]
