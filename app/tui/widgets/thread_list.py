"""The list of chats, with the state of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from typing import ClassVar, Final, Literal, NamedTuple

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from hearth.app.chats.tree import Thread
from hearth.app.tui.widgets.cells import cell, model_name

Action = Literal["open", "pin", "rename", "archive", "delete", "clone", "export"]
MARKS = {"loading": "◌", "prefill": "◔", "generating": "●", "stopping": "◌"}
_UNREAD = "•"
_WIDTH: Final = 29
_WEEK_DAYS: Final = 7


class _Row(NamedTuple):
    """A chat, or the heading of a group of chats, which has no id."""

    id: str | None
    title: str
    mark: str = ""
    model: str = ""
    is_open: bool = False


class ThreadList(OptionList):
    """Lists chats by date, pinned ones first.

    The open chat is highlighted; the one at the cursor is underlined while the list has the focus.
    """

    DEFAULT_CSS = """
    ThreadList {
        width: 30;
        height: 1fr;
        border: none;
        padding: 0;
        background: $surface;
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
    }
    ThreadList > .option-list--option { padding: 0; }
    ThreadList > .option-list--option-highlighted {
        color: $foreground; background: transparent; text-style: none;
    }
    ThreadList:focus { border: none; background-tint: $foreground 3%; }
    ThreadList:focus > .option-list--option-highlighted {
        color: $foreground; background: $boost; text-style: underline;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "ask('pin')", "pin", id="threads.pin"),
        Binding("r", "ask('rename')", "rename", id="threads.rename"),
        Binding("a", "ask('archive')", "archive", id="threads.archive"),
        Binding("c", "ask('clone')", "clone", id="threads.clone"),
        Binding("x", "ask('export')", "export", id="threads.export"),
        Binding("d,delete", "ask('delete')", "delete", id="threads.delete"),
    ]

    @dataclass
    class Asked(Message):
        """The user wants something done with a chat."""

        action: Action
        thread: str

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, markup=False)
        self._rows: list[_Row] = []

    def show(
        self,
        threads: Sequence[Thread],
        current: str,
        state_of: Callable[[str], tuple[str, bool]],
        model: str = "",
    ) -> None:
        """Show `threads`, in their order.

        Args:
            current: id of the open chat.
            state_of: returns, for a chat's id, the state of its answer, and whether an answer is
                unread.
            model: the default model; the model of a chat is shown only if it differs.
        """
        rows: list[_Row] = []
        for group, members in groupby(threads, _group):
            rows.append(_Row(None, group))
            for thread in members:
                state, is_unread = state_of(thread.id)
                mark = MARKS.get(state, _UNREAD if is_unread else "")
                other = thread.model if thread.model != model else ""
                title = thread.title or "New chat"
                rows.append(_Row(thread.id, title, mark, other, thread.id == current))
        wanted = (self.has_focus and self._cursor) or current
        if rows != self._rows:
            self._rows = rows
            self.clear_options()
            self.add_options(Option(_drawn(row), id=row.id, disabled=not row.id) for row in rows)
        ids = [row.id for row in rows]
        at = wanted if wanted in ids else current
        self.highlighted = ids.index(at) if at in ids else None

    @property
    def _cursor(self) -> str | None:
        option = self.highlighted_option
        return None if option is None else option.id

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open a chat, on Enter or a click."""
        event.stop()
        self.post_message(self.Asked("open", str(event.option.id)))

    def action_ask(self, action: Action) -> None:
        """Ask for something to be done with the chat at the cursor."""
        if self._cursor:
            self.post_message(self.Asked(action, self._cursor))


def _group(thread: Thread) -> str:
    """The name of the group that a chat belongs to."""
    if thread.pinned:
        return "Pinned"
    day, today = date.fromtimestamp(thread.changed_at), date.today()
    days = (today - day).days
    if days <= 1:
        return "Yesterday" if days == 1 else "Today"
    if days <= _WEEK_DAYS:
        return f"Previous {_WEEK_DAYS} days"
    return f"{day:%B}" if day.year == today.year else f"{day:%B %Y}"


def _drawn(row: _Row) -> Content:
    if row.id is None:
        return cell(row.title, "$foreground 60%")
    title = Content.assemble((f"{row.mark or ' '} ", "$accent"), _shortened(row.title))
    lines = (
        [title, Content("  ") + cell(model_name(row.model), "$foreground 60%")]
        if row.model
        else [title]
    )
    drawn = Content("\n").join(
        line.truncate(_WIDTH, ellipsis=True, pad=row.is_open) for line in lines
    )
    style = "bold $block-cursor-foreground on $block-cursor-background"
    return drawn.stylize(style) if row.is_open else drawn


def _shortened(title: str) -> Content:
    """As many words of the title as fit."""
    line, room = cell(title), _WIDTH - 3
    if line.cell_length <= room:
        return line
    cut = line.truncate(room).plain
    # Half of a wide character is cut to a space.
    is_whole = line.plain[len(cut) : len(cut) + 1] == " "
    words = cut if is_whole else cut.rpartition(" ")[0]
    return Content((words or cut).rstrip(" ,;:.–—-(…") + "…")
