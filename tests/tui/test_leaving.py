"""Quitting the app while its screens still work is not an error."""

import asyncio

import pytest
from textual.css.query import NoMatches
from textual.widget import MountError

from hearth.app.doctor import Finding
from hearth.app.tui.app import HearthApp
from hearth.app.tui.screens import doctor
from hearth.app.tui.widgets.bars import SCREENS
from screen_app import app_on

FOUND = Finding("python", "ok", "CPython 3.11")


async def left(app: HearthApp, after=lambda app: None) -> None:
    """Start `app`, do something with it, and quit at once, as ctrl+q does."""

    async def leave() -> None:
        after(app)
        await app.action_leave()

    app.call_later(leave)
    await app.run_async(headless=True, size=(100, 30))


@pytest.mark.parametrize("others", [0, 1, len(SCREENS) - 1])
@pytest.mark.parametrize("screen", SCREENS)
def test_screens_are_left_before_they_are_there(services, monkeypatch, screen, others):
    monkeypatch.setattr(doctor, "examine", lambda *_: iter([FOUND] * 20))
    at = SCREENS.index(screen)

    def walk(app: HearthApp) -> None:
        for name in (SCREENS[at + 1 :] + SCREENS[:at])[:others]:
            app.action_go(name)

    app = app_on(screen, services)
    asyncio.run(left(app, walk))
    assert app.failure is None
    assert app.return_code == 0


MISSED = (NoMatches("a part"), MountError("too late"))


@pytest.mark.parametrize("is_leaving", [True, False])
@pytest.mark.parametrize("error", [*MISSED, ValueError("bad")])
def test_only_what_screens_miss_then_is_no_failure(services, error, is_leaving):
    def fail(app: HearthApp) -> None:
        if is_leaving:
            app.exit(0)
        raise error

    app = HearthApp(services)
    asyncio.run(left(app, fail))
    is_missed = is_leaving and error in MISSED
    assert app.failure is (None if is_missed else error)
    assert app.return_code == (0 if is_missed else 1)
