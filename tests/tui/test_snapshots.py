"""Every screen except the chat at four widths, in one walk through the app."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

import filled_screens as filled
from busy_engine import BusyHost, watch_a_minute, write_logs
from hearth.app.chats.store import ChatStore
from hearth.app.library.downloads import Downloads
from hearth.app.library.hub import Hub
from hearth.app.library.local import Library
from hearth.app.paths import find_paths
from hearth.app.presets import Preset, Presets
from hearth.app.settings import load_settings
from hearth.app.tui import quantizing
from hearth.app.tui.app import HearthApp
from hearth.app.tui.screens import doctor, endpoint, engine, library, quantize, settings
from hearth.app.tui.screens.compare import CompareScreen
from hearth.app.tui.screens.dialogs import AskLine, Confirm, EditText, PickOne
from hearth.app.tui.screens.engine import EngineScreen
from hearth.app.tui.screens.pick_file import PickFile
from hearth.app.tui.screens.presets import PresetsScreen
from hearth.app.tui.screens.prompt_view import PromptView
from hearth.app.tui.screens.sampling import SamplingScreen
from hearth.app.tui.screens.search import SearchScreen
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.column_list import ColumnList
from hearth.app.tui.widgets.thread_list import ThreadList
from hearth.backends.contract.messages import Message
from hearth.backends.contract.requests import Request
from pilots import opened, until, until_shown
from screens import check_text, is_as_kept, text_of
from scripted import Script

WIDTHS = (60, 80, 120, 200)
HEIGHT = 30
MOST_LOOKS = 500
SETTINGS = """\
theme = "textual-dark"

[load]
context = 16384
kv_type = "q8_0"

[sampling]
temperature = 0.3

