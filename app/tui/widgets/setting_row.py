"""One setting of a form: its name, a field for its value, where that comes from, and its help."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input, Static

from hearth.app.settings import Setting
from hearth.app.settings_keys import Key, Value, default_of
from hearth.app.terminal import safe_text
from hearth.app.tui.widgets.fields import SafeInput


class SettingRow(Vertical):
    """One `Key`. An empty field means the inherited value, which it shows dimly.

    Args:
        inherited: the value while the field is empty, and its origin.
        value: what is set here, a JSON value.
        is_set: `value` counts.
    """

    DEFAULT_CSS = """
    SettingRow { height: auto; margin-bottom: 1; }
    SettingRow > Horizontal { height: 1; }
    SettingRow .name { width: 24; }
    SettingRow Input { width: 1fr; max-width: 36; }
    SettingRow .origin {
        width: 26; padding-left: 1; color: $text-muted;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    SettingRow .help { color: $text-muted; padding-left: 2; height: auto; }
    SettingRow.-set .name { text-style: bold; color: $accent; }
    SettingRow.-wrong .name, SettingRow.-wrong .help { color: $text-error; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "app.focus_next", "next", id="form.next", show=False),
        Binding("up", "app.focus_previous", "previous", id="form.previous", show=False),
    ]

    class Changed(Message):
        """The field of `row` holds something else."""

        def __init__(self, row: SettingRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, key: Key, inherited: Setting, value: Any = None, *, is_set: bool) -> None:
        super().__init__(id=f"row-{key.name}")
        self.key = key
        self.error = ""
        """Why the field's text is invalid; empty if it is not."""
        self._inherited = inherited
        self._text = written(key, key.check(value)) if is_set else ""

    def compose(self) -> ComposeResult:
        inherited = self._inherited.value
        with Horizontal():
            yield Static("", classes="name", markup=False)
            yield SafeInput(
                self._text,
                placeholder=safe_text(written(self.key, inherited) or "not set"),
                compact=True,
            )
            yield Static("", classes="origin", markup=False)
        yield Static("", classes="help", markup=False)

    def on_mount(self) -> None:
        """Show what is set."""
        self._show()

    @property
    def text(self) -> str:
        """What the field holds."""
        return self.query_one(Input).value if self.is_mounted else self._text

    @property
    def is_set(self) -> bool:
        """The field says something, right or wrong."""
        return bool(self.text)

    @property
    def value(self) -> Any:
        """What the field says, as a JSON value. Raises ValueError."""
        return as_json(read(self.key, self.text))

    def reset(self) -> None:
        """Empty the field."""
        self.query_one(Input).value = ""

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._show()
        self.post_message(self.Changed(self))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.screen.focus_next()

    def _show(self) -> None:
        self.error = ""
        if self.is_set:
            try:
                read(self.key, self.text)
            except ValueError as error:
                self.error = str(error)
        self.set_class(self.is_set, "-set")
        self.set_class(bool(self.error), "-wrong")
        mark = "!" if self.error else "*" if self.is_set else " "
        self.query_one(".name", Static).update(f"{mark} {self.key.name}")
        origin = "this chat" if self.is_set else self._inherited.origin.rpartition("/")[2]
        self.query_one(".origin", Static).update(safe_text(origin))
        default = written(self.key, default_of(self.key)) or "not set"
        about = f"{self.key.help}: {expects(self.key)}; default {default}"
        self.query_one(".help", Static).update(safe_text(self.error or about))


def expects(key: Key) -> str:
    """The allowed values in words, as `read` reads them."""
    if key.kind == "texts":
        return 'a string, or a JSON array such as ["END", "\\n\\n"]'
    return key.expects()


def written(key: Key, value: Value) -> str:
    """`value` as `read` reads it; empty for None where that is not "auto"."""
    value = key.shown(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        only = value[0] if len(value) == 1 else ""
        is_plain = only and only.isprintable() and not only.startswith("[")
        return only if is_plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return ", ".join(f"{token}={bias:g}" for token, bias in value.items()) or "{}"
    return str(value)


def read(key: Key, text: str) -> Value:
    """The value that `text` means. Raises ValueError with what is expected."""
    if (key.kind == "texts" and text.startswith("[")) or (key.kind == "biases" and text == "{}"):
        try:
            return key.check(json.loads(text))
        except json.JSONDecodeError as error:
            raise ValueError(f"expected {expects(key)}, not {text[:60]!r}") from error
    return key.parse(text)


def as_json(value: Value) -> Any:
    """`value` as JSON has it, which `Key.check` reads."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {str(token): bias for token, bias in value.items()}
    return value
