"""Common to all screens: their keys, the top bar, errors, suspending and quitting."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from textual.app import App, ComposeResult
from textual.widgets import Button, TextArea

from async_tests import in_loop
from hearth.app.library.downloads import DownloadItem, Downloads, DownloadState
from hearth.app.tui.app import HearthApp
from hearth.app.tui.quantizing import Quantization, Quantizing
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.screens.dialogs import EditText, Question
from hearth.app.tui.screens.help import HelpScreen
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.bars import SCREENS, Activity, TopBar, tabs
from hearth.app.tui.widgets.engine_view import SparklineRow, sparkline
from hearth.app.tui.widgets.fields import SafeInput
from hearth.backends.errors import ErrorInfo, HearthError
from pilots import ask, chat_of, opened, say, until, until_shown
from polling import notices
from screen_app import app_on
from screens import text_of
from scripted import Script, ScriptedHost

KEYS = [f"F{at}" for at in range(2, 2 + len(SCREENS))]


@pytest.mark.parametrize("screen", SCREENS)
@in_loop
async def test_every_f_key_works_from_every_focus(
    services: Services, monkeypatch: pytest.MonkeyPatch, screen: str
) -> None:
    async with opened(services, (120, 40)) as (app, pilot):
        if screen == "chat":
            await ask(pilot, "does it work?")
            await pilot.press("ctrl+b", "ctrl+b")
        app.action_go(screen)
        await until(pilot, lambda: app.screen.focus_chain)
        pressed: list[str] = []
        monkeypatch.setattr(HearthApp, "action_go", lambda _, name: pressed.append(name))
        monkeypatch.setattr(HearthApp, "action_help", lambda _: pressed.append("help"))
        for widget in app.screen.focus_chain:
            app.screen.set_focus(widget)
            await pilot.press("f1", *map(str.lower, KEYS))
            assert pressed == ["help", *SCREENS], widget
            assert app.focused is widget
            pressed.clear()


@in_loop
async def test_f_keys_work_in_a_dialog_which_stays_open(services: Services) -> None:
    async with opened(services) as (app, pilot):
        app.push_screen(EditText("Text", "one"))
        await until(pilot, lambda: isinstance(app.focused, TextArea))
        await pilot.press("two", "f7")
        assert getattr(app.screen, "NAME", "") == "settings"
        await pilot.press("f2")
        assert isinstance(app.screen, EditText)
        await pilot.press("f1")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("f3")
        assert len(app.screen_stack) == 1 and getattr(app.screen, "NAME", "") == "library"


@in_loop
async def test_the_bar_shows_the_keys_that_hold(services: Services) -> None:
    services.settings.keymap["app.engine"] = "f12"
    app = app_on("settings", services)
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, "F7 settings")
        first = text_of(app).splitlines()[0]
        assert "F3 library" in first and "F12 engine" in first
        await pilot.click(TopBar, offset=(first.index("F8"), 0))
        await until_shown(pilot, "F8 doctor")
        assert getattr(app.screen, "NAME", "") == "doctor"


@in_loop
async def test_facts_and_chats_are_read_after_the_first_paint(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    app = HearthApp(services)

    async def facts(*_: object) -> None:
        seen.append(app.drawn.is_set())
        raise HearthError("Nothing is known.")

    threads = services.chats.threads
    monkeypatch.setattr("hearth.app.tui.model_facts.facts_of", facts)
    monkeypatch.setattr(
        type(services.chats),
        "threads",
        lambda *_, **options: seen.append(app.drawn.is_set()) or threads(**options),
    )
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: len(seen) >= 2)
        assert all(seen)


@pytest.mark.parametrize("width", [60, 75, 80, 89, 100, 120, 200])
@pytest.mark.parametrize("wanted", [0, 5, 32])
def test_tabs_leave_room_for_what_is_running(width: int, wanted: int) -> None:
    brand, labels = tabs(KEYS, "engine", width, wanted)
    room = width - len(brand) - sum(map(len, labels))
    assert room >= min(wanted, 5) and "F5 engine" in "".join(labels)
    assert width < 75 + min(wanted, 5) or all(
        f"{key} {name}" in label for key, name, label in zip(KEYS, SCREENS, labels, strict=True)
    )


def test_an_activity_is_shown_in_any_width() -> None:
    one = Activity("Qwen3-4B-Instruct:Q4_K_M", 0.421, "↓")
    assert one.within(40) == "↓ Qwen3-4B-Instruct:Q4_K_M 42%"
    assert one.within(16) == "↓ Qwen3-4B-… 42%"
    assert one.within(5) == "↓ 42%"
    assert Activity("measuring guide").within(40) == "▸ measuring guide"
    assert len(Activity("\x1b[31m" * 9, 1.0).within(20)) <= 20


@in_loop
async def test_downloads_and_jobs_are_in_the_bar_of_every_screen(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = DownloadItem(
        "1", "org/model:Q4", "running", "downloading", "m.gguf", 25, 100, None, None, None
    )
    monkeypatch.setattr(Downloads, "items", lambda _: (item,))
    async with opened(services, (80, 24)) as (app, pilot):
        question = {"target": "/models/guide-Q8_0.gguf"}
        job = Quantization(question, "measuring", 0.5, detail="measuring guide")
        monkeypatch.setattr(Quantizing, "items", property(lambda _: [job]))
        for name in SCREENS:
            app.action_go(name)
            await until(pilot, lambda: "↓ 25%" in text_of(app).splitlines()[0])
        await pilot.resize_terminal(140, 24)
        await until(pilot, lambda: "model:Q4 25%" in text_of(app).splitlines()[0])
        assert "measuring guide 50%" in text_of(app).splitlines()[0]


@pytest.mark.parametrize("state", ["done", "failed", "paused"])
@in_loop
async def test_the_end_of_a_download_is_reported_where_its_list_is_not_shown(
    services: Services, monkeypatch: pytest.MonkeyPatch, state: DownloadState
) -> None:
    item = DownloadItem("1", "org/[m]", "running", "", "m.gguf", 25, 100, None, None, None)
    monkeypatch.setattr(Downloads, "items", lambda _: (item,))
    async with opened(services) as (app, pilot):
        app.show_activity()
        error = None if state == "done" else ErrorInfo("x", "The disk is full.", "Free space.")
        item = replace(item, state=state, error=error)
        app.show_activity()
        await until_shown(pilot, "org/[m]")
        assert ("The disk is full." in notices(app)) is (state != "done")
        app.clear_notifications()
        app.show_activity()
        assert not notices(app)


@in_loop
async def test_an_error_stays_on_its_screen_until_the_next_key(services: Services) -> None:
    app = app_on("settings", services)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.focused is not None)
        screen = app.screen
        assert isinstance(screen, HearthScreen)
        screen.show_error(HearthError("It is [broken].", "Mend it."))
        await until_shown(pilot, "It is [broken]. Mend it.")
        assert not notices(app)
        await pilot.press("down")
        await until(pilot, lambda: "It is [broken]" not in text_of(app))
        await pilot.press("f5")
        screen.show_error(HearthError("It is [broken].", "Mend it."))
        await until(pilot, lambda: "It is [broken]. Mend it." in notices(app))
        app.clear_notifications()
        await pilot.press("x", "f7")
        await until_shown(pilot, "It is [broken]. Mend it.")


@in_loop
async def test_ctrl_z_undoes_in_text_fields_and_suspends_elsewhere(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspended: list[str] = []
    monkeypatch.setattr(
        HearthApp, "action_suspend_process", lambda app: suspended.append(str(app.focused))
    )
    async with opened(services) as (app, pilot):
        await pilot.press("a", "ctrl+z")
        assert chat_of(pilot).prompt.text == "" and not suspended
        await say(pilot, "/suspend")
        await until(pilot, lambda: len(suspended) == 1)
        await pilot.press("f7")
        await until(pilot, lambda: app.focused is not None)
        await pilot.press("ctrl+z")
        assert len(suspended) == 2
        await pilot.press("slash", "a", "b", "ctrl+z")
        field = app.focused
        assert isinstance(field, SafeInput) and field.value == "a"
        await pilot.press("ctrl+z", "ctrl+z")
        assert field.value == "" and len(suspended) == 2


class Slow:
    """An app with an answer that waits for `gate`."""

    def __init__(self, services: Services, host: ScriptedHost) -> None:
        self.gate = asyncio.Semaphore(2)
        host.scripts["guide"] = Script("one two three four", gate=self.gate)
        self.opened = opened(services)

    async def __aenter__(self) -> tuple[HearthApp, object]:
        app, pilot = await self.opened.__aenter__()
        await say(pilot, "count")
        await until_shown(pilot, "one two")
        await pilot.press("ctrl+q")
        await until(pilot, lambda: isinstance(app.screen, Question))
        return app, pilot

    async def __aexit__(self, *error: object) -> None:
        await self.opened.__aexit__(None, None, None)


@pytest.mark.parametrize("presses", [["enter"], ["escape"], ["ctrl+q", "escape"]])
@in_loop
async def test_quitting_while_an_answer_runs_is_cancelled(
    services: Services, host: ScriptedHost, presses: list[str]
) -> None:
    async with Slow(services, host) as (app, pilot):
        await pilot.press(*presses)  # type: ignore[attr-defined]
        await pilot.pause()  # type: ignore[attr-defined]
        assert not app._exit and app.sessions.busy and len(app.screen_stack) == 1


@in_loop
async def test_quitting_stops_the_answer_and_keeps_its_text(
    services: Services, host: ScriptedHost
) -> None:
    async with Slow(services, host) as (app, pilot):
        labels = [str(button.label) for button in app.screen.query(Button)]
        assert labels == ["Cancel", "Wait, then quit", "Stop and quit"]
        await pilot.click("#answer-2")  # type: ignore[attr-defined]
        await until(pilot, lambda: app._exit)  # type: ignore[arg-type]
        (session,) = app.sessions.open_ones.values()
        assert session.messages[-1].state == "stopped"
        assert session.messages[-1].content.startswith("one two")


@in_loop
async def test_quitting_waits_for_the_answer(services: Services, host: ScriptedHost) -> None:
    slow = Slow(services, host)
    async with slow as (app, pilot):
        await pilot.press("right", "enter")  # type: ignore[attr-defined]
        await until_shown(pilot, "quits after")  # type: ignore[arg-type]
        for _ in range(9):
            slow.gate.release()
        await until(pilot, lambda: app._exit)  # type: ignore[arg-type]
        (session,) = app.sessions.open_ones.values()
        assert session.messages[-1].content == "one two three four"


def test_bars_begin_at_zero() -> None:
    assert sparkline([0.0] * 60, 20) == "" and sparkline([], 5) == ""
    assert sparkline([0, 1, 4, 8], 4) == " ▂▅█"
    assert sparkline([8] * 60, 10) == "█" * 10


@in_loop
async def test_bars_take_the_room_that_the_peak_leaves() -> None:
    class Row(App[None]):
        def compose(self) -> ComposeResult:
            yield SparklineRow("Rate")

    app = Row()
    async with app.run_test(size=(60, 5)) as pilot:
        row = app.query_one(SparklineRow)
        row.show(3.0, [1.0] * 60)
        await until_shown(pilot, "█  peak 1 in the last minute")
        before = text_of(app).count("█")
        row.query_one(".sparkline-row--peak").display = False
        await until(pilot, lambda: text_of(app).count("█") > before)
        assert text_of(app).count("█") == 60 - len(" Rate  ") - 9 - 1
