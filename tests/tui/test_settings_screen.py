"""The settings screen: search, editing in place, defaults, themes and keys."""

from contextlib import asynccontextmanager

import pytest
from textual.widgets import Input

from async_tests import in_loop
from hearth.app.library.hub import Hub
from hearth.app.settings import load_settings
from hearth.app.tui.screens.settings import entries
from polling import notices, until
from screen_app import app_on
from screens import text_of

FILE = "# mine\n\n[load]\n# enough\ncontext = 4096\n"


@pytest.fixture
def file(services):
    return services.paths.settings_file


@pytest.fixture
def shown(services, file):
    """Shows the settings screen, with the settings of `text` and `environ`."""

    @asynccontextmanager
    async def show(text=FILE, environ=None, size=(120, 40)):
        file.parent.mkdir(parents=True)
        file.write_text(text)
        services.reload = lambda: load_settings(file, environ or {})
        services.settings = services.reload()
        app = app_on("settings", services)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: "Loading models" in text_of(app) or size[1] < 20)
            yield app, pilot

    return show


async def choose(app, pilot, name):
    """Select the setting of this name by searching for it."""
    await pilot.press("slash")
    app.screen.query_one("#search", Input).value = name
    await pilot.press("enter")
    app.screen.list.select(f"set:{name}")
    app.screen.list.select(f"key:{name}")
    await until(pilot, lambda: app.screen.chosen is not None and app.screen.chosen.name == name)


def edit(app):
    return app.screen.query_one("#edit", Input)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@in_loop
async def test_a_setting_is_told_with_value_origin_help_and_range(shown, width):
    async with shown(size=(width, 30)) as (app, pilot):
        await choose(app, pilot, "context")
        await until(pilot, lambda: "context length in tokens" in text_of(app))
        text = text_of(app)
        assert "4096" in text and "whole number from 1" in text and "settings.toml" in text


@in_loop
async def test_search_narrows_down_and_escape_ends_it(shown):
    async with shown() as (app, pilot):
        await pilot.press("slash", *"kv")
        await until(pilot, lambda: "host_idle_s" not in text_of(app))
        assert "kv_type" in text_of(app)
        await pilot.press(*"zzz")
        await until(pilot, lambda: "No matching settings." in text_of(app))
        await pilot.press("escape")
        await until(pilot, lambda: "host_idle_s" in text_of(app))


@in_loop
async def test_a_value_is_edited_checked_and_written_beside_its_comment(shown, file, services):
    async with shown() as (app, pilot):
        await choose(app, pilot, "context")
        await pilot.press("enter")
        assert edit(app).has_focus and edit(app).value == "4096"
        edit(app).value = "many"
        await until(pilot, lambda: "Expected a whole number" in text_of(app))
        await pilot.press("enter")
        assert edit(app).has_focus
        edit(app).value = "8192"
        await pilot.press("enter")
        await until(pilot, lambda: services.settings.all()["context"].value == 8192)
        assert not edit(app).has_focus
    assert file.read_text() == FILE.replace("4096", "8192")


@in_loop
async def test_an_edit_ends_where_another_setting_is_chosen(shown, file):
    async with shown() as (app, pilot):
        await choose(app, pilot, "top_p")
        await pilot.press("slash", "escape")
        app.screen.list.select("set:top_p")
        await pilot.press("e", *"0.5", "shift+tab")
        assert app.screen.chosen.name == "top_p" and edit(app).display
        await pilot.press("down")
        await until(pilot, lambda: app.screen.chosen.name == "min_p" and not edit(app).display)
        await pilot.press("tab", "enter", "escape")
    assert file.read_text() == FILE


@in_loop
async def test_escape_leaves_a_value_as_it_was(shown, file):
    async with shown() as (app, pilot):
        await choose(app, pilot, "context")
        await pilot.press("e")
        edit(app).value = "1"
        await pilot.press("escape")
        assert app.screen.chosen.text == "4096"
    assert file.read_text() == FILE


@in_loop
async def test_the_next_of_few_choices_is_taken(shown, file, services):
    async with shown() as (app, pilot):
        await choose(app, pilot, "flash_attention")
        for value in (True, False, None):
            await pilot.press("space")
            await until(
                pilot,
                lambda value=value: services.settings.all()["flash_attention"].value is value,
            )
        await choose(app, pilot, "context")
        await pilot.press("space")
        assert edit(app).has_focus
    assert 'flash_attention = "auto"' in file.read_text()


@in_loop
async def test_offline_holds_at_once_also_for_the_hub(shown, services):
    services.hub = Hub()
    services.downloads.use(services.hub)
    async with shown() as (app, pilot):
        await choose(app, pilot, "offline")
        for is_offline in (True, False):
            await pilot.press("space")
            await until(pilot, lambda: services.settings.offline is is_offline)  # noqa: B023
            assert services.hub.offline is services.downloads._hub.offline is is_offline


