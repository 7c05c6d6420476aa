"""The slash commands: which are understood, which are refused, and the palette over them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.command import CommandPalette

from async_tests import in_loop
from hearth.app.cli import repl
from hearth.app.settings import layer_of
from hearth.app.slash_commands import (
    CHAT_SETTINGS,
    COMMANDS,
    ArgumentMissing,
    Command,
    UnknownCommand,
    changed_setting,
    is_command,
    parse,
)
from hearth.app.tui.widgets.prompt_box import ChatCommands, PromptBox


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/new", Command("new")),
        ("/NEW  ", Command("new")),
        ("/model  guide ", Command("model", "guide")),
        ("/model", Command("model")),
        ("/system Be brief.\nAnd kind.", Command("system", "Be brief.\nAnd kind.")),
        ("/set temperature 0.2", Command("set", "temperature 0.2")),
        ("/think off", Command("think", "off")),
        ("/json off", Command("json", "off")),
        ("/schema my schema.json", Command("schema", "my schema.json")),
        ("/regex off", Command("json", "off")),
        ("/choice a | b", Command("choice", "a | b")),
        ("/save-preset Mine", Command("save-preset", "Mine")),
        ("/export json a.json", Command("export", "json a.json")),
        ("/library", Command("library")),
        ("/exit", Command("quit")),
        ("/?", Command("help")),
    ],
)
def test_what_is_understood(text: str, command: Command) -> None:
    assert is_command(text)
    assert parse(text) == command


@pytest.mark.parametrize("text", ["hello", "/usr/bin", " /new", "//", "/", "/1", "a /new"])
def test_what_is_no_command(text: str) -> None:
    assert not is_command(text)


@pytest.mark.parametrize(
    ("text", "near"), [("/modle x", "/model"), ("/presets", "/preset"), ("/zzz", "/help")]
)
def test_an_unknown_command_names_the_nearest(text: str, near: str) -> None:
    with pytest.raises(UnknownCommand) as caught:
        parse(text)
    assert near in caught.value.hint


@pytest.mark.parametrize(
    "text", ["/think", "/think maybe", "/json yes", "/import", "/regex", "/new now", "/library x"]
)
def test_an_argument_that_does_not_fit_is_refused(text: str) -> None:
    with pytest.raises(ArgumentMissing) as caught:
        parse(text)
    assert COMMANDS[caught.value.param].usage in caught.value.hint


@pytest.mark.parametrize(
    ("written", "name", "value"),
    [("seed auto", "seed", "auto"), ("top-k 3", "top_k", 3), ("stop a,b", "stop", None)],
)
def test_what_set_keeps_is_read_again(written: str, name: str, value: object) -> None:
    changed, kept = changed_setting(written)
    assert changed == name and (value is None or kept == value)
    layer = layer_of(json.loads(json.dumps({changed: kept})), "this chat")
    assert layer[name].value == CHAT_SETTINGS[name].parse(written.partition(" ")[2])


def test_the_line_mode_has_one_command_of_its_own() -> None:
    assert set(repl._COMMANDS) - set(COMMANDS) == {"chats"}, "the app lists them at the left"
    for command, _ in repl._COMMANDS.values():
        assert all(parse(f"/{alias}").name == command.name for alias in command.aliases)


def test_names_and_aliases_are_unique() -> None:
    names = [name for command in COMMANDS.values() for name in (command.name, *command.aliases)]
    assert len(names) == len(set(names))


class PaletteApp(App[None]):
    """A prompt box with the palette over it."""

    COMMANDS = frozenset({ChatCommands})

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.done: list[Command] = []

    def compose(self) -> ComposeResult:
        yield PromptBox(self.folder / "prompt-history")

    def on_prompt_box_command(self, event: PromptBox.Command) -> None:
        self.done.append(event.command)


async def chosen(folder: Path, query: str) -> tuple[list[Command], str]:
    """Effects of the palette's first entry for `query`: commands, and the text of the box."""
    app = PaletteApp(folder)
    async with app.run_test() as pilot:
        app.action_command_palette()
        await pilot.pause()
        assert isinstance(app.screen, CommandPalette)
        await pilot.press(*query)
        await pilot.pause()
        await app.workers.wait_for_complete()
        await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        if isinstance(app.screen, CommandPalette):  # The first Enter only closed the field.
            await pilot.press("enter")
            await pilot.pause()
        await pilot.pause()
        return app.done, app.query_one(PromptBox).text


@in_loop
async def test_the_palette_does_a_command(tmp_path: Path) -> None:
    assert await chosen(tmp_path, "archive") == ([Command("archive")], "")


@in_loop
async def test_the_palette_lets_an_argument_be_written(tmp_path: Path) -> None:
    assert await chosen(tmp_path, "import") == ([], "/import ")


@in_loop
async def test_the_palette_offers_every_command(tmp_path: Path) -> None:
    app = PaletteApp(tmp_path)
    async with app.run_test():
        provider = ChatCommands(app.screen)
        found = [hit async for hit in provider.discover()]
        assert len(found) == len(COMMANDS)
        hits = [hit async for hit in provider.search("side by side")]
        assert [hit.text for hit in hits] == ["Chat: /compare"]
