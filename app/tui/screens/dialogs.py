"""Small dialogs: a question with buttons, a line of text, a choice from a list, a long text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import isawaitable
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.button import ButtonVariant
from textual.widgets.option_list import Option

from hearth.app.terminal import safe_text
from hearth.app.tui.editor import edited
from hearth.app.tui.screens.base import Dialog, Result
from hearth.app.tui.widgets.fields import SafeInput, SafeTextArea
from hearth.backends.errors import HearthError


class SmallDialog(Dialog[Result]):
    """A dialog that is as high as its content."""

    DEFAULT_CSS = """
    SmallDialog > .dialog {
        width: 90%; max-width: 90; height: auto; max-height: 90%; padding: 1 2;
    }
    SmallDialog .title, SmallDialog .wrong { width: 100%; }
    SmallDialog .detail { color: $text-muted; width: 100%; }
    """
    HAS_KEYS = False


class Question(SmallDialog[Result]):
    """A question with a button for each answer.

    Escape, and Enter while the focus has not moved, give the first answer, which changes nothing.

    Args:
        question: one line.
        detail: the consequences of the answers.
        answers: the label of each button, which names its effect, and the value it returns.
        destructive: whether the last answer deletes something.
    """

    DEFAULT_CSS = """
    Question .buttons { height: auto; layout: horizontal; margin-top: 1; }
    Question Button { margin-right: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "answer(0)", "cancel", id="confirm.escape", show=False),
        Binding("left", "app.focus_previous", "previous", id="confirm.previous", show=False),
        Binding("right", "app.focus_next", "next", id="confirm.other", show=False),
    ]

    def __init__(
        self,
        question: str,
        detail: str,
        answers: Sequence[tuple[str, Result]],
        *,
        destructive: bool = False,
    ) -> None:
        super().__init__()
        self.title = question
        self._detail = safe_text(detail)
        self._answers = answers
        self._is_destructive = destructive

    def body(self) -> ComposeResult:
        last = len(self._answers) - 1
        emphasis: ButtonVariant = "error" if self._is_destructive else "primary"
        if self._detail:
            yield Static(self._detail, classes="detail", markup=False)
        with Vertical(classes="buttons"):
            for at, (label, _) in enumerate(self._answers):
                variant = emphasis if at == last else "default"
                yield Button(Content(safe_text(label)), id=f"answer-{at}", variant=variant)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.action_answer(int((event.button.id or "").removeprefix("answer-")))

    def action_answer(self, at: int) -> None:
        """Return the answer of button `at`."""
        self.dismiss(self._answers[at][1])


class Confirm(Question[bool]):
    """A yes-or-no question.

    Args:
        yes, no: the labels of the buttons, which name their effects.
        destructive: whether yes deletes something.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(1)", "yes", id="confirm.yes"),
        Binding("n", "answer(0)", "no", id="confirm.no"),
    ]

    def __init__(
        self,
        question: str,
        detail: str = "",
        *,
        yes: str = "Yes",
        no: str = "Cancel",
        destructive: bool = False,
    ) -> None:
        super().__init__(question, detail, ((no, False), (yes, True)), destructive=destructive)


def discarding() -> Confirm:
    """A dialog that asks before changes are lost."""
    return Confirm("Discard changes?", yes="Discard", no="Keep editing", destructive=True)


class AskLine(SmallDialog[str | None]):
    """Asks for one line of text; returns None if the user cancels.

    Args:
        title: the question.
        value: initial text, selected.
        check: raises ValueError or `HearthError` if an answer is wrong; the dialog then stays open
            so that it can be corrected. May be a coroutine function.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "cancel", id="ask.cancel"),
    ]

    def __init__(
        self,
        title: str,
        value: str = "",
        *,
        placeholder: str = "",
        check: Callable[[str], Any] = str,
    ) -> None:
        super().__init__()
        self.title = title
        self._value = " ".join(value.split("\n"))
        self._placeholder = safe_text(placeholder)
        self._check = check

    def body(self) -> ComposeResult:
        yield SafeInput(self._value, placeholder=self._placeholder)
        yield Static("", classes="wrong", markup=False)

    def on_mount(self) -> None:
        """Select the initial text, so that typing replaces it."""
        self.query_one(Input).action_select_all()

    def on_input_changed(self) -> None:
        self.show_wrong("")

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        answer = event.value.strip()
        try:
            checked = self._check(answer)
            if isawaitable(checked):
                await checked
        except (ValueError, HearthError) as error:
            self.show_wrong(str(error))
        else:
            self.dismiss(answer)


