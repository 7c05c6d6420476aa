"""A theme that is selected in the command palette is saved."""

from contextlib import asynccontextmanager

from async_tests import in_loop
from hearth.app.settings import Setting, load_settings
from polling import notices, until
from screen_app import app_on

FILE = "# mine\n\n[load]\n# enough\ncontext = 4096\n"


@asynccontextmanager
async def chosen(services, name, screen="endpoint", flags=None):
    """Selects a theme in the palette over a screen."""
    file = services.paths.settings_file
    file.parent.mkdir(parents=True)
    file.write_text(FILE)
    services.reload = lambda: load_settings(file, {}).with_flags(flags or {})
    services.settings = services.reload()
    app = app_on(screen, services)
    async with app.run_test(size=(120, 40)) as pilot:
        app.search_themes()
        await pilot.pause()
        await pilot.press(*name)
        await until(pilot, lambda: app.screen.query("CommandList").first().option_count == 1)
        await pilot.press("down", "enter")
        yield app, pilot


@in_loop
async def test_it_is_written_beside_what_the_file_says(services):
    async with chosen(services, "dracula") as (app, pilot):
        await until(pilot, lambda: app.theme == "dracula")
    text = services.paths.settings_file.read_text()
    assert 'theme = "dracula"' in text
    assert "# mine" in text and "# enough\ncontext = 4096" in text


@in_loop
async def test_the_settings_screen_below_shows_it(services):
    async with chosen(services, "dracula", screen="settings") as (app, pilot):
        await until(pilot, lambda: app.theme == "dracula")
        await until(pilot, lambda: app.screen._entries["set:theme"].text == "dracula")


@in_loop
async def test_one_of_a_flag_still_holds(services):
    flags = {"theme": Setting("nord", "--theme")}
    async with chosen(services, "dracula", flags=flags) as (app, pilot):
        await until(pilot, lambda: "--theme overrides it: nord" in notices(app))
        assert app.theme == "nord"
    text = services.paths.settings_file.read_text()
    assert 'theme = "dracula"' in text
