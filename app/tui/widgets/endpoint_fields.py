"""Host and port of the endpoint, and whether it requires a key."""

from __future__ import annotations

from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Checkbox, Input, Label

from hearth.app.tui.widgets.fields import SafeInput


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
