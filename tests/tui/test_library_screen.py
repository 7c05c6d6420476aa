"""The library, with its keys: installed models, the catalogue, the Hub, downloads."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from async_tests import in_loop
from hearth.app.chosen import with_settings
from hearth.app.library.adopt import adopt
from hearth.app.library.bandwidth import Bandwidth
from hearth.app.library.catalogue import load_catalogue
from hearth.app.library.downloads import Downloads
from hearth.app.library.evaluation import store
from hearth.app.library.hub import Hub
from hearth.app.library.local import FoundModel, Library
from hearth.app.library.sources import Source
from hearth.app.settings import load_settings
from hearth.app.tui.screens.compare import CompareScreen
from hearth.app.tui.screens.dialogs import AskLine, Confirm, PickOne
from hearth.app.tui.screens.library import LibraryScreen
from hearth.app.tui.screens.pick_file import PickFile
from hearth.app.tui.screens.quantize import QuantizeScreen
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.column_list import ColumnList
from hearth.backends.contract.loaded import HostStats, WorkerStats
from hearth.backends.errors import HostUnreachable, InternalError, ModelNotFound
from hub_server import Fault, HubServer, Repo, only_hub
from pilots import chat_of, opened, until, until_shown
from polling import notices
from quantizing import GUIDE
from screens import text_of
from scripted import Script, ScriptedHost, failing

REPO = "organisation/tiny-GGUF"
DRAFT = GUIDE.with_name("guide-draft.f16.gguf")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A stand-in with one repository of two files."""
    with only_hub(monkeypatch, tmp_path) as server:
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        model = DRAFT.read_bytes()
        files = {"tiny-Q4_K_M.gguf": model, "tiny-Q8_0.gguf": model + b"\0" * 32}
        server.repos[REPO] = Repo(files, parameters=1_000_000)
        yield server


@pytest.fixture
def online(services: Services, hub: HubServer, tmp_path: Path) -> Services:
    """Services that use the stand-in, and find models downloaded from it."""
    place, asks = tmp_path / "hub", Hub()
    services.hub = asks
    services.downloads = Downloads(services.paths.downloads_file, place, asks)
    services.library = Library(services.paths.models, sources=[Source("huggingface", place)])
    return services


def put(services: Services, name: str = "mine") -> Path:
    """Put a model into the library folder."""
    services.paths.models.mkdir(parents=True, exist_ok=True)
    path = services.paths.models / f"{name}.gguf"
    shutil.copyfile(DRAFT, path)
    return path


@asynccontextmanager
async def library(services: Services, size: tuple[int, int] = (120, 34)) -> Any:
    """The app at its library, with the models read."""
    async with opened(services, size) as (app, pilot):
        await pilot.press("f3")
        await until(pilot, lambda: isinstance(app.screen, LibraryScreen))
        await until_shown(pilot, "8.5 MB")
        yield app, pilot


async def choose(pilot: Pilot[Any], tab: str, key: str) -> None:
    """Select a line of a list."""
    found = pilot.app.screen.query_one(f"#{tab}-list", ColumnList)
    found.select(key)
    await until(pilot, lambda: found.selected == key)


async def look_for(pilot: Pilot[Any], words: str) -> None:
    await pilot.press("escape", "f")
    await until(pilot, lambda: isinstance(pilot.app.focused, Input))
    pilot.app.screen.query_one("#query", Input).value = words
    await pilot.press("enter")


def about(pilot: Pilot[Any]) -> str:
    return str(pilot.app.screen.query_one("#about", Static).content)


@in_loop
async def test_search_choose_download_and_it_is_here(online: Services) -> None:
    async with library(online) as (app, pilot):
        await look_for(pilot, "tiny")
        await until_shown(pilot, REPO)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, PickFile))
        await until_shown(pilot, "Recommended")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, LibraryScreen))
        await until_shown(pilot, f"{REPO}:Q4_K_M")
        await until(pilot, lambda: [i.state for i in online.downloads.items()] == ["done"])
        await until_shown(pilot, "is installed.")
        await pilot.press("1")
        await until_shown(pilot, "tiny-Q4_K_M")
        await choose(pilot, "here", "tiny-Q4_K_M")
        await until(pilot, lambda: REPO in about(pilot))


