"""After all partial updates a terminal shows the current state of the widgets: Textual's own style
sheets, compositor and timing, over a few screens.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from async_tests import in_loop
from drawn import Drawn
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.bars import SCREENS
from hearth.backends.errors import HearthError
from pilots import ask, chat_of, opened, say, until
from screen_app import app_on
from screens import text_of
from scripted import Script, ScriptedHost

SIZE = (80, 24)


async def same(pilot: Any, terminal: Drawn, text: str, *, is_shown: bool = True) -> str:
    """Wait until the terminal shows the state of the widgets, with or without `text`; return it."""
    await until(
        pilot,
        lambda: (
            (text in terminal.text) is is_shown
            and terminal.text.rstrip() == text_of(pilot.app).rstrip()
        ),
    )
    return terminal.text


@in_loop
async def test_every_screen_is_drawn(services: Services, terminal: Drawn) -> None:
    async with opened(services, SIZE) as (app, pilot):
        for at, name in enumerate(SCREENS, 2):
            await pilot.press(f"f{at}")
            await until(pilot, lambda name=name: getattr(app.screen, "NAME", "") == name)
            await pilot.pause(0.3)
            first, *_ = (await same(pilot, terminal, f"F{at} {name}")).splitlines()
            assert all(f"F{n} {one}" in first for n, one in enumerate(SCREENS, 2))


@in_loop
async def test_an_answer_is_drawn_while_it_streams(
    services: Services, terminal: Drawn, host: ScriptedHost
) -> None:
    text = "A list:\n\n" + "\n".join(f"- number {n}" for n in range(40)) + "\n\n```\ncode\n```\n"
    host.scripts["guide"] = Script(text, gate=(gate := asyncio.Semaphore(0)))
    async with opened(services, SIZE) as (_, pilot):
        await say(pilot, "a list, please")
        for _ in range(20):
            gate.release()
            await pilot.pause(0.02)
        await same(pilot, terminal, "number 3")
        for _ in range(400):
            gate.release()
        await until(pilot, lambda: not chat_of(pilot).sessions.busy)
        await same(pilot, terminal, "code")


@in_loop
async def test_dialogs_notices_and_errors_are_drawn_and_go(
    services: Services, terminal: Drawn
) -> None:
    app = app_on("engine", services)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await same(pilot, terminal, "No active requests.")
        screen = app.screen
        assert isinstance(screen, HearthScreen)
        await pilot.press("f1")
        await same(pilot, terminal, "Type to filter")
        await pilot.press("escape")
        await same(pilot, terminal, "Type to filter", is_shown=False)
        screen.show_notice("a notice")
        lines = (await same(pilot, terminal, "a notice")).splitlines()
        (row,) = [at for at, line in enumerate(lines) if "a notice" in line]
        assert row < len(lines) // 2 and lines[row].index("a notice") >= SIZE[0] // 2
        screen.show_error(HearthError("It went wrong.", "Try again."))
        await same(pilot, terminal, "It went wrong. Try again.")
        await pilot.press("x")
        await same(pilot, terminal, "It went wrong", is_shown=False)


@pytest.mark.parametrize("width", [60, 120])
@in_loop
async def test_another_size_is_drawn(
    services: Services, terminal: Drawn, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    async with opened(services, SIZE) as (_, pilot):
        await ask(pilot, "does it work?")
        terminal.__init__((width, 30))  # type: ignore[misc]
        await pilot.resize_terminal(width, 30)
        await same(pilot, terminal, "It works.")
