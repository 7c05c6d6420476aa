"""Messages form a tree: said, edited, shown, branched off and deleted."""

from __future__ import annotations

import pytest

from hearth.app.chats.errors import ChatNotFound, InvalidChat, MessageInUse
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage, Thread
from hearth.backends.contract.messages import ToolCall


def texts(messages: list[ChatMessage]) -> list[str]:
    return [message.content for message in messages]


def say(store: ChatStore, thread: Thread, *contents: str) -> list[ChatMessage]:
    """A chat of user and assistant in turn, after what is shown."""
    said: list[ChatMessage] = []
    parent = store.thread(thread.id).leaf
    for at, content in enumerate(contents):
        role = "assistant" if at % 2 else "user"
        said.append(store.add(thread.id, parent, role, content))
        parent = said[-1].id
    return said


@pytest.fixture
def thread(store: ChatStore) -> Thread:
    return store.create()


def test_what_is_said_is_read_back(store: ChatStore, thread: Thread) -> None:
    call = ToolCall("1", "look", '{"at": "é"}')
    asked = store.add(thread.id, None, "user", "a\x00b\ud800 \U0001f600\r\n")
    answered = store.add(thread.id, asked.id, "assistant", "yes", "hm", (call,))
    assert store.path(thread.id) == [asked, answered]
    assert asked.content == "a\x00b\ufffd \U0001f600\r\n"
    assert (asked.parent, answered.parent) == (None, asked.id)
    assert (answered.reasoning, answered.tool_calls) == ("hm", (call,))
    assert (answered.state, answered.numbers, answered.siblings) == (
        "complete",
        None,
        (answered.id,),
    )
    assert store.message(answered.id) == answered
    assert store.thread(thread.id).leaf == answered.id
    assert store.thread(thread.id).messages == 2


def test_a_path_may_end_earlier(store: ChatStore, thread: Thread) -> None:
    said = say(store, thread, "a", "b", "c")
    assert texts(store.path(thread.id, said[1].id)) == ["a", "b"]
    assert store.thread(thread.id).leaf == said[2].id


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_edit_stands_beside_the_message_and_nothing_is_lost(
    store: ChatStore, thread: Thread, at: int
) -> None:
    said = say(store, thread, "a", "b", "c", "d")
    edited = store.edit(thread.id, said[at].id, "new")
    assert (edited.parent, edited.role) == (said[at].parent, said[at].role)
    assert edited.siblings == (said[at].id, edited.id)
    assert texts(store.path(thread.id)) == [*"abcd"[:at], "new"]
    assert texts(store.path(thread.id, said[3].id)) == [*"abcd"]


def test_an_edit_keeps_thoughts_and_calls(store: ChatStore, thread: Thread) -> None:
    call = ToolCall("1", "look", "{}")
    old = store.add(thread.id, None, "assistant", "a", "hm", (call,))
    other = store.edit(thread.id, old.id, "b")
    assert (other.reasoning, other.tool_calls) == ("hm", (call,))


def test_a_branch_comes_back_as_it_was_left(store: ChatStore, thread: Thread) -> None:
    first = say(store, thread, "a", "b", "c", "d")
    other_end = store.edit(thread.id, first[3].id, "D")
    second = store.edit(thread.id, first[0].id, "A")
    assert texts(store.path(thread.id)) == ["A"]
    assert texts(store.select(thread.id, first[0].id)) == ["a", "b", "c", "D"]
    assert store.thread(thread.id).leaf == other_end.id
    store.select(thread.id, first[3].id)
    store.select(thread.id, second.id)
    assert texts(store.select(thread.id, first[0].id)) == ["a", "b", "c", "d"]
    assert texts(store.path(thread.id)) == ["a", "b", "c", "d"]


def test_deleting_a_hidden_branch_changes_nothing_that_is_shown(
    store: ChatStore, thread: Thread
) -> None:
    said = say(store, thread, "a", "b", "c")
    store.edit(thread.id, said[1].id, "B")
    assert texts(store.delete_branch(thread.id, said[1].id)) == ["a", "B"]
    assert store.thread(thread.id).messages == 2
    with pytest.raises(ChatNotFound):
        store.message(said[2].id)


