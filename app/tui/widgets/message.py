"""One message of a chat: who says it, what was thought, what is said, and its numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message

from hearth.app.tui.widgets.answer import AnswerView
from hearth.app.tui.widgets.incoming import shown_text
from hearth.app.tui.widgets.lines import Line
from hearth.app.tui.widgets.slab import Frame, Slab
from hearth.app.tui.widgets.tool_call import ShownCall, call_slabs

State = Literal["complete", "streaming", "stopped", "failed"]
ActionName = Literal[
    "edit", "regenerate", "continue", "copy", "delete_branch", "previous", "next", "clone"
]


@dataclass(frozen=True, slots=True)
class Shown:
    """A message as the transcript shows it.

    Attributes:
        id: by which it is found again.
        role: who says it: user, assistant, system, tool.
        content: what is said; Markdown of an assistant, as it is of anybody else.
        reasoning: what was thought before.
        calls: the tools it asks for.
        state: complete, still streaming, stopped by somebody, or failed.
        note: why it stopped or failed.
        numbers: one line of what was measured.
        sibling: which of the versions of this message it is, from 1.
        siblings: how many versions there are.
        model: who wrote it.
    """

    id: str
    role: str
    content: str
    reasoning: str = ""
    calls: tuple[ShownCall, ...] = ()
    state: State = "complete"
    note: str = ""
    numbers: str = ""
    sibling: int = 1
    siblings: int = 1
    model: str = ""


class MessageView(Frame, can_focus=True):
    """A message with its keys; what they ask for, somebody else does.

    Args:
        shown: the message.
        show_thinking: unfold the thoughts.
        on_finish: told what a streaming message has become.
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
        Binding("e", "ask('edit')", "edit", id="message.edit", show=False),
        Binding("r", "ask('regenerate')", "regenerate", id="message.regenerate", show=False),
        Binding("c", "ask('continue')", "continue", id="message.continue", show=False),
        Binding("y", "ask('copy')", "copy", id="message.copy", show=False),
        Binding("d", "ask('delete_branch')", "delete", id="message.delete", show=False),
        Binding("left", "ask('previous')", "version before", id="message.previous", show=False),
        Binding("right", "ask('next')", "next version", id="message.next", show=False),
        Binding("b", "ask('clone')", "branch off", id="message.clone", show=False),
        Binding("t", "think", "thinking", id="message.thinking", show=False),
    ]

    class Action(Message):
        """Somebody wants something done with a message.

        Attributes:
            id: of the message.
            action: what.
        """

        def __init__(self, id: str, action: ActionName) -> None:  # noqa: A002 - the id of Shown
            super().__init__()
            self.id = id
            self.action = action

    def __init__(
        self,
        shown: Shown,
        *,
        show_thinking: bool = False,
        on_finish: Callable[[Shown], None] | None = None,
    ) -> None:
        super().__init__()
        self.shown = shown
        self._on_finish = on_finish
        self._head = Slab()
        self._below: list[Slab] = []  # the tool calls and the numbers
        self.answer = AnswerView(
            is_markdown=shown.role == "assistant",
            show_thinking=show_thinking,
            on_finish=self._finished,
        )

    async def prepare(self) -> None:
        """Read the text, in slices; before it is mounted, so that it comes at its full height."""
        if self.shown.state == "streaming":
            self.answer.feed(self.shown.reasoning, "reasoning")
            self.answer.feed(self.shown.content)
            self.answer.catch_up()
        else:
            await self.answer.become(self.shown.content, self.shown.reasoning)
        self._dress()

    def compose(self) -> ComposeResult:
        yield self._head
        yield self.answer
        yield from self._below

    async def show(self, shown: Shown) -> None:
        """Show another state of the message."""
        self.shown = shown
        if shown.state != "streaming":
            self.answer.status("")
            await self.answer.become(shown.content, shown.reasoning)
        gone = self._below
        self._dress()
        if self.is_attached:
            for slab in gone:
                await slab.remove()
            await self.mount_all(self._below)

    def copy_code(self, number: int) -> bool:
        """Copy one of its code blocks, by its number; false where there is none."""
        codes = self.answer.codes
        if not 1 <= number <= len(codes):
            return False
        self.app.copy_to_clipboard(codes[number - 1])
        return True

    def action_ask(self, action: ActionName) -> None:
        """Ask for something to be done with the message."""
        self.post_message(self.Action(self.shown.id, action))

    def action_think(self) -> None:
        """Fold or unfold the thoughts."""
        self.answer.thinking.action_fold()

    async def _finished(self, shown: Shown) -> None:
        await self.show(shown)
        if self._on_finish is not None:
            self._on_finish(shown)

    def _dress(self) -> None:
        """Everything but the text."""
        shown = self.shown
        self.set_class(shown.role == "user", "-user", update=self.is_attached)
        self.set_class(shown.state == "failed", "-failed", update=self.is_attached)
        self._head.replace([Line(self._title())])
        self._below = [slab for call in shown.calls for slab in call_slabs(call)]
        style = ".error" if shown.state == "failed" else ".muted"
        rows = [(row, style) for row in _rows(shown.note or _UNSAID.get(shown.state, ""))]
        rows += [(row, ".muted") for row in _rows(shown.numbers)]
        if rows:
            lines = [Line(Content.styled(row, style)) for row, style in rows]
            self._below.append(Slab(lines))

    def _title(self) -> Content:
        shown = self.shown
        names = {"user": "you", "assistant": shown.model or "assistant"}
        name = " ".join(shown_text(names.get(shown.role, shown.role)).split())
        parts = [Content.styled(name, ".heading" if shown.role == "user" else ".muted")]
        if shown.siblings > 1:
            parts.append(Content.styled(f"  ‹{shown.sibling}/{shown.siblings}›", ".mark"))
        return Content("").join(parts)


_UNSAID = {"stopped": "stopped", "failed": "failed"}


def _rows(text: str) -> list[str]:
    return shown_text(text).expandtabs(8).split("\n") if text else []
