"""The list of chats: groups by date, and the open chat highlighted wherever the cursor is."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import date, timedelta

from textual.app import App, ComposeResult

from async_tests import in_loop
from hearth.app.chats.tree import Thread
from hearth.app.tui.widgets.thread_list import ThreadList
from screens import text_of

THREAD = Thread("", "", 0, 0, False, False, "", "", {}, None, 2)


class Page(App[None]):
    """A page with a list of chats."""

    def compose(self) -> ComposeResult:
        yield ThreadList()

    def backgrounds(self) -> dict[str, object]:
        """The background of each row, by its text."""
        rows = self.screen._compositor.render_strips()[:9]
        return {
            row.text.strip(): next((part.style.bgcolor for part in row if part.style), None)
            for row in rows
        }


def chats() -> list[Thread]:
    """One chat of each group, the newest first."""
    days = (0, 1, 5, 400)
    found = [
        replace(THREAD, id=f"c{day}", title=f"Chat {day}", changed_at=time.time() - day * 86400)
        for day in days
    ]
    pinned = replace(THREAD, id="p", title="A pinned chat with a long title", pinned=True)
    return [pinned, replace(found[0], model="/m/other.gguf"), *found[1:]]


@in_loop
async def test_chats_are_grouped_and_the_open_one_is_highlighted() -> None:
    app = Page()
    async with app.run_test(size=(40, 20)) as pilot:
        threads = app.query_one(ThreadList)

        def show() -> None:
            state = {"c1": ("idle", True), "c5": ("generating", False)}
            threads.show(chats(), "c1", lambda name: state.get(name, ("idle", False)), "guide")

        show()
        await pilot.pause()
        month = date.today() - timedelta(days=400)
        assert [line.strip() for line in text_of(app).split("\n") if line.strip()] == [
            "Pinned",
            "A pinned chat with a long…",
            "Today",
            "Chat 0",
            "other",
            "Yesterday",
            "• Chat 1",
            "Previous 7 days",
            "● Chat 5",
            f"{month:%B %Y}",
            "Chat 400",
        ]
        colours = app.backgrounds()
        assert [row for row in colours if colours[row] == colours["• Chat 1"]] == ["• Chat 1"]
        threads.focus()
        await pilot.press("up")
        show()
        await pilot.pause()
        assert threads.highlighted_option is not None and threads.highlighted_option.id == "c0"
        assert app.backgrounds()["• Chat 1"] == colours["• Chat 1"]
