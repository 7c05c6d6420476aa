"""What answers must look like: anything, JSON, a schema, a pattern, one of several texts."""

from __future__ import annotations

import json
from typing import Any, Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Select, Static, TextArea

from hearth.app.presets import check_constraint
from hearth.app.terminal import safe_text
from hearth.app.tui.widgets.fields import SafeTextArea
from hearth.backends.errors import HearthError

FREE: Final = "free"
_KINDS: Final = {
    FREE: ("free", ""),
    "json": ("JSON", ""),
    "json_schema": ("JSON schema", "The schema, as JSON."),
    "regex": ("regex", "The pattern that the whole answer matches."),
    "choice": ("choice", "The possible answers, one a line."),
}


class ConstraintForm(Vertical):
    """Kind and source of a constraint, checked as they are written.

    Args:
        constraint: {"kind", "source"}, or None for answers that are free.
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
        """Kind or source are others than before."""

    def __init__(self, constraint: dict[str, Any] | None) -> None:
        super().__init__()
        self.error = ""
        """Why the constraint cannot be followed; empty if it can."""
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
        """Show what is set."""
        self._show()

    @property
    def constraint(self) -> dict[str, str] | None:
        """What is set, whether or not it can be followed."""
        if self._kind == FREE:
            return None
        return {"kind": self._kind, "source": _source(self._kind, self._sources[self._kind])}

    def reset(self) -> None:
        """Let answers be free."""
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
    """The source that `text`, as the form has it, means."""
    if kind != "choice" or text.lstrip().startswith("["):
        return text
    return json.dumps([line for line in text.split("\n") if line], ensure_ascii=False)


def _shown(kind: str, source: str) -> str:
    """`source` as the form has it."""
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
