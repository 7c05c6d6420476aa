"""The doctor's screen: its findings, a repeated check, and the findings as text."""

import threading
from contextlib import asynccontextmanager

import pytest

from async_tests import in_loop
from hearth.app.doctor import Finding
from hearth.app.tui.screens import doctor
from hearth.backends.errors import SettingsError
from polling import until
from screen_app import app_on
from screens import text_of

WELL = Finding("python", "ok", "CPython 3.11")
POOR = Finding("disk", "warning", "1.2 GB free", "Make room, or set HEARTH_HOME.")
BROKEN = Finding("llama.cpp", "fault", "evil \x1b[31m[bold]text", "First line.\nSecond line.")


@pytest.fixture
def examined():
    """The arguments of each check."""
    return []


@pytest.fixture
def shown(services, monkeypatch, examined):
    """Shows the doctor's screen; `checks` has the findings of each check."""

    @asynccontextmanager
    async def show(*checks, size=(100, 30)):
        left = iter(checks)

        def examine(*given):
            examined.append(given)
            yield from next(left)

        monkeypatch.setattr(doctor, "examine", examine)
        app = app_on("doctor", services)
        async with app.run_test(size=size) as pilot:
            yield app, pilot

    return show


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@in_loop
async def test_findings_are_shown_with_their_cures(shown, width):
    async with shown([WELL, POOR, BROKEN], size=(width, 30)) as (app, pilot):
        for said in ("1 problem", "CPython", "1.2 GB free", "Make room", "Second line."):
            await until(pilot, lambda said=said: said in text_of(app))
        text = text_of(app)
        assert "evil ␛[31m[bold]text" in text and "\x1b" not in text


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [([WELL], "No problems found."), ([WELL, POOR], "No problems; 1 warning.")],
)
@in_loop
async def test_the_verdict_stands_above(shown, findings, verdict):
    async with shown(findings) as (app, pilot):
        await until(pilot, lambda: verdict in text_of(app))


@in_loop
async def test_it_looks_again(shown):
    async with shown([WELL, POOR], [WELL]) as (app, pilot):
        await until(pilot, lambda: "1 warning" in text_of(app))
        await pilot.press("r")
        await until(pilot, lambda: "No problems found." in text_of(app))
        assert "1.2 GB free" not in text_of(app)


@in_loop
async def test_what_an_earlier_look_still_finds_is_left_out(shown):
    let, over = threading.Event(), threading.Event()

    def slow():
        try:
            yield WELL
            let.wait(20)
            yield POOR
        finally:
            over.set()

    async with shown(slow(), [BROKEN]) as (app, pilot):
        await until(pilot, lambda: "CPython" in text_of(app))
        await pilot.press("r")
        await until(pilot, lambda: "1 problem" in text_of(app))
        let.set()
        await until(pilot, over.is_set)
        await pilot.pause()
        assert "1.2 GB free" not in text_of(app)


@in_loop
async def test_it_is_copied_as_text(shown):
    async with shown([WELL, POOR, BROKEN]) as (app, pilot):
        await until(pilot, lambda: "1 problem" in text_of(app))
        await pilot.press("y")
        await until(pilot, lambda: app.clipboard)
        lines = app.clipboard.splitlines()
        assert lines[0] == "  python           CPython 3.11"
        assert lines[1].startswith("! disk") and lines[2].strip() == POOR.cure
        assert [line.strip() for line in lines[4:]] == ["First line.", "Second line."]
        assert "\x1b" not in app.clipboard


@in_loop
async def test_broken_settings_are_examined_too(shown, services, examined):
    def broken():
        raise SettingsError("settings.toml: no.")

    services.reload = broken
    async with shown([WELL]) as (app, pilot):
        await until(pilot, lambda: "No problems found." in text_of(app))
    [(_, settings, _)] = examined
    assert isinstance(settings, SettingsError)
