"""Threads: made, named, pinned, archived, in order."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hearth.app.chats.errors import ChatNotFound, InvalidChat
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage


def test_a_thread_is_read_back(store: ChatStore) -> None:
    made = store.create(title="T", system="S\nS", model="m", settings={"set": {"top_k": 1}})
    assert store.thread(made.id) == made
    assert (made.title, made.system, made.model, made.settings) == (
        "T",
        "S\nS",
        "m",
        {"set": {"top_k": 1}},
    )
    assert (made.pinned, made.archived, made.leaf, made.messages) == (False, False, None, 0)


def test_what_is_given_changes_and_the_rest_stays(store: ChatStore) -> None:
    made = store.create(title="T", system="S", model="m", settings={"a": 1})
    assert store.update(made.id, pinned=True).pinned
    changed = store.update(made.id, system="", settings={}, title="  two\n lines\x1b[2J ")
    assert (changed.system, changed.settings, changed.model) == ("", {}, "m")
    assert changed.title == "two lines\u241b[2J"
    assert changed.pinned
    assert store.update(made.id) == changed == store.thread(made.id)


def test_pinned_threads_come_first_then_the_newest_change(store: ChatStore) -> None:
    a, b, c, d = (store.create(title=title) for title in "abcd")
    store.add(a.id, None, "user", "hello")
    store.update(b.id, pinned=True)
    store.update(d.id, archived=True)

    def titles(**options: object) -> list[str]:
        return [thread.title for thread in store.threads(**options)]  # type: ignore[arg-type]

    assert titles() == ["b", "a", "c"]
    assert titles(archived=True) == ["d"]
    assert titles(limit=2) == ["b", "a"]
    store.update(c.id, model="m")
    assert titles() == ["b", "a", "c"]
    store.end_answer(ChatMessage(store.begin_answer(c.id, None).id, None, "assistant", "x"))
    assert titles() == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ("Why is the sky blue?", "Why is the sky blue?"),
        ("  one\n\n\ttwo  ", "one two"),
        ("word " * 30, "word word word word word word word word word word word word…"),
        ("x" * 100, "x" * 59 + "…"),
        ("- A " + "long" * 13 + ", https://a.example/path", "A " + "long" * 13 + "…"),
        ("# Fix @/b/c/a.py\n\n/b/c/a.py:\n```py\nimport a\n```", "Fix @a.py"),
        ("```\nx = 1\n```\nWhat is it?", "What is it?"),
        ("\x1b]0;owned\x07 hi \u202e", "\u241b]0;owned\ufffd hi \ufffd"),
        ("", ""),
    ],
)
def test_the_first_message_of_the_user_gives_a_title(
    store: ChatStore, content: str, title: str
) -> None:
    thread = store.create()
    greeting = store.add(thread.id, None, "assistant", "Hello!")
    assert store.thread(thread.id).title == ""
    asked = store.add(thread.id, greeting.id, "user", content)
    assert store.thread(thread.id).title == title
    assert len(title) <= 60
    if title:
        store.add(thread.id, asked.id, "user", "more")
        assert store.thread(thread.id).title == title


def test_a_given_title_stays(store: ChatStore) -> None:
    thread = store.create(title="Mine")
    store.add(thread.id, None, "user", "hello")
    assert store.thread(thread.id).title == "Mine"


@pytest.mark.parametrize(
    "wrong",
    [
        *({"constraint": "json"}, {"constraint": {"kind": "x"}}, {"constraint": {"kind": {}}}),
        *({"set": 5}, {"thinking": "yes"}, {"preset": None}),
    ],
)
def test_what_has_not_the_form_of_settings_is_ignored(
    store: ChatStore, wrong: dict[str, object]
) -> None:
    made = store.create(settings={**wrong, "later": 1})
    assert store.thread(made.id).settings == store.threads()[0].settings == {"later": 1}


@pytest.mark.parametrize("value", [math.nan, object(), {1, 2}])
def test_settings_are_json(store: ChatStore, value: object) -> None:
    with pytest.raises(InvalidChat) as caught:
        store.create(settings={"x": value})
    assert caught.value.field == "settings"
    assert store.threads() == []


def test_a_thread_that_is_gone_is_said_to_be(store: ChatStore) -> None:
    thread = store.create()
    store.delete(thread.id)
    for act in (
        lambda: store.thread(thread.id),
        lambda: store.update(thread.id, title="x"),
        lambda: store.path(thread.id),
        lambda: store.add(thread.id, None, "user", "x"),
        lambda: store.begin_answer(thread.id, None),
        lambda: store.clone(thread.id),
        lambda: store.delete(thread.id),
    ):
        with pytest.raises(ChatNotFound, match=thread.id):
            act()


def test_everything_is_there_after_opening_again(path: Path) -> None:
    with ChatStore(path) as store:
        thread = store.create(system="S", settings={"a": [1, None, "x"]})
        store.add(thread.id, None, "user", "hello")
        before = store.threads(), store.path(thread.id)
    with ChatStore(path) as store:
        assert (store.threads(), store.path(thread.id)) == before


def test_drafts_are_kept_with_each_chat_and_deleted_with_it(store: ChatStore, path: Path) -> None:
    thread = store.create()
    for name, text in (("", "new"), (thread.id, "first\nline"), (thread.id, "second")):
        store.keep_draft(name, text)
    with ChatStore(path) as other:
        assert (other.draft(), other.draft(thread.id)) == ("new", "second")
    store.keep_draft("", "")
    store.delete(thread.id)
    assert (store.draft(), store.draft(thread.id)) == ("", "")
    with pytest.raises(ChatNotFound):
        store.keep_draft(thread.id, "too late")
