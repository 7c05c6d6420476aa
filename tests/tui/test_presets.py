"""The list of presets: each key, and that its effect is on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from async_tests import in_loop
from dialog_app import OPEN, asking, settle
from hearth.app.presets import Preset, Presets
from hearth.app.tui.screens.presets import PresetsScreen
from screens import text_of

CURRENT = Preset("Chat", "Now.", "guide", {"set": {"top_k": 3}})


@pytest.fixture
def presets(tmp_path: Path) -> Presets:
    found = Presets(tmp_path / "presets.json")
    found.save(Preset("Brief", "Be [b]brief[/b] \x1b[31m.", "guide", {"thinking": True}))
    found.save(Preset("Poet", "Rhyme.", "", {"set": {"stop": ["END"]}}))
    return found


@pytest.mark.parametrize("width", [60, 120])
@in_loop
async def test_the_marked_one_is_shown_in_full_and_used(presets: Presets, width: int) -> None:
    async with asking(PresetsScreen(presets, CURRENT), width) as (app, pilot):
        assert "Be [b]brief[/b] ␛[31m." in text_of(app)
        assert "thinking" in text_of(app)
        await pilot.press("down")
        await pilot.pause()
        assert "Rhyme." in text_of(app) and '["END"]' in text_of(app)
        await pilot.press("enter")
        await pilot.pause()
        assert app.answer == presets.get("Poet")


@in_loop
async def test_escape_uses_none(presets: Presets) -> None:
    async with asking(PresetsScreen(presets, CURRENT)) as (app, pilot):
        await pilot.press("escape")
        await pilot.pause()
        assert app.answer is None


@in_loop
async def test_a_click_uses_one(presets: Presets) -> None:
    async with asking(PresetsScreen(presets, CURRENT)) as (app, pilot):
        assert await pilot.click("OptionList", offset=(2, 1))
        await pilot.pause()
        assert app.answer == presets.get("Poet")


@in_loop
async def test_the_chat_is_kept_under_a_name(presets: Presets) -> None:
    async with asking(PresetsScreen(presets, CURRENT)) as (app, pilot):
        await pilot.press("s")
        await pilot.pause()
        await pilot.press(*"Mine", "enter")
        await settle(app, pilot)
        assert presets.get("Mine") == Preset("Mine", "Now.", "guide", {"set": {"top_k": 3}})
        assert "Now." in text_of(app)  # The new one is selected.


@in_loop
async def test_another_one_is_replaced_only_after_a_yes(presets: Presets) -> None:
    async with asking(PresetsScreen(presets, CURRENT)) as (app, pilot):
        for answer, system in (("n", "Rhyme."), ("y", "Now.")):
            await pilot.press("s")
            await pilot.pause()
            await pilot.press(*"poet", "enter")
            await pilot.pause()
            await pilot.press(answer)
            await settle(app, pilot)
            assert presets.get("poet").system == system


@in_loop
async def test_one_gets_another_name(presets: Presets) -> None:
    async with asking(PresetsScreen(presets, CURRENT)) as (app, pilot):
        await pilot.press("r")
        await pilot.pause()
        await pilot.press(*"Poet", "enter")
        await pilot.pause()
        assert "There is a preset called Poet" in text_of(app)
        await pilot.press("backspace", *"m", "enter")
        await settle(app, pilot)
        assert [preset.name for preset in presets.all()] == ["Poem", "Poet"]


@in_loop
async def test_one_is_deleted_only_after_a_yes(presets: Presets) -> None:
    async with asking(PresetsScreen(presets, CURRENT)) as (app, pilot):
        await pilot.press("d")
        await pilot.pause()
        await pilot.press("enter")
        await settle(app, pilot)
        assert len(presets.all()) == 2
        await pilot.press("d")
        await pilot.pause()
        await pilot.press("y")
        await settle(app, pilot)
        assert [preset.name for preset in presets.all()] == ["Poet"]
        assert "Rhyme." in text_of(app)


@in_loop
async def test_an_empty_list_says_what_a_preset_is(tmp_path: Path) -> None:
    async with asking(PresetsScreen(Presets(tmp_path / "none.json"), CURRENT)) as (app, pilot):
        assert "No presets yet." in text_of(app)
        await pilot.press("enter", "d", "r")
        await settle(app, pilot)
        assert app.screen is app.question and app.answer is OPEN


@in_loop
async def test_a_broken_file_is_told(presets: Presets, tmp_path: Path) -> None:
    (tmp_path / "presets.json").write_text("[broken]")
    async with asking(PresetsScreen(presets, CURRENT)) as (app, pilot):
        assert "cannot be read" in text_of(app)
        await pilot.press("s")
        await pilot.pause()
        await pilot.press("enter")
        await settle(app, pilot)
        assert "cannot be read" in text_of(app)
    assert (tmp_path / "presets.json").read_text() == "[broken]"
