"""The private names of Textual that the terminal app uses or overrides; the upper version limit in
pyproject.toml is the one below which they are known to exist.
"""

from __future__ import annotations

import pytest
from textual.app import App
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import TextArea

from async_tests import in_loop
from hearth.app.tui.services import Services
from pilots import chat_of, opened

OVERRIDDEN = (
    (App, "_handle_exception"),
    (App, "_fatal_error"),
    (App, "_close_messages_no_wait"),
    (App, "_end_batch"),
    (Screen, "_compose"),
    (Screen, "_compositor_refresh"),
    (Screen, "_get_breakpoint_classes"),
    (Screen, "_on_screen_resume"),
    (TextArea, "_on_key"),
    (TextArea, "_on_paste"),
    (TextArea, "_refresh_size"),
    (TextArea, "_rewrap_and_refresh_virtual_size"),
    (Widget, "release_anchor"),
)


@pytest.mark.parametrize(("kind", "name"), OVERRIDDEN)
def test_what_is_overridden_exists(kind: type[object], name: str) -> None:
    assert callable(getattr(kind, name))


@in_loop
async def test_what_is_read_exists(services: Services) -> None:
    async with opened(services) as (app, pilot):
        chat = chat_of(pilot)
        for thing, names in (
            (app, ("_batch_count", "_screen_stack", "_css_update_count", "_exception", "_exit")),
            (chat.transcript, ("_anchor_released",)),
            (chat.prompt.area, ("_line_cache",)),
        ):
            assert not [name for name in names if not hasattr(thing, name)]
