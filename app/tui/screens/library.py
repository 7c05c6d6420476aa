"""The models: those that are here, those worth having, those of the Hub, and what is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Final, cast

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Input, Static, TabbedContent, TabPane, Tabs

from hearth.app import format as words
from hearth.app.library.adopt import Adoption, Way, adopt, plan_adoption
from hearth.app.library.bandwidth import Bandwidth
from hearth.app.library.cache_layout import hub_cache
from hearth.app.library.catalogue import Entry, load_catalogue
from hearth.app.library.download import Download
from hearth.app.library.downloads import DownloadItem
from hearth.app.library.errors import RepositoryNotFound
from hearth.app.library.fit import Fit
from hearth.app.library.hub import HubModel
from hearth.app.library.hub_files import Choice, Reference, parse_reference
from hearth.app.library.local import LocalModel
from hearth.app.library.menu import Menu, fit_of_entry, fit_of_file, make_menu, room_for
from hearth.app.library.removal import plan_removal, remove
from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.screens.dialogs import AskLine, Confirm, PickOne
from hearth.app.tui.screens.pick_file import PickFile, fit_cell, fit_line, speed_words
from hearth.app.tui.typed_path import typed_path
from hearth.app.tui.widgets.cells import bar, cell
from hearth.app.tui.widgets.column_list import Column, ColumnList, Row
from hearth.app.tui.widgets.fields import SafeInput
from hearth.backends.errors import HearthError

_TICK_S: Final = 0.5
_BAR: Final = 14
_LICENCE: Final = 14
_WAYS: Final[dict[str, Way]] = {"Copy it": "copy", "Move it": "move", "Link to it": "link"}
_TOLD_OF: Final = {"waiting": "Waits for its turn.", "done": "It is under Here."}
_STATE_STYLES: Final = {"failed": "$text-error", "paused": "$text-warning", "done": "$text-success"}
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

_HERE: Final = (
    Column("Name"),
    Column("Type", 7),
    Column("Size", 8, right=True),
    Column("Weights", 7, right=True, least=66),
    Column("Context", 9, right=True, least=88),
    Column("Last used", 10, least=76),
    Column("From", 11, least=104),
    Column("Repository", 38, least=150),
)
_WORTH: Final = (
    Column("Name"),
    Column("Weights", 7, right=True, least=66),
    Column("Size", 14, right=True),
    Column("Quant", 7, least=110),
    Column("Fit", 7),
    Column("est. tok/s", 12, right=True, least=124),
    Column("Context", 9, right=True, least=96),
    Column("Licence", _LICENCE, least=78),
    Column("Repository", 38, least=170),
)
_HUB: Final = (
    Column("Repository"),
    Column("Weights", 7, right=True, least=66),
    Column("Downloads", 11, right=True),
    Column("Likes", 7, right=True, least=90),
    Column("Licence", _LICENCE, least=54),
    Column("Access", 6, least=74),
    Column("Changed", 10, least=104),
)
_DOWNLOADS: Final = (
    Column("Name"),
    Column("State", 11),
    Column("", _BAR, least=84),
    Column("Done", 19, right=True),
    Column("Rate", 11, right=True, least=74),
    Column("Left", 11, right=True, least=100),
)


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
        self._bandwidth: Bandwidth | None = None
        """What was measured for this screen, which is not kept where other programs were busy."""
        self._has_timed_memory = False
        self._tab = "here"
        self._timer: Timer | None = None

    def body(self) -> ComposeResult:
        with TabbedContent(id="tabs"):
            with TabPane("1 Here", id="here"):
                yield ColumnList(*_HERE, empty="No model is here.", id="here-list")
            with TabPane("2 Worth having", id="worth"):
                yield ColumnList(*_WORTH, id="worth-list")
            with TabPane("3 Hub", id="hub"):
                yield SafeInput(
                    placeholder="Words of a name, or organisation/name, or …/name:Q4_K_M",
                    id="query",
                )
                empty = "Press / and write what to look for. Only this asks the network."
                yield ColumnList(*_HUB, empty=empty, id="hub-list")
            with TabPane("4 Downloads", id="downloads"):
                empty = "Nothing is being downloaded. Tabs 2 and 3 have what can be."
                yield ColumnList(*_DOWNLOADS, empty=empty, id="downloads-list")
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
            used, loaded = await self._last_chats(), await self._loaded()
            await asyncio.to_thread(self._read_catalogue)
        except HearthError as error:
            self.tell_error(error)
            return
        self._here = {model.name: model for model in here}
        self._list("here").show(
            [
                _here_row(
                    model,
                    is_loaded=str(model.path) in loaded,
                    used_at=_last_used(used, model),
                )
                for model in here
            ]
        )
        self._list("worth").show(
            [_worth_row(entry, self._fits.get(name)) for name, entry in self._worth.items()]
        )
        self._describe()
        self._time_memory()

    @work(group="memory")
    async def _time_memory(self) -> None:
        """Measure how fast memory is read, if nobody has: speeds are known then. Not while a model
        answers: both would be slow.
        """
        services = self.services
        if services.measure_bandwidth is None or self._has_timed_memory:
            return
        try:
            room = await asyncio.to_thread(room_for, hub_cache(), services.paths.cache)
            stats = await services.host.stats()
            is_busy = stats is not None and any(worker.running for worker in stats.workers)
            if room.bandwidth is not None or is_busy:
                return
            self._has_timed_memory = True
            self._bandwidth = await services.measure_bandwidth()
        except (HearthError, OSError) as error:
            why = f"{error.message} {error.hint}" if isinstance(error, HearthError) else str(error)
            self.tell(f"How fast memory is read could not be measured: {why}", severity="error")
            return
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
        room = room_for(hub_cache(), self.services.paths.cache, self._bandwidth)
        self._worth = {entry.name: entry for entry in load_catalogue().entries}
        for name, entry in self._worth.items():
            self._fits[name] = fit_of_entry(entry, settings, room)

    @work(group="fit", exclusive=True)
    async def _find_fit(self, model: LocalModel) -> None:
        """How a model that is here suits this machine."""
        room = room_for(hub_cache(), self.services.paths.cache, self._bandwidth)
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
        self._list("downloads").show([_download_row(item) for item in self._items.values()])
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
            text = _about_here(model, fit, self.size.width - 2)
            if fit is None and not model.error and not model.url:
                self._find_fit(model)
        elif self._tab == "worth" and key in self._worth:
            text = _about_entry(self._worth[key], self._fits.get(key))
        elif self._tab == "hub" and key in self._found:
            text = _about_hub(self._found[key], self.services.hub.endpoint)
        elif self._tab == "downloads" and key in self._items:
            text = _about_download(self._items[key])
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

    async def _loaded(self) -> set[str]:
        """The paths of the models that are loaded."""
        stats = await self.services.host.stats()
        return {worker.path for worker in stats.workers} if stats is not None else set()

    @work(group="chat", exclusive=True)
    async def action_chat(self) -> None:
        """Begin a chat with the model."""
        if (model := self._here.get(self._chosen or "")) is not None:
            await self.told(self._chat(model))

    async def _chat(self, model: LocalModel) -> None:
        session = await self.sessions.create(model=model.name)
        self.hearth.wanted_thread = session.thread.id
        self.hearth.action_go("chat")

    def action_quantize(self) -> None:
        """Quantize the model."""
        if (model := self._here.get(self._chosen or "")) is not None:
            self.hearth.wanted_source = model.path
            self.hearth.action_go("quantize")

    @work(group="here.act", exclusive=True)
    async def action_unload(self) -> None:
        """Take the model out of memory."""
        if (model := self._here.get(self._chosen or "")) is not None:
            await self.told(self._unload(model))
            self.refresh_models()

    async def _unload(self, model: LocalModel) -> None:
        count = await self.services.host.unload(str(model.path))
        self.tell(f"{model.name} {'is unloaded' if count else 'was not loaded'}.")

    @work(group="here.act", exclusive=True)
    async def action_remove(self) -> None:
        """Delete the model, after saying what that frees."""
        if (model := self._here.get(self._chosen or "")) is not None:
            await self.told(self._remove(model))
            self.refresh_models()

    async def _remove(self, model: LocalModel) -> None:
        library = self.services.library
        found = await asyncio.to_thread(library.resolve, model.name)
        removal = await asyncio.to_thread(plan_removal, found, library)
        is_loaded = str(found.path) in await self._loaded()
        details = [*map(str, removal.paths), *removal.keeps]
        if is_loaded:
            details.append("It is loaded now and is unloaded first, which ends what it says.")
        freed = words.size(removal.frees_bytes)
        question = f"Delete {model.name}? It frees {freed}."
        if not await self.app.push_screen_wait(
            Confirm(question, "\n".join(details), yes="Delete it", no="Keep it")
        ):
            return
        if is_loaded:
            await self.services.host.unload(str(found.path))
        await asyncio.to_thread(remove, removal)
        await self.services.index.changed()
        self.tell(f"{model.name} is deleted; {freed} are free again.")

    @work(group="here.act", exclusive=True)
    async def action_import(self) -> None:
        """Take a model file into the library."""
        await self.told(self._import())
        self.refresh_models()

    async def _import(self) -> None:
        library = self.services.library
        typed = await self.app.push_screen_wait(
            AskLine("Import a model", placeholder="a GGUF file, or a folder with a model")
        )
        if not typed:
            return
        path = typed_path(typed)
        plan = await asyncio.to_thread(plan_adoption, path, library, "link")
        details = {
            "Copy it": f"{words.size(plan.size_bytes)} more on the disk",
            "Move it": "nothing stays where it was",
            "Link to it": "it stays where it is, and must",
        }
        way = await self.app.push_screen_wait(
            PickOne(f"Import {plan.name}", list(_WAYS), details=details)
        )
        if way is None:
            return
        plan = await asyncio.to_thread(plan_adoption, path, library, _WAYS[way])
        await asyncio.to_thread(adopt, plan, lambda done: self._copied(plan, done))
        await self.services.index.changed()
        self.tell(f"{plan.name} is in the library.")

    def _copied(self, plan: Adoption, done: int) -> None:
        """So much was copied; called by the thread that does it."""
        text = f"Importing {plan.name}: {words.size(done)} of {words.size(plan.size_bytes)}"
        self.app.call_from_thread(self.say, text)

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
            self._list("hub").show([_hub_row(model) for model in self._found.values()])
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
        """Let the user choose a file of the repository, and download it.

        Args:
            entry: of the catalogue, if it was named by that.
        """
        self.say(f"Asking the Hub for {reference.repo_id} …")
        try:
            menu = await asyncio.to_thread(self._menu, reference, entry)
        finally:
            self.say("")
        endpoint = self.services.hub.endpoint
        choice = await self.app.push_screen_wait(PickFile(menu, endpoint, reference.choice))
        if choice is None or not await self._is_sure(menu, choice):
            self._describe()
            return
        found = menu.repository
        download = Download(found.repo_id, found.revision, found.commit, choice.files)
        await self.services.downloads.add(download, f"{found.repo_id}:{choice.name}")
        self._show_downloads()
        self.action_tab("downloads")

    def _menu(self, reference: Reference, entry: Entry | None) -> Menu:
        repository = self.services.hub.repository(reference.repo_id, reference.revision)
        room = room_for(hub_cache(), self.services.paths.cache, self._bandwidth)
        return make_menu(repository, self.services.settings, room, hub_cache(), entry)

    async def _is_sure(self, menu: Menu, choice: Choice) -> bool:
        """What does not fit is downloaded only when the user confirms it."""
        fit = menu.fits[choice.name]
        if fit.is_usable:
            return True
        question = f"{choice.name} does not fit this machine. Download it anyway?"
        return cast("bool", await self.app.push_screen_wait(Confirm(question, fit.words)))

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


def _here_row(model: LocalModel, *, is_loaded: bool, used_at: float) -> Row:
    """A model of this machine.

    Args:
        used_at: seconds since 1970 of the last chat with it; 0: none is known.
    """
    used = Content.styled("loaded", "$text-success") if is_loaded else cell(_date(used_at))
    kind = "remote" if model.url else model.file_type
    return Row(
        model.name,
        (
            cell(model.name, "$text-error" if model.error else ""),
            cell("damaged" if model.error else kind, "$text-error" if model.error else ""),
            words.size(model.size_bytes) if model.size_bytes else "",
            words.count(model.parameters) if model.parameters else "",
            f"{model.context:,}" if model.context else "",
            used,
            cell(model.origin, "$text-muted"),
            cell(model.repo, "$text-muted"),
        ),
    )


def _worth_row(entry: Entry, fit: Fit | None) -> Row:
    """A model of the catalogue; its size is about."""
    return Row(
        entry.name,
        (
            cell(entry.title),
            words.count(entry.parameters),
            f"about {words.size(entry.size_bytes)}",
            cell(entry.recommended),
            fit_cell(fit),
            speed_words(fit.speed) if fit is not None else "",
            f"{entry.context:,}" if entry.context else "",
            cell(entry.licence),
            cell(entry.repo, "$text-muted"),
        ),
    )


def _hub_row(model: HubModel) -> Row:
    """A repository that a search found."""
    return Row(
        model.repo_id,
        (
            cell(model.repo_id),
            words.count(model.parameters) if model.parameters else "",
            f"{model.downloads:,}",
            f"{model.likes:,}",
            cell(model.licence or "not stated"),
            Content.styled("gated", "$text-warning") if model.gated else "open",
            model.changed_at.date().isoformat() if model.changed_at else "",
        ),
    )


def _download_row(item: DownloadItem) -> Row:
    """A download."""
    share = item.done_bytes / item.total_bytes if item.total_bytes else 0.0
    state = item.activity or item.state
    return Row(
        item.id,
        (
            cell(item.name),
            cell(state, _STATE_STYLES.get(item.state, "")),
            bar(share, _BAR),
            f"{words.size(item.done_bytes)} of {words.size(item.total_bytes)}",
            f"{words.size(item.bytes_per_s)}/s" if item.bytes_per_s else "",
            words.duration(item.eta_s) if item.eta_s is not None else "",
        ),
    )


def _about_here(model: LocalModel, fit: Fit | None, width: int) -> str:
    """What is said of a chosen model of this machine.

    Args:
        width: of a line, in cells, which its path gets at most.
    """
    if model.error:
        return f"{model.error}\n{_where(model, width)}"
    if model.url:
        return f"A model of another machine, at {model.url}"
    return "\n".join(filter(None, (_where(model, width), fit_line(fit) if fit is not None else "")))


def _about_entry(entry: Entry, fit: Fit | None) -> str:
    """What is said of a chosen model of the catalogue."""
    fitting = f"\nAbout: {fit_line(fit)}" if fit is not None else ""
    return f"{entry.summary} {entry.repo} · {entry.licence}{fitting}"


def _about_hub(model: HubModel, endpoint: str) -> str:
    """What is said of a chosen repository."""
    licence = model.licence or "licence not stated"
    if not model.gated:
        return f"{model.repo_id} · {licence}"
    return (
        f"{model.repo_id} · {licence} · gated: accept its terms at {endpoint}/{model.repo_id} and "
        "set HF_TOKEN first."
    )


def _about_download(item: DownloadItem) -> str:
    """What is said of a chosen download; its name too, which the list may have to cut."""
    if item.error is not None:
        told = f"{item.error.message} {item.error.hint}".strip()
    else:
        told = item.file or _TOLD_OF.get(item.state, "")
    return f"{item.name}\n{told}".strip()


def _last_used(threads: Mapping[str, float], model: LocalModel) -> float:
    """When somebody last chatted with `model`; 0 if nobody is known to have."""
    return max(threads.get(model.name.lower(), 0.0), threads.get(str(model.path).lower(), 0.0))


def _where(model: LocalModel, width: int) -> str:
    home = str(Path.home())
    path = str(model.path)
    shown = _elided(f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path, width)
    return f"{shown} · {model.repo}" if model.repo else shown


def _elided(path: str, width: int) -> str:
    """`path`, without folders in its middle where it is longer than `width`: its beginning and its
    end tell more than the digits that caches call their folders.
    """
    folders = path.split("/")
    kept = len(folders)
    while len(path) > width and kept > 3:
        kept -= 1
        path = "/".join((*folders[: kept - 1], "…", folders[-1]))
    return path


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).date().isoformat() if seconds else ""
