"""Drives the terminal app in tests: presses keys, and waits for the expected result."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from textual.pilot import Pilot
from textual.worker import WorkerCancelled, WorkerFailed

from hearth.app.tui.app import HearthApp
from hearth.app.tui.screens.chat import ChatScreen
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.folded import Folded
from hearth.app.tui.widgets.transcript import Transcript
from hearth.app.tui.widgets.welcome import Welcome
from polling import until
from screens import text_of

__all__ = ["ask", "chat_of", "opened", "say", "transcript_of", "unfold", "until", "until_shown"]


@asynccontextmanager
async def opened(
    services: Services, size: tuple[int, int] = (100, 30), **options: Any
) -> AsyncIterator[tuple[HearthApp, Pilot[int]]]:
    """The app over `services`, and a pilot that presses its keys."""
    app = HearthApp(services, **options)
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        try:
            yield app, pilot
        finally:
            # `App.exit` does this before it removes the widgets, but `run_test` does not. A job
            # that is still running takes a while to end.
            app.workers.cancel_all()
            for worker in list(app.workers):
                with suppress(WorkerCancelled, WorkerFailed):
                    await worker.wait()


async def until_shown(pilot: Pilot[Any], text: str) -> None:
    """Wait until `text` is on the screen."""
    await until(pilot, lambda: text in text_of(pilot.app))


async def say(pilot: Pilot[Any], text: str) -> None:
    """Write `text` into the prompt box and send it."""
    chat_of(pilot).prompt.load(text)
    await pilot.press("enter")


def chat_of(pilot: Pilot[Any]) -> ChatScreen:
    """The chat screen, which must be on top of its stack."""
    screen = next(one for one in reversed(pilot.app.screen_stack) if isinstance(one, ChatScreen))
    assert isinstance(screen, ChatScreen)
    return screen


async def ask(pilot: Pilot[Any], text: str) -> None:
    """Send `text`, and wait for the end of the answer."""
    chat = chat_of(pilot)
    before = len(chat.session.messages) if chat.session is not None else 0
    await say(pilot, text)
    await until(
        pilot,
        lambda: (
            chat.session is not None
            and len(chat.session.messages) >= before + 2
            and not chat.session.is_busy
        ),
    )
    await pilot.pause()


def transcript_of(pilot: Pilot[Any]) -> Transcript:
    """The transcript of the chat screen, which replaces the first screen."""
    chat = chat_of(pilot)
    chat.query_one(Welcome).display = False
    chat.transcript.display = True
    return chat.transcript


def unfold(transcript: Transcript) -> None:
    """Unfold all thoughts and files that are mounted."""
    for part in transcript.query(Folded):
        part.set_open(True)
