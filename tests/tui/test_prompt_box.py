"""The box in which a person says something: what each key does, on screen and on disk."""

from __future__ import annotations

import contextlib
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual import events
from textual.app import App, ComposeResult
from textual.message import Message
from textual.pilot import Pilot
from textual.widgets import Input, Static

from async_tests import in_loop
from hearth.app.tui.history import LONGEST, MOST, PromptHistory
from hearth.app.tui.widgets.prompt_box import PromptBox
from screens import text_of


class BoxApp(App[None]):
    """A prompt box below something else, and what it said."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.said: list[Message] = []

    def compose(self) -> ComposeResult:
        yield Input(id="other")
        yield PromptBox(
            history_file=self.folder / "state" / "prompt-history", folder=self.folder, id="prompt"
        )

    def on_mount(self) -> None:
        self.box.focus()

    @property
    def box(self) -> PromptBox:
        return self.query_one(PromptBox)

    @property
    def hint(self) -> str:
        return str(self.box.query_one(".hint", Static).content)

    @property
    def offered(self) -> list[str]:
        return [one.text for one in self.box.completions.found]

    def on_prompt_box_submitted(self, event: PromptBox.Submitted) -> None:
        self.said.append(event)

    def on_prompt_box_command(self, event: PromptBox.Command) -> None:
        self.said.append(event)

    def on_prompt_box_stop(self, event: PromptBox.Stop) -> None:
        self.said.append(event)


@asynccontextmanager
async def opened(folder: Path, width: int = 80) -> AsyncIterator[tuple[BoxApp, Pilot[None]]]:
    """The app at this width, settled."""
    app = BoxApp(folder)
    async with app.run_test(size=(width, 24)) as pilot:
        await pilot.pause()
        yield app, pilot


async def settle(app: BoxApp, pilot: Pilot[None]) -> None:
    """Until what was begun is done: names are looked for and prompts are kept in threads."""
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()


def texts(app: BoxApp) -> list[str]:
    return [one.text for one in app.said if isinstance(one, PromptBox.Submitted)]


def commands(app: BoxApp) -> list[tuple[str, str]]:
    return [(one.name, one.argument) for one in app.said if isinstance(one, PromptBox.Command)]


@in_loop
async def test_enter_says_it_and_empties_the_box(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"Hi [b]you[/b]", "enter")
        await settle(app, pilot)
        assert texts(app) == ["Hi [b]you[/b]"]
        assert app.box.text == ""


@in_loop
async def test_blank_text_is_not_said(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        await pilot.press("enter", "space", "ctrl+j", "enter")
        await settle(app, pilot)
        assert app.said == []


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter", "alt+enter"])
@in_loop
async def test_a_newline_grows_the_box_up_to_ten_lines(tmp_path: Path, key: str) -> None:
    async with opened(tmp_path) as (app, pilot):
        await pilot.press("a", key)
        assert app.box.area.size.height == 2
        await pilot.press(*[key] * 11)
        await pilot.pause()
        assert app.box.area.size.height == 10
        assert app.box.text == "a" + "\n" * 12
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
        await pilot.press(*"/model  guide ", "enter")
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
        await pilot.press(*"/modle x", "enter")
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
async def test_escape_stops_only_while_an_answer_is_under_way(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        await pilot.press("escape")
        app.box.set_busy(True)
        await pilot.press(*"next", "enter")
        await settle(app, pilot)
        assert app.said == [] and app.box.text == "next"
        assert "esc" in app.hint
        await pilot.press("escape")
        await settle(app, pilot)
        assert [type(one) for one in app.said] == [PromptBox.Stop]
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
            await pilot.press(*text, "enter")
        await pilot.press(*"draft", "up")
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
        await pilot.press(*"said", "enter", *"one", "ctrl+j", *"two", "up")
        assert app.box.text == "one\ntwo"
        await pilot.press("up")
        assert app.box.text == "said"
        await pilot.press("down")
        assert app.box.text == "one\ntwo"


@in_loop
async def test_the_history_is_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"first", "enter", *"/help", "enter")
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


# ---- completion


@in_loop
async def test_tab_completes_a_command(tmp_path: Path) -> None:
    async with opened(tmp_path, width=60) as (app, pilot):
        await pilot.press(*"/mo")
        await settle(app, pilot)
        assert app.offered == ["/model "] and app.box.completions.display
        await pilot.press("tab")
        await settle(app, pilot)
        assert app.box.text == "/model " and app.offered == []


@in_loop
async def test_an_entry_of_the_list_can_be_chosen(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"/s", "down", "enter")
        await settle(app, pilot)
        assert app.box.text == "/set " and app.said == []
        await pilot.press(*"x", "ctrl+u", *"/th", "tab", *"o")
        await settle(app, pilot)
        assert app.offered == ["on", "off"]
        await pilot.press("down", "tab", "enter")
        await settle(app, pilot)
        assert commands(app) == [("think", "off")]


@in_loop
async def test_escape_closes_the_list_until_something_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        app.box.set_busy(True)
        await pilot.press(*"/m", "escape")
        await settle(app, pilot)
        assert app.offered == [] and app.said == []
        await pilot.press("o")
        await settle(app, pilot)
        assert app.offered == ["/model "]


@in_loop
async def test_a_click_takes_an_entry(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"/mo")
        await settle(app, pilot)
        await pilot.click("Completions", offset=(3, 0))
        await settle(app, pilot)
        assert app.box.text == "/model "
        assert app.focused is app.box.area


@in_loop
async def test_tab_completes_paths_with_quotes_where_needed(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "my notes.txt").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"see @")
        await settle(app, pilot)
        assert app.offered == ["@src/"]
        await pilot.press("tab")
        await settle(app, pilot)
        assert app.box.text == "see @src/"
        assert app.offered == ['@"src/my notes.txt"']
        await pilot.press("tab", "space", *"now")
        await settle(app, pilot)
        assert app.box.text == 'see @"src/my notes.txt" now'


@in_loop
async def test_names_of_files_are_shown_safely(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[31m[b]").write_text("x")
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"@a")
        await settle(app, pilot)
        option = app.box.completions.get_option_at_index(0)
        assert str(option.prompt) == "a␛[31m[b]"


@in_loop
async def test_without_a_list_tab_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, pilot):
        await pilot.press(*"word", "tab")
        assert app.focused is app.query_one("#other")


@in_loop
async def test_begin_does_a_command_or_lets_its_argument_be_written(tmp_path: Path) -> None:
    from hearth.app.tui.commands import COMMANDS

    async with opened(tmp_path) as (app, pilot):
        app.box.begin(COMMANDS["new"])
        app.box.begin(COMMANDS["import"])
        await settle(app, pilot)
        assert commands(app) == [("new", "")]
        assert app.box.text == "/import "


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


# ---- the history's file


def test_the_history_is_bounded_and_has_no_doubles_in_a_row(tmp_path: Path) -> None:
    file = tmp_path / "prompt-history"
    file.write_text("".join(f'"{number}"\n' * 2 for number in range(MOST + 5)))
    history = PromptHistory(file)
    assert len(history.entries) == MOST
    assert history.add("new") and not history.add("new") and not history.add(" \n")
    history.keep("new")
    history.keep("new")
    again = PromptHistory(file).entries
    assert len(again) == MOST and again[-2:] == (str(MOST + 4), "new")


def test_a_damaged_history_keeps_what_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "prompt-history"
    file.write_bytes(b'"good"\n\xff\xfe\n{"a": 1}\n"half')
    history = PromptHistory(file)
    assert history.entries == ("good",)
    history.add("more \ud800")
    history.keep("more \ud800")
    assert PromptHistory(file).entries == ("good", "more \ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["prompt-history"]


def test_two_apps_share_a_history(tmp_path: Path) -> None:
    file = tmp_path / "prompt-history"
    first, second = PromptHistory(file), PromptHistory(file)
    for history, text in ((first, "a"), (second, "b"), (first, "c")):
        history.add(text)
        history.keep(text)
    assert PromptHistory(file).entries == ("a", "b", "c")


def test_a_huge_prompt_is_known_but_not_kept(tmp_path: Path) -> None:
    history = PromptHistory(tmp_path / "prompt-history")
    assert not history.add("x" * (LONGEST + 1))
    assert history.older("") == "x" * (LONGEST + 1)
