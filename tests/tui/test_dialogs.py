"""Small dialogs: the answer of each key, and that their texts are displayed safely."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.app import App

from async_tests import in_loop
from dialog_app import OPEN, asking, settle
from hearth.app.tui.screens.dialogs import AskLine, Confirm, EditText, PickOne
from polling import until
from screens import text_of

HOSTILE = "[red]a[/red] \x1b]52;c;aGk=\x07 \u202eb"


@pytest.mark.parametrize(
    ("keys", "answer"),
    [
        (["enter"], False),
        (["escape"], False),
        (["n"], False),
        (["y"], True),
        (["right", "enter"], True),
        (["right", "left", "enter"], False),
        (["tab", "enter"], True),
    ],
)
@in_loop
async def test_a_question_is_answered_by_keys(keys: list[str], answer: bool) -> None:
    async with asking(Confirm("Delete it?", "For good.")) as (app, pilot):
        await pilot.press(*keys)
        await pilot.pause()
        assert app.answer is answer


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (lambda: AskLine("Title", "old"), "old"),
        (lambda: PickOne("Model", ["a", "b"]), "a"),
    ],
)
@in_loop
async def test_a_second_key_at_once_closes_nothing_else(question: Any, answer: object) -> None:
    async with asking(question()) as (app, pilot):
        for _ in range(2):
            app.post_message(events.Key("enter", "\r"))
        await until(pilot, lambda: app.answer is not OPEN)
        await settle(app, pilot)
        assert app.answer == answer and len(app.screen_stack) == 1


@in_loop
async def test_a_question_is_answered_with_the_mouse() -> None:
    async with asking(Confirm("Delete it?", yes="Delete"), width=60) as (app, pilot):
        assert await pilot.click("#answer-1")
        await pilot.pause()
        assert app.answer is True


@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize(
    "question",
    [
        lambda: Confirm(HOSTILE, HOSTILE, yes=HOSTILE, no=HOSTILE),
        lambda: AskLine(HOSTILE, HOSTILE, placeholder=HOSTILE),
        lambda: PickOne(HOSTILE, [HOSTILE], details={HOSTILE: HOSTILE}),
        lambda: EditText(HOSTILE, HOSTILE),
    ],
)
@in_loop
async def test_foreign_text_is_shown_and_obeyed_nowhere(question: Any, width: int) -> None:
    async with asking(question(), width) as (app, _):
        shown = text_of(app)
        assert "[red]a[/red] ␛]52" in shown
        assert not set(shown) & set("\x1b\x07\u202e")


@in_loop
async def test_a_line_replaces_what_is_selected() -> None:
    async with asking(AskLine("Title", "old")) as (app, pilot):
        await pilot.press(*" new ", "enter")
        await pilot.pause()
        assert app.answer == "new"


@in_loop
async def test_a_line_that_is_wrong_is_told_and_asked_again() -> None:
    def check(text: str) -> None:
        if text == "bad":
            raise ValueError("not [that]")

    async with asking(AskLine("Name", check=check)) as (app, pilot):
        await pilot.press(*"bad", "enter")
        await pilot.pause()
        assert app.answer is OPEN and "not [that]" in text_of(app)
        await pilot.press("backspace")
        await pilot.pause()
        assert "not [that]" not in text_of(app)
        await pilot.press("escape")
        await pilot.pause()
        assert app.answer is None


@in_loop
async def test_one_is_picked_by_what_is_written() -> None:
    models = ["guide", "guide-draft", "qwen"]
    async with asking(PickOne("Model", models, details={"qwen": "Q4_K_M"})) as (app, pilot):
        await pilot.press(*"q4", "enter")
        await pilot.pause()
        assert app.answer == "qwen"


@in_loop
async def test_one_is_picked_by_moving() -> None:
    async with asking(PickOne("Model", ["a", "b", "c"])) as (app, pilot):
        await pilot.press("down", "down", "up", "enter")
        await pilot.pause()
        assert app.answer == "b"


@in_loop
async def test_one_is_picked_with_the_mouse() -> None:
    async with asking(PickOne("Model", ["a", "b"])) as (app, pilot):
        assert await pilot.click("OptionList", offset=(3, 1))
        await pilot.pause()
        assert app.answer == "b"


@in_loop
async def test_nothing_is_picked_where_nothing_is_left() -> None:
    async with asking(PickOne("Model", ["a"])) as (app, pilot):
        await pilot.press("z", "enter")
        await pilot.pause()
        assert app.answer is OPEN
        await pilot.press("escape")
        await pilot.pause()
        assert app.answer is None


@in_loop
async def test_a_text_is_edited_and_saved() -> None:
    async with asking(EditText("Edit", "one")) as (app, pilot):
        await pilot.press("enter", *"two", "ctrl+s")
        await pilot.pause()
        assert app.answer == "one\ntwo"


@in_loop
async def test_a_text_that_is_not_changed_comes_back_as_it_was() -> None:
    text = "one\r\ntwo\x0cthree\u2028four\n"
    async with asking(EditText("Edit", text)) as (app, pilot):
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert app.answer == text


@in_loop
async def test_changes_are_forgotten_only_after_a_yes() -> None:
    async with asking(EditText("Edit", "one")) as (app, pilot):
        await pilot.press("x", "escape")
        await pilot.pause()
        await pilot.press("n")
        await settle(app, pilot)
        assert app.answer is OPEN
        await pilot.press("escape")
        await pilot.pause()
        await pilot.press("y")
        await settle(app, pilot)
        assert app.answer is None


@in_loop
async def test_without_changes_escape_leaves_at_once() -> None:
    async with asking(EditText("Edit", "one")) as (app, pilot):
        await pilot.press("escape")
        await settle(app, pilot)
        assert app.answer is None


@in_loop
async def test_the_users_editor_edits_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "editor.py"
    script.write_text("import pathlib, sys\npathlib.Path(sys.argv[1]).write_text('from there\\n')")
    monkeypatch.setenv("VISUAL", f"{sys.executable} {script}")
    async with asking(EditText("Edit", "one")) as (app, pilot):
        await pilot.press("ctrl+e")
        await settle(app, pilot)
        assert "cannot be lent" in text_of(app)
        monkeypatch.setattr(App, "suspend", lambda self: contextlib.nullcontext())
        await pilot.press("ctrl+e")
        await settle(app, pilot)
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert app.answer == "from there"
