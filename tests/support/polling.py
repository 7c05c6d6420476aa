"""Waiting for a Textual app without sleeping for a guessed time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.pilot import Pilot


async def until(pilot: Pilot[object], holds: Callable[[], object], most: int = 600) -> None:
    """Let the app go on until `holds()`; fails after so many turns of a hundredth of a second."""
    for _ in range(most):
        if holds():
            return
        await pilot.pause(0.01)
    raise AssertionError("waited too long")


def notices(app: App[Any]) -> str:
    """What the app has told in notices that are still shown."""
    return "\n".join(notice.message for notice in app._notifications)
