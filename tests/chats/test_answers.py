"""Answers: begun, kept while they grow, ended, continued; cut off only with their writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from hearth.app.chats.errors import ChatNotFound, ChatsUnwritable, MessageInUse
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage, Numbers
from hearth.backends.contract.messages import ToolCall
from hearth.backends.machine.lock import LockFile

CALL = ToolCall("1", "look", "{}")


def test_an_answer_grows_and_ends(store: ChatStore) -> None:
    thread = store.create()
    asked = store.add(thread.id, None, "user", "hello")
    answer = store.begin_answer(thread.id, asked.id, "guide")
    assert (answer.role, answer.state, answer.content) == ("assistant", "streaming", "")
    assert answer.numbers == Numbers(model="guide")
    assert store.thread(thread.id).leaf == answer.id
    store.save_answer(answer.id, "Hel", "th", (CALL,))
    kept = store.message(answer.id)
    assert (kept.content, kept.reasoning, kept.tool_calls, kept.state) == (
        "Hel",
        "th",
        (CALL,),
        "streaming",
    )
    measured = Numbers(ttft_s=0.5, tok_per_s=12.5, completion_tokens=3)
    store.end_answer(
        ChatMessage(
            answer.id, None, "assistant", "Hello", "thought", finish_reason="stop", numbers=measured
        )
    )
    ended = store.message(answer.id)
    assert (ended.content, ended.reasoning, ended.tool_calls) == ("Hello", "thought", ())
    assert (ended.state, ended.finish_reason, ended.error) == ("complete", "stop", "")
    assert ended.numbers == Numbers(0.5, 12.5, completion_tokens=3, model="guide")


def test_another_answer_is_a_sibling(store: ChatStore) -> None:
    thread = store.create()
    asked = store.add(thread.id, None, "user", "hello")
    first = store.begin_answer(thread.id, asked.id)
    second = store.begin_answer(thread.id, asked.id)
    assert second.siblings == (first.id, second.id)
    store.end_answer(
        ChatMessage(first.id, None, "assistant", "one", state="stopped", finish_reason="cancelled")
    )
    store.end_answer(
        ChatMessage(second.id, None, "assistant", "", state="failed", error="The worker died.")
    )
    assert [message.state for message in store.path(thread.id)] == ["complete", "failed"]
    assert store.message(second.id).error == "The worker died."


@pytest.mark.parametrize("state", ["complete", "stopped", "failed"])
def test_an_answer_goes_on(store: ChatStore, state: str) -> None:
    thread = store.create()
    answer = store.begin_answer(thread.id, None, "guide")
    store.end_answer(ChatMessage(answer.id, None, "assistant", "one", state=state, error="x"))  # type: ignore[arg-type]
    store.continue_answer(answer.id)
    resumed = store.message(answer.id)
    assert (resumed.state, resumed.content, resumed.error) == ("streaming", "one", "")
    store.save_answer(answer.id, "one two", "")
    store.end_answer(ChatMessage(answer.id, None, "assistant", "one two three"))
    assert store.message(answer.id).content == "one two three"


def test_what_others_build_on_does_not_change(store: ChatStore) -> None:
    thread = store.create()
    asked = store.add(thread.id, None, "user", "hello")
    answer = store.begin_answer(thread.id, asked.id)
    with pytest.raises(MessageInUse, match="already"):
        store.continue_answer(answer.id)
    store.end_answer(ChatMessage(answer.id, None, "assistant", "one", state="stopped"))
    with pytest.raises(MessageInUse, match="Only answers"):
        store.continue_answer(asked.id)
    after = store.add(thread.id, answer.id, "user", "and?")
    with pytest.raises(MessageInUse, match="build on"):
        store.continue_answer(answer.id)
    clone = store.clone(thread.id)
    for each in (thread, clone):
        store.delete_branch(each.id, after.id)
    with pytest.raises(MessageInUse, match="build on"):
        store.continue_answer(answer.id)


def test_an_answer_that_ended_is_written_no_more(store: ChatStore) -> None:
    thread = store.create()
    answer = store.begin_answer(thread.id, None)
    store.end_answer(ChatMessage(answer.id, None, "assistant", "one"))
    with pytest.raises(MessageInUse):
        store.save_answer(answer.id, "two", "")
    with pytest.raises(MessageInUse):
        store.end_answer(ChatMessage(answer.id, None, "assistant", "two", state="stopped"))
    assert store.message(answer.id).content == "one"


def test_an_answer_whose_thread_was_deleted_is_not_found(store: ChatStore) -> None:
    thread = store.create()
    answer = store.begin_answer(thread.id, None)
    store.delete(thread.id)
    with pytest.raises(ChatNotFound):
        store.save_answer(answer.id, "two", "")
    with pytest.raises(ChatNotFound):
        store.continue_answer(answer.id)


def test_a_clone_of_an_answer_under_way_has_what_is_there(store: ChatStore) -> None:
    thread = store.create()
    answer = store.begin_answer(thread.id, None)
    store.save_answer(answer.id, "one", "")
    clone = store.clone(thread.id)
    store.end_answer(ChatMessage(answer.id, None, "assistant", "one two"))
    (copy,) = store.path(clone.id)
    assert (copy.content, copy.state) == ("one", "stopped")


def test_the_answers_of_an_open_store_are_left_alone(store: ChatStore, path: Path) -> None:
    thread = store.create()
    answer = store.begin_answer(thread.id, None)
    store.save_answer(answer.id, "one", "")
    with ChatStore(path) as other:
        assert other.message(answer.id).state == "streaming"
        with pytest.raises(MessageInUse, match="another Hearth"):
            other.save_answer(answer.id, "mine", "")
        with pytest.raises(MessageInUse, match="already"):
            other.continue_answer(answer.id)
    store.end_answer(ChatMessage(answer.id, None, "assistant", "one two"))


def test_a_store_that_closes_stops_its_answers_and_leaves_no_files(path: Path) -> None:
    with ChatStore(path) as staying, ChatStore(path) as leaving:
        thread = leaving.create()
        answer = leaving.begin_answer(thread.id, None)
        leaving.save_answer(answer.id, "one", "")
        leaving.close()
        assert staying.message(answer.id).state == "stopped"
        staying.continue_answer(answer.id)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_where_nothing_can_be_locked_no_answer_is_begun(
    store: ChatStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LockFile, "acquire", lambda lock: False)
    thread = store.create()
    with pytest.raises(ChatsUnwritable, match="locked"):
        store.begin_answer(thread.id, None)
    assert store.path(thread.id) == []