@in_loop
async def test_quantize_when_the_download_is_complete(online: Services, hub: HubServer) -> None:
    hub.repos[REPO] = Repo({"tiny-F16.gguf": DRAFT.read_bytes()}, parameters=1_000_000)
    async with library(online) as (app, pilot):
        screen = app.screen
        await look_for(pilot, f"{REPO}:F16")
        await until(pilot, lambda: isinstance(app.screen, PickFile))
        await until(pilot, lambda: app.screen.query_one(ColumnList).selected == "F16")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, PickOne))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is screen)
        await pilot.pause()
        assert online.downloads.items() == ()
        await look_for(pilot, f"{REPO}:F16")
        await until(pilot, lambda: isinstance(app.screen, PickFile))
        await until(pilot, lambda: app.screen.query_one(ColumnList).selected == "F16")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, PickOne))
        await pilot.press(*"Q8", "enter")
        made = online.paths.models / "tiny-Q8_0.gguf"
        await until(pilot, made.exists)
        await until(pilot, lambda: online.downloads.items()[0].quantize == "")
        await pilot.press("4", "l")
        await until(pilot, lambda: online.downloads.items() == ())
        await pilot.press("1", "r")
        await until_shown(pilot, "└ tiny-Q8_0")
        await choose(pilot, "here", "tiny-Q8_0")
        await until(pilot, lambda: "Quantized from tiny-F16" in about(pilot))


@in_loop
async def test_what_was_measured_of_a_model_is_shown(services: Services) -> None:
    path = put(services)
    number = {"value": 0.0125, "error": 0.0005}
    row = {"logits": "served", "perplexity": number, "kl_divergence": number, "same_top": number}
    report = {
        "format": 1,
        "date": "2026-11-24T20:00:00+00:00",
        "text": {"name": "a.txt"},
        "protocol": {"name": "windows", "window_tokens": 512},
        "reference": {"name": "guide"},
    }
    assert store(FoundModel("mine", path, "library"), report, row)
    async with library(services) as (_, pilot):
        await choose(pilot, "here", "mine")
        await until(pilot, lambda: "Measured: KL 0.01250 ± 0.00050" in about(pilot))


def quantized_from_guide(services: Services, name: str = "mine") -> None:
    """Put a model into the library folder whose manifest names `guide` as its source."""
    path = put(services, name)
    facts = {
        "method": "convert",
        "source": {"files": [{"name": GUIDE.name, "size_bytes": GUIDE.stat().st_size}]},
        "result": {"size_bytes": path.stat().st_size},
    }
    path.with_name(f"{path.name}.json").write_text(json.dumps(facts))


@pytest.mark.parametrize("chosen", ["mine", "guide"])
@in_loop
async def test_original_and_result_are_asked_the_same(
    services: Services, host: ScriptedHost, chosen: str
) -> None:
    """Greedily, one after the other; the first difference is shown, and one side can be kept."""
    quantized_from_guide(services)
    gate = asyncio.Semaphore(0)
    host.scripts["guide"] = Script("It was a dark night.", "hm", gate=gate)
    host.scripts["mine"] = Script("It was a bright day.", "hm", gate=gate)
    async with library(services) as (app, pilot):
        await choose(pilot, "here", chosen)
        await until_shown(pilot, "compare in chat")
        await until(pilot, lambda: ("Converted from guide" in about(pilot)) == (chosen == "mine"))
        await pilot.press("v")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen))
        screen = app.screen
        await until(pilot, lambda: getattr(app.focused, "id", "") == "question")
        await pilot.press(*"why", "enter")
        await until(pilot, lambda: "guide" in host.models)
        assert "mine" not in host.models
        for _ in range(12):
            gate.release()
        await until_shown(pilot, "The same for 4 words; then “dark night.” on the left")
        assert "“bright day.” on the right" in text_of(app)
        assert text_of(app).count("42.0 tok/s") == 2
        asked = [host.models[name].requests[0] for name in ("guide", "mine")]
        assert [one.sampling for one in asked] == [asked[0].sampling] * 2
        assert (asked[0].sampling.temperature, asked[0].sampling.seed) == (0.0, 0)
        host.scripts["mine"].error = InternalError("It broke.", "Fix it.")
        await pilot.press(*"again", "enter")
        for _ in range(12):
            gate.release()
        await until_shown(pilot, "It broke. Fix it.")
        await until(pilot, lambda: not screen.is_busy)
        assert "The same for" not in text_of(app)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: chat_of(pilot).session is not None)
        await until(pilot, lambda: chat_of(pilot).session.thread.model == "mine")


