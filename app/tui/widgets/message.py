"""One message of a chat: its author, thoughts, text, attached files and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message

from hearth.app.tui.attachments import Attached
from hearth.app.tui.widgets.answer import AnswerView, Form
from hearth.app.tui.widgets.cells import model_name, shown_text
from hearth.app.tui.widgets.folded import Attachment
from hearth.app.tui.widgets.lines import Line
from hearth.app.tui.widgets.slab import FULL, Frame, Slab
from hearth.backends.contract.messages import ToolCall

State = Literal["complete", "streaming", "stopped", "failed"]
ActionName = Literal[
    "edit", "regenerate", "continue", "copy", "delete_branch", "previous", "next", "clone"
]


@dataclass(frozen=True, slots=True)
class Shown:
    """A message as the transcript shows it.

    Attributes:
        id: id of the message.
        role: its author: user, assistant, system, tool.
        content: its text; an assistant's is Markdown or JSON, all others are shown unchanged.
        reasoning: the thoughts before it.
        files: the files attached to it.
        calls: the tools that it calls, in an imported chat; they are not run.
        is_json: whether the content is JSON, or will be.
        state: complete, still streaming, stopped by the user, or failed.
        note: why it stopped or failed.
        numbers: measurements, shown below it.
        sibling: number of this version of the message, from 1.
        siblings: number of versions.
        model: the model that wrote it.
    """

    id: str
    role: str
    content: str
    reasoning: str = ""
    files: tuple[Attached, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    is_json: bool = False
    state: State = "complete"
    note: str = ""
    numbers: str = ""
    sibling: int = 1
    siblings: int = 1
    model: str = ""

    @property
    def form(self) -> Form:
        """How the text is shown."""
        return "plain" if self.role != "assistant" else "json" if self.is_json else "markdown"


class MessageView(Frame, can_focus=True):
    """A message with its keys; it posts an `Action` for each, which the screen carries out.

    Args:
        shown: the message.
        has_keys: whether it has the keys for actions on messages of a chat.
    """

    DEFAULT_CSS = """
    MessageView {
        width: 1fr;
        height: auto;
        layout: stream;
        margin-bottom: 1;
        padding: 0 1;
        border-left: blank;
        &.-user { border-left: wide $accent; }
        &.-failed { border-left: wide $error; }
        &:focus { border-left: wide $primary; background: $boost; }
        &.-found { background: $boost; }
        &:ansi:focus, &:ansi.-found { background: transparent; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "ask('edit')", "edit", id="message.edit"),
        Binding("r", "ask('regenerate')", "retry", id="message.regenerate"),
        Binding("c", "ask('continue')", "continue", id="message.continue"),
        Binding("y", "ask('copy')", "copy", id="message.copy"),
        Binding("b", "ask('clone')", "branch", id="message.clone"),
        Binding("d", "ask('delete_branch')", "delete", id="message.delete"),
        Binding("left", "ask('previous')", "versions", key_display="←→", id="message.previous"),
        Binding("right", "ask('next')", "next version", id="message.next", show=False),
        Binding("enter", "unfold", "fold / unfold", id="message.thinking", show=False),
    ]

    @dataclass
    class Action(Message):
        """The user wants something done with a message.

        Attributes:
            id: id of the message.
            action: what to do.
        """

        id: str
        action: ActionName

    def __init__(self, shown: Shown, *, has_keys: bool = True) -> None:
        super().__init__()
        self.shown = shown
        self._has_keys = has_keys
        self._head = Slab()
        self._below: list[Slab | Attachment] = []  # files, tool calls, the note and the numbers
        self.answer = AnswerView(shown.form)

    async def prepare(self) -> None:
        """Parse the text in slices, before mounting, so that the view has its full height."""
        if self.shown.state == "streaming":
            self.answer.feed(self.shown.reasoning, "reasoning")
            self.answer.feed(self.shown.content)
            self.answer.catch_up()
        else:
            await self.answer.become(self.shown.content, self.shown.reasoning)
        self._show_rest()

    def compose(self) -> ComposeResult:
        yield self._head
        yield self.answer
        yield from self._below

    async def show(self, shown: Shown) -> None:
        """Show another state of the message, which must not be streaming."""
        self.shown = shown
        self.answer.status("")
        await self.answer.become(shown.content, shown.reasoning, shown.form)
        gone = self._below
        self._show_rest()
        if self.is_attached:
            for part in gone:
                await part.remove()
            await self.mount_all(self._below)
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide the keys of a message that streams or does not have the focus itself.

        The keys for versions are dimmed if there is one version, and the key to continue if the
        message is not an answer.
        """
        if action != "ask":
            return True
        if not self._has_keys or not self.has_focus or self.shown.state == "streaming":
            return False
        is_dim = {
            "previous": self.shown.siblings == 1,
            "next": self.shown.siblings == 1,
            "continue": self.shown.role != "assistant",
        }
        return None if is_dim.get(str(parameters[0])) else True

    def action_ask(self, action: ActionName) -> None:
        self.post_message(self.Action(self.shown.id, action))

    def action_unfold(self) -> None:
        """Fold or unfold the thoughts and the files."""
        parts = [self.answer.thinking, *self.query(Attachment)]
        is_open = any(part.is_open for part in parts)
        for part in parts:
            part.set_open(not is_open)

    def _show_rest(self) -> None:
        """Show everything but the text."""
        shown = self.shown
        self.set_class(shown.role == "user", "-user", update=self.is_attached)
        self.set_class(shown.state == "failed", "-failed", update=self.is_attached)
        self._head.replace([Line(self._title())])
        lines = [line for call in shown.calls for line in _call_lines(call)]
        style = ".error" if shown.state == "failed" else ".muted"
        rows = [(row, style) for row in _rows(shown.note)]
        rows += [(row, ".muted") for row in _rows(shown.numbers)]
        lines += [Line(Content.styled(row, style)) for row, style in rows]
        self._below = [Attachment(file) for file in shown.files]
        self._below += [Slab(lines[at : at + FULL]) for at in range(0, len(lines), FULL)]

    def _title(self) -> Content:
        shown = self.shown
        names = {"user": "you", "assistant": model_name(shown.model) or "assistant"}
        name = " ".join(shown_text(names.get(shown.role, shown.role)).split())
        parts = [Content.styled(name, ".heading" if shown.role == "user" else ".muted")]
        if shown.siblings > 1:
            parts.append(Content.styled(f"  ‹{shown.sibling}/{shown.siblings}›", ".mark"))
        return Content("").join(parts)


def _rows(text: str) -> list[str]:
    return shown_text(text).expandtabs(8).split("\n") if text else []


def _call_lines(call: ToolCall) -> list[Line]:
    name = " ".join(shown_text(call.name).split())
    head = Content.assemble(("tool call ", ".muted"), (name, ".strong"), ("  not run", ".muted"))
    bar = Content.styled("│ ", ".muted")
    rows = _rows(call.arguments)
    return [Line(head), *(Line(Content(row), bar, fold=True) for row in rows)]
