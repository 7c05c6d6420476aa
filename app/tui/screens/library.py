"""The models: those that are here, those worth having, those of the Hub, and what is on its way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Input, Static, TabbedContent, TabPane

from hearth.app.library.adopt import adopt, plan_adoption
from hearth.app.library.catalogue import Entry, load_catalogue
from hearth.app.library.download import Download
from hearth.app.library.downloads import DownloadItem
from hearth.app.library.hub import HubModel
from hearth.app.library.hub_files import Choice, offer, parse_reference
from hearth.app.library.local import LocalModel
from hearth.app.library.removal import plan_removal, remove
from hearth.app.sizes import format_size
from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.screens.dialogs import AskLine, Confirm
from hearth.app.tui.screens.pick_file import PickFile
from hearth.app.tui.widgets.cells import bar, cell, number
from hearth.backends.errors import HearthError

_TICK_S = 0.5


class LibraryScreen(HearthScreen):
    """Four tables, one a tab."""

    NAME = "library"
    DEFAULT_CSS = """
    LibraryScreen TabbedContent { height: 1fr; }
    LibraryScreen DataTable { height: 1fr; background: $surface; }
    LibraryScreen #about { height: auto; max-height: 6; padding: 0 1; color: $text-muted; }
    LibraryScreen Input { margin: 0 0 1 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "chat / pull", id="library.choose"),
        Binding("d,delete", "remove", "delete", id="library.delete"),
        Binding("z", "quantize", "quantize", id="library.quantize"),
        Binding("i", "import", "import a file", id="library.import"),
        Binding("slash", "search", "search the Hub", id="library.search"),
        Binding("space", "pause", "pause / go on", id="library.pause", show=False),
        Binding("x", "cancel", "cancel", id="library.cancel", show=False),
        Binding("ctrl+up", "move(-1)", "earlier", id="library.earlier", show=False),
        Binding("ctrl+down", "move(1)", "later", id="library.later", show=False),
        Binding("r", "refresh", "read anew", id="library.refresh", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._here: list[LocalModel] = []
        self._worth: list[Entry] = []
        self._found: list[HubModel] = []
        self._items: tuple[DownloadItem, ...] = ()

    def body(self) -> ComposeResult:
        with TabbedContent(id="tabs"):
            with TabPane("Here", id="here"):
                yield self._table("here-table")
            with TabPane("Worth having", id="worth"):
                yield self._table("worth-table")
            with TabPane("Hub", id="hub"):
                yield Input(placeholder="Name of a model, or organisation/name", id="query")
                yield self._table("hub-table")
            with TabPane("Downloads", id="downloads"):
                yield self._table("downloads-table")
        yield Static("", id="about", markup=False)

    @staticmethod
    def _table(name: str) -> DataTable[object]:
        return DataTable(id=name, cursor_type="row", zebra_stripes=False)

    def on_mount(self) -> None:
        """Fill what is here, and look at the downloads while the screen is shown."""
        self._columns("here-table", "Name", "Type", "Size", "Parameters", "Context", "From")
        self._columns("worth-table", "Name", "Parameters", "Licence", "Context", "Recommended")
        self._columns("hub-table", "Repository", "Downloads", "Likes", "Licence", "Changed")
        self._columns("downloads-table", "Name", "State", "Done", "", "Rate", "Left")
        self.refresh_models()
        self.set_interval(_TICK_S, self._show_downloads)

    def on_screen_resume(self) -> None:
        """A model may have come since."""
        self.refresh_models()

    def _columns(self, table: str, *names: str) -> None:
        self._at(table).add_columns(*names)

    def _at(self, table: str) -> DataTable[object]:
        return self.query_one(f"#{table}", DataTable)

    @property
    def _tab(self) -> str:
        return self.query_one(TabbedContent).active

    # ---- what there is

    @work(group="here", exclusive=True)
    async def refresh_models(self) -> None:
        """Read the models of this machine, and the catalogue, anew."""
        self._here = list(await asyncio.to_thread(self.services.library.list))
        try:
            self._worth = list((await asyncio.to_thread(load_catalogue)).entries)
        except HearthError as error:
            self.tell_error(error)
        self._fill_here()
        self._fill_worth()

    def _fill_here(self) -> None:
        table = self._at("here-table")
        table.clear()
        for model in self._here:
            table.add_row(
                cell(model.name, "" if not model.error else "red"),
                cell(model.file_type or ("remote" if model.url else "")),
                number(format_size(model.size_bytes) if model.size_bytes else ""),
                number(_count(model.parameters)),
                number(f"{model.context:,}" if model.context else ""),
                cell(model.origin, "dim"),
            )

    def _fill_worth(self) -> None:
        table = self._at("worth-table")
        table.clear()
        for entry in self._worth:
            size = entry.sizes.get(entry.recommended, 0)
            table.add_row(
                cell(entry.title),
                number(_count(entry.parameters)),
                cell(entry.licence),
                number(f"{entry.context:,}" if entry.context else ""),
                cell(f"{entry.recommended}, about {format_size(size)}"),
            )

    def _fill_hub(self) -> None:
        table = self._at("hub-table")
        table.clear()
        for model in self._found:
            when = model.changed_at.date().isoformat() if model.changed_at else ""
            table.add_row(
                cell(model.repo_id + ("  (gated)" if model.gated else "")),
                number(f"{model.downloads:,}"),
                number(f"{model.likes:,}"),
                cell(model.licence),
                cell(when),
            )

    def _show_downloads(self) -> None:
        if not self.is_current:
            return
        try:
            items = self.services.downloads.items()
        except HearthError as error:
            self._about(error.message)
            return
        if items == self._items:
            return
        self._items = items
        table = self._at("downloads-table")
        at = table.cursor_row
        table.clear()
        for item in items:
            share = item.done_bytes / item.total_bytes if item.total_bytes else 0.0
            rate = f"{format_size(round(item.bytes_per_s))}/s" if item.bytes_per_s else ""
            table.add_row(
                cell(item.name),
                cell(item.activity or item.state, "red" if item.state == "failed" else ""),
                bar(share),
                number(f"{format_size(item.done_bytes)} of {format_size(item.total_bytes)}"),
                number(rate),
                number(_minutes(item.eta_s)),
            )
        if items:
            table.move_cursor(row=min(at, len(items) - 1))
        self._describe()

    def on_data_table_row_highlighted(self) -> None:
        """Say more about the row."""
        self._describe()

    def on_tabbed_content_tab_activated(self) -> None:
        self._describe()

    def _describe(self) -> None:
        """One or two lines about what is highlighted."""
        row = self._row()
        text = ""
        if row is None:
            text = _NOTHING.get(self._tab, "")
        elif self._tab == "here":
            model = self._here[row]
            text = model.error or model.url or str(model.path)
        elif self._tab == "worth":
            entry = self._worth[row]
            text = f"{entry.summary} {entry.repo}"
        elif self._tab == "downloads":
            error = self._items[row].error
            text = f"{error.message} {error.hint}" if error else self._items[row].file
        self._about(text)

    def _about(self, text: str) -> None:
        self.query_one("#about", Static).update(safe_text(text))

    def _row(self) -> int | None:
        table = self._at(f"{self._tab}-table")
        lists = {
            "here": self._here,
            "worth": self._worth,
            "hub": self._found,
            "downloads": self._items,
        }
        rows = len(lists[self._tab])
        return table.cursor_row if 0 <= table.cursor_row < rows else None

    # ---- what the user does

    def on_data_table_row_selected(self) -> None:
        self.action_choose()

    @work(group="choose")
    async def action_choose(self) -> None:
        """Chat with the model, or choose what to download of it."""
        row = self._row()
        if row is None:
            return
        if self._tab == "here":
            await self.told(self._chat_with(self._here[row]))
        elif self._tab == "worth":
            await self.told(self.pull(self._worth[row].repo))
        elif self._tab == "hub":
            await self.told(self.pull(self._found[row].repo_id))

    async def _chat_with(self, model: LocalModel) -> None:
        name = str(model.path) if model.origin == "path" else model.name
        session = await self.sessions.create(model=name)
        self.hearth.wanted_thread = session.thread.id
        self.hearth.action_go("chat")

    async def pull(self, repo_id: str) -> None:
        """Let the user choose a file of the repository, and download it."""
        reference = parse_reference(repo_id)
        hub = self.services.hub
        self._about(f"Asking the Hub for {repo_id} …")
        repository = await asyncio.to_thread(hub.repository, reference.repo_id, reference.revision)
        found = offer(repository)
        choice: Choice | None = await self.app.push_screen_wait(PickFile(repository, found))
        if choice is None:
            return
        download = Download(
            repository.repo_id, repository.revision, repository.commit, choice.files
        )
        await self.services.downloads.add(download, f"{repository.repo_id}:{choice.name}")
        self.query_one(TabbedContent).active = "downloads"

    def action_search(self) -> None:
        """Search the Hub."""
        self.query_one(TabbedContent).active = "hub"
        self.query_one("#query", Input).focus()

    @work(group="search", exclusive=True)
    async def on_input_submitted(self, event: Input.Submitted) -> None:
        """Look on the Hub for what was typed."""
        query = event.value.strip()
        if not query:
            return
        self._about("Asking the Hub …")
        hub = self.services.hub
        try:
            self._found = await asyncio.to_thread(lambda: hub.search(query, tag="gguf"))
        except HearthError as error:
            self._found = []
            self._about(f"{error.message} {error.hint}".strip())
        else:
            self._about(f"{len(self._found)} found")
        self._fill_hub()
        if self._found:
            self._at("hub-table").focus()

    @work(group="remove")
    async def action_remove(self) -> None:
        """Delete the model, after saying what that frees."""
        row = self._row()
        if self._tab == "downloads":
            self.action_cancel()
        if self._tab == "here" and row is not None:
            await self.told(self._remove(self._here[row]))

    async def _remove(self, model: LocalModel) -> None:
        library = self.services.library
        found = await asyncio.to_thread(library.resolve, model.name)
        removal = await asyncio.to_thread(plan_removal, found, library)
        detail = "\n".join((*map(str, removal.paths), *removal.keeps))
        question = f"Delete {model.name}? It frees {format_size(removal.frees_bytes)}."
        if await self.app.push_screen_wait(Confirm(question, detail)):
            await self.services.host.unload(str(found.path))
            await asyncio.to_thread(remove, removal)
            self.refresh_models()

    def action_quantize(self) -> None:
        """Quantize the model."""
        row = self._row()
        if self._tab == "here" and row is not None:
            self.hearth.wanted_source = self._here[row].path
            self.hearth.action_go("quantize")

    @work(group="import")
    async def action_import(self) -> None:
        """Copy a model file into the library."""
        path = await self.app.push_screen_wait(AskLine("GGUF file or folder", ""))
        if path:
            await self.told(self._import(Path(path).expanduser()))

    async def _import(self, path: Path) -> None:
        library = self.services.library
        adoption = await asyncio.to_thread(plan_adoption, path, library)
        self.tell(f"Copying {format_size(adoption.size_bytes)} …")
        await asyncio.to_thread(adopt, adoption)
        self.refresh_models()

    def action_refresh(self) -> None:
        """Read the models of this machine anew."""
        self.refresh_models()

    @work(group="downloads")
    async def action_pause(self) -> None:
        """Pause the download, or let it go on."""
        row = self._row()
        if self._tab == "downloads" and row is not None:
            item, downloads = self._items[row], self.services.downloads
            goes = item.state in ("waiting", "running")
            await self.told(downloads.pause(item.id) if goes else downloads.resume(item.id))

    @work(group="downloads")
    async def action_cancel(self) -> None:
        """Take the download out of the queue."""
        row = self._row()
        if self._tab == "downloads" and row is not None:
            item = self._items[row]
            if item.state == "done" or await self.app.push_screen_wait(
                Confirm(f"Cancel {item.name}?", "What arrived is removed.")
            ):
                await self.told(self.services.downloads.cancel(item.id))

    @work(group="downloads")
    async def action_move(self, by: int) -> None:
        """Let the download come earlier or later."""
        row = self._row()
        if self._tab == "downloads" and row is not None:
            await self.told(self.services.downloads.move(self._items[row].id, row + by))
            self._at("downloads-table").move_cursor(row=max(0, row + by))


_NOTHING = {
    "hub": "Type a name and press Enter. Only this asks the network.",
    "downloads": "Nothing is being downloaded.",
}


def _count(parameters: int) -> str:
    """Parameters in words."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.3g}{name}"
    return str(parameters or "")


def _minutes(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
