"""Foreign texts in model files and settings: the terminal gets them only as text."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.containers import VerticalScroll
from textual.widgets import Input, OptionList, Select

from async_tests import in_loop
from gguf_raw import TENSOR_F16, RawGguf, small_llama, string, strings, u32
from harmless import ALL, MARKUP, check, every_option, every_row, pages
from hearth.app.library.hub import Hub
from hearth.app.settings import load_settings
from hearth.app.tui import quantizing
from hearth.app.tui.screens import settings
from hearth.app.tui.screens.dialogs import Confirm
from hearth.app.tui.screens.pick_file import PickFile
from hearth.app.tui.screens.prompt_view import PromptView
from hearth.app.tui.screens.settings import Entry
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.column_list import ColumnList
from hearth.backends.contract.events import Prompt
from hearth.backends.contract.messages import Message
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.errors import NoChatTemplate
from hearth.quant.gguf import preflight
from hearth.quant.gguf.quantize_method import GgufMethod
from hearth.quant.methods import Target
from hub_server import Repo, only_hub
from payloads import MARKDOWN_PAYLOADS, PAYLOADS
from pilots import ask, chat_of, opened, say, until, until_shown
from scripted import Script, ScriptedHost, ScriptedModel

EACH = (*PAYLOADS[::6], *MARKDOWN_PAYLOADS)
"""Every sequence once, without surrounding text."""
REPO = "organisation/name-GGUF"
SIZE = (100, 32)


# ---- files of models


def sound(text: str) -> RawGguf:
    """A model whose header has `text` wherever it may have any text."""
    raw = small_llama()
    for key in ("name", "author", "basename", "description", "license", "license.link", "url"):
        raw.put(f"general.{key}", string(text))
    raw.put("general.tags", strings([text, text]))
    raw.put("general.file_type", u32(1))
    raw.put("tokenizer.chat_template", string(text))
    raw.put("tokenizer.ggml.pre", string(text))
    for tensor in raw.tensors:
        tensor.type = TENSOR_F16 if len(tensor.dims) == 2 else tensor.type
    return raw


def of_no_architecture(text: str) -> RawGguf:
    """A model whose architecture is called `text`."""
    raw = sound(text)
    raw.put("general.architecture", string(text))
    return raw


def with_unknown_type(text: str) -> RawGguf:
    """A model with a tensor called `text`, of an unknown type."""
    raw = sound(text)
    raw.tensors[5].name, raw.tensors[5].type = text, 999
    return raw


def with_key_twice(text: str) -> RawGguf:
    """A model with a key called `text`, twice."""
    raw = sound(text)
    raw.keys += [(text, u32(1)), (text, u32(2))]
    return raw


DAMAGED: tuple[Callable[[str], RawGguf], ...] = (
    of_no_architecture,
    with_unknown_type,
    with_key_twice,
)


def put(services: Services) -> list[Path]:
    """Write, for each text, a valid model that also has the text in its file name, and a damaged
    one; returns the valid ones.
    """
    folder = services.paths.models
    folder.mkdir(parents=True)
    found = []
    for at, text in enumerate(EACH):
        name = text.replace("/", "").replace("\0", "")
        path = folder / f"{at:02} {name}.gguf"
        path.write_bytes(sound(text).build())
        found.append(path)
        kind = DAMAGED[at % len(DAMAGED)]
        (folder / f"damaged {at:02}.gguf").write_bytes(kind(text).build())
    return found


@in_loop
async def test_the_library_shows_them(services: Services) -> None:
    put(services)
    async with opened(services, SIZE) as (app, pilot):
        app.switch_mode("library")
        await until_shown(pilot, "18 ␛X string")
        rows = app.screen.query_one("#here-list", ColumnList)
        await pages(pilot, rows.list)
        for at in range(rows.list.option_count):
            is_damaged = "damaged" in str(rows.list.get_option_at_index(at).id)
            if is_damaged or at % 16 == 3:
                rows.list.highlighted = at
                await pilot.pause()
                check(app)
        await pilot.press("home")
        for key in ("d", "i"):
            await pilot.press(key)
            await pilot.pause(0.05)
            check(app)
            while len(app.screen_stack) > 1:
                app.pop_screen()


class Told:
    """Replaces `Job`: reports progress on tensors called as in `EACH`, then fails."""

    @classmethod
    async def start(cls, *_: object) -> Told:
        return cls()

    async def updates(self) -> AsyncIterator[dict[str, Any]]:
        for done, text in enumerate(EACH):
            yield {"done": done, "total": len(EACH), "tensor": text, "eta_s": 7.0, "note": text}

    async def result(self) -> dict[str, Any]:
        raise NoChatTemplate("".join(EACH), "".join(MARKUP[:9]))

    def stop(self) -> None:
        raise AssertionError("nobody stops it")

    async def close(self) -> None:
        pass


@in_loop
async def test_the_quantize_screen_shows_them(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantizing, "Job", Told)
    few = [Target(name, "") for name in ("F16", "Q8_0", "Q4_K_M", "Q1_0")]
    monkeypatch.setattr(GgufMethod, "targets", lambda _: few)
    paths = put(services)
    async with opened(services, SIZE) as (app, pilot):
        app.switch_mode("quantize")
        await until(pilot, lambda: bool(app.screen.query("#source")))
        source = app.screen.query_one("#source", Select)
        await until(pilot, lambda: source.value != Select.NULL)
        await every_option(pilot)
        screen: Any = app.screen

        async def choose(path: Path) -> None:
            source.value = str(path)
            await until(pilot, lambda: screen._planned.path == path and screen.is_planned)

        await choose(paths[0])
        screen.query_one("#types", ColumnList).select("gguf Q8_0")
        await pilot.press("q")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        check(app)
        await pilot.press("y")
        await until(pilot, lambda: [one.state for one in app.quantizing.items] == ["failed"])
        await pilot.pause()
        await pilot.pause(0.5)
        check(app)
        for path, text in list(zip(paths, EACH, strict=True))[1::8]:
            path.write_bytes(of_no_architecture(text).build())  # Changes meanwhile.
            await choose(path)
            await every_row(pilot, screen.query_one("#types", ColumnList))


class FromHeader(ScriptedModel):
    """A worker's report on the file: its names and its template, as in the header."""

    def __init__(self, path: Path) -> None:
        found = preflight.check(path).metadata
        name, template = str(found["general.name"]), str(found["tokenizer.chat_template"])
        told = {"name": name, "quantization": str(found["general.license"]), "notices": (name,)}
        reply = f"{template}\n\n{found['general.description']}"
        error = NoChatTemplate(f"The template of {name} fails: {template}", template)
        script = Script(reply, template, [(name, template)], error=error, info=told)
        super().__init__(ModelSpec(str(path), path.stem), script)
        self._template = template

    async def render(self, request: Request) -> Prompt:
        return Prompt(self._template, tuple(self._template.encode()), (self._template,))


