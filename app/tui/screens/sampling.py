"""The settings of one chat: thinking, structured output and sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.events import Mount
from textual.widgets import Select, Static

from hearth.app.settings import Settings
from hearth.app.settings_keys import SAMPLING
from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import Dialog
from hearth.app.tui.screens.dialogs import discarding
from hearth.app.tui.widgets.sampling_form import ConstraintForm, SettingRow
from hearth.backends.errors import HearthError

_FIRST: Final = ("max_tokens", "stop", "seed")
"""Used most often; the others follow in the order of the table."""
_THINKING: Final = {"own": None, "on": True, "off": False}


class SamplingScreen(Dialog[dict[str, Any] | None]):
    """A form with every setting of a chat, built from the parameter table.

    Returns settings in the form of `settings` (`app.presets.check_chat_settings`), or None for no
    change.

    Args:
        settings: settings of the chat.
        inherited: the values where the chat sets none.
        model: model of the chat, whose own settings are included in `inherited`.
        check: raises `HearthError` if the settings cannot be saved now; the form then stays open.
    """

    DEFAULT_CSS = """
    SamplingScreen VerticalScroll { scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    SamplingScreen > .dialog { width: 100%; max-width: 100; height: 90%; padding: 0 1; }
    SamplingScreen .status { color: $text-muted; height: 1; }
    SamplingScreen .status.-wrong { color: $text-error; }
    SamplingScreen .section { color: $primary; text-style: bold; margin-bottom: 1; }
    SamplingScreen #thinking { height: 1; margin-bottom: 1; }
    SamplingScreen .name { width: 24; }
    SamplingScreen.-narrow .name { width: 22; }
    SamplingScreen.-narrow .origin { width: 16; }
    SamplingScreen #thinking Select { width: 1fr; max-width: 36; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "save", id="sampling.save", priority=True),
        Binding("ctrl+r", "reset", "reset this", id="sampling.reset", priority=True),
        Binding("ctrl+l", "reset_all", "reset all", id="sampling.reset_all", priority=True),
        Binding("escape", "leave", "cancel", id="sampling.cancel"),
    ]

    def __init__(
        self,
        settings: dict[str, Any],
        inherited: Settings,
        model: str = "",
        *,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._check = check
        self._settings = settings
        self.title = "Settings of this chat" + (f" with {model}" if model else "")
        self._inherited = inherited.all(model)

    def body(self) -> ComposeResult:
        thinking = self._settings.get("thinking")
        yield Static("", classes="status", markup=False)
        with VerticalScroll(can_focus=False):
            yield Static("Answers", classes="section", markup=False)
            with Horizontal(id="thinking"):
                yield Static("  thinking", classes="name", markup=False)
                yield Select(
                    [("model default", "own"), ("on", "on"), ("off", "off")],
                    value=next(name for name, is_on in _THINKING.items() if is_on is thinking),
                    allow_blank=False,
                    compact=True,
                )
            yield ConstraintForm(self._settings.get("constraint"))
            yield from self._rows()

    def _rows(self) -> ComposeResult:
        # Log probabilities are not shown in a chat, so they cannot be asked for in one.
        known = {key.name: key for key in SAMPLING if key.name != "logprobs"}
        names = [*_FIRST, *(name for name in known if name not in _FIRST)]
        chosen = self._settings.get("set", {})
        for name in names:
            if name == names[len(_FIRST)]:
                yield Static("Sampling", classes="section", markup=False)
            yield SettingRow(
                known[name], self._inherited[name], chosen.get(name), is_set=name in chosen
            )

    @property
    def rows(self) -> list[SettingRow]:
        """The fields of the parameter table."""
        return list(self.query(SettingRow))

    @property
    def form(self) -> ConstraintForm:
        """The form of the constraint on answers."""
        return self.query_one(ConstraintForm)

    @property
    def answer(self) -> dict[str, Any]:
        """The settings in the form, without invalid fields."""
        chosen = {row.key.name: row.value for row in self.rows if row.is_set and not row.error}
        thinking = self.query_one("#thinking", Horizontal).query_one(Select).value
        return {
            **self._settings,
            "set": chosen,
            "thinking": _THINKING[str(thinking)],
            "constraint": self.form.constraint,
            "preset": self._settings.get("preset", ""),
        }

    @on(Mount)
    @on(SettingRow.Changed)
    @on(ConstraintForm.Changed)
    @on(Select.Changed)
    def _show(self) -> None:
        answer = self.answer
        wrong = sum(bool(row.error) for row in self.rows) + bool(self.form.error)
        changed = len(answer["set"]) + (answer["thinking"] is not None)
        changed += answer["constraint"] is not None
        status = self.query_one(".status", Static)
        text = f"{changed} set for this chat (*); dim values are inherited"
        status.update(f"{wrong} invalid, marked !" if wrong else text)
        status.set_class(bool(wrong), "-wrong")
        mark = " " if answer["thinking"] is None else "*"
        self.query_one("#thinking .name", Static).update(f"{mark} thinking")

    def action_save(self) -> None:
        """Return the settings; if a field is invalid, focus it instead."""
        self._show()
        for row in self.rows:
            if row.error:
                row.query_one("Input").focus()
                return
        if self.form.error:
            self.form.query_one("SafeTextArea").focus()
            return
        try:
            self._check()
        except HearthError as error:
            status = self.query_one(".status", Static)
            status.update(safe_text(str(error)))
            status.add_class("-wrong")
        else:
            self.dismiss(self.answer)

    def action_reset(self) -> None:
        """Reset the focused field to the inherited value."""
        for widget in self.focused.ancestors_with_self if self.focused is not None else ():
            if isinstance(widget, SettingRow | ConstraintForm):
                widget.reset()
            elif widget.id == "thinking":
                widget.query_one(Select).value = "own"

    def action_reset_all(self) -> None:
        """Reset all fields to the inherited values."""
        for row in self.rows:
            row.reset()
        self.form.reset()
        self.query_one("#thinking", Horizontal).query_one(Select).value = "own"

    @work(group="leave", exclusive=True)
    async def action_leave(self) -> None:
        """Close without saving; ask first if there are changes."""
        before = {"set": {}, "thinking": None, "constraint": None, "preset": "", **self._settings}
        is_same = self.answer == before and not any(row.error for row in self.rows)
        if is_same or await self.app.push_screen_wait(discarding()):
            self.dismiss(None)