[keys]
"engine.unload" = "f9"
"""
CHAT_SETTINGS = {
    "set": {"max_tokens": 512, "stop": ["END", "\n\n"]},
    "constraint": {"kind": "regex", "source": "(yes|no), because .*"},
    "thinking": True,
}
REQUEST = Request(messages=(Message("user", "What decides whether a model fits?"),))
LONG_TITLE = "What decides whether a model of thirty billion weights fits into my laptop?"

SETTING_NAMES = (
    *("model", "system", "offline", "theme", "serve_host", "serve_port", "serve_key", "context"),
    *("max_sessions", "kv_type", "temperature", "top_k", "top_p", "stop", "seed"),
    *("app.help", "engine.unload", "settings.search"),
)
"""The settings that the settings screen lists here, so that a new setting changes no snapshot."""

VIEWS = (
    "chats",
    "engine",
    "jump",
    "endpoint",
    "endpoint-on",
    "settings",
    "settings-edit",
    "doctor",
    "library-here",
    "library-worth",
    "library-hub",
    "library-downloads",
    "help",
    "quantize",
    "quantize-options",
    "quantize-running",
    "quantize-done",
    "pick-file",
    "search",
    "compare",
    "prompt",
    "prompt-ids",
    "sampling",
    "presets",
    "confirm",
    "ask",
    "pick",
    "edit",
)


@dataclass
class Walk:
    """One run of the app, and the texts of its screens by name and width."""

    app: HearthApp
    pilot: Pilot[int]
    host: BusyHost
    texts: dict[tuple[str, int], str] = field(default_factory=dict)

    async def keep(self, name: str, *shown: str) -> None:
        """Record the screen as `name` at every width, once all of `shown` are on it."""
        for text in shown:
            await until(self.pilot, lambda text=text: text in " ".join(self.text.split()))
        for width in WIDTHS:
            await self.pilot.resize_terminal(width, HEIGHT)
            self.app.show_activity()  # It is updated once a second.
            before, now, same = "", self.text, 0
            while same < 6:  # A list may be drawn shortly after the screen has a new size.
                await self.pilot.pause(0.01)
                before, now = now, self.text
                same = same + 1 if before == now else 0
            for _ in range(MOST_LOOKS):  # On a busy machine even later.
                if is_as_kept(self.text, f"{name}-{width}"):
                    break
                await self.pilot.pause(0.02)
            self.texts[name, width] = self.text

    @property
    def text(self) -> str:
        """The text on the screen."""
        return text_of(self.app)

    async def go(self, name: str) -> Screen[Any]:
        """Show one of the full screens."""
        self.app.action_go(name)
        await until(self.pilot, lambda: getattr(self.app.screen, "NAME", "") == name)
        await until(self.pilot, lambda: bool(self.app.screen.query("KeyBar")))
        await self.pilot.pause()
        return self.app.screen

    @asynccontextmanager
    async def over(self, screen: Screen[Any]) -> Any:
        """Show a dialog over the current screen."""
        self.app.push_screen(screen)
        await until(self.pilot, lambda: self.app.screen is screen and screen.is_running)
        await self.pilot.pause()
        yield screen
        if self.app.screen is screen:
            screen.dismiss()
        await until(self.pilot, lambda: self.app.screen is not screen)

    # ---- the screens

    async def chats(self) -> None:
        session = await self.app.sessions.create("guide")
        await session.change(title=LONG_TITLE)
        await session.send("What fits?")
        self.host.chat = session.thread.id
        await until(self.pilot, lambda: session.is_busy)
        screen: Any = self.app.screen
        await screen.refresh_list()
        # Narrow terminals show the list only on request: it is hidden and then shown again.
        threads = screen.query_one(ThreadList)
        for is_shown in (False, True):
            while threads.display is not is_shown:
                await self.pilot.press("ctrl+b")
                await self.pilot.pause()
        await self.keep("chats", "Names for a cat", "●", "F3 opens")

    async def engine(self) -> None:
        screen = await self.go("engine")
        assert isinstance(screen, EngineScreen)
        await watch_a_minute(screen, self.host)
        await self.keep("engine", "decoding", "worker.log", "hearth.backends")
        await self.pilot.press("ctrl+o")
        await self.keep("jump", "Press a letter")
        await self.pilot.press("escape")

    async def endpoint(self) -> None:
        await self.go("endpoint")
        await self.keep("endpoint", "○ off", " 404")
        await self.pilot.press("space")
        await self.keep("endpoint-on", "● on", "Serving")
        await self.pilot.press("space")
        await until_shown(self.pilot, "○ off")

    async def settings(self) -> None:
        screen: Any = await self.go("settings")
        await until(self.pilot, lambda: screen.list.list.option_count)
        screen.list.select("set:context")
        await self.keep("settings", "16384", "context length")
        await self.pilot.press("e")
        screen.query_one("#edit", Input).value = "many"
        await self.keep("settings-edit", "Expected a whole number")
        await self.pilot.press("escape")

    async def doctor(self) -> None:
        await self.go("doctor")
        await self.keep("doctor", "runs with 3 models", "1 problem")

    async def library(self) -> None:
        screen: Any = await self.go("library")
        await until_shown(self.pilot, "Mistral")
        here = screen.query_one("#here-list", ColumnList)
        here.select("Qwen3-4B-Instruct-2507-Q4_K_M")
        await self.keep("library-here", "fits: needs")
        await self.pilot.press("f1")
        await self.keep("help", "Keys · library")
        await self.pilot.press("escape", "2")
        screen.query_one("#worth-list", ColumnList).select("experts-30b-a3b-instruct")
        await self.keep("library-worth", "tight: needs")
        await self.pilot.press("f")
        await until(self.pilot, lambda: isinstance(self.app.focused, Input))
        screen.query_one("#query", Input).value = "maker"
        await self.pilot.press("enter")
        await until_shown(self.pilot, "Medium-8B-GGUF")
        screen.query_one("#hub-list", ColumnList).select("maker/Gated-27B-it-GGUF")
        await self.keep("library-hub", "gated: accept")
        await self.pilot.press("4")
        screen.query_one("#downloads-list", ColumnList).select("2")
        await self.keep("library-downloads", "The disk is full.")

    async def quantize(self) -> None:
        screen: Any = await self.go("quantize")
        await until(self.pilot, lambda: screen.is_planned)
        await self.keep("quantize", "Tensors: 25 F32")
        await self.pilot.press("o")
        await self.keep("quantize-options", "Options of GGUF")
        await self.pilot.press("escape", "enter")
        await until(self.pilot, lambda: isinstance(self.app.screen, Confirm))
        await self.pilot.press("y")
        await self.keep("quantize-running", "7 s left", "34%")
        filled.ScriptedJob.may_end.set()
        await self.keep("quantize-done", "Perplexity +")

    async def dialogs(self, folder: Path) -> None:
        """Dialogs over the doctor's findings, which do not change."""
        await self.go("doctor")
        async with self.over(PickFile(filled.a_menu(), "https://huggingface.co")):
            await self.keep("pick-file", "Recommended", "fits: needs")
        async with self.over(SearchScreen(self.app.services.chats, "needle")):
            await self.keep("search", " found")
        names = [model.name for model in await self.app.services.index.models()]
        compare = CompareScreen(self.app.services, names, "guide-draft", "guide-other")
        async with self.over(compare):
            await self.pilot.press(*"fits", "enter")
            await until(self.pilot, lambda: self.text.count("42.0 tok/s") == 2)
            await self.keep("compare")
        async with self.over(PromptView(filled.Letters(), REQUEST, 4096)):
            await self.keep("prompt", "assistant")
            await self.pilot.press("i")
            await self.keep("prompt-ids", "10 2 ")
        services = self.app.services
        async with self.over(SamplingScreen(CHAT_SETTINGS, services.settings, "guide")):
            await self.keep("sampling", "max_tokens")
        presets = Presets(folder / "presets.json")
        presets.save(Preset("Brief", "Answer in one sentence.", "guide", CHAT_SETTINGS))
        presets.save(Preset("Translator of letters into plain words", "Say it simply."))
        async with self.over(PresetsScreen(presets, Preset("now"))):
            await self.keep("presets", "Answer in one sentence.")
        models = filled.models()
        details = f"{models[1].path.name}\nIt is loaded now and is unloaded first."
        async with self.over(Confirm("Delete it? It frees 2.5 GB.", details, yes="Delete it")):
            await self.keep("confirm", "Delete it")
        async with self.over(AskLine("Rename the chat", LONG_TITLE)):
            await self.keep("ask", "Rename the chat")
        names = [model.name for model in models]
        sizes = {model.name: model.file_type for model in models}
        async with self.over(PickOne("Model", names, details=sizes)):
            await self.keep("pick", "Type to filter")
        async with self.over(EditText("System prompt", "Be brief.\n" + "Say no more. " * 12)):
            await self.keep("edit", "Be brief.")


