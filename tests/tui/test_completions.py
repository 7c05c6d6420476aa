"""Completions of the word at the cursor: commands and files, by keys and by mouse."""

from __future__ import annotations

from pathlib import Path

from async_tests import in_loop
from box_app import commands, opened
from dialog_app import settle
from hearth.app.slash_commands import COMMANDS
from hearth.app.tui.widgets.completions import of_paths


@in_loop
async def test_tab_completes_a_command(tmp_path: Path) -> None:
    async with opened(tmp_path, width=60) as (app, pilot):
        await pilot.press(*"/mo")
        await settle(app, pilot)
        assert app.offered == ["/model "] and app.box.completions.display
        await pilot.press("tab")
        await settle(app, pilot)
        assert app.box.text == "/model " and app.offered == []


@in_loop
async def test_an_entry_of_the_list_can_be_chosen(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"/s", "down", "enter")
        await settle(app, pilot)
        assert app.box.text == "/set " and app.said == []
        await pilot.press(*"x", "ctrl+u", *"/th", "tab", *"o")
        await settle(app, pilot)
        assert app.offered == ["on", "off"]
        await pilot.press("down", "tab", "enter")
        await settle(app, pilot)
        assert commands(app) == [("think", "off")]


@in_loop
async def test_escape_closes_the_list_until_something_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        app.box.set_busy(True)
        await pilot.press(*"/m", "escape")
        await settle(app, pilot)
        assert app.offered == [] and app.said == []
        await pilot.press("o")
        await settle(app, pilot)
        assert app.offered == ["/model "]


@in_loop
async def test_a_click_takes_an_entry(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"/mo")
        await settle(app, pilot)
        await pilot.click("Completions", offset=(3, 0))
        await settle(app, pilot)
        assert app.box.text == "/model "
        assert app.focused is app.box.area


@in_loop
async def test_tab_completes_paths_with_quotes_where_needed(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "my notes.txt").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"see @")
        await settle(app, pilot)
        assert app.offered == ["@src/"]
        await pilot.press("tab")
        await settle(app, pilot)
        assert app.box.text == "see @src/"
        assert app.offered == ['@"src/my notes.txt"']
        await pilot.press("tab", "space", *"now")
        await settle(app, pilot)
        assert app.box.text == 'see @"src/my notes.txt" now'


def test_a_path_may_contain_an_at_sign(tmp_path: Path) -> None:
    (tmp_path / "a@b").mkdir()
    (tmp_path / "a@b" / "c.txt").write_text("x")
    (completion,) = of_paths('see @"a@b/', tmp_path)
    assert (completion.begin, completion.text) == (4, '@"a@b/c.txt"')


@in_loop
async def test_names_of_files_are_shown_safely(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[31m[b]").write_text("x")
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"@a")
        await settle(app, pilot)
        option = app.box.completions.get_option_at_index(0)
        assert str(option.prompt) == "a␛[31m[b]"


@in_loop
async def test_without_a_list_tab_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"word", "tab")
        assert app.focused is app.query_one("#other")


@in_loop
async def test_begin_does_a_command_or_lets_its_argument_be_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        app.box.begin(COMMANDS["new"])
        app.box.begin(COMMANDS["import"])
        await settle(app, pilot)
        assert commands(app) == [("new", "")]
        assert app.box.text == "/import "