def test_deleting_what_is_shown_shows_a_sibling_or_the_parent(
    store: ChatStore, thread: Thread
) -> None:
    said = say(store, thread, "a", "b")
    second = store.edit(thread.id, said[1].id, "B")
    after = store.add(thread.id, second.id, "user", "c")
    third = store.edit(thread.id, said[1].id, "BB")
    assert texts(store.delete_branch(thread.id, third.id)) == ["a", "B", "c"]
    assert texts(store.delete_branch(thread.id, after.id)) == ["a", "B"]
    store.select(thread.id, said[1].id)
    assert texts(store.delete_branch(thread.id, said[1].id)) == ["a", "B"]
    assert texts(store.delete_branch(thread.id, second.id)) == ["a"]
    assert store.delete_branch(thread.id, said[0].id) == []
    assert store.thread(thread.id).leaf is None


def test_a_clone_shares_its_past_and_goes_its_own_way(store: ChatStore, thread: Thread) -> None:
    said = say(store, thread, "a", "b", "c", "d")
    store.edit(thread.id, said[0].id, "hidden")
    clone = store.clone(thread.id, said[2].id)
    assert [message.id for message in store.path(clone.id)] == [each.id for each in said[:3]]
    say(store, clone, "e")
    assert texts(store.path(clone.id)) == ["a", "b", "c", "e"]
    assert [message.siblings for message in store.path(clone.id)][:3] == [
        (each.id,) for each in said[:3]
    ]
    assert texts(store.select(thread.id, said[3].id)) == ["a", "b", "c", "d"]
    store.delete(thread.id)
    assert texts(store.path(clone.id)) == ["a", "b", "c", "e"]
    with pytest.raises(ChatNotFound):
        store.message(said[3].id)


def test_the_answer_at_the_end_of_a_clone_is_its_own(store: ChatStore, thread: Thread) -> None:
    said = say(store, thread, "a", "b")
    clone = store.clone(thread.id)
    shown = store.path(clone.id)
    assert texts(shown) == ["a", "b"]
    assert shown[0].id == said[0].id and shown[1].id != said[1].id
    store.continue_answer(shown[1].id)
    store.save_answer(shown[1].id, "b and more", "")
    assert texts(store.path(thread.id)) == ["a", "b"]


def test_a_branch_that_another_thread_shares_stays_there(store: ChatStore, thread: Thread) -> None:
    say(store, thread, "a", "b", "c")
    clone = store.clone(thread.id)
    first = store.path(thread.id)[0]
    assert store.delete_branch(thread.id, first.id) == []
    assert texts(store.path(clone.id)) == ["a", "b", "c"]
    assert store.delete_branch(clone.id, first.id) == []
    with pytest.raises(ChatNotFound):
        store.message(first.id)


def test_a_clone_takes_what_is_said_of_the_thread(store: ChatStore) -> None:
    thread = store.create(title="T", system="S", model="m", settings={"set": {"seed": 3}})
    store.update(thread.id, pinned=True, archived=True)
    clone = store.clone(thread.id)
    assert (clone.title, clone.system, clone.model, clone.settings) == (
        "T",
        "S",
        "m",
        {"set": {"seed": 3}},
    )
    assert (clone.pinned, clone.archived, clone.leaf) == (False, False, None)


def test_a_message_of_another_thread_is_refused(store: ChatStore, thread: Thread) -> None:
    foreign = say(store, store.create(), "a")[0].id
    say(store, thread, "x")
    for act in (
        lambda: store.add(thread.id, foreign, "user", "b"),
        lambda: store.begin_answer(thread.id, foreign),
        lambda: store.edit(thread.id, foreign, "b"),
        lambda: store.select(thread.id, foreign),
        lambda: store.delete_branch(thread.id, foreign),
        lambda: store.clone(thread.id, foreign),
        lambda: store.path(thread.id, foreign),
    ):
        with pytest.raises(ChatNotFound, match=foreign):
            act()
    assert texts(store.path(thread.id)) == ["x"]
    assert len(store.threads()) == 2


def test_an_unknown_role_is_refused(store: ChatStore, thread: Thread) -> None:
    with pytest.raises(InvalidChat, match="role"):
        store.add(thread.id, None, "boss", "do it")  # type: ignore[arg-type]
    assert store.path(thread.id) == []


def test_nothing_follows_an_answer_under_way(store: ChatStore, thread: Thread) -> None:
    answer = store.begin_answer(thread.id, None)
    with pytest.raises(MessageInUse):
        store.add(thread.id, answer.id, "user", "and?")