@in_loop
async def test_a_model_without_an_original_is_not_compared(services: Services) -> None:
    put(services)
    async with library(services) as (app, pilot):
        await choose(pilot, "here", "mine")
        await pilot.press("v")
        await pilot.pause()
        assert isinstance(app.screen, LibraryScreen)
        assert "compare in chat" not in text_of(app)


@in_loop
async def test_models_are_listed_also_where_the_host_does_not_answer(
    services: Services, host: ScriptedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = HostUnreachable("The host does not respond.", "Try again.")
    monkeypatch.setattr(host, "stats", failing(error))
    async with library(services) as (_, pilot):
        await until_shown(pilot, "The host does not respond.")
        assert pilot.app.screen.query_one("#worth-list", ColumnList).list.option_count > 1


@in_loop
async def test_filter_and_sort(services: Services) -> None:
    put(services)
    async with library(services) as (_, pilot):
        here = pilot.app.screen.query_one("#here-list", ColumnList)
        await pilot.press("slash", *"mine")
        await until(pilot, lambda: here.list.option_count == 1)
        assert here.list.get_option_at_index(0).id == "mine"
        await pilot.press("escape")
        await until(pilot, lambda: here.list.option_count == 2)
        await pilot.press("s", "s")
        await until_shown(pilot, "by size")
        assert here.selected == "guide"
        await pilot.press("s")
        await until_shown(pilot, "by speed")


@in_loop
async def test_a_typed_repository_with_a_quant(online: Services) -> None:
    async with library(online) as (app, pilot):
        await look_for(pilot, f"{REPO}:Q8_0")
        await until(pilot, lambda: isinstance(app.screen, PickFile))
        found = app.screen.query_one(ColumnList)
        await until(pilot, lambda: found.selected == "Q8_0")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, LibraryScreen))
        assert online.downloads.items() == ()


@in_loop
async def test_a_repository_that_is_not_there(online: Services) -> None:
    async with library(online) as (_, pilot):
        await look_for(pilot, "nobody/tiny")
        await until_shown(pilot, REPO)  # The Hub's search results instead.
        await look_for(pilot, "nothing at all")
        await until_shown(pilot, "no GGUF repository")


@in_loop
async def test_from_the_catalogue(online: Services, hub: HubServer) -> None:
    entry = load_catalogue().entries[1]
    hub.repos[entry.repo] = Repo({f"a-{entry.recommended}.gguf": b"GGUF" * 100}, gated=True)
    async with library(online) as (app, pilot):
        await pilot.press("2")
        await choose(pilot, "worth", entry.name)
        await until(pilot, lambda: "needs about" in about(pilot))
        assert entry.licence in about(pilot)
        assert "about" in text_of(app) and "Fit" in text_of(app)
        await pilot.press("p")
        await until(pilot, lambda: isinstance(app.screen, PickFile))
        await until_shown(pilot, "Gated: accept its terms")


@in_loop
async def test_offline_is_told_with_what_to_do(services: Services) -> None:
    async with library(services) as (app, pilot):
        await look_for(pilot, "tiny")
        await until(pilot, lambda: "ffline" in text_of(app))


@in_loop
async def test_chat_with_a_model(services: Services) -> None:
    put(services)
    async with library(services) as (_, pilot):
        await choose(pilot, "here", "mine")
        await pilot.press("enter")
        await until(
            pilot,
            lambda: (session := chat_of(pilot).session) is not None and session.model == "mine",
        )


@in_loop
async def test_quantize_a_model(services: Services) -> None:
    put(services)
    async with library(services) as (app, pilot):
        await choose(pilot, "here", "mine")
        await pilot.press("z")
        await until(pilot, lambda: isinstance(app.screen, QuantizeScreen))
        await until_shown(pilot, "mine · F16")


@in_loop
async def test_delete_unloads_and_says_what_it_frees(
    services: Services, host: ScriptedHost
) -> None:
    path = put(services)
    worker = WorkerStats("mine", str(path), 1, 0, 0, 0, 0.0)
    host.told = HostStats(1, "", 0.0, 0, workers=(worker,))
    async with library(services) as (app, pilot):
        await until_shown(pilot, "loaded")
        await choose(pilot, "here", "mine")
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await until_shown(pilot, "It frees")
        shown = text_of(app)
        assert "The model is loaded" in shown and "mine.gguf" in shown
        await pilot.press("y")
        await until(pilot, lambda: not path.exists())
        assert host.unloaded == [str(path)]
        await until_shown(pilot, "mine is deleted")


