"""A chat session over scripted models: messages, branches, and what is saved whatever happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from async_tests import in_loop
from hearth.app import guide_pages
from hearth.app.chats.errors import ChatNotFound, ChatsDiskFull, NotAnswered
from hearth.app.paths import FolderUnusable
from hearth.app.session.events import Ended, Moved, Noticed, Piece, SessionEvent
from hearth.app.session.sessions import ChatSession, Sessions
from hearth.app.tui.services import Services
from hearth.app.tui.shown import shown_of
from hearth.backends.contract.requests import Request
from hearth.backends.engine.kv.disk_files import owner_of
from hearth.backends.errors import Busy, PromptTooLong, SettingsError, WorkerDied
from scripted import Script, ScriptedHost


async def asked(session: ChatSession, text: str) -> None:
    await session.send(text)
    await session.wait()


def texts(session: ChatSession) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in session.messages]


@in_loop
async def test_a_turn_is_kept_with_its_numbers(services: Services) -> None:
    session = await Sessions(services).create()
    heard: list[SessionEvent] = []
    session.subscribe(heard.append)
    busy: list[tuple[SessionEvent, bool]] = []
    session.subscribe(lambda event: busy.append((event, session.is_busy)))
    await asked(session, "does it work?")
    ended = next(at for at, (event, _) in enumerate(busy) if isinstance(event, Ended))
    assert [is_busy for _, is_busy in busy[ended:]] == [False, False, False]
    assert texts(session) == [("user", "does it work?"), ("assistant", "It works.")]
    answer = session.messages[-1]
    assert answer.state == "complete" and answer.numbers is not None
    assert answer.numbers.completion_tokens == 2 and answer.numbers.tok_per_s == 42.0
    assert "".join(h.text for h in heard if isinstance(h, Piece)) == "It works."
    states = [h.state for h in heard if isinstance(h, Moved)]
    assert states == ["loading", "prefill", "generating", "idle"]
    again = await Sessions(services).open(session.thread.id)
    assert texts(again) == texts(session)


@in_loop
async def test_answers_of_the_guide_name_a_page(services: Services, host: ScriptedHost) -> None:
    guide_pages.page_for("")  # Reads the pages.
    host.scripts["guide"] = Script(info={"quantization": "F16"})
    session = await Sessions(services).create(model="guide")
    await asked(session, "how do I quantize")
    assert shown_of(session)[-1].numbers.endswith("docs/quantize.md")


@in_loop
async def test_the_user_is_kept_before_anything_is_generated(
    services: Services, host: ScriptedHost
) -> None:
    host.scripts["guide"] = Script(gate=asyncio.Semaphore(0))
    session = await Sessions(services).create()
    await session.send("keep me")
    kept = services.chats.path(session.thread.id)
    assert kept[0].content == "keep me"
    await session.close()


@in_loop
async def test_a_chat_is_made_ready_once_while_the_user_writes(
    services: Services, host: ScriptedHost
) -> None:
    session = await Sessions(services).create()
    await session.prepare()
    assert not host.models, "there is nothing of a new chat"
    await asked(session, "does it work?")
    again = await Sessions(services).open(session.thread.id)
    await again.prepare()
    await again.prepare()
    [request] = host.models["guide"].restored
    assert [one.content for one in request.messages or ()][-2:] == [
        "does it work?",
        "It works.",
    ]
    assert request.session == session.thread.id and not again.is_busy


@in_loop
async def test_stop_keeps_the_text_and_cancels(services: Services, host: ScriptedHost) -> None:
    gate = asyncio.Semaphore(0)
    host.scripts["guide"] = Script("one two three four", gate=gate)
    session = await Sessions(services).create()
    pieces: list[str] = []
    came = asyncio.Event()

    def hear(event: SessionEvent) -> None:
        if isinstance(event, Piece):
            pieces.append(event.text)
            came.set()

    session.subscribe(hear)
    await session.send("count")
    gate.release()
    await came.wait()
    session.stop()
    await session.wait()
    answer = session.messages[-1]
    assert (answer.content, answer.state) == ("one ", "stopped")
    assert host.models["guide"].cancelled == 1
    assert not session.is_busy and session.progress.state == "idle"


@in_loop
async def test_a_stopped_answer_is_continued(services: Services, host: ScriptedHost) -> None:
    host.scripts["guide"] = Script("One, ")
    session = await Sessions(services).create()
    await asked(session, "count")
    last = session.messages[-1]
    host.scripts["guide"] = Script("two.")
    await session.resume(last.id)
    await session.wait()
    assert texts(session)[-1] == ("assistant", "One, two.")
    request = host.models["guide"].requests[-1]
    assert request.continue_last and request.messages is not None
    assert request.messages[-1].content == "One, "


@in_loop
async def test_edit_regenerate_and_siblings(services: Services, host: ScriptedHost) -> None:
    session = await Sessions(services).create()
    await asked(session, "first")
    host.scripts["guide"] = Script("Another.")
    await session.regenerate(session.messages[-1].id)
    await session.wait()
    assert texts(session)[-1][1] == "Another."
    assert len(session.messages[-1].siblings) == 2
    await session.step(session.messages[-1].id, -1)
    assert texts(session)[-1][1] == "It works."
    await session.edit(session.messages[0].id, "second")
    await session.wait()
    assert texts(session) == [("user", "second"), ("assistant", "Another.")]
    await session.step(session.messages[0].id, -1)
    assert texts(session) == [("user", "first"), ("assistant", "It works.")]
    await session.edit(session.messages[1].id, "As I say.")
    assert texts(session)[-1] == ("assistant", "As I say.")
    assert not session.is_busy, "an edited answer is not answered"
    await session.delete_branch(session.messages[1].id)
    assert "As I say." not in [text for _, text in texts(session)]


@in_loop
async def test_deleted_messages_disappear_if_keys_and_values_cannot_be_deleted(
    services: Services,
) -> None:
    session = await Sessions(services).create()
    await asked(session, "first")
    on_disk = services.paths.kv_cache / "a model" / owner_of(session.thread.id)
    on_disk.parent.mkdir(parents=True)
    on_disk.write_text("a file where a folder should be")
    with pytest.raises(FolderUnusable):
        await session.delete_branch(session.messages[1].id)
    assert texts(session) == [("user", "first")]
    await asked(session, "second")


@in_loop
async def test_two_sessions_generate_at_the_same_time(
    services: Services, host: ScriptedHost
) -> None:
    gate = asyncio.Semaphore(0)
    host.scripts["guide"] = Script("one two", gate=gate)
    sessions = Sessions(services)
    first, second = await sessions.create(), await sessions.create()
    await first.send("a")
    await second.send("b")
    assert sessions.busy == [first, second]
    with pytest.raises(Busy):
        await first.send("c")
    for _ in range(4):
        gate.release()
    await asyncio.gather(first.wait(), second.wait())
    assert texts(first)[-1] == texts(second)[-1] == ("assistant", "one two")
    assert first.unread and second.unread
    assert {request.session for request in host.models["guide"].requests} == {
        first.thread.id,
        second.thread.id,
    }


@in_loop
async def test_of_two_answers_begun_at_once_one_is_refused(services: Services) -> None:
    session = await Sessions(services).create()
    await asked(session, "first")
    answer = session.messages[-1].id
    begun = [session.regenerate(answer), session.regenerate(answer)]
    ended = await asyncio.gather(*begun, return_exceptions=True)
    assert ended[0] is None and isinstance(ended[1], Busy)
    await session.wait()
    assert len(session.messages[-1].siblings) == 2
    assert [one.state for one in session.messages] == ["complete"] * 2
    await asked(session, "second")
    assert len(session.messages) == 4


@in_loop
async def test_what_another_process_deleted_is_gone_when_the_chat_is_opened_again(
    services: Services,
) -> None:
    sessions = Sessions(services)
    session = await sessions.create()
    await asked(session, "first")
    other = await Sessions(services).open(session.thread.id)
    await other.delete_branch(session.messages[-1].id)
    with pytest.raises(ChatNotFound, match="open the chat again"):
        await session.send("second")
    assert await sessions.open(session.thread.id) is session
    await asked(session, "second")
    assert [text for _, text in texts(session)] == ["first", "second", "It works."]


@in_loop
async def test_a_chat_that_answers_is_opened_as_it_is(
    services: Services, host: ScriptedHost
) -> None:
    host.scripts["guide"] = Script(gate=asyncio.Semaphore(0))
    sessions = Sessions(services)
    session = await sessions.create()
    await session.send("first")
    before = session.messages
    assert await sessions.open(session.thread.id) is session and session.messages is before
    await session.close()


@in_loop
async def test_a_failure_is_told_and_what_came_is_kept(
    services: Services, host: ScriptedHost
) -> None:
    host.scripts["guide"] = Script("Half an", error=WorkerDied("It died.", "Ask again."))
    session = await Sessions(services).create()
    heard: list[SessionEvent] = []
    session.subscribe(heard.append)
    await asked(session, "x")
    answer = session.messages[-1]
    assert (answer.content, answer.state) == ("Half an", "failed")
    assert answer.error == "It died. Ask again."
    [ended] = [h for h in heard if isinstance(h, Ended)]
    assert isinstance(ended.error, WorkerDied) and ended.message == answer.id


@in_loop
async def test_a_full_context_leaves_the_oldest_turn_out_and_says_so(
    services: Services, host: ScriptedHost
) -> None:
    def reply(request: Request) -> str:
        if len(request.messages or ()) > 3:
            raise PromptTooLong("messages", "The prompt has 9 tokens; 8 fit.", "", prompt_tokens=9)
        return "Fits."

    host.scripts["guide"] = Script(reply)
    session = await Sessions(services).create()
    heard: list[SessionEvent] = []
    session.subscribe(heard.append)
    await asked(session, "one")
    await asked(session, "two")
    await asked(session, "three")
    assert session.left_out == 2 and texts(session)[-1] == ("assistant", "Fits.")
    assert len(session.messages) == 6, "they are left out of the prompt, not of the chat"
    [notice] = [h for h in heard if isinstance(h, Noticed)]
    assert notice.severity == "warning"
    assert notice.text == (
        "The prompt has 9 tokens; 8 fit. The 2 oldest messages are left out of it."
    )
    marks = [one.note for one in shown_of(session)]
    assert [bool(mark) for mark in marks] == [False, True, False, False, False, False]
    assert "left out of the prompt" in marks[1]
    # Another version of the first question has no earlier messages.
    await session.edit(session.messages[0].id, "one, again")
    await session.wait()
    assert session.left_out == 0 and texts(session)[-1] == ("assistant", "Fits.")


@in_loop
async def test_a_chat_may_refuse_to_leave_anything_out(
    services: Services, host: ScriptedHost
) -> None:
    def reply(request: Request) -> str:
        if len(request.messages or ()) > 3:
            raise PromptTooLong("messages", "The prompt has 9 tokens; 8 fit.", "Be brief.")
        return "Fits."

    host.scripts["guide"] = Script(reply)
    session = await Sessions(services).create()
    for text in ("one", "two", "three"):
        await asked(session, text)
    assert session.left_out == 2
    await session.change(settings={"set": {"context_overflow": "refuse"}})
    await asked(session, "four")
    assert session.messages[-1].state == "failed" and session.left_out == 0
    assert session.messages[-1].error == "The prompt has 9 tokens; 8 fit. Be brief."
    sent = host.models["guide"].requests[-1].messages
    assert sent is not None and [one.content for one in sent][::2] == [
        *("one", "two", "three", "four")
    ]


@in_loop
async def test_with_attention_sinks_nothing_is_left_out(
    services: Services, host: ScriptedHost
) -> None:
    def reply(request: Request) -> str:
        if len(request.messages or ()) > 3 and request.attention_sinks is None:
            raise PromptTooLong("messages", "The prompt has 9 tokens; 8 fit.", "Be brief.")
        return "Fits."

    host.scripts["guide"] = Script(reply)
    session = await Sessions(services).create()
    for text in ("one", "two", "three"):
        await asked(session, text)
    assert session.left_out == 2
    await session.change(settings={"set": {"attention_sinks": 4}})
    await asked(session, "four")
    sent = host.models["guide"].requests[-1]
    assert (sent.attention_sinks, len(sent.messages or ()), session.left_out) == (4, 7, 0)


@in_loop
async def test_settings_of_a_chat_hold(services: Services, host: ScriptedHost) -> None:
    values = {"set": {"temperature": 0.0, "max_tokens": 5}, "constraint": {"kind": "json"}}
    session = await Sessions(services).create(system="Be brief.", settings=values)
    await asked(session, "x")
    request = host.models["guide"].requests[-1]
    assert request.sampling.temperature == 0.0 and request.max_tokens == 5
    assert request.constraint is not None and request.constraint.kind == "json"
    assert request.messages is not None and request.messages[0].content == "Be brief."
    await session.change(settings={"set": {"temperature": 99}})
    await asked(session, "y")
    assert session.messages[-1].state == "failed"
    assert "temperature" in session.messages[-1].error
    with pytest.raises(SettingsError):
        await services.choose("", {"no_such_setting": 1})


@in_loop
async def test_what_is_to_be_known_of_a_model_is_told_once(
    services: Services, host: ScriptedHost
) -> None:
    advice = ("The model's makers recommend temperature 0.6.", "Tensors are not known: odd.")
    host.scripts["guide"] = Script(info={"notices": advice})
    sessions = Sessions(services)
    unseen = await sessions.create()
    await asked(unseen, "nobody looks")
    heard: list[SessionEvent] = []
    for text in ("first", "second"):
        session = await sessions.create()
        session.subscribe(heard.append)
        await asked(session, text)
        await asked(session, text)
    assert [h.text for h in heard if isinstance(h, Noticed)] == list(advice)
    host.scripts["guide"] = Script(info={"notices": ("Context is 64 tokens.", *advice)})
    await asked(session, "loaded again")
    assert [h.text for h in heard if isinstance(h, Noticed)][2:] == ["Context is 64 tokens."]


@in_loop
async def test_a_question_without_an_answer_is_not_sent_again(
    services: Services, host: ScriptedHost
) -> None:
    host.scripts["guide"] = Script("", error=WorkerDied("It died.", "Ask again."))
    session = await Sessions(services).create()
    await asked(session, "one")
    host.scripts["guide"] = Script("It works.")
    await asked(session, "two")
    assert [role for role, _ in texts(session)] == ["user", "assistant"] * 2
    messages = host.models["guide"].requests[-1].messages
    assert [message.content for message in messages or ()] == ["two"]


def full(*_: object, **__: object) -> None:
    raise ChatsDiskFull("The disk is full.", "Free some space.")


@in_loop
async def test_a_message_whose_answer_cannot_begin_is_answered_later(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await Sessions(services).create()
    with monkeypatch.context() as patch:
        patch.setattr(type(services.chats), "begin_answer", full)
        with pytest.raises(NotAnswered, match=r"The disk is full\. Free some space\."):
            await session.send("x")
    assert texts(session) == [("user", "x")] and not session.is_busy
    await session.regenerate(session.messages[0].id)
    await session.wait()
    assert texts(session) == [("user", "x"), ("assistant", "It works.")]


@pytest.mark.parametrize(
    ("work", "state"), [(ChatSession.regenerate, "failed"), (ChatSession.resume, "complete")]
)
@in_loop
async def test_an_answer_that_cannot_be_read_back_is_not_left_streaming(
    services: Services, monkeypatch: pytest.MonkeyPatch, work: Any, state: str
) -> None:
    session = await Sessions(services).create()
    await asked(session, "x")
    with monkeypatch.context() as patch:
        patch.setattr(type(services.chats), "path", full)
        with pytest.raises(ChatsDiskFull):
            await work(session, session.messages[-1].id)
    await session.refresh()
    assert session.messages[-1].state == state and not session.is_busy
    await asked(session, "again")
    assert texts(session)[-1] == ("assistant", "It works.")


@in_loop
async def test_an_end_that_cannot_be_saved_ends_the_turn(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await Sessions(services).create()
    heard: list[SessionEvent] = []
    session.subscribe(heard.append)
    monkeypatch.setattr(type(services.chats), "end_answer", full)
    await asked(session, "x")
    assert not session.is_busy and session.progress.state == "idle"
    assert any(isinstance(h, Noticed) and "The disk is full." in h.text for h in heard)
