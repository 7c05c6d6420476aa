"""The library screen: installed models, the catalogue, models of the Hub, and downloads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Final, cast

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import ScreenResume
from textual.widgets import Input, OptionList, Static, TabbedContent, TabPane, Tabs

from hearth.app import format as words
from hearth.app.library.adopt import Adoption, Way, adopt, plan_adoption
from hearth.app.library.bandwidth import Bandwidth
from hearth.app.library.cache_layout import hub_cache
from hearth.app.library.catalogue import Entry, load_catalogue
from hearth.app.library.downloads import DownloadItem
from hearth.app.library.drafts import fitting_drafts
from hearth.app.library.errors import RepositoryNotFound
from hearth.app.library.evaluation import stored_words
from hearth.app.library.fit import Fit, Speed, sizing_words
from hearth.app.library.hub import HubModel
from hearth.app.library.hub_files import Choice, Reference, parse_reference
from hearth.app.library.local import FoundModel, LocalModel
from hearth.app.library.menu import Menu, fit_of_entry, fit_of_file, make_menu, room_for
from hearth.app.library.quantized import Quantized, quantized
from hearth.app.library.removal import plan_removal, remove
from hearth.app.settings_file import change
from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.screens.dialogs import AskLine, Confirm, PickOne
from hearth.app.tui.screens.pick_file import PickFile, fit_cell, fit_line, speed_words
from hearth.app.tui.typed_path import typed_path
from hearth.app.tui.widgets.cells import bar, cell
from hearth.app.tui.widgets.column_list import Column, ColumnList, Row
from hearth.app.tui.widgets.fields import SafeInput
from hearth.backends.errors import HearthError
from hearth.quant.gguf.quantize_method import GgufMethod

_TICK_S: Final = 0.5
_BAR: Final = 14
_LICENCE: Final = 14
_SPEED: Final = "speed"
_UNQUANTIZED: Final = ("F16", "FP16", "BF16", "F32", "FP32")
_OFFERED: Final = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M")
"""Types that a download can be quantized to; they need no importance matrix."""
_WAYS: Final[dict[str, Way]] = {"Copy it": "copy", "Move it": "move", "Link to it": "link"}
_TEXT_OF: Final = {"waiting": "Waiting for another download.", "done": "Installed."}
_STATE_STYLES: Final = {"failed": "$text-error", "paused": "$text-warning", "done": "$text-success"}
_HERE_ACTIONS: Final = ("chat", "remove", "quantize", "compare", "import", "unload", "draft")
_TAB_OF: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(_HERE_ACTIONS, ("here",)),
    "pull": ("worth", "hub"),
    **dict.fromkeys(("pause", "cancel", "clear", "move"), ("downloads",)),
}
"""The tabs in which each action can be used."""

_HERE: Final = (
    Column("Name"),
    Column("Type", 7),
    Column("Size", 8, right=True),
    Column("Weights", 7, right=True, least=66),
    Column("Context", 9, right=True, least=88),
    Column("Last used", 10, least=76),
    Column("tok/s", 12, right=True, least=124),
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
    """Four lists, one per tab."""

    NAME = "library"
    DEFAULT_CSS = """
    LibraryScreen TabbedContent { height: 1fr; }
    LibraryScreen TabPane { padding: 0; }
    LibraryScreen ColumnList { height: 1fr; padding: 1 1 0 1; }
    LibraryScreen ColumnList > OptionList { height: 1fr; }
    LibraryScreen #query { border: tall $border-blurred; height: 3; }
    LibraryScreen #query:focus { border: tall $border; }
    LibraryScreen #about {
        height: auto; min-height: 2; max-height: 7; padding: 0 1; margin-top: 1;
        color: $text-muted;
    }
    LibraryScreen.-narrow #about { max-height: 12; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "chat", "chat", id="library.chat"),
        Binding("p", "pull", "pull", id="library.pull"),
        Binding("d,delete", "remove", "delete", id="library.delete"),
        Binding("z", "quantize", "quantize", id="library.quantize"),
        Binding("v", "compare", "compare in chat", id="library.compare"),
        Binding("i", "import", "import", id="library.import"),
        Binding("u", "unload", "unload", id="library.unload"),
        Binding("g", "draft", "use draft model", id="library.draft", show=False),
        Binding("space", "pause", "pause / resume", id="library.pause"),
        Binding("x", "cancel", "cancel", id="library.cancel"),
        Binding("l", "clear", "clear finished", id="library.clear"),
        Binding("ctrl+up", "move(-1)", "earlier", id="library.earlier"),
        Binding("ctrl+down", "move(1)", "later", id="library.later"),
        Binding("f", "search", "search the Hub", id="library.search"),
        Binding("slash", "filter", "filter", id="library.filter", show=False),
        Binding("r", "refresh", "refresh", id="library.refresh", show=False),
        Binding("1", "tab('here')", "installed", id="library.tab-here", show=False),
        Binding("2", "tab('worth')", "recommended", id="library.tab-worth", show=False),
        Binding("3", "tab('hub')", "the Hub", id="library.tab-hub", show=False),
        Binding("4", "tab('downloads')", "downloads", id="library.tab-downloads", show=False),
        Binding("down,escape", "enter_list", "list", id="library.list", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._here: dict[str, LocalModel] = {}
        self._loaded_paths: set[str] = set()
        self._used: dict[str, float] = {}
        """When each model was last chatted with, by its name in lower case."""
        self._made: dict[str, Quantized] = {}
        """The models that were quantized from another one, by name."""
        self._pair: tuple[str, str] | None = None
        """The chosen model and its original or its quantized version; the original first."""
        self._judged: dict[str, str] = {}
        """Results of `hearth eval`, by model name."""
        self._worth: dict[str, Entry] = {}
        self._found: dict[str, HubModel] = {}
        self._items: dict[str, DownloadItem] = {}
        self._queue_error = ""
        """Why the queue of downloads cannot be read, as shown last."""
        self._fits: dict[str, Fit] = {}
        """Keyed by name for catalogue entries, and by path for installed models."""
        self._drafts: dict[str, list[str]] = {}
        """Models and heads that can draft for an installed model, by the path of that model."""
        self._bandwidth: Bandwidth | None = None
        """The bandwidth measured for this screen; it is not saved if other programs were busy."""
        self._has_timed_memory = False
        self._tab = "here"

    def body(self) -> ComposeResult:
        with TabbedContent(id="tabs"):
            with TabPane("1 Installed", id="here"):
                yield ColumnList(*_HERE, empty="Loading…", filters=True, id="here-list")
            with TabPane("2 Recommended", id="worth"):
                yield ColumnList(*_WORTH, empty="Loading…", filters=True, id="worth-list")
            with TabPane("3 Hub", id="hub"):
                yield SafeInput(
                    placeholder="Words of a name, or organisation/name, or …/name:Q4_K_M",
                    id="query",
                )
                empty = "Press f and type what to search for. Only this uses the network."
                yield ColumnList(*_HUB, empty=empty, filters=True, id="hub-list")
            with TabPane("4 Downloads", id="downloads"):
                empty = "No downloads. Tabs 2 and 3 list models to download."
                yield ColumnList(*_DOWNLOADS, empty=empty, filters=True, id="downloads-list")
        yield Static("", id="about", markup=False)

    def on_mount(self) -> None:
        self.while_shown(_TICK_S, self._show_downloads)
        self._show_downloads()
        self._list("here").list.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide the keys that do nothing in the tab or for the selected line."""
        if action == "compare" and self._pair is None:
            return False
        return self._tab in _TAB_OF.get(action, (self._tab,))

    def _list(self, tab: str) -> ColumnList:
        return self.query_one(f"#{tab}-list", ColumnList)

    @property
    def _chosen(self) -> str | None:
        """The key of the selected line of the current tab."""
        return self._list(self._tab).selected

    # ---- what is listed

    @on(ScreenResume)
    @work(group="here", exclusive=True)
    async def refresh_models(self) -> None:
        """Read the models of this machine and the catalogue."""
        with self.errors_shown():
            here = await asyncio.to_thread(self.services.library.list)
            self._made = await asyncio.to_thread(quantized, here)
            self._judged = await asyncio.to_thread(stored_words, here)
            self._used = await self._last_chats()
            await asyncio.to_thread(self._read_catalogue)
            self._here = {model.name: model for model in here}
            self._show_here()
            worth = self._worth.items()
            self._list("worth").show([_worth_row(one, self._fits.get(name)) for name, one in worth])
            self._describe()
            self._time_memory()
            self._loaded_paths = await self._loaded()
            self._show_here()

    def _show_here(self) -> None:
        rows = [self._here_row(model) for model in self._here.values()]
        self._list("here").show(rows, empty="No models are installed. Tab 2 lists some.")

    def _here_row(self, model: LocalModel) -> Row:
        """The row of an installed model, below its original unless that is quantized itself."""
        path = str(model.path)
        fit, result = self._fits.get(path), self._made.get(model.name)
        source = result.source.name if result and result.source.name not in self._made else ""
        used_at = _last_used(self._used, model)
        is_loaded = path in self._loaded_paths
        used = Content.styled("loaded", "$text-success") if is_loaded else cell(_date(used_at))
        kind = "remote" if model.url else model.file_type
        wrong = "$text-error" if model.error else ""
        speed = fit.speed if fit is not None else None
        return Row(
            model.name,
            (
                cell(f"└ {model.name}" if source else model.name, wrong),
                cell("damaged" if model.error else kind, wrong),
                words.size(model.size_bytes) if model.size_bytes else "",
                words.count(model.parameters) if model.parameters else "",
                f"{model.context:,}" if model.context else "",
                used,
                speed_words(speed),
                cell(model.origin, "$text-muted"),
                cell(model.repo, "$text-muted"),
            ),
            _order(model.name, model.size_bytes, speed) | {"last used": used_at},
            source,
        )

    @work(group="memory")
    async def _time_memory(self) -> None:
        """Measure memory bandwidth, unless it was measured before.

        Skipped while a model answers, since each would slow down the other.
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
            self.show_notice(
                f"How fast memory is read could not be measured: {error}", severity="error"
            )
        else:
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
        """Read the catalogue, and find how each of its models fits this machine."""
        settings = self.services.settings
        room = room_for(hub_cache(), self.services.paths.cache, self._bandwidth)
        self._worth = {entry.name: entry for entry in load_catalogue().entries}
        for name, entry in self._worth.items():
            self._fits[name] = fit_of_entry(entry, settings, room)

    @work(group="fit", exclusive=True)
    async def _find_fit(self, model: LocalModel) -> None:
        located = FoundModel(model.name, model.path, model.origin)
        with suppress(HearthError, OSError):  # `_find_fits` shows what is wrong with the file.
            drafts = await asyncio.to_thread(fitting_drafts, located, self.services.library)
            self._drafts[str(model.path)] = drafts
        await self._find_fits(model)

    async def _find_fits(self, *models: LocalModel) -> None:
        """Find how installed models fit this machine."""
        room = room_for(hub_cache(), self.services.paths.cache, self._bandwidth)
        settings = self.services.settings
        for at, model in enumerate(models, 1):
            if len(models) > 1:
                self.show_about(f"Loading… {at} of {len(models)}")
            try:
                fit = await asyncio.to_thread(fit_of_file, model.path, model.name, settings, room)
            except HearthError as error:
                if len(models) == 1:
                    self.show_about(str(error))
                    return
                continue
            self._fits[str(model.path)] = fit
        self._show_here()
        self._describe()

    @work(group="fits", exclusive=True)
    async def on_column_list_sorted(self, event: ColumnList.Sorted) -> None:
        """Find the speed of every model when the list is sorted by speed."""
        lacking = [
            model
            for model in self._here.values()
            if not (model.error or model.url or str(model.path) in self._fits)
        ]
        if self._tab == "here" and event.order == _SPEED and lacking:
            await self._find_fits(*lacking)

    def _read_queue(self) -> dict[str, DownloadItem]:
        before, self._queue_error = self._queue_error, ""
        try:
            return {item.id: item for item in self.services.downloads.items()}
        except HearthError as error:
            self._queue_error = str(error)
            if self._queue_error != before:
                self.show_error(error)
            return {}

    def _show_downloads(self) -> None:
        before, self._items = self._items, self._read_queue()
        if before == self._items:
            return
        self._list("downloads").show([_download_row(item) for item in self._items.values()])
        if self._tab == "downloads":
            self._describe()
        for ident, item in self._items.items():
            if item.state == "done" and ident in before and before[ident].state != "done":
                self.show_notice(f"{item.name} is installed.")
                self.refresh_models()

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """Show the keys of the tab."""
        self._tab = event.pane.id or "here"
        self.refresh_bindings()
        self._describe()

    @on(OptionList.OptionHighlighted)
    def _describe(self) -> None:
        """Describe the selected line."""
        key = self._chosen or ""
        text = ""
        before, self._pair = self._pair, self._pair_of(key)
        if before != self._pair:
            self.refresh_bindings()
        if self._tab == "here" and key in self._here:
            model = self._here[key]
            fit = self._fits.get(str(model.path))
            text = _about_here(model, fit, self.size.width - 2)
            drafts, used = self._drafts.get(str(model.path), []), self._draft_of(model)
            if drafts or used:
                text = f"{text}\n{_about_drafts(drafts, used)}"
            if key in self._made:
                text = f"{self._made[key].words}\n{text}"
            if key in self._judged:
                text = f"{self._judged[key]}\n{text}"
            if fit is None and not model.error and not model.url:
                self._find_fit(model)
        elif self._tab == "worth" and key in self._worth:
            text = _about_entry(self._worth[key], self._fits.get(key))
        elif self._tab == "hub" and key in self._found:
            text = _about_hub(self._found[key], self.services.hub.endpoint)
        elif self._tab == "downloads" and key in self._items:
            text = _about_download(self._items[key])
        self.show_about(text)

    def show_about(self, text: str) -> None:
        """Show `text` below the lists."""
        self.query_one("#about", Static).update(safe_text(text))

    # ---- tabs and focus

    def action_tab(self, tab: str) -> None:
        """Show another list."""
        self.query_one(TabbedContent).active = self._tab = tab
        self.call_after_refresh(self.action_enter_list)

    def action_search(self) -> None:
        """Search the Hub."""
        self.query_one(TabbedContent).active = "hub"
        self.call_after_refresh(self.query_one("#query").focus)

    async def action_filter(self) -> None:
        """Filter the list of the tab."""
        await self._list(self._tab).action_filter()

    def action_enter_list(self) -> None:
        """Go to the list, or to the tabs if it is empty."""
        option_list = self._list(self._tab).list
        (option_list if option_list.option_count else self.query_one(Tabs)).focus()

    def action_refresh(self) -> None:
        """Read the models of this machine again."""
        for group in ("fit", "fits"):
            self.workers.cancel_group(self, group)
        self._fits.clear()
        self.refresh_models()

    def on_option_list_option_selected(self) -> None:
        """Enter starts a chat, or downloads."""
        if self._tab == "here":
            self.action_chat()
        elif self._tab != "downloads":
            self.action_pull()

    # ---- installed models

    async def _loaded(self) -> set[str]:
        """The paths of the models that are loaded."""
        stats = await self.services.host.stats()
        return {worker.path for worker in stats.workers} if stats is not None else set()

    @work(group="chat", exclusive=True)
    async def action_chat(self) -> None:
        """Begin a chat with the model."""
        if (model := self._here.get(self._chosen or "")) is not None:
            with self.errors_shown():
                session = await self.sessions.create(model=model.name)
                self.hearth.wanted_thread = session.thread.id
                self.hearth.action_go("chat")

    def _pair_of(self, name: str) -> tuple[str, str] | None:
        if self._tab != "here":
            return None
        pairs = [(one.source.name, result) for result, one in self._made.items()]
        return next((pair for pair in pairs if pair[1] == name), None) or next(
            (pair for pair in pairs if pair[0] == name), None
        )

    @work(group="chat", exclusive=True)
    async def action_compare(self) -> None:
        """Compare the model with its original on the same prompt."""
        from hearth.app.tui.screens.compare import CompareScreen

        if self._pair is not None:
            names = [model.name for model in await self.services.index.models()]
            dialog = CompareScreen(self.services, names, *self._pair, is_paired=True)
            await self.app.push_screen_wait(dialog)
            if self.hearth.wanted_thread:
                self.hearth.action_go("chat")

    def action_quantize(self) -> None:
        """Quantize the model."""
        if (model := self._here.get(self._chosen or "")) is not None:
            self.hearth.wanted_source = model.path
            self.hearth.action_go("quantize")

    @work(group="here.act", exclusive=True)
    async def action_unload(self) -> None:
        """Unload the model from memory."""
        if (model := self._here.get(self._chosen or "")) is not None:
            with self.errors_shown():
                count = await self.services.host.unload(str(model.path))
                self.show_notice(f"{model.name} {'is unloaded' if count else 'was not loaded'}.")
            self.refresh_models()

    def _draft_of(self, model: LocalModel) -> str:
        """What drafts for `model`, by its settings; empty if nothing does."""
        setting = self.services.settings.all(model.name)["draft"]
        return "" if model.url else str(setting.value)

    @work(group="here.act", exclusive=True)
    async def action_draft(self) -> None:
        """Use the first model or head that can draft for the model, or stop drafting."""
        model = self._here.get(self._chosen or "")
        if model is None:
            return
        drafts, used = self._drafts.get(str(model.path), []), self._draft_of(model)
        if not (drafts or used):
            return
        draft = None if used else drafts[0]
        services = self.services
        with self.errors_shown():
            await asyncio.to_thread(
                change, services.paths.settings_file, ("models", model.name), "draft", draft
            )
            services.use_settings()
            now = services.settings.all(model.name)["draft"]
            done = f"{now.value} drafts" if now.value else "nothing drafts"
            origin = now.origin.replace(str(services.settings.file), services.settings.file.name)
            text = f"From its next load on {done} for {model.name} (draft: {origin})."
            self.show_notice(
                text, severity="information" if now.value == (draft or "") else "warning"
            )
        self._describe()

    @work(group="here.act", exclusive=True)
    async def action_remove(self) -> None:
        """Delete the model, after showing how much space that frees."""
        if (model := self._here.get(self._chosen or "")) is not None:
            await self.succeeds(self._remove(model))
            self.refresh_models()

    async def _remove(self, model: LocalModel) -> None:
        library = self.services.library
        resolved = await asyncio.to_thread(library.resolve, model.name)
        removal = await asyncio.to_thread(plan_removal, resolved, library)
        is_loaded = str(resolved.path) in await self._loaded()
        details = [*map(str, removal.paths), *removal.keeps]
        if is_loaded:
            details.append("The model is loaded; deleting it stops running responses.")
        freed = words.size(removal.frees_bytes)
        question = f"Delete {model.name}? It frees {freed}."
        if not await self.app.push_screen_wait(
            Confirm(question, "\n".join(details), yes="Delete", destructive=True)
        ):
            return
        if is_loaded:
            await self.services.host.unload(str(resolved.path))
        await asyncio.to_thread(remove, removal)
        await self.services.index.changed()
        self.show_notice(f"{model.name} is deleted; {freed} freed.")

    @work(group="here.import")
    async def action_import(self) -> None:
        """Take a model file into the library."""
        await self.succeeds(self._import())
        self.refresh_models()

    async def _import(self) -> None:
        library = self.services.library

        async def check(typed: str) -> None:
            if typed:
                await asyncio.to_thread(plan_adoption, typed_path(typed), library, "link")

        typed = await self.app.push_screen_wait(
            AskLine(
                "Import a model",
                placeholder="path of a GGUF file, or of a folder with a model",
                check=check,
            )
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
        self.show_notice(f"{plan.name} is in the library.")

    def _copied(self, plan: Adoption, done: int) -> None:
        """Show that `done` bytes are copied; called by the copying thread."""
        text = f"Importing {plan.name}: {words.size(done)} of {words.size(plan.size_bytes)}"
        self.app.call_from_thread(self.show_about, text)

    # ---- models to download

    @work(group="search", exclusive=True)
    async def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search for what was typed, or open the repository that it names."""
        try:
            if query := event.value.strip():
                await self._look_for(query)
        except HearthError as error:
            self._found = {}
            self._list("hub").show([], empty=safe_text(str(error)))

    async def _look_for(self, query: str) -> None:
        name, colon, quant = query.partition(":")
        entry = self._worth.get(name.lower())
        if entry is not None:
            await self._pull(parse_reference(f"{entry.repo}{colon}{quant}"), entry)
        elif "/" in query and " " not in query:
            reference = parse_reference(query)
            try:
                await self._pull(reference)
            except RepositoryNotFound as error:
                await self._search(reference.repo_id.rpartition("/")[2])
                self.show_error(error)
        else:
            await self._search(query)

    async def _search(self, query: str) -> None:
        hub_list = self._list("hub")
        self._found = {}
        hub_list.show([], empty="Searching the Hub…")
        self.show_about("")
        hub = self.services.hub
        models = await asyncio.to_thread(lambda: hub.search(query, tag="gguf"))
        self._found = {model.repo_id: model for model in models}
        nothing = f"The Hub has no GGUF repository with “{query}” in its name."
        hub_list.show([_hub_row(model) for model in models], empty=safe_text(nothing))
        if models:
            hub_list.list.focus()
            self._describe()

    @work(group="pull", exclusive=True)
    async def action_pull(self) -> None:
        """Choose a file of the repository to download."""
        key = self._chosen
        if self._tab == "worth" and key in self._worth:
            entry = self._worth[key]
            await self.succeeds(self._pull(parse_reference(entry.repo), entry))
        elif self._tab == "hub" and key in self._found:
            await self.succeeds(self._pull(parse_reference(key)))

    async def _pull(self, reference: Reference, entry: Entry | None = None) -> None:
        """Let the user choose a file of the repository, and download it.

        Args:
            entry: the catalogue entry, if the repository was chosen by it.
        """
        self.show_about(f"Asking the Hub for {reference.repo_id} …")
        try:
            menu = await asyncio.to_thread(self._menu, reference, entry)
        finally:
            self.show_about("")
        endpoint = self.services.hub.endpoint
        choice = await self.app.push_screen_wait(PickFile(menu, endpoint, reference.choice))
        wanted = None
        if choice is not None and await self._is_sure(menu, choice):
            wanted = await self._quantize_after(choice)
        if choice is None or wanted is None:
            self._describe()
            return
        name = f"{menu.repository.repo_id}:{choice.name}"
        await self.services.downloads.add(menu.download(choice), name, quantize=wanted)
        self._show_downloads()
        self.action_tab("downloads")

    def _menu(self, reference: Reference, entry: Entry | None) -> Menu:
        repository = self.services.hub.repository(reference.repo_id, reference.revision)
        room = room_for(hub_cache(), self.services.paths.cache, self._bandwidth)
        return make_menu(repository, self.services.settings, room, hub_cache(), entry)

    async def _quantize_after(self, choice: Choice) -> str | None:
        """Ask which type to quantize an unquantized file to after the download.

        Returns an empty string for none, and None if the user cancels.
        """
        is_plain = choice.kind == "safetensors" or choice.name in _UNQUANTIZED
        if choice.is_quantized or not is_plain:
            return ""
        targets = GgufMethod().targets()
        about = {target.name: target.about for target in targets if target.name in _OFFERED}
        kept = "Keep it as it is"
        wanted = await self.app.push_screen_wait(
            PickOne(
                f"{choice.name} is not quantized. Quantize it when the download is complete?",
                [kept, *about],
                details={kept: words.size(choice.size_bytes), **about},
            )
        )
        return "" if wanted == kept else wanted

    async def _is_sure(self, menu: Menu, choice: Choice) -> bool:
        """Whether to download `choice`; the user is asked if it does not fit."""
        fit = menu.fits[choice.name]
        if fit.is_usable:
            return True
        question = f"{choice.name} does not fit this machine. Download it anyway?"
        dialog = Confirm(question, fit.words, yes="Download")
        return cast("bool", await self.app.push_screen_wait(dialog))

    # ---- downloads

    @work(group="downloads")
    async def action_pause(self) -> None:
        """Pause the download, or resume it."""
        if (item := self._items.get(self._chosen or "")) is not None:
            downloads = self.services.downloads
            goes = item.state == "running" or (item.state == "waiting" and item.error is None)
            await self.succeeds(downloads.pause(item.id) if goes else downloads.resume(item.id))
            self._show_downloads()

    @work(group="downloads")
    async def action_cancel(self) -> None:
        """Remove the download from the queue."""
        if (item := self._items.get(self._chosen or "")) is not None:
            question = Confirm(
                f"Cancel {item.name}?",
                "What was downloaded of it is deleted.",
                yes="Delete",
                no="Keep",
                destructive=True,
            )
            if item.state != "done" and not await self.app.push_screen_wait(question):
                return
            await self.succeeds(self.services.downloads.cancel(item.id))
            self._show_downloads()

    @work(group="downloads")
    async def action_clear(self) -> None:
        """Remove the downloads that are complete from the list; the models stay."""
        for item in [one for one in self._items.values() if one.state == "done"]:
            await self.succeeds(self.services.downloads.cancel(item.id))
        self._show_downloads()

    @work(group="downloads")
    async def action_move(self, by: int) -> None:
        """Move the download in the queue."""
        if (item := self._items.get(self._chosen or "")) is not None:
            place = list(self._items).index(item.id) + by
            await self.succeeds(self.services.downloads.move(item.id, place))
            self._show_downloads()


def _worth_row(entry: Entry, fit: Fit | None) -> Row:
    """The row of a model of the catalogue; its size is approximate."""
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
        _order(entry.title, entry.size_bytes, fit.speed if fit is not None else None),
    )


def _hub_row(model: HubModel) -> Row:
    """The row of a repository that a search found."""
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
        {
            "name": model.repo_id,
            "weights": model.parameters or 0,
            "downloads": model.downloads,
            "changed": model.changed_at.timestamp() if model.changed_at else 0.0,
        },
    )


def _download_row(item: DownloadItem) -> Row:
    """The row of a download."""
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
        {"name": item.name, "size": item.total_bytes},
    )


def _order(name: str, size_bytes: int, speed: Speed | None) -> dict[str, str | float]:
    return {"name": name, "size": size_bytes, _SPEED: speed.tok_per_s if speed else 0.0}


def _about_here(model: LocalModel, fit: Fit | None, width: int) -> str:
    """The description of an installed model.

    Args:
        width: cells of a line, to which paths are shortened.
    """
    if model.error:
        return f"{model.error}\n{_where(model, width)}"
    if model.url:
        return f"A model of another machine, at {model.url}"
    return "\n".join((_where(model, width), *_fit_lines(fit)))


def _about_drafts(drafts: Sequence[str], used: str) -> str:
    """What drafts for a model or could do so, and the key that changes it."""
    if used:
        return f"{Path(used).name} drafts for it; g ends that."
    names = ", ".join(Path(one).name for one in drafts)
    return f"Can draft for it: {names} (docs/speculation.md). g uses {Path(drafts[0]).name}."


def _about_entry(entry: Entry, fit: Fit | None) -> str:
    """The description of a model of the catalogue."""
    about, *more = _fit_lines(fit) or ("",)
    fitting = [f"About: {about}", *more] if about else []
    return "\n".join((f"{entry.summary} {entry.repo} · {entry.licence}", *fitting))


def _fit_lines(fit: Fit | None) -> Sequence[str]:
    """How a model fits, and its KV cache; empty while unknown."""
    if fit is None:
        return ()
    sizing = sizing_words(fit.sizing) if fit.sizing is not None else ""
    return tuple(filter(None, (fit_line(fit), sizing)))


def _about_hub(model: HubModel, endpoint: str) -> str:
    """The description of a repository."""
    licence = model.licence or "licence not stated"
    if not model.gated:
        return f"{model.repo_id} · {licence}"
    return (
        f"{model.repo_id} · {licence} · gated: accept its terms at {endpoint}/{model.repo_id} and "
        "set HF_TOKEN first."
    )


def _about_download(item: DownloadItem) -> str:
    """The description of a download, with its name, which the list may cut."""
    if item.error is not None:
        text = f"{item.error.message} {item.error.hint}".strip()
    else:
        text = item.file or _TEXT_OF.get(item.state, "")
    if item.quantize:
        text += f" It is quantized to {item.quantize} when it is complete."
    return f"{item.name}\n{text}".strip()


def _last_used(threads: Mapping[str, float], model: LocalModel) -> float:
    """When `model` was last chatted with; 0 if unknown."""
    return max(threads.get(model.name.lower(), 0.0), threads.get(str(model.path).lower(), 0.0))


def _where(model: LocalModel, width: int) -> str:
    home = str(Path.home())
    path = str(model.path)
    shown = _elided(f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path, width)
    return f"{shown} · {model.repo}" if model.repo else shown


def _elided(path: str, width: int) -> str:
    """`path`, without some of its middle folders if it is longer than `width`.

    The beginning and the end are more useful than the hashes that caches name their folders by.
    """
    folders = path.split("/")
    kept = len(folders)
    while len(path) > width and kept > 3:
        kept -= 1
        path = "/".join((*folders[: kept - 1], "…", folders[-1]))
    return path


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).date().isoformat() if seconds else ""