def services_in(folder: Path, host: BusyHost, chats: ChatStore) -> Services:
    """Services over `host`, with a few chats and only the bundled models."""
    paths = find_paths({"HEARTH_HOME": str(folder)})
    paths.settings_file.parent.mkdir(parents=True, exist_ok=True)
    paths.settings_file.write_text(SETTINGS)
    environ = {"HEARTH_TOP_P": "0.9"}
    bundled = folder / "bundled"
    for name, size in filled.BUNDLED_BYTES.items():
        filled.a_file(bundled / f"{name}.f16.gguf", size)
    filled.a_file(paths.models / "guide-other.gguf", 1_000_000)
    for at, title in enumerate(("Regular expressions for log files", "Names for a cat", "")):
        thread = chats.create(title=title).id
        chats.add(thread, None, "user", f"A {'needle' if at else 'pin'} in {title or 'a haystack'}")
        chats.update(thread, pinned=not at)
    write_logs(paths.log)
    filled.write_requests(paths.log)
    hub = Hub(offline=True, address="https://huggingface.co")
    downloads = Downloads(paths.downloads_file, folder / "hub", hub)
    return Services(
        paths,
        load_settings(paths.settings_file, environ),
        *(Library(paths.models, bundled), chats, host, hub, downloads),
        lambda: load_settings(paths.settings_file, environ),
    )


def script(patch: pytest.MonkeyPatch, host: BusyHost) -> None:
    """Replace all that the screens read from this machine and the Hub by `filled_screens`."""
    for name in ("HEARTH_API_KEY", "HF_ENDPOINT"):
        patch.delenv(name, raising=False)
    patch.setattr(engine, "time", host)
    patch.setattr(endpoint, "launch", filled.launched)
    entries = settings.entries
    patch.setattr(
        settings,
        "entries",
        lambda *given: (one for one in entries(*given) if one.name in SETTING_NAMES),
    )
    patch.setattr(doctor, "examine", lambda *_: filled.FINDINGS)
    patch.setattr(Library, "list", lambda _: filled.models())
    patch.setattr(library, "_last_used", filled.last_used)
    patch.setattr(library, "load_catalogue", lambda: filled.CATALOGUE)
    patch.setattr(library, "room_for", lambda *_: None)
    patch.setattr(library, "fit_of_entry", lambda entry, *_: filled.fit_of(entry.size_bytes))
    patch.setattr(library, "fit_of_file", lambda *_: filled.fit_of(2_497_281_120))
    patch.setattr(Hub, "search", lambda *_, **__: filled.FOUND)
    patch.setattr(Downloads, "items", lambda _: filled.DOWNLOADS)
    patch.setattr(quantize, "all_methods", lambda: [filled.ScriptedMethod()])
    patch.setattr(quantizing, "Job", filled.ScriptedJob)


async def walk_through(services: Services, host: BusyHost) -> dict[tuple[str, int], str]:
    """The text of each screen at each width."""
    filled.ScriptedJob.may_end = asyncio.Event()
    gate = asyncio.Semaphore(6)
    host.scripts["guide"] = Script("one two three four five six seven", gate=gate)
    answer = "Three things:\n\n1. **weights**\n2. keys and values\n3. buffers\n"
    host.scripts["guide-draft"] = Script(answer, reasoning="Name the parts.")
    host.scripts["guide-other"] = Script("It depends on the size of the model. " * 4)
    async with opened(services, (WIDTHS[0], HEIGHT)) as (app, pilot):
        walk = Walk(app, pilot, host)
        for part in (walk.chats, walk.engine, walk.endpoint, walk.settings, walk.doctor):
            await part()
        await walk.library()
        host.scripts["guide"] = Script()
        await walk.quantize()
        await walk.dialogs(services.paths.data)
        return walk.texts


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, int], str]]:
    """The text of each screen at each width."""
    folder = tmp_path_factory.mktemp("hearth")
    host = BusyHost()
    (folder / "data").mkdir()
    with pytest.MonkeyPatch.context() as patch, closing(ChatStore(folder / "c.sqlite")) as chats:
        script(patch, host)
        services = services_in(folder, host, chats)
        services.paths.data.mkdir(parents=True, exist_ok=True)
        yield asyncio.run(walk_through(services, host))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("view", VIEWS)
def test_it_looks_as_it_should(shown: dict[tuple[str, int], str], view: str, width: int) -> None:
    check_text(shown[view, width], f"{view}-{width}")