@in_loop
async def test_a_bundled_model_is_not_deleted(services: Services) -> None:
    async with library(services) as (_, pilot):
        await choose(pilot, "here", "guide")
        await pilot.press("d")
        await until_shown(pilot, "guide comes with Hearth.")


@in_loop
async def test_import_a_copy(services: Services, tmp_path: Path) -> None:
    source = tmp_path / "elsewhere.gguf"
    shutil.copyfile(DRAFT, source)
    async with library(services) as (app, pilot):
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.screen, AskLine))
        app.screen.query_one(Input).value = str(source)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, PickOne))
        await pilot.press("enter")
        await until_shown(pilot, "elsewhere is in the library.")
        assert (services.paths.models / "elsewhere.gguf").is_file() and source.is_file()
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.screen, AskLine))
        app.screen.query_one(Input).value = str(tmp_path / "nothing.gguf")
        await pilot.press("enter")
        await until(pilot, lambda: str(app.screen.query_one(".wrong", Static).content))
        assert app.screen.query_one(Input).value == str(tmp_path / "nothing.gguf")


@in_loop
async def test_an_import_goes_on_while_another_model_is_unloaded(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_go_on = threading.Event(), threading.Event()

    def slowly(*args: Any) -> Path:
        began.set()
        may_go_on.wait()
        return adopt(*args)

    monkeypatch.setattr("hearth.app.tui.screens.library.adopt", slowly)
    shutil.copyfile(DRAFT, tmp_path / "elsewhere.gguf")
    async with library(services) as (app, pilot):
        await choose(pilot, "here", "guide")
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.screen, AskLine))
        app.screen.query_one(Input).value = str(tmp_path / "elsewhere.gguf")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, PickOne))
        await pilot.press("enter")
        await until(pilot, began.is_set)
        await pilot.press("u")
        await until_shown(pilot, "guide is unloaded.")
        may_go_on.set()
        await until_shown(pilot, "elsewhere is in the library.")
        here = app.screen.query_one("#here-list", ColumnList)
        await until(pilot, lambda: here.list.option_count == 2)


@in_loop
async def test_pause_move_resume_and_cancel(online: Services, hub: HubServer) -> None:
    hub.faults += [Fault("stall", f"tiny-{q}.gguf", 1000, 99) for q in ("Q4_K_M", "Q8_0")]
    async with library(online) as (app, pilot):
        for quant in ("Q4_K_M", "Q8_0"):
            await look_for(pilot, f"{REPO}:{quant}")
            await until(pilot, lambda: isinstance(app.screen, PickFile))
            await until(pilot, lambda q=quant: app.screen.query_one(ColumnList).selected == q)
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, LibraryScreen))
        await until(pilot, lambda: len(online.downloads.items()) == 2)
        first, second = (item.id for item in online.downloads.items())
        await choose(pilot, "downloads", second)
        await pilot.press("space")
        await until(pilot, lambda: online.downloads.items()[1].state == "paused")
        await until_shown(pilot, "paused")
        await pilot.press("ctrl+up")
        await until(pilot, lambda: online.downloads.items()[0].id == second)
        await choose(pilot, "downloads", second)
        await pilot.press("space")
        await until(pilot, lambda: online.downloads.items()[0].state != "paused")
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: [item.id for item in online.downloads.items()] == [first])
        await online.downloads.cancel(first)  # Its process has ended when this returns.


@in_loop
async def test_what_is_known_of_the_last_use(services: Services) -> None:
    thread = services.chats.create(model="guide").id
    services.chats.add(thread, None, "user", "x")
    async with library(services) as (app, pilot):
        day = date.fromtimestamp(services.chats.thread(thread).changed_at).isoformat()
        await until(
            pilot,
            lambda: any("guide" in line and day in line for line in text_of(app).splitlines()),
        )


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@in_loop
async def test_each_tab_fits_every_width(services: Services, width: int) -> None:
    async with library(services, (width, 24)) as (app, pilot):
        assert "F16" in text_of(app)
        for key, words in (("2", "about"), ("3", "Press f and"), ("4", "No downloads")):
            await pilot.press(key)
            await until_shown(pilot, words)


@in_loop
async def test_memory_is_timed_once_where_nobody_has_so_that_speeds_are_told(
    services: Services,
) -> None:
    times = 0

    async def measure() -> Bandwidth:
        nonlocal times
        times += 1
        return Bandwidth(20e9, 2, "a processor", "2026-01-01", is_busy=True)  # It is not kept.

    services.measure_bandwidth = measure
    async with library(services, (160, 34)) as (_, pilot):
        await pilot.press("2")
        await until(pilot, lambda: "20.0 GB/s" in about(pilot))
        await pilot.press("1", "r", "2")
        await until(pilot, lambda: "20.0 GB/s" in about(pilot))
    assert times == 1


