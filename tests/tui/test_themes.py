"""A theme that is selected in the command palette is saved."""

import asyncio

import pytest

from hearth.app.settings import Setting, load_settings
from polling import notices, until
from screen_app import app_on

FILE = "# mine\n\n[load]\n# enough\ncontext = 4096\n"


@pytest.fixture
def chosen(services):
    """Selects a theme in the palette over a screen, runs `test(app)`, and returns the file."""

    def run(name, test, screen="endpoint", flags=None):
        file = services.paths.settings_file
        file.parent.mkdir(parents=True)
        file.write_text(FILE)
        services.reload = lambda: load_settings(file, {}).with_flags(flags or {})
        services.settings = services.reload()

        async def main():
            app = app_on(screen, services)
            async with app.run_test(size=(120, 40)) as pilot:
                app.search_themes()
                await pilot.pause()
                await pilot.press(*name)
                await until(
                    pilot, lambda: app.screen.query("CommandList").first().option_count == 1
                )
                await pilot.press("down", "enter")
                await test(app, pilot)

        asyncio.run(main())
        return file.read_text()

    return run


def test_it_is_written_beside_what_the_file_says(chosen):
    async def test(app, pilot):
        await until(pilot, lambda: app.theme == "dracula")

    text = chosen("dracula", test)
    assert 'theme = "dracula"' in text
    assert "# mine" in text and "# enough\ncontext = 4096" in text


def test_the_settings_screen_below_shows_it(chosen):
    async def test(app, pilot):
        await until(pilot, lambda: app.theme == "dracula")
        await until(pilot, lambda: app.screen._entries["set:theme"].text == "dracula")

    chosen("dracula", test, screen="settings")


def test_one_of_a_flag_still_holds(chosen):
    async def test(app, pilot):
        await until(pilot, lambda: "--theme overrides it: nord" in notices(app))
        assert app.theme == "nord"

    text = chosen("dracula", test, flags={"theme": Setting("nord", "--theme")})
    assert 'theme = "dracula"' in text