class PickOne(SmallDialog[str | None]):
    """A choice from a list that typing filters; returns None if the user cancels.

    Args:
        options: the texts, of which the picked one is returned unchanged.
        details: text shown next to an option, by option.
    """

    DEFAULT_CSS = """
    PickOne OptionList { height: auto; max-height: 16; border: none; }
    """
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
    ) -> None:
        super().__init__()
        self.title = title
        self._options = list(options)
        self._details = details or {}
        self._left = list(options)

    def body(self) -> ComposeResult:
        yield SafeInput(placeholder="Type to filter")
        yield OptionList(markup=False)

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False
        self._show()

    @on(Input.Changed)
    def _show(self) -> None:
        wanted = self.query_one(Input).value.lower().split()
        self._left = [
            option
            for option in self._options
            if all(word in f"{option} {self._details.get(option, '')}".lower() for word in wanted)
        ]
        option_list = self.query_one(OptionList)
        option_list.clear_options()
        option_list.add_options(Option(self._row(option)) for option in self._left)
        if self._left:
            option_list.highlighted = 0

    def _row(self, option: str) -> Content:
        name = safe_text(option).replace("\n", " ")
        detail = safe_text(self._details.get(option, "")).replace("\n", " ")
        return Content.assemble(name, (f"  {detail}" if detail else "", "dim"))

    def action_move(self, by: int) -> None:
        """Mark the next or the previous option."""
        option_list = self.query_one(OptionList)
        if by > 0:
            option_list.action_cursor_down()
        else:
            option_list.action_cursor_up()

    @on(Input.Submitted)
    @on(OptionList.OptionSelected)
    def _pick(self) -> None:
        """Return the marked option, if any is left; a click marks one."""
        marked = self.query_one(OptionList).highlighted
        if marked is not None and self._left:
            self.dismiss(self._left[marked])


class EditText(SmallDialog[str | None]):
    """Edits a text of several lines; returns None if the user cancels.

    Args:
        title: what the text is.
        text: initial text.
        check: raises `HearthError` if the text cannot be saved now; the dialog then stays open.
    """

    DEFAULT_CSS = """
    EditText > .dialog { height: 80%; }
    EditText SafeTextArea, EditText SafeTextArea:focus { height: 1fr; border: none; }
    """
    HAS_KEYS = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "save", id="edit.save"),
        Binding("ctrl+e", "open_editor", "editor", id="edit.editor", priority=True),
        Binding("escape", "leave", "cancel", id="edit.cancel"),
    ]

    def __init__(
        self, title: str, text: str = "", *, check: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self.title = title
        self._text = text
        self._check = check

    def body(self) -> ComposeResult:
        area = SafeTextArea(self._text, highlight_cursor_line=False)
        self._begun = area.text  # A text area normalizes line endings.
        yield area
        yield Static("", classes="wrong", markup=False)

    @property
    def area(self) -> SafeTextArea:
        """Where the text is edited."""
        return self.query_one(SafeTextArea)

    def on_mount(self) -> None:
        """Put the cursor at the end of the text."""
        self.area.move_cursor(self.area.document.end)

    def action_save(self) -> None:
        """Return the text."""
        is_same = self.area.text == self._begun
        try:
            if not is_same:
                self._check()
        except HearthError as error:
            self.show_wrong(str(error))
        else:
            self.dismiss(self._text if is_same else self.area.text)

    @work(group="leave", exclusive=True)
    async def action_leave(self) -> None:
        """Close without saving; ask first if there are changes."""
        if self.area.text == self._begun or await self.app.push_screen_wait(discarding()):
            self.dismiss(None)

    @work(group="editor", exclusive=True)
    async def action_open_editor(self) -> None:
        """Edit the text in the user's own editor."""
        wrong = ""
        try:
            self.area.load_text(await edited(self.app, self.area.text))
        except HearthError as error:
            wrong = str(error)
        self.show_wrong(wrong)
