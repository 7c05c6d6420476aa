"""Text that can be folded under one line: thoughts of a model, files in a message."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import ScrollableContainer
from textual.content import Content

from hearth.app.format import size
from hearth.app.tui.attachments import Attached
from hearth.app.tui.widgets.cells import shown_text
from hearth.app.tui.widgets.lines import Line
from hearth.app.tui.widgets.prose import plain_lines
from hearth.app.tui.widgets.slab import Frame, Slab, Slabs


class Folded(Frame, can_focus=True):
    """Text that may still be streaming; while it is folded, none of it is drawn.

    Args:
        is_open: whether it is unfolded at first.
    """

    DEFAULT_CSS = """
    Folded {
        width: 1fr;
        height: auto;
        layout: stream;
        &:focus { text-style: bold; background: $boost; }
        &:ansi:focus { background: transparent; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "fold", "fold / unfold", id="thinking.toggle"),
    ]

    def __init__(self, is_open: bool = False) -> None:
        super().__init__()
        self.is_open = is_open
        self.is_done = False
        self._text = ""
        self._pending_text = ""
        self._label = Slab()
        self._slabs = Slabs(self)
        self._last_line = ""

    def compose(self) -> ComposeResult:
        yield self._label
        yield from self._slabs.parts

    def title(self) -> str:
        """The text of the line, safe to show."""
        raise NotImplementedError

    def feed(self, text: str) -> None:
        """Take more text; cheap."""
        self._pending_text += text

    @property
    def pending(self) -> bool:
        """Whether there is text that `advance` has not processed."""
        return bool(self._pending_text)

    def advance(self, *, is_done: bool = False) -> None:
        """Show the text that arrived; `is_done` means that no more will follow."""
        self._text += self._pending_text
        pending, self._pending_text = self._pending_text, ""
        self.is_done = self.is_done or is_done
        if self.is_open:
            self._show(pending)
        self._show_label()

    @property
    def has_text(self) -> bool:
        """Whether there is any text."""
        return bool(self._text.strip())

    def action_fold(self) -> None:
        self.set_open(not self.is_open)

    def set_open(self, is_open: bool) -> None:
        """Fold or unfold."""
        if self.is_open == is_open:
            return
        self.is_open = is_open
        if self.is_done and self.is_attached:
            # Unfolded text is read from its beginning, so the view must not follow the chat's end.
            for node in self.ancestors:
                if isinstance(node, ScrollableContainer):
                    node.release_anchor()
        for slab in self._slabs.parts:
            slab.remove()
        self._slabs = Slabs(self)
        self._last_line = ""
        if is_open:
            self._show(self._text)
        self._show_label()

    def on_click(self, event: events.Click) -> None:
        if event.widget is self._label:
            event.stop()
            self.action_fold()

    def _show_label(self) -> None:
        label = f"{'▾' if self.is_open else '▸'} {self.title()}"
        self._label.replace([Line(Content.styled(label, ".muted"))])

    def _show(self, text: str) -> None:
        """Show more lines; the last one stays open, since it may continue."""
        if not self._slabs.parts:
            text = text.lstrip("\n")
        *closed, last = plain_lines(self._last_line + text, ".muted")
        self._slabs.add(closed)
        self._slabs.show_open([last])
        self._last_line = last.plain


class Thinking(Folded):
    """What a model thought before it answered."""

    DEFAULT_CSS = "Thinking { margin-bottom: 1; }"

    def title(self) -> str:
        words = len(self._text.split())
        verb = "thought" if self.is_done else "thinking"
        return f"{verb} · {words} word{'' if words == 1 else 's'}"


class Attachment(Folded):
    """A file in a message.

    Attributes:
        file: the file.
        tokens: number of its tokens; 0 until they are counted.
    """

    def __init__(self, file: Attached) -> None:
        super().__init__()
        self.file = file
        self.tokens = 0
        self.feed(shown_text(file.text))
        self.advance(is_done=True)

    def show_tokens(self, tokens: int) -> None:
        """Show the number of tokens in the line."""
        self.tokens = tokens
        self.advance()

    def title(self) -> str:
        path = self.file.path
        name = " ".join(shown_text(path.name if path.is_absolute() else str(path)).split())
        count = f" · {self.tokens:,} tokens" if self.tokens else ""
        return f"{name} · {size(self.file.bytes)}{count}"
