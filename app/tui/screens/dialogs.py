"""Small questions: yes or no, one line, one of a list, a long text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Button, Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from hearth.app.terminal import safe_text
from hearth.app.tui.editor import edited
from hearth.app.tui.screens.base import Dialog
from hearth.app.tui.widgets.fields import SafeInput, SafeTextArea
from hearth.backends.errors import HearthError

_CSS = """
    NAME { align: center middle; }
    NAME > .dialog {
        width: 90%; max-width: 90; height: auto; max-height: 90%;
        padding: 1 2; background: $surface; border: round $primary;
    }
    NAME .title { text-style: bold; width: 100%; }
    NAME .detail { color: $text-muted; width: 100%; }
    NAME .wrong { color: $text-error; width: 100%; height: auto; }
"""


def _looks(name: str) -> str:
    return _CSS.replace("NAME", name)


class Confirm(Dialog[bool]):
    """A question that is answered with yes or no; no is what Enter does at first.

    Args:
        question: in a line.
        detail: what follows from a yes.
        yes, no: on the buttons.
    """

    DEFAULT_CSS = (
        _looks("Confirm")
        + """
    Confirm .buttons { height: auto; layout: horizontal; margin-top: 1; }
    Confirm Button { margin-right: 2; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes", id="confirm.yes"),
        Binding("n", "dismiss(False)", "no", id="confirm.no"),
        Binding("escape", "dismiss(False)", "no", id="confirm.escape", show=False),
        Binding("left,right", "other", "other", id="confirm.other", show=False),
    ]

    def __init__(
        self, question: str, detail: str = "", *, yes: str = "Yes", no: str = "No"
    ) -> None:
        super().__init__()
        self._question = safe_text(question)
        self._detail = safe_text(detail)
        self._labels = (Content(safe_text(no)), Content(safe_text(yes)))

    def compose(self) -> ComposeResult:
        no, yes = self._labels
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="title", markup=False)
            if self._detail:
                yield Static(self._detail, classes="detail", markup=False)
            with Vertical(classes="buttons"):
                yield Button(no, id="no")
                yield Button(yes, id="yes", variant="error")

    def on_mount(self) -> None:
        """Let Enter mean no."""
        self.query_one("#no", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_other(self) -> None:
        """Go to the other button."""
        self.focus_next()


class AskLine(Dialog[str | None]):
    """A question that is answered with one line; None: the user does not answer.

    Args:
        title: what is asked.
        value: to begin with, selected.
        check: raises ValueError or `HearthError` with what is wrong with an answer.
    """

    DEFAULT_CSS = _looks("AskLine")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "cancel", id="ask.cancel"),
    ]

    def __init__(
        self,
        title: str,
        value: str = "",
        *,
        placeholder: str = "",
        check: Callable[[str], object] = str,
    ) -> None:
        super().__init__()
        self._title = safe_text(title)
        self._value = " ".join(value.split("\n"))
        self._placeholder = safe_text(placeholder)
        self._check = check

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._title, classes="title", markup=False)
            yield SafeInput(self._value, placeholder=self._placeholder)
            yield Static("", classes="wrong", markup=False)

    def on_mount(self) -> None:
        """Select what is there, so that writing replaces it."""
        self.query_one(Input).focus()
        self.query_one(Input).action_select_all()

    def on_input_changed(self) -> None:
        self.query_one(".wrong", Static).update("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        answer = event.value.strip()
        try:
            self._check(answer)
        except (ValueError, HearthError) as error:
            self.query_one(".wrong", Static).update(safe_text(str(error)))
            return
        self.dismiss(answer)


class PickOne(Dialog[str | None]):
    """One of a list, which what is written narrows; None: the user picks none.

    Args:
        options: texts, of which the picked one is returned as it was given.
        details: beside each option, by option.
        marked: the option to begin with.
    """

    DEFAULT_CSS = (
        _looks("PickOne")
        + """
    PickOne OptionList { height: auto; max-height: 16; border: none; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "cancel", id="pick.cancel"),
        Binding("down", "move(1)", "down", id="pick.down", show=False, priority=True),
        Binding("up", "move(-1)", "up", id="pick.up", show=False, priority=True),
    ]

    def __init__(
        self,
        title: str,
        options: Sequence[str],
        *,
        details: dict[str, str] | None = None,
        marked: str = "",
    ) -> None:
        super().__init__()
        self._title = safe_text(title)
        self._options = list(options)
        self._details = details or {}
        self._marked = marked
        self._left = list(options)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._title, classes="title", markup=False)
            yield SafeInput(placeholder="write to narrow the list")
            yield OptionList(markup=False)

    def on_mount(self) -> None:
        """Show all of them."""
        self.query_one(OptionList).can_focus = False
        self.query_one(Input).focus()
        self._show("")

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show(event.value)

    def _show(self, written: str) -> None:
        wanted = written.lower().split()
        self._left = [
            option
            for option in self._options
            if all(word in f"{option} {self._details.get(option, '')}".lower() for word in wanted)
        ]
        found = self.query_one(OptionList)
        found.clear_options()
        found.add_options(Option(self._row(option)) for option in self._left)
        if self._left:
            is_there = self._marked in self._left
            found.highlighted = self._left.index(self._marked) if is_there else 0

    def _row(self, option: str) -> Content:
        name = safe_text(option).replace("\n", " ")
        detail = safe_text(self._details.get(option, "")).replace("\n", " ")
        return Content.assemble(name, (f"  {detail}" if detail else "", "dim"))

    def action_move(self, by: int) -> None:
        """Mark another one."""
        found = self.query_one(OptionList)
        if by > 0:
            found.action_cursor_down()
        else:
            found.action_cursor_up()

    def on_input_submitted(self) -> None:
        """Pick the marked one, if any is left."""
        marked = self.query_one(OptionList).highlighted
        if marked is not None and self._left:
            self.dismiss(self._left[marked])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._left[event.option_index])


class EditText(Dialog[str | None]):
    """A text of several lines; None: it stays as it was.

    Args:
        title: what the text is.
        text: to begin with.
    """

    DEFAULT_CSS = (
        _looks("EditText")
        + """
    EditText > .dialog { height: 80%; }
    EditText SafeTextArea, EditText SafeTextArea:focus { height: 1fr; border: none; }
    """
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "save", id="edit.save"),
        Binding("ctrl+e", "open_editor", "editor", id="edit.editor", priority=True),
        Binding("escape", "leave", "cancel", id="edit.cancel"),
    ]

    def __init__(self, title: str, text: str = "") -> None:
        super().__init__()
        self._title = safe_text(title)
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._title, classes="title", markup=False)
            area = SafeTextArea(self._text, highlight_cursor_line=False)
            self._begun = area.text  # A text area knows one kind of line end alone.
            yield area
            yield Static("", classes="wrong", markup=False)
        yield Footer(show_command_palette=False, compact=True)

    @property
    def area(self) -> SafeTextArea:
        """Where the text is edited."""
        return self.query_one(SafeTextArea)

    def on_mount(self) -> None:
        """Begin at the end of the text."""
        self.area.focus()
        self.area.move_cursor(self.area.document.end)

    def action_save(self) -> None:
        """Give the text back as it is now."""
        self.dismiss(self._text if self.area.text == self._begun else self.area.text)

    @work(group="leave", exclusive=True)
    async def action_leave(self) -> None:
        """Forget what was changed, once the user says so."""
        is_same = self.area.text == self._begun
        if is_same or await self.app.push_screen_wait(
            Confirm("Forget what you changed?", yes="Forget it", no="Go on")
        ):
            self.dismiss(None)

    @work(group="editor", exclusive=True)
    async def action_open_editor(self) -> None:
        """Edit the text in the user's own editor."""
        try:
            text = await edited(self.app, self.area.text)
        except HearthError as error:
            self.query_one(".wrong", Static).update(safe_text(str(error)))
            return
        self.query_one(".wrong", Static).update("")
        self.area.load_text(text)
