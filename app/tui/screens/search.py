"""Search in all chats."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from datetime import datetime
from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import Hit
from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import Dialog
from hearth.app.tui.widgets.cells import cell
from hearth.app.tui.widgets.fields import SafeInput
from hearth.backends.errors import HearthError

_PAUSE_S: Final = 0.15
_WHO: Final = {"user": "you", "assistant": "answer", "title": "title"}


class SearchScreen(Dialog[Hit | None]):
    """Finds words in titles and messages, including archived chats, as the user types.

    Args:
        query: the initial query.
    """

    DEFAULT_CSS = """
    SearchScreen { align: center top; }
    SearchScreen > .dialog {
        width: 92%; max-width: 110; height: 85%; margin: 2 0; padding: 1 1 0 1;
    }
    SearchScreen OptionList {
        height: 1fr; border: none; padding: 0; margin-top: 1; background: transparent;
        scrollbar-size-vertical: 1;
    }
    SearchScreen OptionList:focus { border: none; background-tint: transparent; }
    SearchScreen SafeInput, SearchScreen SafeInput:focus {
        border: none; height: 1; padding: 0 1;
    }
    SearchScreen #count { height: 1; padding: 0 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", id="search.open", priority=True),
        Binding("down", "move(1)", "next", id="search.next", priority=True),
        Binding("up", "move(-1)", "previous", id="search.previous", priority=True),
        Binding("escape", "dismiss(None)", "close", id="search.close"),
    ]

    def __init__(self, chats: ChatStore, query: str = "") -> None:
        super().__init__()
        self._chats = chats
        self._query = query
        self._hits: list[Hit] = []
        self._looked_for = ""

    def body(self) -> ComposeResult:
        yield SafeInput(self._query, placeholder="Search all chats", id="query", compact=True)
        yield OptionList(markup=False)
        yield Static("", id="count", markup=False)

    def on_mount(self) -> None:
        """Keep the focus in the query, from which the results can be selected too."""
        self.query_one(OptionList).can_focus = False
        if self._query:
            self.look(pause_s=0)

    def on_input_changed(self) -> None:
        """Search for the current query."""
        self.look()

    @work(group="search", exclusive=True)
    async def look(self, *, pause_s: float = _PAUSE_S, then_open: bool = False) -> None:
        """Show the results of the current query; open the first one if `then_open`."""
        results, query_line = self.query_one(OptionList), self.query_one(SafeInput)
        count = self.query_one("#count", Static)
        await asyncio.sleep(pause_s)
        query = query_line.value
        archived: set[str] = set()
        try:
            hits = await asyncio.to_thread(self._chats.search, query) if query.strip() else []
            if hits:
                threads = await asyncio.to_thread(self._chats.threads, archived=True)
                archived = {thread.id for thread in threads}
            said = _said(query, len(hits))
        except HearthError as error:
            hits, said = [], f"{error.message} {error.hint}"
        if not results.is_attached:
            return  # the dialog was closed meanwhile
        chosen = self._chosen
        self._hits, self._looked_for = hits, query
        results.clear_options()
        results.add_options(Option(_line(hit, archived)) for hit in hits)
        if chosen is not None:
            again = [_place(hit) for hit in hits]
            results.highlighted = again.index(_place(chosen)) if _place(chosen) in again else None
        count.update(safe_text(said))
        if then_open and hits:
            self.dismiss(hits[0])

    @property
    def _chosen(self) -> Hit | None:
        """The highlighted result."""
        at = self.query_one(OptionList).highlighted
        return None if at is None else self._hits[at]

    def action_move(self, by: int) -> None:
        """Highlight the next or the previous result, if there is one."""
        results = self.query_one(OptionList)
        if self._hits:
            at = -1 if results.highlighted is None else results.highlighted
            results.highlighted = max(0, min(at + by, len(self._hits) - 1))

    def action_open(self) -> None:
        """Open the chosen result, or else the first result of the current query."""
        chosen = self._chosen
        if chosen is not None:
            self.dismiss(chosen)
        elif self.query_one(SafeInput).value != self._looked_for:
            self.look(pause_s=0, then_open=True)
        elif self._hits:
            self.dismiss(self._hits[0])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open the clicked result."""
        self.dismiss(self._hits[event.option_index])


def _place(hit: Hit) -> tuple[str, str]:
    """Ids of the chat and of the message that a result leads to."""
    return hit.thread_id, hit.message_id


def _said(query: str, count: int) -> str:
    if not query.strip():
        return ""
    return f"{count} found" if count else "Nothing found. All words must be in the same message."


def _line(hit: Hit, archived: Container[str]) -> Content:
    """Title, date and author, and below them the words in their context."""
    when = datetime.fromtimestamp(hit.created_at).date().isoformat()
    facts = [when, _WHO.get(hit.role, hit.role)]
    if hit.thread_id in archived:
        facts.append("archived")
    # The length of the snippet is kept, so that the positions of the marks stay valid.
    snippet = Content(safe_text(hit.snippet).replace("\n", " ").replace("\t", " "))
    for start, end in hit.marks:
        snippet = snippet.stylize("bold $text-accent", start, end)
    head = Content.assemble(
        cell(hit.title or "New chat", "bold"), (f"  {' · '.join(facts)}", "$foreground 60%")
    )
    return head + Content("\n  ") + snippet
