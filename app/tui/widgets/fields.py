"""Fields: of text that is safe to show, wherever it was pasted from; and those of the endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Checkbox, Input, Label, TextArea

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


class EndpointFields(Horizontal):
    """Host, port and key, from the settings; `Changed` is posted when an edit is complete."""

    DEFAULT_CSS = """
    EndpointFields { height: 1; padding: 0 1; }
    EndpointFields > Label { width: auto; color: $text-muted; padding: 0 1 0 0; }
    EndpointFields > Input { width: 20; margin: 0 3 0 0; }
    EndpointFields > #serve_port { width: 9; }
    EndpointFields > Checkbox { width: auto; }
    """

    @dataclass
    class Changed(Message):
        """The setting `name` shall be `text`."""

        name: str
        text: str

    def __init__(self, host: str, port: str, *, key: bool) -> None:
        super().__init__()
        self._values = {"serve_host": host, "serve_port": port, "serve_key": _word(key)}

    def compose(self) -> ComposeResult:
        yield Label("host", markup=False)
        yield SafeInput(self._values["serve_host"], id="serve_host", compact=True)
        yield Label("port", markup=False)
        yield SafeInput(self._values["serve_port"], id="serve_port", compact=True)
        yield Checkbox(
            "require a key", self._values["serve_key"] == "true", id="serve_key", compact=True
        )

    def show(self, host: str, port: str, *, key: bool) -> None:
        """Show the values in effect; a field with focus keeps its text."""
        self._values = {"serve_host": host, "serve_port": port, "serve_key": _word(key)}
        for field in self.query(Input):
            if not field.has_focus:
                field.value = self._values[field.id or ""]
        self.query_one(Checkbox).value = key

    @on(Input.Submitted)
    @on(Input.Blurred)
    def _tell_text(self, event: Input.Submitted | Input.Blurred) -> None:
        event.stop()
        self._tell(event.input.id or "", event.value.strip())

    @on(Checkbox.Changed)
    def _tell_key(self, event: Checkbox.Changed) -> None:
        event.stop()
        self._tell("serve_key", _word(event.value))

    def _tell(self, name: str, text: str) -> None:
        if text != self._values[name]:
            self._values[name] = text
            self.post_message(self.Changed(name, text))


def _word(value: bool) -> str:
    return "true" if value else "false"
