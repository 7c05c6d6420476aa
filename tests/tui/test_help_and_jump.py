"""Help, which lists the current keys, and jump mode, which moves the focus anywhere."""

from contextlib import asynccontextmanager

import pytest
from textual import events
from textual.widgets import Input, OptionList

from async_tests import in_loop
from hearth.app.tui.screens.help import HelpScreen
from hearth.app.tui.screens.jump import JumpScreen, labels
from polling import until
from screen_app import app_on
from screens import text_of


@asynccontextmanager
async def shown(services):
    """Shows the engine screen."""
    app = app_on("engine", services)
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "Requests" in text_of(app))
        yield app, pilot


@in_loop
async def test_help_lists_the_keys_of_screen_and_app_with_their_ids(services):
    async with shown(services) as (app, pilot):
        await pilot.press("f1")
        await until(pilot, lambda: "engine.cancel" in text_of(app))
        text = text_of(app)
        assert "Keys · engine" in text
        assert text.index("on this screen") < text.index("everywhere")
        line = next(line for line in text.splitlines() if "engine.unload" in line)
        assert "unload model" in line and " u " in line


@in_loop
async def test_help_is_searched_by_key_deed_and_id(services):
    async with shown(services) as (app, pilot):
        await pilot.press("f1")
        for wanted in ("unload", "engine.unl", "model unload"):
            app.screen.query_one(Input).value = wanted
            await until(pilot, lambda: "engine.unload" in text_of(app))
            await until(pilot, lambda: "engine.cancel" not in text_of(app))
            app.screen.query_one(Input).value = ""
            await until(pilot, lambda: "engine.cancel" in text_of(app))
        app.screen.query_one(Input).value = "nothing at all"
        await until(pilot, lambda: "No matching keys." in text_of(app))


@in_loop
async def test_help_is_searched_without_regard_to_capitals(services):
    async with app_on("library", services).run_test(size=(100, 40)) as pilot:
        await pilot.press("f1", *"hub")
        await until(pilot, lambda: "library.search" in text_of(pilot.app))


@in_loop
async def test_help_tells_remapped_keys(services):
    async with shown(services) as (app, pilot):
        app.set_keymap({"engine.unload": "f9"})
        await pilot.press("f1")
        await until(pilot, lambda: "engine.unload" in text_of(app))
        line = next(line for line in text_of(app).splitlines() if "engine.unload" in line)
        assert "f9" in line


@pytest.mark.parametrize("key", ["escape", "f1"])
@in_loop
async def test_help_leaves_all_as_it_was(services, key):
    async with shown(services) as (app, pilot):
        focused = app.focused
        await pilot.press("f1")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("down", "pagedown", "up", "pageup", key)
        assert not isinstance(app.screen, HelpScreen) and app.focused is focused


@in_loop
async def test_a_letter_puts_the_focus_there(services):
    async with shown(services) as (app, pilot):
        chain = [widget for widget in app.screen.focus_chain if widget.region.area]
        assert len(chain) > 0
        for letter, widget in zip(labels(len(chain)), chain, strict=True):
            await pilot.press("ctrl+o")
            assert isinstance(app.screen, JumpScreen)
            await until(pilot, lambda: "Press a letter" in text_of(app))
            await pilot.press(*letter)
            await until(pilot, lambda: not isinstance(app.screen, JumpScreen))
            assert app.focused is widget


@pytest.mark.parametrize("key", ["escape", "m", "ctrl+o"])
@in_loop
async def test_anything_else_leaves_the_focus_where_it_was(services, key):
    async with shown(services) as (app, pilot):
        focused = app.focused
        assert focused is None or isinstance(focused, OptionList)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, JumpScreen))
        await pilot.press(key)
        await until(pilot, lambda: not isinstance(app.screen, JumpScreen))
        assert app.focused is focused


@in_loop
async def test_letters_that_come_at_once_leave_the_screen_below(services):
    async with shown(services) as (app, pilot):
        await pilot.press("ctrl+o")
        for key in "mm":
            app.post_message(events.Key(key, key))
        await until(pilot, lambda: not isinstance(app.screen, JumpScreen))
        await pilot.pause()
        assert "Requests" in text_of(app)


@pytest.mark.parametrize("count", [0, 1, 26, 27, 700])
def test_no_label_begins_another(count):
    found = labels(count)
    assert len(set(found)) == count
    assert not any(a != b and b.startswith(a) for a in found[:50] for b in found)
