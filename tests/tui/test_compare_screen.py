"""Two models side by side."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from textual.pilot import Pilot

from async_tests import in_loop
from hearth.app.chats.tree import ChatMessage
from hearth.app.tui.screens.compare import CompareScreen, difference
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.folded import Thinking
from hearth.backends.errors import InternalError
from pilots import chat_of, opened, say, until, until_shown
from screens import text_of
from scripted import Script, ScriptedHost


async def compare(
    pilot: Pilot[Any], question: str, command: str = "/compare guide-draft"
) -> CompareScreen:
    """Open the comparison and ask."""
    await say(pilot, command)
    await until(pilot, lambda: isinstance(pilot.app.screen, CompareScreen))
    await until(pilot, lambda: getattr(pilot.app.focused, "id", "") == "question")
    await pilot.press(*question, "enter")
    screen = pilot.app.screen
    assert isinstance(screen, CompareScreen)
    return screen


async def ended(pilot: Pilot[Any], screen: CompareScreen) -> None:
    await until(pilot, lambda: not screen.is_busy)
    await pilot.pause()


@in_loop
async def test_both_stream_at_once_and_show_their_numbers(
    services: Services, host: ScriptedHost
) -> None:
    gate = asyncio.Semaphore(0)
    host.scripts["guide"] = Script("left one two", "hidden thoughts", gate=gate)
    host.scripts["guide-draft"] = Script("right one two", gate=gate)
    async with opened(services, (120, 30)) as (app, pilot):
        screen = await compare(pilot, "why")
        for _ in range(4):
            gate.release()
        await until_shown(pilot, "right one")
        assert screen.is_busy and "two" not in text_of(app)
        for _ in range(10):
            gate.release()
        await until_shown(pilot, "left one two")
        await until_shown(pilot, "right one two")
        await ended(pilot, screen)
        shown = text_of(app)
        assert shown.count("42.0 tok/s") == 2
        assert "hidden" not in shown and "thought" in shown
        assert [view.is_open for view in screen.query(Thinking)] == [False]
        asked = [host.models[name].requests[0].messages for name in host.scripts]
        assert [messages[-1].content for messages in asked if messages] == ["why", "why"]


@in_loop
async def test_later_questions_follow_on_both_sides(services: Services, host: ScriptedHost) -> None:
    async with opened(services, (120, 30)) as (_, pilot):
        screen = await compare(pilot, "one")
        await ended(pilot, screen)
        await pilot.press(*"two", "enter")
        await until(pilot, lambda: len(host.models["guide-draft"].requests) == 2)
        await ended(pilot, screen)
        messages = host.models["guide-draft"].requests[1].messages
        assert [m.content for m in messages or ()] == ["one", "I am the draft.", "two"]


@in_loop
async def test_escape_stops_then_closes(services: Services, host: ScriptedHost) -> None:
    gate = asyncio.Semaphore(0)
    host.scripts["guide"] = host.scripts["guide-draft"] = Script("one two", gate=gate)
    async with opened(services, (120, 30)) as (app, pilot):
        screen = await compare(pilot, "x")
        gate.release()
        gate.release()
        await until(pilot, lambda: text_of(app).count("one") >= 2)
        await pilot.press("escape")
        await ended(pilot, screen)
        assert app.screen is screen and text_of(app).count("Stopped.") == 2
        assert host.models["guide"].cancelled == 1
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is not screen)


@in_loop
async def test_a_failure_is_told_in_its_column(services: Services, host: ScriptedHost) -> None:
    host.scripts["guide-draft"] = Script("half", error=InternalError("It broke.", "Fix it."))
    async with opened(services, (120, 30)) as (_, pilot):
        screen = await compare(pilot, "x")
        await until_shown(pilot, "It broke. Fix it.")
        await until_shown(pilot, "It works.")
        await ended(pilot, screen)


@in_loop
async def test_a_model_that_is_not_here_is_told(services: Services) -> None:
    async with opened(services, (120, 30)) as (_, pilot):
        await compare(pilot, "x", "/compare nowhere")
        await until_shown(pilot, 'There is no model "nowhere".')


@pytest.mark.parametrize(
    ("left", "right", "told"),
    [
        ("One two  three", "One two\nthree", "Both answers are the same, 3 words."),
        ("One two.", "One two. Three", "same for 2 words; then the end on the left, “Three” on"),
        ("", "Other words that follow", "same for 0 words; then the end on the left, “Other words"),
    ],
)
def test_where_two_answers_part(left: str, right: str, told: str) -> None:
    answers = [ChatMessage(text, None, "assistant", text) for text in (left, right)]
    assert told in difference(*answers)


@pytest.mark.parametrize(("key", "model"), [("ctrl+l", "guide"), ("ctrl+r", "guide-draft")])
@in_loop
async def test_go_on_with_the_better_one(services: Services, key: str, model: str) -> None:
    async with opened(services, (120, 30)) as (_, pilot):
        screen = await compare(pilot, "which")
        await ended(pilot, screen)
        await pilot.press(key)
        await until(
            pilot,
            lambda: (
                (session := chat_of(pilot).session) is not None
                and session.thread.model == model
                and len(session.messages) == 2
            ),
        )
        session = chat_of(pilot).session
        assert session is not None
        assert session.messages[0].content == "which"
        assert session.messages[1].numbers is not None
        assert session.messages[1].numbers.tok_per_s == 42.0
