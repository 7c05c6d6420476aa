"""Search in all chats."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import Hit
from hearth.app.terminal import safe_text
from hearth.backends.errors import HearthError

_PAUSE_S = 0.15


class SearchScreen(ModalScreen[Hit | None]):
    """Finds words in titles and messages, as they are typed.

    Args:
        query: what to look for at first.
    """

    DEFAULT_CSS = """
    SearchScreen { align: center top; }
    SearchScreen > Vertical {
        width: 90%;
        max-width: 100;
        height: 80%;
        margin: 2 0;
        padding: 1 2;
        background: $surface;
    }
    SearchScreen OptionList { height: 1fr; border: none; margin-top: 1; }
    SearchScreen Static { height: 1; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close", id="search.close"),
        Binding("down", "focus_hits", "results", id="search.results", show=False),
    ]

    def __init__(self, chats: ChatStore, query: str = "") -> None:
        super().__init__()
        self._chats = chats
        self._query = query
        self._hits: list[Hit] = []

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Input(self._query, placeholder="Words to look for in all chats", id="query")
            yield OptionList(markup=False)
            yield Static("", id="count", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        if self._query:
            self.look(self._query)

    def on_input_changed(self, event: Input.Changed) -> None:
        self.look(event.value)

    def on_input_submitted(self) -> None:
        """Enter opens the first hit."""
        if self._hits:
            self.dismiss(self._hits[0])

    def action_focus_hits(self) -> None:
        """Go from the words to what was found."""
        self.query_one(OptionList).focus()

    @work(group="search", exclusive=True)
    async def look(self, query: str) -> None:
        """Show what is found for `query`."""
        await asyncio.sleep(_PAUSE_S)
        said = ""
        try:
            self._hits = await asyncio.to_thread(self._chats.search, query) if query.strip() else []
            said = f"{len(self._hits)} found" if query.strip() else ""
        except HearthError as error:
            self._hits, said = [], error.message
        results = self.query_one(OptionList)
        results.clear_options()
        results.add_options(Option(_line(hit), id=str(at)) for at, hit in enumerate(self._hits))
        self.query_one("#count", Static).update(Content(safe_text(said)))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._hits[int(str(event.option.id))])


def _line(hit: Hit) -> Content:
    """Title and date, and below them where the words are."""
    when = datetime.fromtimestamp(hit.created_at).strftime("%Y-%m-%d")
    snippet = Content(safe_text(hit.snippet).replace("\n", " ").replace("\t", " "))
    for start, end in hit.marks:
        snippet = snippet.stylize("bold $accent", start, end)
    title = safe_text(hit.title or "New chat").replace("\n", " ")
    head = Content.assemble((title, "bold"), (f"  {when} · {hit.role}", "$text-muted"))
    return head + Content("\n  ") + snippet
