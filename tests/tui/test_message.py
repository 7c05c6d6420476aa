"""One message: its parts, its keys, and that nothing in it controls the terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.app import App, ComposeResult

from async_tests import in_loop
from hearth.app.terminal import safe_text
from hearth.app.tui.widgets.message import MessageView, Shown
from hearth.app.tui.widgets.transcript import Transcript
from hearth.backends.contract.messages import ToolCall
from payloads import MARKDOWN_PAYLOADS, PAYLOADS
from pilots import unfold
from polling import until


class Page(App[None]):
    """A transcript that records the actions of its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []

    def compose(self) -> ComposeResult:
        yield Transcript()

    def on_message_view_action(self, message: MessageView.Action) -> None:
        self.asked.append((message.id, message.action))

    @property
    def text(self) -> str:
        """The text on the screen."""
        rows = self.screen._compositor.render_strips()
        return "\n".join("".join(part.text for part in row).rstrip() for row in rows)


def found_in(app: App[None]) -> tuple[str, set[str]]:
    """All text on the screen, and every key of the styles' metadata; there must be no terminal
    links.
    """
    notes: set[str] = set()
    text = []
    for row in app.screen._compositor.render_strips():
        for part in row:
            text.append(part.text)
            if part.style is not None:
                assert part.style.link is None
                notes |= set(part.style.meta)
    return "".join(text), notes


def message_with(payload: str) -> Shown:
    """A message that has `payload` in every part."""
    return Shown(
        "a",
        "assistant",
        payload,
        reasoning=payload,
        calls=(ToolCall("", payload, payload), ToolCall("", "f", '{"a": "' + payload + '"}')),
        state="failed",
        note=payload,
        numbers=payload,
        model=payload,
    )


@in_loop
async def test_no_hostile_text_reaches_the_terminal() -> None:
    app = Page()
    async with app.run_test(size=(90, 120)) as pilot:
        transcript = app.query_one(Transcript)
        payloads = (*PAYLOADS[::6], *MARKDOWN_PAYLOADS)  # Each sequence once.
        for start in range(0, len(payloads), 5):
            some = payloads[start : start + 5]
            await transcript.show(
                [
                    *(replace(message_with(text), id=f"a{n}") for n, text in enumerate(some)),
                    *(Shown(f"b{n}", text, text) for n, text in enumerate(some)),
                ]
            )
            unfold(transcript)
            await pilot.pause()
            assert transcript.max_scroll_y == 0, "not all is on the screen"
            text, notes = found_in(app)
            assert text == safe_text(text), some
            # "offset": for selecting text; "url": for links of Markdown.
            assert notes <= {"offset", "url"}, some


@in_loop
async def test_hostile_text_that_comes_in_pieces_is_as_harmless() -> None:
    app = Page()
    async with app.run_test(size=(90, 60)) as pilot:
        transcript = app.query_one(Transcript)
        for payload in PAYLOADS[::12]:
            await transcript.show([Shown("a", "assistant", "", state="streaming")])
            view = transcript.answer("a")
            view.thinking.set_open(True)
            for mark in payload:
                view.feed(mark)
                view.feed(mark, "reasoning")
            view.status(payload)
            view.catch_up()
            await pilot.pause()
            text, notes = found_in(app)
            assert text == safe_text(text), repr(payload)
            assert notes <= {"offset", "url"}, repr(payload)


@pytest.mark.parametrize("hidden", ["&#x202e;", "&#27;[2J", "<http://a.example/%E2%80%AE>"])
@in_loop
async def test_what_markdown_decodes_is_safe_too(hidden: str) -> None:
    app = Page()
    async with app.run_test(size=(60, 12)) as pilot:
        await app.query_one(Transcript).show([Shown("a", "assistant", f"say {hidden} end")])
        await until(pilot, lambda: "end" in app.text)
        assert app.text == safe_text(app.text)


@in_loop
async def test_markup_is_text() -> None:
    app = Page()
    async with app.run_test(size=(60, 12)) as pilot:
        markup = "[red]m[/] [@click=app.bell]x[/]"
        await app.query_one(Transcript).show([message_with(markup)])
        unfold(app.query_one(Transcript))
        await until(pilot, lambda: app.text.count("[@click=app.bell]x[/]") >= 5)


@in_loop
async def test_every_key_asks_for_its_action() -> None:
    app = Page()
    async with app.run_test(size=(60, 20)) as pilot:
        await app.query_one(Transcript).show([Shown("a", "assistant", "x", sibling=2, siblings=3)])
        await until(pilot, lambda: "‹2/3›" in app.text)
        app.query_one(MessageView).focus()
        await pilot.press("e", "r", "c", "y", "d", "left", "right", "b")
        await until(pilot, lambda: len(app.asked) == 8)
        actions = "edit regenerate continue copy delete_branch previous next clone"
        assert app.asked == [("a", action) for action in actions.split()]


@in_loop
async def test_all_its_parts_are_shown() -> None:
    app = Page()
    call = ToolCall("", "weather", '{"city": "Paris"}')
    async with app.run_test(size=(70, 24)) as pilot:
        shown = Shown(
            "a",
            "assistant",
            "Let me see.",
            reasoning="hm",
            calls=(call,),
            state="stopped",
            note="stopped by you",
            numbers="0.3 s · 41 tok/s",
            model="guide",
        )
        await app.query_one(Transcript).show([Shown("u", "user", "**not** bold"), shown])
        unfold(app.query_one(Transcript))
        await until(pilot, lambda: "0.3 s · 41 tok/s" in app.text)
        rows = [row.strip() for row in app.text.split("\n") if row.strip()]
        assert rows == [
            "▎ you",
            "▎ **not** bold",
            "guide",
            "▾ thought · 1 word",
            "hm",
            "Let me see.",
            "tool call weather  not run",
            '│ {"city": "Paris"}',
            "stopped by you",
            "0.3 s · 41 tok/s",
        ]
