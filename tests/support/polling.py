"""Waiting for a Textual app without sleeping for a guessed time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.css.query import NoMatches
from textual.pilot import Pilot

from screens import text_of

WAIT_S = 30.0
_FIRST_LOOK_S, _LAST_LOOK_S = 0.01, 0.1


async def until(pilot: Pilot[Any], holds: Callable[[], object]) -> None:
    """Let the app go on until `holds()` is true; fails with what the screen shows. While a widget
    that it asks for is missing, it is not: a screen is there before its widgets are.

    Looking costs a pass through all widgets, and often a drawing of the screen, so a longer wait
    looks less often.
    """
    deadline = asyncio.get_running_loop().time() + WAIT_S
    look_s = _FIRST_LOOK_S
    while not _is_true(holds):
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"it never came to that; the screen:\n{text_of(pilot.app)}")
        await pilot.pause(look_s)
        look_s = min(1.5 * look_s, _LAST_LOOK_S)


def _is_true(holds: Callable[[], object]) -> bool:
    try:
        return bool(holds())
    except NoMatches:
        return False


def notices(app: App[Any]) -> str:
    """What the app has told in notices that are still shown."""
    return "\n".join(notice.message for notice in app._notifications)
