"""Theme and keys from the settings."""

from contextlib import asynccontextmanager

import pytest

from async_tests import in_loop
from hearth.app.settings import parse_settings
from hearth.app.tui.looks import apply_looks, bindings, check_keys, checked_keymap
from hearth.backends.errors import SettingsError
from polling import until
from screen_app import app_on
from screens import text_of


@asynccontextmanager
async def applied(services, text):
    app = app_on("endpoint", services)
    apply_looks(app, parse_settings(services.paths.settings_file, text))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "Last requests" in text_of(app))
        yield app, pilot


@pytest.mark.parametrize("theme", ["nord", "ansi-light", "ansi-dark"])
@in_loop
async def test_every_theme_of_textual_can_be_had(services, theme):
    async with applied(services, f'theme = "{theme}"\n') as (app, _):
        assert app.theme == theme


@in_loop
async def test_a_key_is_remapped_by_the_id_of_its_binding(services):
    async with applied(services, '[keys]\nendpoint.copy-example = "f8,f9"\n') as (app, pilot):
        await pilot.press("c")
        await pilot.pause()
        assert not app.clipboard
        await pilot.press("f9")
        await until(pilot, lambda: app.clipboard)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('theme = "nrod"\n', "Did you mean nord"),
        ('[keys]\n"app.hlep" = "f1"\n', "Did you mean app.help"),
        ('[keys]\n"app.help" = "ctrl+escap"\n', "Did you mean escape"),
        ('[keys]\n"app.help" = "f1,"\n', "no key ''"),
    ],
)
@in_loop
async def test_a_mistake_names_the_nearest(services, text, said):
    with pytest.raises(SettingsError, match=said):
        async with applied(services, text):
            pass


@pytest.mark.parametrize("text", ['[keys]\n"app.help" = 5\n', '[keys]\n"app.help" = ""\n'])
def test_keys_are_texts(services, text):
    with pytest.raises(SettingsError, match=r"app\.help must be keys"):
        parse_settings(services.paths.settings_file, text)


def test_keys_are_written_as_people_do():
    for keys in ("f1", "ctrl+shift+a", "?", "question_mark", "+", "ctrl+full_stop", "space", "é"):
        assert check_keys("app.help", keys) == keys
    assert check_keys("app.help", "f1, ctrl+h") == "f1,ctrl+h"
    assert check_keys("app.help", ",") == "comma"


def test_every_binding_of_ours_can_be_remapped():
    found = bindings()
    assert {"app.help", "app.quit", "engine.cancel", "endpoint.switch", "doctor.copy"} <= set(found)
    assert found["app.quit"].key == "ctrl+q"
    assert all(binding.description for binding in found.values())
    assert checked_keymap(dict.fromkeys(found, "f12")) == dict.fromkeys(found, "f12")