@in_loop
async def test_the_chat_shows_them(services: Services, host: ScriptedHost) -> None:
    paths = put(services)

    async def backend(spec: ModelSpec) -> ScriptedModel:
        return FromHeader(Path(spec.path))

    host.backend = backend  # type: ignore[method-assign]
    async with opened(services, SIZE) as (app, pilot):
        chat = chat_of(pilot)
        await say(pilot, "/model")
        await until(pilot, lambda: len(app.screen_stack) > 1)
        await pilot.pause()
        await pages(pilot, app.screen.query_one(OptionList))
        await pilot.press("escape")
        for path in paths[::8]:
            await chat.leave()
            await say(pilot, f"/model {path}")
            await pilot.pause()
            await ask(pilot, "x")
            check(app)
            app.clear_notifications()
        view = PromptView(FromHeader(paths[1]), Request(messages=(Message("user", "x"),)), 5)
        app.push_screen(view)
        await until_shown(pilot, "tokens")
        await pages(pilot, view.query_one(VerticalScroll))


# ---- files of the Hub


@pytest.fixture
def online(services: Services, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Repo]:
    """A repository of the stand-in for the Hub that has the texts wherever it may have any text."""
    with only_hub(monkeypatch, tmp_path) as server:
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        services.hub = Hub(address=server.url)
        files = {f"{at} {text} Q4_K_M.gguf": sound(text).build() for at, text in enumerate(EACH)}
        files |= {f"{at} {text}.bin": b"x" for at, text in enumerate(EACH)}
        repo = Repo(files, True, licence="".join(EACH), tags=("gguf", *EACH), parameters=10**6)
        server.repos[REPO] = repo
        yield repo


