"""The doctor's screen: its findings, a repeated check, and the findings as text."""

import asyncio
import threading

import pytest

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
def shown(services, monkeypatch):
    """Runs `test(app, pilot)` on the doctor's screen; `found` has a list of findings per check."""

    def run(test, *found, size=(100, 30)):
        left = iter(found)
        asked = []

        def examine(paths, settings, library):
            asked.append(settings)
            yield from next(left)

        monkeypatch.setattr(doctor, "examine", examine)

        async def main():
            app = app_on("doctor", services)
            async with app.run_test(size=size) as pilot:
                await test(app, pilot)

        asyncio.run(main())
        return asked

    return run


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_findings_are_shown_with_their_cures(shown, width):
    async def test(app, pilot):
        for said in ("1 problem", "CPython", "1.2 GB free", "Make room", "Second line."):
            await until(pilot, lambda said=said: said in text_of(app))
        text = text_of(app)
        assert "evil ␛[31m[bold]text" in text and "\x1b" not in text

    shown(test, [WELL, POOR, BROKEN], size=(width, 30))


@pytest.mark.parametrize(
    ("findings", "verdict"),
    [([WELL], "No problems found."), ([WELL, POOR], "No problems; 1 warning.")],
)
def test_the_verdict_stands_above(shown, findings, verdict):
    async def test(app, pilot):
        await until(pilot, lambda: verdict in text_of(app))

    shown(test, findings)


def test_it_looks_again(shown):
    async def test(app, pilot):
        await until(pilot, lambda: "1 warning" in text_of(app))
        await pilot.press("r")
        await until(pilot, lambda: "No problems found." in text_of(app))
        assert "1.2 GB free" not in text_of(app)

    shown(test, [WELL, POOR], [WELL])


def test_what_an_earlier_look_still_finds_is_left_out(shown):
    let, over = threading.Event(), threading.Event()

    def slow():
        try:
            yield WELL
            let.wait(20)
            yield POOR
        finally:
            over.set()

    async def test(app, pilot):
        await until(pilot, lambda: "CPython" in text_of(app))
        await pilot.press("r")
        await until(pilot, lambda: "1 problem" in text_of(app))
        let.set()
        await until(pilot, over.is_set)
        await pilot.pause()
        assert "1.2 GB free" not in text_of(app)

    shown(test, slow(), [BROKEN])


def test_it_is_copied_as_text(shown):
    async def test(app, pilot):
        await until(pilot, lambda: "1 problem" in text_of(app))
        await pilot.press("y")
        await until(pilot, lambda: app.clipboard)
        lines = app.clipboard.splitlines()
        assert lines[0] == "  python           CPython 3.11"
        assert lines[1].startswith("! disk") and lines[2].strip() == POOR.cure
        assert [line.strip() for line in lines[4:]] == ["First line.", "Second line."]
        assert "\x1b" not in app.clipboard

    shown(test, [WELL, POOR, BROKEN])


def test_broken_settings_are_examined_too(shown, services):
    def broken():
        raise SettingsError("settings.toml: no.")

    services.reload = broken

    async def test(app, pilot):
        await until(pilot, lambda: "No problems found." in text_of(app))

    [settings] = shown(test, [WELL])
    assert isinstance(settings, SettingsError)
