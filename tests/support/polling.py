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
    """Run the app until `holds()` is true; fails with the text of the screen. While a widget that
    `holds` queries is missing, it counts as false, because a screen exists before its widgets.

    Each check costs a pass through all widgets, and often a drawing of the screen, so a longer wait
    checks less often.
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
    """The text of the notices that the app still shows."""
    return "\n".join(notice.message for notice in app._notifications)
