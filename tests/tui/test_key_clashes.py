"""Two bindings of one place to which the settings give the same key."""

import pytest

from async_tests import in_loop
from hearth.app.settings import load_settings
from hearth.app.tui.looks import key_clashes
from polling import notices, until
from screen_app import app_on


@pytest.mark.parametrize(
    ("keymap", "clashes"),
    [
        ({}, []),
        ({"app.help": "f12"}, []),
        ({"app.help": "f3"}, [("f3", ("app.help", "app.library"))]),
        ({"app.help": "f12,f3"}, [("f3", ("app.help", "app.library"))]),
        ({"app.help": "f12", "app.jump": "f12"}, [("f12", ("app.help", "app.jump"))]),
        ({"app.help": "f3", "app.library": "f1"}, []),
        (
            {"settings.search": "?", "settings.edit": "question_mark"},
            [("question_mark", ("settings.edit", "settings.search"))],
        ),
    ],
)
def test_a_key_that_two_actions_of_a_place_have_is_found(keymap, clashes):
    assert [(clash.key, clash.bindings) for clash in key_clashes(keymap)] == clashes


def test_the_same_key_on_two_screens_is_no_clash():
    assert key_clashes({"settings.edit": "f12", "doctor.copy": "f12"}) == []


def test_as_they_come_no_keys_clash():
    assert key_clashes({"app.quit": "ctrl+q"}) == []


@in_loop
async def test_it_is_told_when_the_app_starts(services):
    file = services.paths.settings_file
    file.parent.mkdir(parents=True)
    file.write_text('[keys]\n"app.help" = "f3"\n')
    services.settings = load_settings(file, {})
    app = app_on("endpoint", services)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "app.help and of app.library" in notices(app))
