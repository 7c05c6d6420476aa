"""The box for the user's messages: the effect of each key, on screen and on disk."""

from __future__ import annotations

import contextlib
import stat
import sys
from pathlib import Path

import pytest
from textual import events
from textual.app import App

from async_tests import in_loop
from box_app import commands, opened, texts
from dialog_app import settle
from screens import text_of


@in_loop
async def test_enter_says_it_and_empties_the_box(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"Hi [b]you[/b]", "enter")
        await settle(app, pilot)
        assert texts(app) == ["Hi [b]you[/b]"]
        assert app.box.text == ""


@in_loop
async def test_keys_are_obeyed_in_their_order_however_fast_they_come(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        for key in ("a", "ctrl+j", "x", "backspace", "b", "enter", "c", "left", "d"):
            app.post_message(events.Key(key, key if len(key) == 1 else None))
        await settle(app, pilot)
        assert texts(app) == ["a\nb"]
        assert app.box.text == "dc"


@in_loop
async def test_other_keys_can_send(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        app.set_keymap({"prompt.send": "f9"})
        await pilot.press("a", "enter", "b", "f9")
        await settle(app, pilot)
        assert texts(app) == ["a\nb"]


@in_loop
async def test_blank_text_is_not_said(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        await pilot.press("enter", "space", "ctrl+j", "enter")
        await settle(app, pilot)
        assert app.said == []


@in_loop
async def test_a_newline_grows_the_box_up_to_ten_lines(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        for height, key in enumerate(("ctrl+j", "shift+enter", "alt+enter"), 2):
            await pilot.press(key)
            await pilot.pause()
            assert app.box.area.size.height == height
        app.box.load("a\n" * 12)
        await pilot.pause()
        assert app.box.area.size.height == 10
        assert texts(app) == []


@in_loop
async def test_a_paste_keeps_its_lines_and_is_never_sent(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        app.box.area.post_message(events.Paste("one\r\ntwo\rthree\n\n/quit\n"))
        await settle(app, pilot)
        assert app.box.text == "one\ntwo\nthree\n\n/quit\n"
        assert app.said == []


@in_loop
async def test_a_paste_of_many_lines_is_all_there(tmp_path: Path) -> None:
    text = "".join(f"line {number} with some words\n" for number in range(20_000))
    async with opened(tmp_path) as (app, pilot):
        app.box.area.post_message(events.Paste(text))
        await settle(app, pilot)
        await pilot.press("x", "enter")
        await settle(app, pilot)
        assert texts(app) == [text + "x"]


@in_loop
async def test_what_was_pasted_cannot_steer_the_terminal(tmp_path: Path) -> None:
    hostile = "a\x1b]52;c;aGk=\x07b\x9b31m\u202ec"
    async with opened(tmp_path) as (app, pilot):
        app.box.area.post_message(events.Paste(hostile))
        await settle(app, pilot)
        shown = text_of(app)
        assert not set(shown) & set("\x1b\x07\x9b\u202e")
        assert "a␛]52;c;aGk=" in shown
        assert app.box.text == hostile


@in_loop
async def test_a_command_is_done_and_not_said(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        app.box.load("/model  guide ")
        await pilot.press("enter")
        await settle(app, pilot)
        assert commands(app) == [("model", "guide")]
        assert app.box.text == "" and texts(app) == []


@in_loop
async def test_the_system_prompt_may_have_lines(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        app.box.load("/system Be brief.\nBe kind.")
        await pilot.press("enter")
        await settle(app, pilot)
        assert commands(app) == [("system", "Be brief.\nBe kind.")]


@in_loop
async def test_an_unknown_command_stays_and_names_the_nearest(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        app.box.load("/modle x")
        await pilot.press("enter")
        await settle(app, pilot)
        assert app.box.text == "/modle x" and app.said == []
        assert "/modle" in app.hint and "/model" in app.hint
        await pilot.press("y")
        await settle(app, pilot)
        assert app.hint == ""


@pytest.mark.parametrize("text", ["/usr/bin is a folder", " /new is a command", "// a comment"])
@in_loop
async def test_other_slashes_are_text(tmp_path: Path, text: str) -> None:
    async with opened(tmp_path) as (app, pilot):
        app.box.load(text)
        await pilot.press("enter")
        await settle(app, pilot)
        assert texts(app) == [text]


@in_loop
async def test_nothing_is_sent_while_an_answer_is_in_progress(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        app.box.set_busy(True)
        await pilot.press(*"next", "enter")
        await settle(app, pilot)
        assert app.said == [] and app.box.text == "next"
        assert "esc" in app.hint
        app.box.set_busy(False)
        await pilot.press("enter")
        await settle(app, pilot)
        assert texts(app) == ["next"]


@in_loop
async def test_commands_are_done_while_an_answer_is_under_way(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        app.box.set_busy(True)
        await pilot.press(*"/stop", "enter")
        await settle(app, pilot)
        assert commands(app) == [("stop", "")]


@in_loop
async def test_the_hint_is_one_safe_line(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        app.box.set_hint("12 tokens\n[red]\x1b[31m")
        await settle(app, pilot)
        assert app.hint == "12 tokens [red]␛[31m"


@in_loop
async def test_up_and_down_go_through_the_history_and_back_to_the_draft(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        for text in ("one", "two", "two"):
            app.box.load(text)
            await pilot.press("enter")
        app.box.load("draft")
        await pilot.press("up")
        assert app.box.text == "two"
        await pilot.press("up", "up")
        assert app.box.text == "one"
        await pilot.press("down", "down")
        assert app.box.text == "draft"
        await pilot.press("down")
        assert app.box.text == "draft"


@in_loop
async def test_up_moves_within_a_text_of_several_lines_first(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        app.box.load("said")
        await pilot.press("enter")
        app.box.load("one\ntwo")
        await pilot.press("up")
        assert app.box.text == "one\ntwo"
        await pilot.press("up")
        assert app.box.text == "said"
        await pilot.press("down")
        assert app.box.text == "one\ntwo"


@in_loop
async def test_the_history_is_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        for text in ("first", "/help"):
            app.box.load(text)
            await pilot.press("enter")
        await settle(app, pilot)
    file = tmp_path / "state" / "prompt-history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    async with opened(tmp_path) as (app, pilot):
        await pilot.press("ctrl+up")
        assert app.box.text == "/help"
        await pilot.press("ctrl+up")
        assert app.box.text == "first"


@in_loop
async def test_a_history_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"hello", "enter")
        await settle(app, pilot)
        assert texts(app) == ["hello"]
        assert "not kept" in app.hint


@in_loop
async def test_restored_text_comes_before_what_was_written_meanwhile(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, _):
        app.box.restore("lost")
        assert app.box.text == "lost"
        app.box.load("new")
        app.box.restore("lost")
        assert app.box.text == "lost\nnew"


# ---- the user's editor


def an_editor(folder: Path, body: str) -> str:
    """The command of an editor that runs `body` with `path`, the file to edit."""
    script = folder / "editor.py"
    script.write_text(f"import pathlib, sys\npath = pathlib.Path(sys.argv[1])\n{body}\n")
    return f"{sys.executable} {script}"


@pytest.mark.parametrize("keys", [("ctrl+e",), ("ctrl+x", "ctrl+e")])
@in_loop
async def test_the_editor_gets_the_text_and_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    body = (
        "assert path.stat().st_mode & 0o777 == 0o600\n"
        "(pathlib.Path(__file__).parent / 'seen').write_text(str(path))\n"
        "path.write_text(path.read_text() + ' there\\nand here\\n')"
    )
    monkeypatch.setenv("VISUAL", an_editor(tmp_path, body))
    monkeypatch.setattr(App, "suspend", lambda self: contextlib.nullcontext())
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"hello", *keys)
        await settle(app, pilot)
        assert app.box.text == "hello there\nand here"
        assert not Path((tmp_path / "seen").read_text()).exists()


@pytest.mark.parametrize(
    ("editor", "told"),
    [("no-such-editor-here", "cannot be started"), ("'", "VISUAL"), ("{fails}", "status 3")],
)
@in_loop
async def test_an_editor_that_fails_leaves_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, editor: str, told: str
) -> None:
    fails = an_editor(tmp_path, "path.write_text('half')\nsys.exit(3)")
    monkeypatch.setenv("VISUAL", editor.format(fails=fails))
    monkeypatch.setattr(App, "suspend", lambda self: contextlib.nullcontext())
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"hello", "ctrl+e")
        await settle(app, pilot)
        assert app.box.text == "hello"
        assert told in app.hint


@in_loop
async def test_a_terminal_that_cannot_be_lent_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", "true")
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"hello", "ctrl+e")
        await settle(app, pilot)
        assert app.box.text == "hello" and "cannot be lent" in app.hint


@in_loop
async def test_cut_without_a_selection_does_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"abc", "ctrl+x")
        assert app.box.text == "abc"
        await pilot.press("shift+left", "ctrl+x")
        assert app.box.text == "ab"
