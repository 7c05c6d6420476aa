"""The models: those that are here, those worth having, those of the Hub, and what is on its way."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.widgets import Input, Static, TabbedContent, TabPane, Tabs

from hearth.app.library.cache_layout import hub_cache
from hearth.app.library.catalogue import Entry, load_catalogue
from hearth.app.library.downloads import DownloadItem
from hearth.app.library.errors import RepositoryNotFound
from hearth.app.library.fit import Fit
from hearth.app.library.hub import HubModel
from hearth.app.library.hub_files import Reference, parse_reference
from hearth.app.library.local import LocalModel
from hearth.app.library.menu import fit_of_entry, fit_of_file, room_for
from hearth.app.terminal import safe_text
from hearth.app.tui import library_rows as rows
from hearth.app.tui.library_actions import LibraryActions
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.screens.dialogs import Confirm
from hearth.app.tui.widgets.column_list import ColumnList
from hearth.app.tui.widgets.fields import SafeInput
from hearth.backends.errors import HearthError

_TICK_S: Final = 0.5
_TAB_OF: Final = {
    "chat": ("here",),
    "remove": ("here",),
    "quantize": ("here",),
    "import": ("here",),
    "unload": ("here",),
    "pull": ("worth", "hub"),
    "pause": ("downloads",),
    "cancel": ("downloads",),
    "move": ("downloads",),
}
"""Where each action has something to act on."""


class LibraryScreen(HearthScreen):
    """Four lists, one a tab."""

    NAME = "library"
    DEFAULT_CSS = """
    LibraryScreen TabbedContent { height: 1fr; }
    LibraryScreen TabPane { padding: 0; }
    LibraryScreen ColumnList { height: 1fr; padding: 1 1 0 1; }
    LibraryScreen ColumnList > OptionList { height: 1fr; }
    LibraryScreen #query { border: tall $border-blurred; height: 3; }
    LibraryScreen #query:focus { border: tall $border; }
    LibraryScreen #about {
        height: auto; min-height: 2; max-height: 5; padding: 0 1; margin-top: 1;
        color: $text-muted;
    }
    LibraryScreen.-narrow #about { max-height: 9; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "chat", "chat", id="library.chat"),
        Binding("p", "pull", "pull", id="library.pull"),
        Binding("d,delete", "remove", "delete", id="library.delete"),
        Binding("z", "quantize", "quantize", id="library.quantize"),
        Binding("i", "import", "import", id="library.import"),
        Binding("u", "unload", "unload", id="library.unload"),
        Binding("space", "pause", "pause / go on", id="library.pause"),
        Binding("x", "cancel", "cancel", id="library.cancel"),
        Binding("ctrl+up", "move(-1)", "earlier", id="library.earlier"),
        Binding("ctrl+down", "move(1)", "later", id="library.later"),
        Binding("slash", "search", "find", id="library.search"),
        Binding("r", "refresh", "refresh", id="library.refresh", show=False),
        Binding("1", "tab('here')", "here", id="library.tab-here", show=False),
        Binding("2", "tab('worth')", "worth having", id="library.tab-worth", show=False),
        Binding("3", "tab('hub')", "the Hub", id="library.tab-hub", show=False),
        Binding("4", "tab('downloads')", "downloads", id="library.tab-downloads", show=False),
        Binding("down,escape", "enter_list", "list", id="library.list", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._here: dict[str, LocalModel] = {}
        self._worth: dict[str, Entry] = {}
        self._found: dict[str, HubModel] = {}
        self._items: dict[str, DownloadItem] = {}
        self._fits: dict[str, Fit] = {}
        """By the name of a catalogue's entry, and by the path of a model that is here."""
        self._actions = LibraryActions(self)
        self._tab = "here"
        self._timer: Timer | None = None

    def body(self) -> ComposeResult:
        with TabbedContent(id="tabs"):
            with TabPane("1 Here", id="here"):
                yield ColumnList(*rows.HERE, empty="No model is here.", id="here-list")
            with TabPane("2 Worth having", id="worth"):
                yield ColumnList(*rows.WORTH, id="worth-list")
            with TabPane("3 Hub", id="hub"):
                yield SafeInput(
                    placeholder="Words of a name, or organisation/name, or …/name:Q4_K_M",
                    id="query",
                )
                empty = "Press / and write what to look for. Only this asks the network."
                yield ColumnList(*rows.HUB, empty=empty, id="hub-list")
            with TabPane("4 Downloads", id="downloads"):
                empty = "Nothing is being downloaded. Tabs 2 and 3 have what can be."
                yield ColumnList(*rows.DOWNLOADS, empty=empty, id="downloads-list")
        yield Static("", id="about", markup=False)

    def on_mount(self) -> None:
        """Fill what is here, and look at the downloads while the screen is shown."""
        self._timer = self.set_interval(_TICK_S, self._show_downloads)
        self._items = self._read_queue()
        self._show_items()
        self.refresh_models()
        self._list("here").list.focus()

    def on_screen_resume(self) -> None:
        """A model may have come since."""
        if self._timer is not None:
            self._timer.resume()
            self.refresh_models()

    def on_screen_suspend(self) -> None:
        """Nobody sees it: look no more."""
        if self._timer is not None:
            self._timer.pause()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that mean nothing in a tab are not offered in it."""
        return self._tab in _TAB_OF.get(action, (self._tab,))

    def _list(self, tab: str) -> ColumnList:
        return self.query_one(f"#{tab}-list", ColumnList)

    @property
    def _chosen(self) -> str | None:
        """The key of the chosen line of the tab that is shown."""
        return self._list(self._tab).selected

    # ---- what there is

    @work(group="here", exclusive=True)
    async def refresh_models(self) -> None:
        """Read the models of this machine, and the catalogue, anew."""
        try:
            here = await asyncio.to_thread(self.services.library.list)
            used, loaded = await self._last_chats(), await self._actions.loaded()
            await asyncio.to_thread(self._read_catalogue)
        except HearthError as error:
            self.tell_error(error)
            return
        self._here = {model.name: model for model in here}
        self._list("here").show(
            [
                rows.here_row(
                    model,
                    is_loaded=str(model.path) in loaded,
                    used_at=rows.last_used(used, model),
                )
                for model in here
            ]
        )
        self._list("worth").show(
            [rows.worth_row(entry, self._fits.get(name)) for name, entry in self._worth.items()]
        )
        self._describe()
        self._time_memory()

    @work(group="memory")
    async def _time_memory(self) -> None:
        """Let speeds be told, where memory was never timed."""
        try:
            is_new = await self._actions.time_memory()
        except HearthError as error:
            self.tell_error(error)
            return
        if is_new:
            self.action_refresh()

    async def _last_chats(self) -> dict[str, float]:
        """When each model was last chatted with, by its name in lower case."""
        chats = self.services.chats
        default = self.services.settings.text("model")
        used: dict[str, float] = {}
        for archived in (False, True):
            for thread in await asyncio.to_thread(chats.threads, archived=archived):
                name = (thread.model or default).lower()
                if thread.messages:
                    used[name] = max(used.get(name, 0.0), thread.changed_at)
        return used

    def _read_catalogue(self) -> None:
        """The catalogue, and how each model of it suits this machine."""
        settings = self.services.settings
        room = room_for(hub_cache(), self.services.paths.cache, self._actions.bandwidth)
        self._worth = {entry.name: entry for entry in load_catalogue().entries}
        for name, entry in self._worth.items():
            self._fits[name] = fit_of_entry(entry, settings, room)

    @work(group="fit", exclusive=True)
    async def _find_fit(self, model: LocalModel) -> None:
        """How a model that is here suits this machine."""
        room = room_for(hub_cache(), self.services.paths.cache, self._actions.bandwidth)
        settings = self.services.settings
        try:
            fit = await asyncio.to_thread(fit_of_file, model.path, model.name, settings, room)
        except HearthError as error:
            self.say(f"{error.message} {error.hint}")
            return
        self._fits[str(model.path)] = fit
        self._describe()

    def _read_queue(self) -> dict[str, DownloadItem]:
        try:
            return {item.id: item for item in self.services.downloads.items()}
        except HearthError as error:
            self.tell_error(error)
            if self._timer is not None:
                self._timer.pause()
            return {}

    def _show_downloads(self) -> None:
        before, self._items = self._items, self._read_queue()
        if before == self._items:
            return
        self._show_items()
        for ident, item in self._items.items():
            if item.state == "done" and ident in before and before[ident].state != "done":
                self.tell(f"{item.name} is here.")
                self.refresh_models()

    def _show_items(self) -> None:
        self._list("downloads").show([rows.download_row(item) for item in self._items.values()])
        if self._tab == "downloads":
            self._describe()

    def on_option_list_option_highlighted(self) -> None:
        """Say more about the line."""
        self._describe()

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """Other keys mean something now."""
        self._tab = event.pane.id or "here"
        self.refresh_bindings()
        self._describe()

    def _describe(self) -> None:
        """Say more about the chosen line."""
        key = self._chosen
        text = ""
        if key is None:
            pass
        elif self._tab == "here" and key in self._here:
            model = self._here[key]
            fit = self._fits.get(str(model.path))
            text = rows.about_here(model, fit, self.size.width - 2)
            if fit is None and not model.error and not model.url:
                self._find_fit(model)
        elif self._tab == "worth" and key in self._worth:
            text = rows.about_entry(self._worth[key], self._fits.get(key))
        elif self._tab == "hub" and key in self._found:
            text = rows.about_hub(self._found[key], self.services.hub.endpoint)
        elif self._tab == "downloads" and key in self._items:
            text = rows.about_download(self._items[key])
        self.say(text)

    def say(self, text: str) -> None:
        """Show `text` below the lists."""
        self.query_one("#about", Static).update(safe_text(text))

    # ---- where one is

    def action_tab(self, tab: str) -> None:
        """Show another list."""
        self.query_one(TabbedContent).active = tab
        self.call_after_refresh(self.action_enter_list)

    def action_search(self) -> None:
        """Write what to look for on the Hub."""
        self.query_one(TabbedContent).active = "hub"
        self.call_after_refresh(self.query_one("#query").focus)

    def action_enter_list(self) -> None:
        """Go to the list; to the tabs while there is nothing in it."""
        found = self._list(self._tab).list
        (found if found.option_count else self.query_one(Tabs)).focus()

    def action_refresh(self) -> None:
        """Read the models of this machine anew."""
        self.workers.cancel_group(self, "fit")  # what it finds would be of before
        self._fits.clear()
        self.refresh_models()

    def on_option_list_option_selected(self) -> None:
        """Enter does what one most likely wants."""
        if self._tab == "here":
            self.action_chat()
        elif self._tab != "downloads":
            self.action_pull()

    # ---- models that are here

    @work(group="chat", exclusive=True)
    async def action_chat(self) -> None:
        """Begin a chat with the model."""
        if (model := self._here.get(self._chosen or "")) is not None:
            await self.told(self._actions.chat(model))

    def action_quantize(self) -> None:
        """Quantize the model."""
        if (model := self._here.get(self._chosen or "")) is not None:
            self.hearth.wanted_source = model.path
            self.hearth.action_go("quantize")

    @work(group="here.act", exclusive=True)
    async def action_unload(self) -> None:
        """Take the model out of memory."""
        if (model := self._here.get(self._chosen or "")) is not None:
            await self.told(self._actions.unload(model))
            self.refresh_models()

    @work(group="here.act", exclusive=True)
    async def action_remove(self) -> None:
        """Delete the model, after saying what that frees."""
        if (model := self._here.get(self._chosen or "")) is not None:
            await self.told(self._actions.remove(model))
            self.refresh_models()

    @work(group="here.act", exclusive=True)
    async def action_import(self) -> None:
        """Take a model file into the library."""
        await self.told(self._actions.import_file())
        self.refresh_models()

    # ---- models that could be here

    @work(group="search", exclusive=True)
    async def on_input_submitted(self, event: Input.Submitted) -> None:
        """Look for what was written, or open the repository that it names."""
        query = event.value.strip()
        if query:
            await self.told(self._look_for(query))

    async def _look_for(self, query: str) -> None:
        entry = self._worth.get(query.partition(":")[0].lower())
        if entry is not None:
            _, colon, quant = query.partition(":")
            await self._pull(parse_reference(f"{entry.repo}{colon}{quant}"), entry)
            return
        if "/" in query and " " not in query:
            reference = parse_reference(query)
            try:
                await self._pull(reference)
            except RepositoryNotFound as error:
                await self._search(reference.repo_id.rpartition("/")[2])
                self.tell_error(error)
            return
        await self._search(query)

    async def _search(self, query: str) -> None:
        self.say("Asking the Hub …")
        hub = self.services.hub
        self._found = {}
        try:
            found = await asyncio.to_thread(lambda: hub.search(query, tag="gguf"))
            self._found = {model.repo_id: model for model in found}
        finally:
            self._list("hub").show([rows.hub_row(model) for model in self._found.values()])
            self.say("")
        if self._found:
            self._list("hub").list.focus()
            self._describe()
        else:
            self.say(f"The Hub has no GGUF repository with “{query}” in its name.")

    @work(group="pull", exclusive=True)
    async def action_pull(self) -> None:
        """Choose what to download of the repository."""
        key = self._chosen
        if self._tab == "worth" and key in self._worth:
            entry = self._worth[key]
            await self.told(self._pull(parse_reference(entry.repo), entry))
        elif self._tab == "hub" and key in self._found:
            await self.told(self._pull(parse_reference(key)))

    async def _pull(self, reference: Reference, entry: Entry | None = None) -> None:
        if await self._actions.pull(reference, entry):
            self._show_downloads()
            self.action_tab("downloads")
        else:
            self._describe()

    # ---- downloads

    @work(group="downloads")
    async def action_pause(self) -> None:
        """Pause the download, or let it go on."""
        if (item := self._items.get(self._chosen or "")) is not None:
            downloads = self.services.downloads
            goes = item.state == "running" or (item.state == "waiting" and item.error is None)
            await self.told(downloads.pause(item.id) if goes else downloads.resume(item.id))
            self._show_downloads()

    @work(group="downloads")
    async def action_cancel(self) -> None:
        """Take the download out of the queue."""
        if (item := self._items.get(self._chosen or "")) is not None:
            question = Confirm(f"Cancel {item.name}?", "What arrived of it is removed.")
            if item.state != "done" and not await self.app.push_screen_wait(question):
                return
            await self.told(self.services.downloads.cancel(item.id))
            self._show_downloads()

    @work(group="downloads")
    async def action_move(self, by: int) -> None:
        """Let the download come earlier or later."""
        if (item := self._items.get(self._chosen or "")) is not None:
            place = list(self._items).index(item.id) + by
            await self.told(self.services.downloads.move(item.id, place))
            self._show_downloads()
