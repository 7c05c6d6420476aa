"""Fields to write in, whose text is safe to show, wherever it was pasted from."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Input, TextArea

from hearth.app.terminal import safe_text


class SafeTextArea(TextArea):
    """A text area that keeps a text as it is, and shows it through `safe_text`."""

    def get_line(self, line_index: int) -> Text:
        """The line as it is shown; of the same length as the line of the document."""
        return Text(safe_text(self.document.get_line(line_index)), end="", no_wrap=True)


class SafeInput(Input):
    """A line to write in. Its value is what is shown: it goes through `safe_text` as a whole."""

    def validate_value(self, value: str) -> str:
        """What the field holds once `value` is written into it."""
        return safe_text(value)