@in_loop
async def test_a_repository_is_found_and_a_file_picked(services: Services, online: Repo) -> None:
    assert online.gated
    async with opened(services, SIZE) as (app, pilot):
        app.switch_mode("library")
        await until_shown(pilot, "fits")
        await pilot.press("escape", "f")
        await until(pilot, lambda: isinstance(app.focused, Input))
        await pilot.press(*"name", "enter")
        await until_shown(pilot, REPO)
        await pilot.pause()
        check(app)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, PickFile))
        await until_shown(pilot, "Gated")
        rows = app.screen.query_one(ColumnList)
        await pages(pilot, rows.list)
        for at in range(0, rows.list.option_count, 8):
            rows.list.highlighted = at
            await pilot.pause()
            check(app)


# ---- settings


def as_toml(value: Any) -> str:
    """`value` in TOML, whose strings are those of JSON, except for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@in_loop
async def test_values_and_origins_of_settings(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        Entry("group", f"name{at}", text, text, "", "help", "a text", is_key=at % 2 == 0)
        for at, text in enumerate(ALL)
    ]
    monkeypatch.setattr(settings, "entries", lambda *_: found)
    async with opened(services, SIZE) as (app, pilot):
        app.switch_mode("settings")
        await until(pilot, lambda: bool(app.screen.query("#list")))
        screen: Any = app.screen
        await until(pilot, lambda: screen.list.list.option_count)
        check(app, *(text for text in MARKUP[:20] if len(text) < 20))
        await every_row(pilot, screen.list)
        for at in range(1, screen.list.list.option_count, 90):
            screen.list.list.highlighted = at
            await pilot.pause()
            if screen.chosen is not None:
                await pilot.press("e")
                check(app)
                await pilot.press("x", "enter")  # The error is shown.
                await pilot.pause()
                check(app)
                await pilot.press("escape")


@in_loop
async def test_a_settings_file_that_says_them(services: Services, tmp_path: Path) -> None:
    text = "".join(EACH)
    folder = tmp_path / f"{''.join(MARKUP[:4]).replace('/', '')}\x1b[31m\u202e"
    folder.mkdir()
    services.paths = replace(services.paths, config=folder)
    file = services.paths.settings_file
    values = {"system": text, "model": EACH[0], "library_folders": ["/x" + one for one in MARKUP]}
    lines = [f"{name} = {as_toml(value)}" for name, value in values.items()]
    table = f"[sampling]\nstop = {as_toml(EACH)}\n"
    file.write_text("\n".join([*lines, table]), "utf-8")
    services.reload = lambda: load_settings(file, {"HEARTH_SYSTEM": text})
    services.settings = services.reload()
    async with opened(services, SIZE) as (app, pilot):
        app.switch_mode("settings")
        await until_shown(pilot, "HEARTH_SYSTEM")
        screen: Any = app.screen
        await until_shown(pilot, "[red]")
        for name in (*values, "stop"):
            screen.list.select(f"set:{name}")
            await pilot.pause()
            check(app)
            await pilot.press("e")
            await pilot.pause()
            check(app)
            await pilot.press("escape")
        file.write_text(f'model = "{"".join(MARKUP)}\n', "utf-8")
        screen.list.select("set:max_sessions")
        await pilot.press("delete")  # The file cannot be read any more, and the screen reports it.
        await until(pilot, lambda: bool(app.error_lines))
        await pilot.pause()
        check(app)
