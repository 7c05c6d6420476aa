"""The transcript: a window of messages that scrolls, follows the end, and never jumps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from textual.app import App, ComposeResult
from textual.widgets import Input

from async_tests import in_loop
from hearth.app.tui.widgets.message import MessageView, Shown
from hearth.app.tui.widgets.transcript import MOST, Transcript, Window
from polling import until


class Chat(App[None]):
    """A transcript over a prompt."""

    def compose(self) -> ComposeResult:
        yield Transcript()
        yield Input(id="question")

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def text(self) -> str:
        """The text on the screen, without the scroll bar."""
        rows = self.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in row)[:-2].rstrip() for row in rows)


def chat_of(count: int, *, tall: bool = False) -> list[Shown]:
    """Questions and answers of three lines, or of ten."""
    roles = ("user", "assistant")
    body = "line\n\n" * (8 if tall else 1)
    return [
        Shown(f"m{number}", roles[number % 2], f"message {number}\n\n{body}end {number}")
        for number in range(count)
    ]


def top_of(app: Chat, name: str) -> int:
    """The row at which a message begins."""
    view = next(view for view in app.query(MessageView) if view.shown.id == name)
    return view.region.y


@in_loop
async def test_two_thousand_messages_mount_a_window_and_open_at_the_end() -> None:
    app = Chat()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.transcript.show(chat_of(2000))
        await until(pilot, lambda: "end 1999" in app.text)
        assert len(app.query(MessageView)) <= MOST
        assert app.transcript.following


@in_loop
async def test_scrolling_up_mounts_older_messages_and_moves_nothing() -> None:
    app = Chat()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.transcript.show(chat_of(200))
        await until(pilot, lambda: app.transcript.max_scroll_y > 24)
        first = min(int(view.shown.id[1:]) for view in app.query(MessageView))
        name = f"m{first + 1}"
        app.transcript.scroll_to(y=2, animate=False)
        await until(pilot, lambda: app.transcript.scroll_y == 2 or len(app.query(MessageView)) > 12)
        row = top_of(app, name)
        await until(
            pilot, lambda: int(app.query(MessageView).first(MessageView).shown.id[1:]) < first - 3
        )
        await pilot.pause()
        assert top_of(app, name) == row
        assert not app.transcript.following


@in_loop
async def test_all_messages_can_be_reached_and_few_stay_mounted() -> None:
    app = Chat()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.transcript.show(chat_of(120))
        await until(pilot, lambda: "end 119" in app.text)
        for _ in range(200):
            if "message 0" in app.text:
                break
            app.transcript.scroll_page_up(animate=False)
            await pilot.pause(0.01)
        assert "message 0" in app.text
        await until(pilot, lambda: len(app.query(MessageView)) <= MOST + 1)
        app.transcript.action_follow()
        await until(pilot, lambda: "end 119" in app.text and app.transcript.following)


@in_loop
async def test_it_follows_what_comes_only_at_the_end() -> None:
    app = Chat()
    async with app.run_test(size=(80, 24)) as pilot:
        transcript = app.transcript
        await transcript.show(chat_of(20))
        await transcript.append(Shown("new", "assistant", "", state="streaming"))
        answer = transcript.answer("new")
        answer.feed("first\n\n" + "- item\n" * 30 + "\nbottom one")
        await until(pilot, lambda: "bottom one" in app.text)

        transcript.scroll_to(y=transcript.scroll_y - 10, animate=False)
        await until(pilot, lambda: not transcript.following and "bottom one" not in app.text)
        seen = app.text
        answer.feed("\n\n" + "- more\n" * 30 + "\nbottom two")
        for _ in range(20):
            await pilot.pause(0.01)
        assert app.text == seen

        transcript.action_follow()
        await until(pilot, lambda: "bottom two" in app.text)
        assert transcript.following


@in_loop
async def test_what_is_read_stays_while_something_above_grows() -> None:
    app = Chat()
    async with app.run_test(size=(80, 24)) as pilot:
        transcript = app.transcript
        await transcript.show(chat_of(12))
        await until(pilot, lambda: transcript.max_scroll_y > 24)
        transcript.scroll_to(y=transcript.max_scroll_y - 20, animate=False)
        await until(pilot, lambda: not transcript.following)
        await pilot.pause()
        visible = [view for view in app.query(MessageView) if 2 < view.region.y < 20]
        name, row = visible[0].shown.id, visible[0].region.y
        above = f"m{int(name[1:]) - 3}"
        await transcript.replace(Shown(above, "assistant", "longer\n\n" * 9))
        await until(pilot, lambda: transcript.max_scroll_y > 0)
        await pilot.pause()
        assert top_of(app, name) == row


@in_loop
async def test_jump_mounts_marks_and_selects() -> None:
    app = Chat()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.transcript.show(chat_of(300))
        await app.transcript.jump_to("m41")
        await until(pilot, lambda: "message 41" in app.text and top_of(app, "m41") < 12)
        assert app.transcript.selected == "m41"
        marked = [view.shown.id for view in app.query(MessageView) if view.has_class("-found")]
        assert marked == ["m41"]
        await app.transcript.jump_to("gone")  # Another chat was opened meanwhile.
        assert app.transcript.selected == "m41"


@pytest.mark.parametrize("name", ["m58", "m59"])
@in_loop
async def test_a_jump_right_after_opening_ends_at_the_message(name: str) -> None:
    app = Chat()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.transcript.show(chat_of(60, tall=True))
        await app.transcript.jump_to(name)  # While older messages are still being mounted.
        await until(pilot, lambda: app.transcript._mounted.first <= 40)
        await pilot.pause()
        assert f"message {name[1:]}" in app.text


@in_loop
async def test_keys_go_from_message_to_message_and_down_to_the_prompt() -> None:
    app = Chat()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.transcript.show(chat_of(6))
        app.transcript.action_select(-1)
        assert app.transcript.selected == "m5"
        await pilot.press("up", "up")
        assert app.transcript.selected == "m3"
        await pilot.press("down", "down")
        assert app.transcript.selected == "m5"
        await pilot.press("down")
        assert app.query_one(Input).has_focus


@in_loop
async def test_keys_while_messages_are_removed() -> None:
    app = Chat()
    async with app.run_test(size=(80, 24)):
        transcript = app.transcript
        await transcript.show(chat_of(6))
        transcript.action_select(-1)
        remove = transcript._remove
        places: list[int | None] = []

        async def with_keys(name: str) -> None:
            places.append(transcript.selected_place)
            transcript.action_select(-1)
            transcript.select_place(1)
            await remove(name)

        transcript._remove = with_keys  # type: ignore[method-assign]
        await transcript.remove_after("m3")
        assert places == [None, 1] and transcript.selected == "m1"
        await transcript.show([Shown("other", "user", "message")])
        assert set(places[2:]) == {None}


@in_loop
async def test_what_comes_after_a_message_can_be_removed() -> None:
    app = Chat()
    async with app.run_test(size=(80, 40)) as pilot:
        await app.transcript.show(chat_of(60))
        await app.transcript.remove_after("m56")
        await until(pilot, lambda: "end 56" in app.text)
        assert "end 57" not in app.text
        await app.transcript.remove_after("m3")
        await until(pilot, lambda: "end 3" in app.text)
        assert [view.shown.id for view in app.query(MessageView)] == ["m0", "m1", "m2", "m3"]


@in_loop
async def test_an_answer_goes_on_while_the_window_is_elsewhere() -> None:
    app = Chat()
    async with app.run_test(size=(80, 24)) as pilot:
        transcript = app.transcript
        await transcript.show(chat_of(300))
        await transcript.append(Shown("new", "assistant", "", state="streaming"))
        answer = transcript.answer("new")
        answer.feed("seen ")
        await transcript.jump_to("m2")
        answer.feed("and unseen ")
        transcript.action_follow()
        await until(pilot, lambda: "seen and unseen" in app.text)
        answer.feed("and seen again")
        await until(pilot, lambda: "unseen and seen again" in app.text)
        await transcript.replace(Shown("new", "assistant", "seen and unseen and seen again"))
        with pytest.raises(KeyError):
            transcript.answer("new")
        await transcript.jump_to("m2")
        transcript.action_follow()
        await until(pilot, lambda: "unseen and seen again" in app.text)


@pytest.mark.parametrize("sizes", [[10] * 100, [9000] * 7, [5], [], [0] * 1000])
def test_windows_move_over_everything(sizes: Sequence[int]) -> None:
    window = Window.last_of(sizes)
    assert window.end == len(sizes)
    for _ in sizes:
        earlier = window.earlier(sizes)
        assert earlier.first < window.first or window.first == 0
        assert earlier.end - earlier.first <= max(MOST, len(sizes) - window.first) + 10
        window = earlier
    assert window.first == 0
    for _ in sizes:
        window = window.later(sizes)
    assert window.end == len(sizes)
