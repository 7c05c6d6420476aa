"""Search: words of any script in messages and titles, and nothing a person types is syntax."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth.app.chats.search import WIDTH, words
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage


def marked(store: ChatStore, query: str) -> list[list[str]]:
    """What is marked in each hit."""
    return [[hit.snippet[a:b] for a, b in hit.marks] for hit in store.search(query)]


def keep(store: ChatStore, *contents: str) -> str:
    """A thread with a title of its own that says `contents`."""
    thread = store.create(title="~")
    parent = None
    for content in contents:
        parent = store.add(thread.id, parent, "user", content).id
    return thread.id


@pytest.mark.parametrize(
    ("content", "query", "marks"),
    [
        ("The quick brown fox", "QUICK fox", ["quick", "fox"]),
        ("The quick brown fox", "bro", ["brown"]),
        ("The quick brown fox", "bro fox", None),
        ("Füße und Straßen", "fusse stras", ["Füße", "Straßen"]),
        ("cafe\u0301s here", "cafés", ["cafe\u0301s"]),
        ("def snake_case(x):", "snake_ca", ["snake_case"]),
        ("def snake_case(x):", "case", ["case"]),
        ("a snake in a case", "snake_case", None),
        ("我喜欢编程语言", "编程", ["编程"]),
        ("我喜欢编程语言", "程编", None),
        ("プログラミングが好き", "ラミング", ["ラミング"]),
        ("ฉันรักภาษาไทย", "ภาษา", ["ภาษา"]),
        ("использовать Ёлка", "ИСПОЛЬЗ", ["использовать"]),
        ("C++ and C#", "c++", ["C", "C"]),
        ("price 3.14 now", "3.14", ["3.14"]),
        ("one\x00two", "two", ["two"]),
        ("½ litre", "litre", ["litre"]),
    ],
)
def test_words_are_found_and_marked(
    store: ChatStore, content: str, query: str, marks: list[str] | None
) -> None:
    keep(store, content)
    assert marked(store, query) == ([] if marks is None else [marks])


@pytest.mark.parametrize(
    "query",
    [
        *("", "  ", '"', '"a', "AND", "a AND", "NOT fox", "fox OR", "(fox", "fox*", "words:fox"),
        *("-fox", "NEAR(fox brown, 2)", "^fox", "{fox}", "fox'; DROP TABLE message; --", "\x00"),
        *("\ud800", "%", "* *", "😀", "fox " * 500, "a-" * 500, "x" * 10_000),
    ],
)
def test_nothing_is_syntax(store: ChatStore, query: str) -> None:
    keep(store, "a fox")
    for hit in store.search(query):
        assert hit.snippet == "a fox"


def test_operators_are_words(store: ChatStore) -> None:
    keep(store, "this and that")
    keep(store, "this that")
    assert marked(store, "this AND that") == [["this", "and", "that"]]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.text(max_size=80), query=st.text(max_size=30))
def test_any_text_can_be_kept_and_looked_for(store: ChatStore, content: str, query: str) -> None:
    thread = keep(store, content)
    for each in (query, content):
        for hit in store.search(each):
            assert all(0 <= a < b <= len(hit.snippet) for a, b in hit.marks)
    found = [hit.thread_id for hit in store.search(content, limit=1000)]
    assert (thread in found) == any(words(content))


def test_a_hit_leads_to_its_place(store: ChatStore) -> None:
    thread = store.create(title="Foxes")
    asked = store.add(thread.id, None, "user", "Tell me of animals")
    answer = store.begin_answer(thread.id, asked.id)
    store.end_answer(ChatMessage(answer.id, None, "assistant", "A fox is\n red."))
    store.edit(thread.id, answer.id, "other")
    title, message = store.search("fox")
    assert (title.thread_id, title.message_id, title.role) == (thread.id, "", "title")
    assert (title.snippet, title.marks) == ("Foxes", ((0, 5),))
    assert (message.thread_id, message.message_id) == (thread.id, answer.id)
    assert (message.role, message.title) == ("assistant", "Foxes")
    assert message.snippet == "A fox is  red."
    assert [each.id for each in store.select(thread.id, message.message_id)][-1] == answer.id


def test_a_long_message_is_shown_where_most_words_stand(store: ChatStore) -> None:
    keep(store, "apple " + "filler " * 300 + "the apple and the pear" + " filler" * 300)
    (hit,) = store.search("pear apple")
    assert [hit.snippet[a:b] for a, b in hit.marks] == ["apple", "pear"]
    assert hit.snippet.startswith("…") and hit.snippet.endswith("…")
    assert len(hit.snippet) <= WIDTH + 2


def test_archived_threads_are_searched_and_shared_messages_stand_once(store: ChatStore) -> None:
    thread = keep(store, "fox")
    store.update(thread, archived=True)
    assert [hit.thread_id for hit in store.search("fox")] == [thread]
    clone = store.clone(thread)
    assert [hit.thread_id for hit in store.search("fox")] == [clone.id]


def test_the_limit_holds_for_titles_and_messages_together(store: ChatStore) -> None:
    for _ in range(3):
        store.add(store.create(title="fox").id, None, "user", "fox")
    assert len(store.search("fox")) == 6
    assert [bool(hit.message_id) for hit in store.search("fox", 4)] == [False, False, False, True]
    assert len(store.search("fox", 2)) == 2
    assert store.search("fox", 0) == []


def test_the_index_follows_every_change(store: ChatStore, path: Path) -> None:
    thread = store.create(title="birch")
    answer = store.begin_answer(thread.id, None)
    store.save_answer(answer.id, "cedar", "")
    assert store.search("cedar") == []
    store.end_answer(ChatMessage(answer.id, None, "assistant", "cedar", state="stopped"))
    assert len(store.search("cedar")) == 1
    store.continue_answer(answer.id)
    store.end_answer(ChatMessage(answer.id, None, "assistant", "oak"))
    assert (store.search("cedar"), len(store.search("oak"))) == ([], 1)
    store.update(thread.id, title="elm")
    assert (store.search("birch"), len(store.search("elm"))) == ([], 1)
    store.delete_branch(thread.id, answer.id)
    assert store.search("oak") == []
    store.delete(thread.id)
    assert store.search("elm") == []
