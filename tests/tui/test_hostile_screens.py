"""Foreign texts reach the terminal only as text, on the screens other than the chat."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from textual.containers import VerticalScroll
from textual.widgets import Input, OptionList, Select

from async_tests import in_loop
from fake_host import ENGINE, INFO
from harmless import ALL, LARGE, MARKUP, ONE_LINE, check, every_option, every_row, pages
from hearth.app.doctor import Finding
from hearth.app.library.downloads import DownloadItem, Downloads
from hearth.app.library.fit import Room
from hearth.app.library.hub import Hub, HubModel, Repository, RepositoryFile
from hearth.app.library.local import Library, LocalModel
from hearth.app.library.menu import make_menu
from hearth.app.presets import Preset, Presets
from hearth.app.tui.screens.compare import CompareScreen
from hearth.app.tui.screens.pick_file import PickFile
from hearth.app.tui.screens.presets import PresetsScreen
from hearth.app.tui.screens.prompt_view import PromptView
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.column_list import ColumnList
from hearth.backends.contract.loaded import (
    EngineStats,
    HostStats,
    ModelInfo,
    RequestStats,
    WorkerStats,
)
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.errors import ErrorInfo, HearthError
from pilots import opened, until, until_shown
from scripted import Script, ScriptedHost, ScriptedModel, failing

FEW = 40
"""The number of payloads in one text, where each text takes a separate widget, file or request."""


# ---- the status line, the engine, logs


@in_loop
async def test_the_status_line(services: Services) -> None:
    from hearth.app.tui.widgets.status_line import StatusLine, settings_in_words

    async with opened(services) as (app, pilot):
        line = app.screen.query_one(StatusLine)
        for text in ONE_LINE[::4]:
            settings = {"constraint": {"kind": text, "source": text}, "set": {text: text}}
            shown = settings_in_words(text, settings)
            line.show(text[:60], text[:60], shown, text[:60], used=3, context=9)
            await pilot.pause()
            check(app)
            line.show(text[:60], used=3, context=9)  # Alone it is not cut.
            await pilot.pause()
            check(app, *([text] if text in MARKUP and len(text) < 60 else []))


@in_loop
async def test_the_engine(services: Services, host: ScriptedHost) -> None:
    services.paths.log.mkdir(parents=True, exist_ok=True)
    log = "\n".join(text.replace("\n", " ") for text in ALL)
    for name in ("worker.log", "host.log"):
        (services.paths.log / name).write_text(log, "utf-8", "surrogatepass")
    requests = tuple(RequestStats(at, text, "queued") for at, text in enumerate(ALL))
    engine = EngineStats(**{**ENGINE, "requests": requests})
    workers = tuple(
        WorkerStats(text, text, at, 0, 0, 0, 1.0, ModelInfo(**{**INFO, "name": text, "path": text}))
        for at, text in enumerate(ALL)
    )
    busy = replace(workers[0], path="busy", engine=engine)
    host.told = HostStats(1, ALL[7], 0.0, 1, (busy, *workers))
    async with opened(services, LARGE) as (app, pilot):
        app.switch_mode("engine")
        await until_shown(pilot, "queued")
        check(app)
        for scrolled in app.screen.query(OptionList):
            await pages(pilot, scrolled)
        await pilot.press("l")
        await pilot.pause(0.1)
        check(app)


@in_loop
async def test_the_engine_says_what_is_wrong(services: Services, host: ScriptedHost) -> None:
    async with opened(services, LARGE) as (app, pilot):
        host.stats = failing(HearthError("".join(MARKUP), "".join(ALL)))  # type: ignore[method-assign]
        app.switch_mode("engine")
        await pilot.pause(0.2)
        check(app)


# ---- models


@in_loop
async def test_models_of_this_machine(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [
        LocalModel(text, Path(f"/x/{at}{text}"), "library", 5, text, text, 3, 4, error=text)
        for at, text in enumerate(ALL)
    ]
    models += [replace(one, name=f"x{one.name}", error="", file_type="F16") for one in models[::8]]
    monkeypatch.setattr(Library, "list", lambda _: models)
    async with opened(services, LARGE) as (app, pilot):
        app.switch_mode("library")
        await until_shown(pilot, "[link=")
        await every_row(pilot, app.screen.query_one("#here-list", ColumnList))
        app.switch_mode("quantize")
        await until(pilot, lambda: bool(app.screen.query("#source")))
        await until(pilot, lambda: app.screen.query_one("#source", Select).value != Select.NULL)
        await every_option(pilot)


@in_loop
async def test_models_of_the_hub(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    found = [HubModel(text, 1, 2, True, text, now) for text in ALL]
    monkeypatch.setattr(Hub, "search", lambda *_, **__: found)
    async with opened(services, LARGE) as (app, pilot):
        app.switch_mode("library")
        await pilot.pause()
        await pilot.press("escape", "f")
        await until(pilot, lambda: app.focused is not None and app.focused.id == "query")
        await pilot.press("x", "enter")
        await until_shown(pilot, "[link=")
        await every_row(pilot, app.screen.query_one("#hub-list", ColumnList))

        def refuse(*_: Any, **__: Any) -> None:
            raise HearthError("".join(MARKUP[:9]), "Wrong.")

        monkeypatch.setattr(Hub, "search", refuse)
        await pilot.press("escape", "f")
        await until(pilot, lambda: app.focused is not None and app.focused.id == "query")
        await pilot.press("x", "enter")
        await until_shown(pilot, "Wrong")
        check(app)


@in_loop
async def test_files_of_a_repository(services: Services, tmp_path: Path) -> None:
    sha = "a" * 64
    files = [RepositoryFile(f"{at}{text}.gguf", 10, sha, sha) for at, text in enumerate(ALL)]
    files += [RepositoryFile(f"{at}{text}.bin", 10, sha, sha) for at, text in enumerate(ALL)]
    repository = Repository(
        "organisation/name", "main", "c" * 40, True, "".join(ALL[:FEW]), tuple(files)
    )
    menu = make_menu(repository, services.settings, Room(1 << 30, 2 << 30, 1 << 40), tmp_path, None)
    menu = replace(menu, repository=replace(repository, repo_id=ALL[6]))
    async with opened(services, LARGE) as (app, pilot):
        app.push_screen(PickFile(menu, "".join(ALL[:FEW])))
        await until_shown(pilot, "Gated")
        await every_row(pilot, app.screen.query_one(ColumnList))


@in_loop
async def test_downloads(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    items = tuple(
        DownloadItem(
            str(at), text, "failed", text, text, 1, 2, None, None, ErrorInfo("x", text, text)
        )
        for at, text in enumerate(ALL)
    )
    monkeypatch.setattr(Downloads, "items", lambda _: items)
    async with opened(services, LARGE) as (app, pilot):
        app.switch_mode("library")
        await pilot.pause()
        await pilot.press("4")
        await until_shown(pilot, "[link=")
        await every_row(pilot, app.screen.query_one("#downloads-list", ColumnList))


@in_loop
async def test_comparing(services: Services, host: ScriptedHost, tmp_path: Path) -> None:
    names = [text.replace("/", "").replace("\0", "") for text in ONE_LINE]
    services.paths.models.mkdir(parents=True)
    for name in names[:FEW] + list(MARKUP[:FEW]):
        (services.paths.models / f"{name.replace('/', '')}.gguf").touch()
    host.scripts["guide"] = Script("\n\n".join(ALL), "\n".join(ALL))
    async with opened(services, LARGE) as (app, pilot):
        names = [model.name for model in await services.index.models()]
        app.push_screen(CompareScreen(services, names, "guide", "guide"))
        await pilot.pause()
        await every_option(pilot)
        app.screen.query_one("#question", Input).focus()
        await pilot.press(*"why", "enter")
        await pilot.pause(0.5)
        check(app)


# ---- presets, prompts, forms, the doctor


@in_loop
async def test_presets(services: Services, tmp_path: Path) -> None:
    presets = Presets(tmp_path / "presets.json")
    kept = [
        {"name": f"{at} {text}", "system": ALL[-at], "model": text, "settings": {}}
        for at, text in enumerate(text for text in ALL if text.isprintable() and len(text) < 70)
    ]
    (tmp_path / "presets.json").write_text(json.dumps({"version": 1, "presets": kept}))
    async with opened(services, LARGE) as (app, pilot):
        app.push_screen(PresetsScreen(presets, Preset("x")))
        await pilot.pause()
        options = app.screen.query_one(OptionList)
        for at in range(0, options.option_count, 15):
            options.highlighted = at
            await pilot.pause()
            check(app)


@pytest.mark.parametrize("as_ids", [False, True])
@in_loop
async def test_the_prompt_as_the_model_gets_it(services: Services, as_ids: bool) -> None:
    class Echo(ScriptedModel):
        async def detokenize(self, ids: Sequence[int]) -> str:
            return "".join(ALL[one % len(ALL)] for one in ids)

    from hearth.backends.contract.messages import Message

    model = Echo(ModelSpec("/x"), Script())
    request = Request(messages=(Message("user", "".join(ALL)),))
    async with opened(services, LARGE) as (app, pilot):
        app.push_screen(PromptView(model, request, 5))
        await until_shown(pilot, "tokens")
        if as_ids:
            await pilot.press("i")
        await pilot.pause(0.2)
        await pages(pilot, app.screen.query_one(VerticalScroll))


@in_loop
async def test_settings_of_a_chat(services: Services) -> None:
    from hearth.app.tui.screens.sampling import SamplingScreen

    settings = {
        "set": {"stop": list(ALL[:4])},
        "constraint": {"kind": "regex", "source": "\n".join(ALL)},
    }
    async with opened(services, LARGE) as (app, pilot):
        app.push_screen(SamplingScreen(settings, services.settings, "".join(ALL[:FEW])))
        await pilot.pause()
        check(app)
        for text in ALL[::60]:
            for field in app.screen.query(Input):
                field.value = text
            await pilot.pause()
            check(app)


@in_loop
async def test_what_the_doctor_finds(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    from hearth.app.tui.screens import doctor

    found = [Finding(text, "fault", text, text) for text in ALL]
    monkeypatch.setattr(doctor, "examine", lambda *_: found)
    async with opened(services, LARGE) as (app, pilot):
        app.switch_mode("doctor")
        await until_shown(pilot, "problems")
        await pages(pilot, app.screen.query_one("#findings"))
        check(app)


@in_loop
async def test_what_asked_the_endpoint(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    from hearth.app.server.logs import Answered
    from hearth.app.tui.screens import endpoint

    asked = [Answered(0.0, text, text, 200, 5, text, 1, 2) for text in ALL]
    monkeypatch.setattr(endpoint, "last_requests", lambda *_, **__: asked)
    async with opened(services, LARGE) as (app, pilot):
        app.switch_mode("endpoint")
        await until_shown(pilot, "[link=")
        for scrolled in app.screen.query(OptionList):
            await pages(pilot, scrolled)
