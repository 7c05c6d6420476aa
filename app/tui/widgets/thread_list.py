"""The list of chats, with what each of them does now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from hearth.app.chats.tree import Thread
from hearth.app.terminal import safe_text

Action = Literal["open", "pin", "rename", "archive", "delete", "clone", "export"]
MARKS = {"loading": "◌", "prefill": "◔", "generating": "●", "stopping": "◌"}
_UNREAD = "•"


class ThreadList(OptionList):
    """Chats, pinned ones first; those that answer are marked, also where nobody looks."""

    DEFAULT_CSS = """
    ThreadList {
        width: 30;
        height: 1fr;
        border: none;
        padding: 0 1 0 0;
        background: $surface;
        scrollbar-size-vertical: 1;
    }
    ThreadList:focus { border: none; background-tint: $foreground 3%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "ask('pin')", "pin", id="threads.pin", show=False),
        Binding("r", "ask('rename')", "rename", id="threads.rename", show=False),
        Binding("a", "ask('archive')", "archive", id="threads.archive", show=False),
        Binding("c", "ask('clone')", "clone", id="threads.clone", show=False),
        Binding("x", "ask('export')", "export", id="threads.export", show=False),
        Binding("d,delete", "ask('delete')", "delete", id="threads.delete", show=False),
    ]

    class Asked(Message):
        """The user wants something done with a chat."""

        def __init__(self, action: Action, thread: str) -> None:
            super().__init__()
            self.action = action
            self.thread = thread

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, markup=False)
        self._threads: tuple[Thread, ...] = ()

    def show(
        self,
        threads: Sequence[Thread],
        current: str,
        state_of: Callable[[str], tuple[str, bool]],
    ) -> None:
        """Show `threads`.

        Args:
            current: id of the one that is open.
            state_of: gives for an id the state of its turn, and whether an answer is unread.
        """
        highlighted = self._highlighted_id()
        self._threads = tuple(threads)
        self.clear_options()
        self.add_options(
            Option(self._line(thread, current, *state_of(thread.id)), id=thread.id)
            for thread in threads
        )
        wanted = highlighted if any(t.id == highlighted for t in threads) else current
        for index, thread in enumerate(threads):
            if thread.id == wanted:
                self.highlighted = index

    def _highlighted_id(self) -> str:
        if self.highlighted is None or self.highlighted >= len(self._threads):
            return ""
        return self._threads[self.highlighted].id

    @staticmethod
    def _line(thread: Thread, current: str, state: str, unread: bool) -> Content:
        mark = MARKS.get(state, _UNREAD if unread else " ")
        pin = "▲ " if thread.pinned else ""
        title = " ".join(safe_text(thread.title or "New chat").split())
        style = "bold" if thread.id == current else ""
        return Content.assemble(
            (f"{mark} ", "$accent"), (pin, "$text-muted"), (title, style)
        ).truncate(27, ellipsis=True)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter or a click opens a chat."""
        event.stop()
        self.post_message(self.Asked("open", str(event.option.id)))

    def action_ask(self, action: Action) -> None:
        """Ask for something to be done with the highlighted chat."""
        thread = self._highlighted_id()
        if thread:
            self.post_message(self.Asked(action, thread))
