"""The parts of the sampling form: a row for each setting, and the constraint on answers."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input, Select, Static, TextArea

from hearth.app.presets import check_constraint
from hearth.app.settings import Setting
from hearth.app.settings_keys import Key, Value, default_of
from hearth.app.terminal import safe_text
from hearth.app.tui.widgets.fields import SafeInput, SafeTextArea
from hearth.backends.errors import HearthError

FREE: Final = "free"
_KINDS: Final = {
    FREE: ("free", ""),
    "json": ("JSON", ""),
    "json_schema": ("JSON schema", "The schema, as JSON."),
    "regex": ("regex", "The pattern that the whole answer matches."),
    "choice": ("choice", "The possible answers, one a line."),
    "grammar": ("grammar", "A grammar in llama.cpp's GBNF."),
}


class SettingRow(Vertical):
    """The field of one `Key`; while it is empty, it shows the inherited value dimmed.

    Args:
        inherited: the value while the field is empty, and its origin.
        value: the JSON value set here.
        is_set: whether `value` counts.
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
        """The text of the field has changed."""

    def __init__(self, key: Key, inherited: Setting, value: Any = None, *, is_set: bool) -> None:
        super().__init__(id=f"row-{key.name}")
        self.key = key
        self.error = ""
        """Why the field's text is invalid; empty if it is valid."""
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
        self._show()

    @property
    def text(self) -> str:
        """The text in the field."""
        return self.query_one(Input).value if self.is_mounted else self._text

    @property
    def is_set(self) -> bool:
        """Whether the field has text, valid or not."""
        return bool(self.text)

    @property
    def value(self) -> Any:
        """The value of the field, as a JSON value. Raises ValueError."""
        return self.key.stored(read(self.key, self.text))

    def reset(self) -> None:
        """Empty the field."""
        self.query_one(Input).value = ""

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._show()
        self.post_message(self.Changed())

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
    """The allowed values in words, in the form that `read` accepts."""
    if key.kind == "texts":
        return 'a string, or a JSON array such as ["END", "\\n\\n"]'
    return key.expects() + (", as a JSON array" if key.kind == "paths" else "")


def written(key: Key, value: Value) -> str:
    """`value` in the form that `read` accepts; empty for None, unless that is shown as "auto"."""
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
    """The value of `text`. Raises ValueError with what is expected."""
    is_list = key.kind in ("texts", "paths") and text.startswith("[")
    if is_list or (key.kind == "biases" and text == "{}"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"expected {expects(key)}, not {text[:60]!r}") from error
        return key.check(value)
    return key.parse(text)


class ConstraintForm(Vertical):
    """Kind and source of a constraint, checked as the user writes.

    Args:
        constraint: {"kind", "source"}, or None for unconstrained answers.
    """

    DEFAULT_CSS = """
    ConstraintForm { height: auto; margin-bottom: 1; }
    ConstraintForm > Horizontal { height: 1; }
    ConstraintForm .name { width: 24; }
    ConstraintForm Select { width: 1fr; max-width: 36; }
    ConstraintForm .about { color: $text-muted; padding-left: 2; height: auto; }
    ConstraintForm .about.-wrong { color: $text-error; }
    ConstraintForm SafeTextArea {
        height: auto; min-height: 3; max-height: 10; border: none; margin-left: 2;
    }
    ConstraintForm SafeTextArea:focus { border: none; }
    """

    class Changed(Message):
        """The kind or the source has changed."""

    def __init__(self, constraint: dict[str, Any] | None) -> None:
        super().__init__()
        self.error = ""
        """Why the constraint is invalid; empty if it is valid."""
        self._kind: str = constraint["kind"] if constraint else FREE
        self._sources = dict.fromkeys(_KINDS, "")
        if constraint:
            self._sources[self._kind] = _shown(self._kind, constraint.get("source", ""))

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static("  answers are", classes="name", markup=False)
            yield Select(
                [(label, kind) for kind, (label, _) in _KINDS.items()],
                value=self._kind,
                allow_blank=False,
                compact=True,
            )
        yield SafeTextArea(self._sources[self._kind], highlight_cursor_line=False)
        yield Static("", classes="about", markup=False)

    def on_mount(self) -> None:
        self._show()

    @property
    def constraint(self) -> dict[str, str] | None:
        """The constraint, valid or not; None if answers are unconstrained."""
        if self._kind == FREE:
            return None
        return {"kind": self._kind, "source": _source(self._kind, self._sources[self._kind])}

    def reset(self) -> None:
        """Remove the constraint."""
        self.query_one(Select).value = FREE

    @on(Select.Changed)
    def _other_kind(self, event: Select.Changed) -> None:
        event.stop()
        if event.value != self._kind:
            self._kind = str(event.value)
            self.query_one(TextArea).load_text(self._sources[self._kind])
            self._show()
            self.post_message(self.Changed())

    @on(TextArea.Changed)
    def _other_source(self, event: TextArea.Changed) -> None:
        event.stop()
        self._sources[self._kind] = event.text_area.text
        self._show()
        self.post_message(self.Changed())

    def _show(self) -> None:
        self.error = ""
        constraint = self.constraint
        if constraint is not None:
            try:
                check_constraint(constraint)
            except HearthError as error:
                self.error = str(error)
        about = _KINDS[self._kind][1]
        self.query_one(TextArea).display = bool(about)
        line = self.query_one(".about", Static)
        line.update(safe_text(self.error or about))
        line.display = bool(self.error or about)
        line.set_class(bool(self.error), "-wrong")
        mark = "!" if self.error else " " if constraint is None else "*"
        self.query_one(".name", Static).update(f"{mark} answers are")


def _source(kind: str, text: str) -> str:
    """The source of a constraint whose text in the form is `text`."""
    if kind != "choice" or text.lstrip().startswith("["):
        return text
    return json.dumps([line for line in text.split("\n") if line], ensure_ascii=False)


def _shown(kind: str, source: str) -> str:
    """The text in the form for `source`."""
    if kind != "choice":
        return source
    try:
        texts = json.loads(source)
    except ValueError:
        return source
    is_plain = isinstance(texts, list) and all(
        isinstance(text, str) and text and "\n" not in text for text in texts
    )
    lines = "\n".join(texts) if is_plain else source
    return source if lines.lstrip().startswith("[") else lines
