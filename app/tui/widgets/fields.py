"""Text fields whose text is safe to show, wherever it was pasted from."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import Input, TextArea

from hearth.app.terminal import safe_text


class SafeTextArea(TextArea):
    """A text area that keeps a text as it is, and shows it through `safe_text`."""

    _wrapped_at: tuple[object, int, int] | None = None
    """The wrapped document and the widths of rows and tabs that it was last wrapped for."""

    def _rewrap_and_refresh_virtual_size(self) -> None:
        # Textual 8.2 calls this also where only the height or the scrollbar has changed: after a
        # paste three times, a second each for a MB. Edits keep the wrapped document up to date.
        wanted = (self.wrapped_document, self.wrap_width, self.indent_width)
        if self._wrapped_at == wanted:
            self._line_cache.clear()
            self._refresh_size()
        else:
            self._wrapped_at = wanted
            super()._rewrap_and_refresh_virtual_size()

    def get_line(self, line_index: int) -> Text:
        """The line as it is shown; of the same length as the line of the document."""
        return Text(safe_text(self.document.get_line(line_index)), end="", no_wrap=True)


class SafeInput(Input):
    """A line of text. Its value is what is shown: it goes through `safe_text` as a whole."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+z,super+z", "undo", "undo", id="input.undo", show=False),
    ]

    _earlier: tuple[str, ...] = ()
    """Values since the field got the focus, oldest first."""

    def watch_value(self, before: str, _: str) -> None:
        """Remember the value before a change."""
        self._earlier = (*self._earlier[-99:], before)

    def on_focus(self) -> None:
        """Only what the user changes is undone."""
        self._earlier = ()

    def action_undo(self) -> None:
        """Take back the last change."""
        if self._earlier:
            earlier = self._earlier[:-1]
            self.value = self._earlier[-1]
            self._earlier = earlier

    def validate_value(self, value: str) -> str:
        """The value that the field gets for `value`."""
        return safe_text(value).replace("\n", " ").replace("\t", " ")
