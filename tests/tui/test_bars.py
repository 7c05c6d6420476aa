"""The bars of a screen: clicks and the mouse on them, and what remains on narrow screens."""

from __future__ import annotations

import pytest

from async_tests import in_loop
from hearth.app.tui.screens.help import HelpScreen
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.bars import KeyBar, TopBar
from pilots import opened, until, until_shown
from screen_app import app_on
from screens import text_of


@in_loop
async def test_a_click_on_a_key_presses_it(services: Services) -> None:
    async with opened(services, (100, 30)) as (app, pilot):
        await until_shown(pilot, "f1 help")
        last = text_of(app).splitlines()[-1]
        await pilot.click(KeyBar, offset=(last.index("f1 help") - 1, 0))
        assert not isinstance(app.screen, HelpScreen), "the space between two keys is neither"
        await pilot.click(KeyBar, offset=(last.index("f1 help") + 4, 0))
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))


@in_loop
async def test_the_key_under_the_mouse_is_marked_and_explained(services: Services) -> None:
    app = app_on("settings", services)
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "e edit")
        bar, last = app.screen.query_one(KeyBar), text_of(app).splitlines()[-1]

        def is_marked(at: int) -> bool:
            marked = bar.get_visual_style("key-bar--hover").background
            span = next(one for one in bar.render().spans if one.start <= at < one.end)
            return getattr(span.style, "background", None) == marked

        at = last.index("e edit")
        assert not is_marked(at)
        await pilot.hover(KeyBar, offset=(at, 0))
        assert bar.tooltip == "edit; enter does that too" and is_marked(at)
        await pilot.hover(TopBar)
        assert bar.tooltip is None and not is_marked(at)


@pytest.mark.parametrize(("width", "shown"), [(120, True), (40, False), (9, False)])
@in_loop
async def test_where_keys_do_not_fit_the_one_to_quit_goes_first_and_help_stays(
    services: Services, width: int, shown: bool
) -> None:
    async with opened(services, (width, 30)) as (app, pilot):
        await until_shown(pilot, "f1 help")
        last = text_of(app).splitlines()[-1]
        assert "f1 help" in last and ("^q quit" in last) is shown


@in_loop
async def test_the_current_tab_is_reversed_and_no_other(services: Services) -> None:
    app = app_on("library", services)
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, "F3 library")
        bar = app.screen.query_one(TopBar)
        assert not bar.get_visual_style("top-bar--current").reverse, "Textual adds it now"
        strip = bar.render_line(0)
        reversed_text = "".join(one.text for one in strip if one.style and one.style.reverse)
        assert reversed_text.strip() == "F3 library"