@pytest.mark.parametrize(("name", "text"), [("max_models", "3"), ("library_folders", "/x")])
@in_loop
async def test_what_holds_after_a_restart_says_so(shown, name, text):
    async with shown() as (app, pilot):
        await choose(app, pilot, name)
        await pilot.press("e")
        edit(app).value = text
        await pilot.press("enter")
        await until(pilot, lambda: "when Hearth is started again" in notices(app))


@in_loop
async def test_a_default_is_had_again(shown, file, services):
    async with shown() as (app, pilot):
        await choose(app, pilot, "context")
        await pilot.press("delete")
        await until(pilot, lambda: services.settings.all()["context"].origin == "default")
    assert file.read_text() == FILE.replace("context = 4096\n", "")


@in_loop
async def test_what_holds_over_the_file_is_told(shown, file):
    async with shown(environ={"HEARTH_TEMPERATURE": "0.25"}) as (app, pilot):
        await choose(app, pilot, "temperature")
        await pilot.press("e")
        edit(app).value = "0.5"
        await pilot.press("enter")
        await until(pilot, lambda: "Saved, but HEARTH_TEMPERATURE overrides it" in notices(app))
        assert "temperature = 0.5" in file.read_text()
        await pilot.press("delete")
        said = "Removed from the file, but HEARTH_TEMPERATURE overrides it: 0.25"
        await until(pilot, lambda: said in notices(app))
    assert "temperature = 0.5" not in file.read_text()


@in_loop
async def test_a_theme_is_shown_while_it_is_chosen_and_kept(shown, file):
    async with shown() as (app, pilot):
        await choose(app, pilot, "theme")
        await pilot.press("e")
        edit(app).value = "nord"
        await until(pilot, lambda: app.theme == "nord")
        await pilot.press("escape")
        await until(pilot, lambda: app.theme == "textual-dark")
        await pilot.press("e")
        edit(app).value = "nrod"
        await until(pilot, lambda: "Did you mean nord" in text_of(app))
        edit(app).value = "gruvbox"
        await pilot.press("enter")
        await until(pilot, lambda: app.screen.chosen.text == "gruvbox")
        assert app.theme == "gruvbox"
    assert 'theme = "gruvbox"' in file.read_text()


@in_loop
async def test_a_key_is_remapped_at_once_and_had_back(shown, file):
    async with shown() as (app, pilot):
        await choose(app, pilot, "settings.search")
        await pilot.press("e")
        assert edit(app).value == "slash"
        edit(app).value = "f13,nokey"
        await until(pilot, lambda: "there is no key 'nokey'" in text_of(app))
        edit(app).value = "f9"
        await pilot.press("enter")
        await until(pilot, lambda: app.screen.chosen.text == "f9")
        await pilot.press("f9")
        await until(pilot, lambda: app.screen.query_one("#search", Input).has_focus)
        await pilot.press("enter", "delete")
        await until(pilot, lambda: app.screen.chosen.text == "slash")
        await pilot.press("slash")
        await until(pilot, lambda: app.screen.query_one("#search", Input).has_focus)
    assert '"settings.search"' not in file.read_text()


@in_loop
async def test_a_file_that_cannot_be_written_is_told(shown, file):
    async with shown() as (app, pilot):
        await choose(app, pilot, "context")
        file.write_text("broken = \n")
        await pilot.press("delete")
        await until(pilot, lambda: app.error_lines)
    assert file.read_text() == "broken = \n"


@in_loop
async def test_foreign_text_in_values_is_made_safe(shown):
    async with shown('system = "\\u001b[31m[red]\\nx"\n') as (app, pilot):
        await choose(app, pilot, "system")
        await until(pilot, lambda: "␛[31m[red]" in text_of(app))
        assert "\x1b" not in text_of(app)


def test_every_value_is_written_as_it_is_read(services):
    text = """
stop = ["a\\n", "b\\"", "\\u007f"]
[sampling]
logit_bias = { 42 = -100, 7 = 1.5 }
"""
    settings = services.settings
    for entry in entries(settings, ["textual-dark"], {}):
        assert entry.check(entry.text) == settings.all()[entry.name].value, entry.name
    changed = load_settings_of(services, text.replace("stop", "").split("\n", 2)[2])
    [bias] = [entry for entry in entries(changed, [], {}) if entry.name == "logit_bias"]
    assert bias.check(bias.text) == {42: -100.0, 7: 1.5}
    stops = load_settings_of(services, "[sampling]\n" + text.split("\n")[1])
    [stop] = [entry for entry in entries(stops, [], {}) if entry.name == "stop"]
    assert stop.check(stop.text) == ("a\n", 'b"', "\x7f")


def load_settings_of(services, text):
    from hearth.app.settings import parse_settings

    return parse_settings(services.paths.settings_file, text)
