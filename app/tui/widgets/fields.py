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
        # Textual 8.2 calls this even if only the height or the scrollbar has changed: three times
        # after a paste, which takes a second each for 1 MB. Edits keep the wrapped document up to
        # date.
        wanted = (self.wrapped_document, self.wrap_width, self.indent_width)
        if self._wrapped_at == wanted:
            self._line_cache.clear()
            self._refresh_size()
        else:
            self._wrapped_at = wanted
            super()._rewrap_and_refresh_virtual_size()

    def get_line(self, line_index: int) -> Text:
        """The line as shown, with the same length as the line of the document."""
        return Text(safe_text(self.document.get_line(line_index)), end="", no_wrap=True)


class SafeInput(Input):
    """A line of text whose value is what is shown: the whole value passes `safe_text`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+z,super+z", "undo", "undo", id="input.undo", show=False),
    ]

    _earlier: tuple[str, ...] = ()
    """Values since the field got the focus, oldest first."""

    def watch_value(self, before: str, _: str) -> None:
        """Remember the value before a change."""
        self._earlier = (*self._earlier[-99:], before)

    def on_focus(self) -> None:
        """Forget earlier values, so that only changes by the user are undone."""
        self._earlier = ()

    def action_undo(self) -> None:
        """Take back the last change."""
        if self._earlier:
            earlier = self._earlier[:-1]
            self.value = self._earlier[-1]
            self._earlier = earlier

    def validate_value(self, value: str) -> str:
        """`value` made safe and put on one line."""
        return safe_text(value).replace("\n", " ").replace("\t", " ")