@in_loop
async def test_memory_is_not_timed_while_a_model_answers(
    services: Services, host: ScriptedHost
) -> None:
    services.measure_bandwidth = failing(AssertionError("it was"))
    worker = WorkerStats("guide", "guide.gguf", pid=1, running=1, waiting=0, restarts=0, idle_s=0.0)
    host.told = HostStats(1, "", 0.0, 0, workers=(worker,))
    async with library(services) as (_, pilot):
        await choose(pilot, "here", "guide")
        await until(pilot, lambda: "guide" in about(pilot) and "context" in about(pilot))
        assert "GB/s" not in about(pilot)
        assert "KV cache of" in about(pilot) and "MQA with 1 KV heads" in about(pilot)


@in_loop
async def test_what_cannot_be_timed_is_told(services: Services) -> None:
    services.measure_bandwidth = failing(OSError("no process can be made"))
    async with library(services) as (_, pilot):
        await until_shown(pilot, "could not be measured")


@in_loop
async def test_a_model_that_can_draft_is_shown_and_used(services: Services) -> None:
    file = services.paths.settings_file
    async with library(services) as (_, pilot):
        await choose(pilot, "here", "guide")
        await until(pilot, lambda: "Can draft for it: guide-draft" in about(pilot))
        await pilot.press("g")
        await until(pilot, lambda: "guide-draft drafts for it" in about(pilot))
        assert services.settings.for_model("guide").load.draft == "guide-draft"
        assert '[models.guide]\ndraft = "guide-draft"' in file.read_text()
        await pilot.press("g")
        await until(pilot, lambda: "Can draft for it: guide-draft" in about(pilot))
        assert services.settings.for_model("guide").load.draft == ""


@in_loop
async def test_a_draft_model_that_is_not_here_can_be_ended(
    services: Services, tiny_model: Path
) -> None:
    services.paths.models.mkdir(parents=True)
    mine = shutil.copy(tiny_model, services.paths.models / "mine.gguf")
    file = services.paths.settings_file
    file.parent.mkdir(parents=True)
    file.write_text('[models.mine]\ndraft = "gone"\n')
    services.use_settings()
    with pytest.raises(ModelNotFound, match=r'draft .*models.*mine.*There is no model "gone"'):
        with_settings(FoundModel("mine", mine, "library"), services.settings)
    async with library(services) as (_, pilot):
        await choose(pilot, "here", "mine")
        await until(pilot, lambda: "gone drafts for it; g ends that" in about(pilot))
        await pilot.press("g")
        await until(pilot, lambda: not services.settings.all("mine")["draft"].value)


@pytest.mark.parametrize(
    ("text", "environ", "origin"),
    [
        ('[load]\ndraft = "guide-draft"\n', {}, "settings.toml, [load]"),
        ("", {"HEARTH_DRAFT": "guide-draft"}, "HEARTH_DRAFT"),
    ],
)
@in_loop
async def test_a_draft_model_that_holds_for_all_models_is_told(
    services: Services, text: str, environ: dict[str, str], origin: str
) -> None:
    file = services.paths.settings_file
    file.parent.mkdir(parents=True)
    file.write_text(text)
    services.reload = lambda: load_settings(file, environ)
    services.use_settings()
    async with library(services) as (app, pilot):
        await choose(pilot, "here", "guide")
        await until(pilot, lambda: "guide-draft drafts for it" in about(pilot))
        await pilot.press("g")
        told = f"guide-draft drafts for guide (draft: {origin})"
        await until(pilot, lambda: told in notices(app))


@in_loop
async def test_a_model_without_its_template_file_can_have_a_draft(services: Services) -> None:
    file = services.paths.settings_file
    file.parent.mkdir(parents=True)
    file.write_text('[models."Guide"]\nchat_template = "gone.jinja"\n')
    services.use_settings()
    async with library(services) as (_, pilot):
        screen: Any = pilot.app.screen
        await choose(pilot, "here", "guide")
        await until(pilot, lambda: "gone.jinja" in about(pilot) and screen._drafts)
        await pilot.press("g")
        await until(pilot, lambda: services.settings.all("guide")["draft"].value)
        assert file.read_text().count("[models") == 1
