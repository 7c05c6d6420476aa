"""An app that shows one modal screen, and records its answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.screen import ModalScreen

OPEN = object()
"""The answer of a screen that is still open."""


class Asker(App[None]):
    """Shows one screen and records the answer."""

    def __init__(self, question: ModalScreen[Any]) -> None:
        super().__init__()
        self.question = question
        self.answer: Any = OPEN

    def on_mount(self) -> None:
        self.push_screen(self.question, self._note)

    def _note(self, answer: Any) -> None:
        self.answer = answer


@asynccontextmanager
async def asking(
    question: ModalScreen[Any], width: int = 80, height: int = 24
) -> AsyncIterator[tuple[Asker, Pilot[None]]]:
    app = Asker(question)
    async with app.run_test(size=(width, height)) as pilot:
        await settle(app, pilot)
        yield app, pilot


async def settle(app: App[None], pilot: Pilot[None]) -> None:
    """Wait until the work in the background is done."""
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()
