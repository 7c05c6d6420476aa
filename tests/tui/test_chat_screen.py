"""The chat, with its keys: every action, over scripted models."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from pathlib import Path

import pytest
from textual import events
from textual.widgets import Input

from async_tests import in_loop
from hearth.app import guide_pages
from hearth.app.chats.errors import ChatsDiskFull
from hearth.app.format import size
from hearth.app.tui import attachments
from hearth.app.tui.attachments import AttachmentRefused
from hearth.app.tui.screens.dialogs import AskLine, EditText
from hearth.app.tui.screens.sampling import SamplingScreen
from hearth.app.tui.screens.search import SearchScreen
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.message import MessageView
from hearth.app.tui.widgets.thread_list import ThreadList
from hearth.backends.engine.kv.disk_files import owner_of
from pilots import ask, chat_of, opened, say, until, until_shown
from polling import notices
from quantizing import GUIDE
from screens import text_of
from scripted import Script, ScriptedHost


@in_loop
async def test_ask_and_read_the_answer(services: Services) -> None:
    async with opened(services) as (app, pilot):
        await ask(pilot, "does it work?")
        await until_shown(pilot, "It works.")
        shown = text_of(app)
        assert "does it work?" in shown and "42.0 tok/s" in shown
        await say(pilot, "/stats")
        await until(pilot, lambda: "42.0 tok/s" not in text_of(app))
        (thread,) = services.chats.threads()
        assert thread.title == "does it work?"


@in_loop
async def test_a_chat_with_answers_is_restored_when_something_is_written(
    services: Services, host: ScriptedHost
) -> None:
    async with opened(services) as (_, pilot):
        await pilot.press("a")
        await ask(pilot, "does it work?")
        await until_shown(pilot, "It works.")
        await until(pilot, lambda: not chat_of(pilot).current.is_busy)
        assert not host.models["guide"].restored, "a new chat has nothing"
        await pilot.press("a", "n", "d")
        await until(pilot, lambda: len(host.models["guide"].restored) == 1)


@in_loop
async def test_that_a_chat_streams_is_shown(services: Services) -> None:
    async with opened(services) as (_, pilot):
        await say(pilot, "/set attention_sinks 4")
        await until_shown(pilot, "streaming: 4 sinks + last")


@in_loop
async def test_escape_stops_and_keeps_the_text(services: Services, host: ScriptedHost) -> None:
    gate = asyncio.Semaphore(0)
    host.scripts["guide"] = Script("one two three", gate=gate)
    async with opened(services) as (_, pilot):
        await say(pilot, "count")
        gate.release()
        await until_shown(pilot, "one")
        await pilot.press("escape")
        chat = chat_of(pilot)
        await until(pilot, lambda: chat.session is not None and not chat.session.is_busy)
        await until_shown(pilot, "Stopped.")
        assert chat.session is not None
        assert chat.session.messages[-1].content == "one "


@in_loop
async def test_escape_goes_from_the_messages_back_to_writing(services: Services) -> None:
    async with opened(services) as (app, pilot):
        await ask(pilot, "does it work?")
        await until_shown(pilot, "It works.")
        await pilot.press("ctrl+t")
        assert isinstance(app.focused, MessageView)
        await pilot.press("escape")
        assert chat_of(pilot).prompt.has_focus_within


@in_loop
async def test_a_message_keeps_its_keys_and_gives_all_others_to_the_prompt(
    services: Services,
) -> None:
    async with opened(services) as (app, pilot):
        await ask(pilot, "does it work?")
        prompt = chat_of(pilot).prompt
        await pilot.click(MessageView)
        assert prompt.has_focus_within
        await pilot.press("ctrl+t")
        keys = "e edit r retry c continue y copy b branch d delete ←→ versions"
        await until_shown(pilot, keys)
        await pilot.press("y")
        assert app.clipboard == "It works."
        await pilot.press(*"/help ed")
        assert prompt.has_focus_within and prompt.text == "/help ed"
        await until(pilot, lambda: "e edit" not in text_of(app))
        await pilot.press("ctrl+t")
        app.post_message(events.Paste("r\nd"))
        await until(pilot, lambda: prompt.text == "/help edr\nd")
        assert prompt.has_focus_within


@in_loop
async def test_keys_on_messages_go_on_where_the_message_was(
    services: Services, host: ScriptedHost
) -> None:
    async with opened(services) as (app, pilot):
        await ask(pilot, "first")
        chat = chat_of(pilot)
        session = chat.session
        assert session is not None
        host.scripts["guide"] = Script("Another.", gate=(gate := asyncio.Semaphore(0)))
        await pilot.press("ctrl+t", "r")
        await until_shown(pilot, "esc stop")
        assert "e edit" not in text_of(app)
        for _ in range(3):
            gate.release()
        await until(pilot, lambda: not session.is_busy)
        await until_shown(pilot, "‹2/2›")
        await until_shown(pilot, "e edit")
        assert "esc stop" not in text_of(app)
        await pilot.press("left")
        await until_shown(pilot, "‹1/2›")
        await pilot.press("right")
        await until_shown(pilot, "‹2/2›")
        await pilot.press("d")
        await until(pilot, lambda: len(app.screen_stack) > 1)
        await pilot.press("y")
        await until_shown(pilot, "It works.")
        await until(pilot, lambda: isinstance(app.focused, MessageView))


@in_loop
async def test_edit_makes_a_branch_and_arrows_cycle(services: Services, host: ScriptedHost) -> None:
    async with opened(services) as (app, pilot):
        await ask(pilot, "first")
        chat = chat_of(pilot)
        session = chat.session
        assert session is not None
        host.scripts["guide"] = Script("Another.")
        chat.act(session.messages[0].id, "edit")
        await until(
            pilot,
            lambda: isinstance(app.screen, EditText) and app.screen.area.has_focus,
        )
        assert isinstance(app.screen, EditText)
        app.screen.area.load_text("second")
        await pilot.press("ctrl+s")
        await until_shown(pilot, "Another.")
        await until_shown(pilot, "2/2")
        await until(pilot, lambda: not session.is_busy)
        views = list(chat.query(MessageView))
        views[0].focus()
        await pilot.press("left")
        await until_shown(pilot, "It works.")
        assert session.messages[0].content == "first"


@in_loop
async def test_edits_that_cannot_be_saved_during_an_answer_stay_in_their_dialogs(
    services: Services, host: ScriptedHost
) -> None:
    gate = asyncio.Semaphore(0)
    host.scripts["guide"] = Script("one two", gate=gate)
    async with opened(services) as (app, pilot):
        await say(pilot, "first")
        await until(pilot, lambda: bool(app.sessions.busy))
        session = chat_of(pilot).current
        await pilot.press("ctrl+g")
        await until(pilot, lambda: isinstance(app.screen, SamplingScreen) and app.focused)
        await pilot.press("ctrl+s")
        await until_shown(pilot, "already generating an answer")
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        await say(pilot, "/edit")
        await until(pilot, lambda: isinstance(app.screen, EditText) and app.screen.area.has_focus)
        assert isinstance(app.screen, EditText)
        app.screen.area.load_text("second")
        await pilot.press("ctrl+s")
        await until_shown(pilot, "already generating an answer")
        for _ in range(9):
            gate.release()
        await until(pilot, lambda: not session.is_busy)
        await pilot.press("ctrl+s")
        await until(pilot, lambda: session.messages[0].content == "second")
        await until(pilot, lambda: not session.is_busy)


@in_loop
async def test_regenerate_continue_clone_and_delete_a_branch(
    services: Services, host: ScriptedHost
) -> None:
    async with opened(services) as (_, pilot):
        await ask(pilot, "first")
        chat = chat_of(pilot)
        session = chat.session
        assert session is not None
        host.scripts["guide"] = Script("Another.")
        await say(pilot, "/retry")
        await until_shown(pilot, "2/2")
        await until(pilot, lambda: not session.is_busy)
        host.scripts["guide"] = Script(" And more.")
        await say(pilot, "/continue")
        await until_shown(pilot, "Another. And more.")
        await until(pilot, lambda: not session.is_busy)
        chat.act(session.messages[-1].id, "delete_branch")
        await until(pilot, lambda: len(pilot.app.screen_stack) > 1)
        await pilot.press("y")
        await until_shown(pilot, "It works.")
        await say(pilot, "/clone")
        await until(pilot, lambda: len(services.chats.threads()) == 2)


@in_loop
async def test_attached_files_are_folded_and_json_is_code(
    services: Services, host: ScriptedHost, tmp_path: Path
) -> None:
    (tmp_path / "notes.md").write_text("hidden words\n" * 100)
    host.scripts["guide"] = Script('{"a": "`b`"}')
    async with opened(services) as (app, pilot):
        await say(pilot, "/json on")
        await ask(pilot, f"read @{tmp_path}/notes.md now")
        await until_shown(pilot, "notes.md · 1.3 kB · 2")
        await until_shown(pilot, '{"a": "`b`"}')
        assert "json · 1" in text_of(app) and "hidden words" not in text_of(app)
        await pilot.press("ctrl+t", "up", "enter")
        await until_shown(pilot, "hidden words")


@in_loop
async def test_two_chats_answer_at_once(services: Services, host: ScriptedHost) -> None:
    gate = asyncio.Semaphore(0)
    host.scripts["guide"] = Script("one two", gate=gate)
    async with opened(services) as (app, pilot):
        await say(pilot, "first chat")
        await until(pilot, lambda: len(app.sessions.busy) == 1)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: chat_of(pilot).session is None)
        await say(pilot, "second chat")
        await until(pilot, lambda: len(app.sessions.busy) == 2)
        await until_shown(pilot, "first chat")
        for _ in range(4):
            gate.release()
        await until(pilot, lambda: not app.sessions.busy)
        await pilot.press("alt+down")
        await until(
            pilot,
            lambda: (
                (session := chat_of(pilot).session) is not None
                and session.thread.title == "first chat"
            ),
        )
        await until_shown(pilot, "one two")


@in_loop
async def test_search_finds_a_message_on_another_branch(services: Services) -> None:
    async with opened(services) as (app, pilot):
        await ask(pilot, "the needle")
        chat = chat_of(pilot)
        assert chat.session is not None
        await chat.session.edit(chat.session.messages[0].id, "hay")
        await chat.session.wait()
        await pilot.press("ctrl+n")
        await pilot.press("ctrl+f")
        await until(pilot, lambda: isinstance(app.screen, SearchScreen))
        await until(pilot, lambda: isinstance(app.focused, Input))
        await pilot.press(*"needle")
        await until_shown(pilot, "2 found")  # In the title, and in the message.
        await pilot.press("down", "down", "down", "enter")
        # The title is in the list of chats too, so its text on the screen proves nothing.
        await until(
            pilot,
            lambda: (
                (session := chat_of(pilot).session) is not None
                and [message.content for message in session.messages[:1]] == ["the needle"]
            ),
        )


@in_loop
async def test_list_actions(services: Services) -> None:
    async with opened(services) as (_, pilot):
        await ask(pilot, "first")
        pilot.app.query_one(ThreadList).focus()
        await pilot.press("p")
        await until(pilot, lambda: services.chats.threads()[0].pinned)
        await pilot.press("a")
        await until(pilot, lambda: not services.chats.threads())
        assert len(services.chats.threads(archived=True)) == 1


@in_loop
async def test_rename_and_delete(services: Services) -> None:
    async with opened(services) as (_, pilot):
        await ask(pilot, "first")
        await say(pilot, "/rename A better title")
        await until(pilot, lambda: services.chats.threads()[0].title == "A better title")
        await until_shown(pilot, "A better title")
        (chat,) = services.chats.threads()
        on_disk = services.paths.kv_cache / "a model" / owner_of(chat.id)
        other = on_disk.with_name("of another chat")
        for folder in (on_disk, other):
            folder.mkdir(parents=True)
        await say(pilot, "/delete")
        await until(pilot, lambda: len(pilot.app.screen_stack) > 1)
        await pilot.press("y")
        await until(pilot, lambda: not services.chats.threads())
        await until(pilot, lambda: not on_disk.exists())
        assert chat_of(pilot).session is None and other.exists()


@in_loop
async def test_a_deleted_chat_leaves_the_list_if_its_keys_and_values_stay(
    services: Services,
) -> None:
    async with opened(services) as (app, pilot):
        await ask(pilot, "first")
        (chat,) = services.chats.threads()
        on_disk = services.paths.kv_cache / "a model" / owner_of(chat.id)
        on_disk.parent.mkdir(parents=True)
        on_disk.write_text("a file where a folder should be")
        await say(pilot, "/delete")
        await until(pilot, lambda: len(app.screen_stack) > 1)
        await pilot.press("y")
        await until_shown(pilot, "--clear")
        assert not services.chats.threads() and not app.screen.query_one(ThreadList).options


@in_loop
async def test_settings_by_slash_commands(services: Services, host: ScriptedHost) -> None:
    async with opened(services, (140, 30)) as (_, pilot):
        values = ("/set seed auto", "/set temperature 0")
        for command in (*values, "/system Be brief.", "/think off", "/json on"):
            await say(pilot, command)
            await pilot.pause()
        await ask(pilot, "x")
        shown = text_of(pilot.app)
        assert "system: Be brief. · JSON · thinking off" in shown
        assert "temperature 0" in shown
        request = host.models["guide"].requests[-1]
        assert request.sampling.temperature == 0
        assert request.messages is not None and request.messages[0].content == "Be brief."
        assert request.constraint is not None and request.constraint.kind == "json"


@in_loop
async def test_commands_confirm_and_errors_stay_until_the_next_key(services: Services) -> None:
    async with opened(services) as (app, pilot):
        await say(pilot, "/system Be brief.")
        await until_shown(pilot, "System prompt: Be brief.")
        await say(pilot, "/set temprature 1")
        await until_shown(pilot, "Did you mean temperature?")
        assert chat_of(pilot).prompt.text == "/set temprature 1"
        await pilot.pause(0.5)  # The draft is counted meanwhile.
        assert "Did you mean temperature?" in text_of(app)
        await pilot.press("end")
        await pilot.pause()
        assert "Did you mean" not in text_of(app)
        await say(pilot, "/set temperature 99")
        await until_shown(pilot, "temperature: expected a number")


@in_loop
async def test_what_is_typed_while_the_chat_changes_stays_with_its_chat(services: Services) -> None:
    read = services.chats.draft
    may_go_on = threading.Event()

    def slowly(thread: str) -> str:
        may_go_on.wait()
        return read(thread)

    async with opened(services) as (_, pilot):
        await ask(pilot, "first")
        (thread,) = services.chats.threads()
        services.chats.draft = slowly  # type: ignore[method-assign]
        await pilot.press("ctrl+n")
        await pilot.press(*"late")
        assert chat_of(pilot).prompt.text == "late"
        may_go_on.set()
        await until(pilot, lambda: chat_of(pilot).session is None)
        assert chat_of(pilot).prompt.text == ""
        await until(pilot, lambda: read(thread.id) == "late")


@pytest.mark.parametrize("is_new", [True, False])
@in_loop
async def test_text_goes_to_its_chat_also_when_another_is_opened_while_files_are_read(
    services: Services, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    expand, may_go_on = attachments.expand, threading.Event()

    def slowly(text: str, folder: Path) -> attachments.Expanded:
        if text == "late":
            may_go_on.wait()
        return expand(text, folder)

    async with opened(services) as (_, pilot):
        for text in ("first", "second"):
            await ask(pilot, text)
            await say(pilot, "/new")
            await until(pilot, lambda: chat_of(pilot).session is None)
        second, first = services.chats.threads()
        chat = chat_of(pilot)
        if not is_new:
            await chat.open(second.id)
        monkeypatch.setattr(attachments, "expand", slowly)
        await say(pilot, "late")
        await until(pilot, lambda: chat.prompt.text == "")
        await chat.open(first.id)
        may_go_on.set()
        await until(pilot, lambda: services.chats.search("late"))
        (hit,) = [one for one in services.chats.search("late") if one.role == "user"]
        assert (hit.thread_id == second.id) != is_new and hit.thread_id != first.id
        assert chat.session is not None and chat.session.thread.id == first.id
        await until(pilot, lambda: not pilot.app.sessions.busy)


@pytest.mark.parametrize(
    ("text", "refusing"),
    [
        ("late", "hearth.app.tui.attachments.expand"),
        ("/import late", "hearth.app.tui.screens.chat.typed_path"),
    ],
)
@in_loop
async def test_what_fails_is_a_draft_of_its_chat_also_when_another_is_opened(
    services: Services, monkeypatch: pytest.MonkeyPatch, text: str, refusing: str
) -> None:
    may_go_on = threading.Event()

    def refuse(*_: object) -> attachments.Expanded:
        may_go_on.wait()
        raise AttachmentRefused("It is no text.", "Name another file.")

    async with opened(services) as (_, pilot):
        await ask(pilot, "first")
        chat = chat_of(pilot)
        monkeypatch.setattr(refusing, refuse)
        await say(pilot, text)
        await until(pilot, lambda: chat.prompt.text == "")
        await chat.leave()
        may_go_on.set()
        (thread,) = services.chats.threads()
        await until(pilot, lambda: services.chats.draft(thread.id) == text)
        await until_shown(pilot, "It is no text.")
        assert chat.prompt.text == "" and services.chats.draft() == ""


@in_loop
async def test_what_is_sent_twice_begins_one_chat(services: Services) -> None:
    async with opened(services) as (_, pilot):
        chat = chat_of(pilot)
        chat.send_text("first")
        chat.send_text("first")
        await until(pilot, lambda: chat.prompt.text == "first")
        await until(pilot, lambda: len(chat.current.messages) == 2)
        await until(pilot, lambda: not chat.current.is_busy)
        assert [message.role for message in chat.current.messages] == ["user", "assistant"]
        assert len(services.chats.threads()) == 1


@in_loop
async def test_what_is_sent_while_it_is_kept_is_no_draft_then(services: Services) -> None:
    keep = services.chats.keep_draft
    is_keeping, may_go_on = threading.Event(), threading.Event()

    def slowly(thread: str, text: str) -> None:
        is_keeping.set()
        may_go_on.wait()
        keep(thread, text)

    async with opened(services) as (_, pilot):
        services.chats.keep_draft = slowly  # type: ignore[method-assign]
        await pilot.press(*"hello")
        await until(pilot, is_keeping.is_set)
        await pilot.press("enter")
        await pilot.pause()
        may_go_on.set()
        await until_shown(pilot, "It works.")
    assert services.chats.draft() == ""


@in_loop
async def test_drafts_belong_to_chats_and_survive_quitting(services: Services) -> None:
    async with opened(services) as (_, pilot):
        await ask(pilot, "first")
        prompt = chat_of(pilot).prompt
        await pilot.press(*"half a thought")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: chat_of(pilot).session is None)
        assert prompt.text == ""
        await pilot.press(*"another")
        await pilot.press("alt+down")
        await until(pilot, lambda: prompt.text == "half a thought")
        await pilot.press("!")
        await pilot.press("ctrl+q")
    (thread,) = services.chats.threads()
    async with opened(services) as (_, pilot):
        await until(pilot, lambda: chat_of(pilot).prompt.text == "another")
    async with opened(services, thread=thread.id) as (_, pilot):
        assert chat_of(pilot).prompt.text == "half a thought!"
        await say(pilot, "done")
        await until_shown(pilot, "done")
        await until(pilot, lambda: services.chats.draft(thread.id) == "")


@in_loop
async def test_a_question_mark_asks_guide_and_leaves_the_chat_as_it_is(
    services: Services, host: ScriptedHost
) -> None:
    async with opened(services) as (_, pilot):
        await say(pilot, "/model guide-draft")
        await ask(pilot, "hello")
        await say(pilot, "? how do I quantize")
        await until_shown(pilot, "It works.")
        assert [one.model for one in services.chats.threads()] == ["guide", "guide-draft"]
        request = host.models["guide"].requests[-1]
        assert request.messages is not None
        assert request.messages[-1].content == "how do I quantize"
        await pilot.press("alt+down")
        await until(pilot, lambda: chat_of(pilot).model == "guide-draft")


@in_loop
async def test_a_new_chat_offers_prompts(services: Services, host: ScriptedHost) -> None:
    async with opened(services) as (app, pilot):
        await until_shown(pilot, "guide · F16 · 8.5 MB · fast on this machine")
        assert not app.query_one(ThreadList).display
        await pilot.press("tab", "down", *"Hm", "tab", "enter")
        await until_shown(pilot, "It works.")
        request = host.models["guide"].requests[-1]
        assert request.messages is not None
        assert request.messages[-1].content == "How do I get a larger model?"
        await until(pilot, lambda: app.query_one(ThreadList).display)
        await pilot.resize_terminal(99, 30)
        await until(pilot, lambda: not app.query_one(ThreadList).display)
        await pilot.press("ctrl+b")
        await until(pilot, lambda: app.query_one(ThreadList).display)


@in_loop
async def test_a_model_that_is_here_is_offered_in_place_of_the_guide(
    services: Services, tiny_model: Path
) -> None:
    async with opened(services) as (_, pilot):
        await until_shown(pilot, "F3 gets a larger one: SmolLM2 135M, 93 MB")
    services.paths.models.mkdir(parents=True, exist_ok=True)
    shutil.copy(tiny_model, services.paths.models / "mine.gguf")
    async with opened(services) as (_, pilot):
        await until_shown(pilot, "F3 opens another model: mine")


@in_loop
async def test_what_does_not_fit_is_shown_before_it_is_sent(
    services: Services, tmp_path: Path
) -> None:
    (tmp_path / "long.txt").write_text("word " * 20_000)
    async with opened(services, size=(140, 30)) as (_, pilot):
        chat_of(pilot).folder = tmp_path
        await until_shown(pilot, "0 of 2,048 (0%)")
        await pilot.press(*"sum up @long.txt")
        await until_shown(pilot, "this message does not fit")
        await until_shown(pilot, "about 25,010 tokens, long.txt")


@in_loop
async def test_the_model_of_a_chat(services: Services, host: ScriptedHost) -> None:
    async with opened(services) as (_, pilot):
        await say(pilot, "/model guide-draft")
        await pilot.pause()
        await ask(pilot, "who are you?")
        await until_shown(pilot, "I am the draft.")
        await say(pilot, "/model no-such-model")
        await until_shown(pilot, "There is no model")


@in_loop
async def test_a_new_chat_shows_the_model_as_it_is_now(services: Services) -> None:
    """The model in the settings was changed and then downloaded, on other screens."""
    text = 'model = "later"\n'
    async with opened(services, (140, 30)) as (_, pilot):
        await until_shown(pilot, "guide · F16")
        await pilot.press("f7")
        services.paths.settings_file.parent.mkdir(parents=True, exist_ok=True)
        services.paths.settings_file.write_text(text)
        services.use_settings()
        await pilot.press("f2")
        await until_shown(pilot, 'There is no model "later"')
        await pilot.press("f7")
        services.paths.models.mkdir(parents=True)
        shutil.copyfile(GUIDE, services.paths.models / "later.gguf")
        await services.index.changed()
        await pilot.press("f2")
        await until_shown(pilot, "later · F16")


@in_loop
async def test_export_and_import(services: Services, tmp_path: Path) -> None:
    async with opened(services, (200, 30)) as (app, pilot):
        await ask(pilot, "first " + "ä" * 1000)
        markdown, whole = tmp_path / "chat.md", tmp_path / "chat.json"
        await say(pilot, f"/export markdown {markdown}")
        await until_shown(pilot, f"Written to {markdown}")
        await say(pilot, f"/export json {whole}")
        await until_shown(pilot, f"{whole} ({size(whole.stat().st_size)})")
        assert "It works." in markdown.read_text()
        assert json.loads(whole.read_text())
        await say(pilot, "/export")
        await until(pilot, lambda: isinstance(app.screen, AskLine))
        app.screen.query_one(Input).value = str(tmp_path / "asked.json")
        await pilot.press("enter")
        await until_shown(pilot, f"Written to {tmp_path / 'asked.json'}")
        assert (tmp_path / "asked.json").read_text() == whole.read_text()
        await say(pilot, f"/import {whole}")
        await until(pilot, lambda: len(services.chats.threads()) == 2)
        whole.write_text("[" * 100_000)
        for command in ("import", "schema"):
            await say(pilot, f"/{command} {whole}")
            await until_shown(pilot, "cannot be read as JSON")
            await pilot.press("ctrl+n")
            await until(pilot, lambda: "cannot be read" not in text_of(pilot.app))


@in_loop
async def test_prompt_view_and_copy(services: Services) -> None:
    async with opened(services) as (app, pilot):
        await ask(pilot, "first")
        await say(pilot, "/copy")
        await until(pilot, lambda: app.clipboard == "It works.")
        await chat_of(pilot).current.delete_branch(chat_of(pilot).current.messages[-1].id)
        await say(pilot, "/copy")
        await until_shown(pilot, "This chat has no answer yet.")
        assert app.clipboard == "It works."
        await say(pilot, "/prompt")
        await until_shown(pilot, "<user>first")
        await pilot.press("escape")


@in_loop
async def test_an_error_is_told_and_the_text_comes_back(services: Services, tmp_path: Path) -> None:
    async with opened(services) as (_, pilot):
        await say(pilot, f"look at @{tmp_path}")
        await until(pilot, lambda: chat_of(pilot).prompt.text == f"look at @{tmp_path}")
        await until_shown(pilot, "folder")
        assert not services.chats.threads()


@pytest.mark.parametrize("written", ["keep me", "? keep me"])
@in_loop
async def test_a_message_without_an_answer_is_not_sent_again(
    services: Services, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise ChatsDiskFull("The disk is full.", "Free some space.")

    async with opened(services, (140, 30)) as (_, pilot):
        with monkeypatch.context() as patch:
            patch.setattr(type(services.chats), "begin_answer", full)
            await say(pilot, written)
            await until_shown(pilot, "Free some space. /retry")
        chat = chat_of(pilot)
        assert chat.prompt.text == ""
        await say(pilot, "/retry")
        await until(pilot, lambda: len(chat.current.messages) == 2)
        await until(pilot, lambda: not chat.current.is_busy)
        assert [one.content for one in chat.current.messages] == ["keep me", "It works."]


@in_loop
async def test_a_name_that_no_file_has_is_told_and_sent_as_it_is(services: Services) -> None:
    async with opened(services) as (app, pilot):
        await ask(pilot, "what does @nothing.here do?")
        await until(pilot, lambda: "No such file: @nothing.here" in text_of(app))
        session = chat_of(pilot).session
        assert session is not None
        assert session.messages[0].content == "what does @nothing.here do?"


@in_loop
async def test_what_its_makers_advise_is_told_when_a_model_is_loaded(
    services: Services, host: ScriptedHost
) -> None:
    advice = "The model's makers recommend temperature 0.6."
    host.scripts["guide"] = Script(info={"notices": (advice,)})
    async with opened(services) as (app, pilot):
        await ask(pilot, "hello")
        await until(pilot, lambda: advice in notices(app))


@in_loop
async def test_quit_and_reopen(services: Services, host: ScriptedHost) -> None:
    gate = asyncio.Semaphore(0)
    host.scripts["guide"] = Script("one two", gate=gate)
    async with opened(services) as (app, pilot):
        await say(pilot, "first")
        await until(pilot, lambda: bool(app.sessions.busy))
        gate.release()
        await until_shown(pilot, "one")
        await pilot.press("ctrl+q")
        await until_shown(pilot, "Stop and quit")
        await pilot.click("#answer-2")
        await until(pilot, lambda: not app.sessions.busy)
    (thread,) = services.chats.threads()
    async with opened(services, thread=thread.id) as (_, pilot):
        await until_shown(pilot, "one")
        await until_shown(pilot, "Stopped.")


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@in_loop
async def test_it_looks_as_it_should(
    services: Services, host: ScriptedHost, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    from screens import check_snapshot

    monkeypatch.setattr(guide_pages, "page_location", str)  # Not a path of this machine.
    host.scripts["guide"] = Script(
        "A list:\n\n- one\n- two\n\n```python\nprint('three')\n```\n", reasoning="Let me think."
    )
    async with opened(services, size=(width, 30)) as (app, pilot):
        await ask(pilot, "Show me a list.")
        await until_shown(pilot, "three")
        await pilot.pause(0.2)
        check_snapshot(app, f"chat-{width}")
