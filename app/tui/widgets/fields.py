"""Fields to write in, whose text is safe to show, wherever it was pasted from."""

from __future__ import annotations

from rich.text import Text
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
    """A line to write in. Its value is what is shown: it goes through `safe_text` as a whole."""

    def validate_value(self, value: str) -> str:
        """What the field holds once `value` is written into it."""
        return safe_text(value).replace("\n", " ").replace("\t", " ")
