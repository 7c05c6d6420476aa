"""Chats as Markdown and as JSON, and back."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from hearth.app.chats import files
from hearth.app.chats.errors import ChatNotFound, InvalidChat
from hearth.app.chats.files import import_json, to_json, to_markdown
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage, Numbers, Thread
from hearth.backends.contract.messages import ToolCall


@pytest.fixture
def thread(store: ChatStore) -> Thread:
    """A chat with everything in it: two branches, thoughts, calls, numbers, an error."""
    made = store.create(
        title="Sky", system="Be brief.", model="guide", settings={"set": {"top_k": 1}}
    )
    asked = store.add(made.id, None, "user", "Why is the sky blue?")
    first = store.begin_answer(made.id, asked.id, "guide")
    store.end_answer(
        ChatMessage(first.id, None, "assistant", "Hidden", state="failed", error="It\ndied.")
    )
    second = store.begin_answer(made.id, asked.id, "guide")
    store.end_answer(
        ChatMessage(
            second.id,
            None,
            "assistant",
            "Rayleigh scattering:\n```python\nx = 1",
            "light </details> scatters",
            (ToolCall("1", "look", '{"at": "```"}'),),
            state="stopped",
            finish_reason="cancelled",
            numbers=Numbers(0.25, 30.0, 12, 4, 7, "guide", "Q8_0"),
        )
    )
    store.add(made.id, second.id, "user", "Thanks")
    return store.update(made.id, pinned=True)


def test_markdown_shows_the_branch(store: ChatStore, thread: Thread) -> None:
    text = to_markdown(store, thread.id)
    lines = text.splitlines()
    assert lines[0] == "# Sky"
    assert "- Model: guide" in lines
    assert [line for line in lines if line.startswith("## ")] == [
        "## System prompt",
        "## User",
        "## Assistant",
        "## User",
    ]
    assert "Hidden" not in text
    assert "guide Q8_0 · 12 prompt tokens, 4 cached · 7 tokens · first token after 0.25 s" in text
    assert "30.0 tok/s · stopped" in text
    assert text.count("<details>") == text.count("</details>") == 1
    assert "light &lt;/details> scatters" in text
    assert "x = 1\n```\n" in text
    assert '````json\n{"at": "```"}\n````' in text
    assert text.endswith("\n\nThanks\n")


@pytest.mark.parametrize(
    ("content", "end"),
    [
        ("```\na", "```"),
        ("~~~~ py\n~~~\na", "~~~~"),
        ("```\na\n```", None),
        ("`a`\n```inline``` b", None),
        ("    ```\na", None),
    ],
)
def test_an_open_block_of_code_is_closed(store: ChatStore, content: str, end: str | None) -> None:
    made = store.create(title="t")
    store.add(made.id, None, "assistant", content)
    assert to_markdown(store, made.id).endswith(content + (f"\n{end}\n" if end else "\n"))


def shape(store: ChatStore, thread_id: str) -> Any:
    """All of a thread but ids, siblings among them."""
    data = to_json(store, thread_id)
    ids = {message["id"]: at for at, message in enumerate(data["messages"])}
    for message in data["messages"]:
        message["id"] = ids[message["id"]]
        message["parent"] = ids.get(message["parent"])
    data["thread"]["leaf"] = ids.get(data["thread"]["leaf"])
    return data


def test_json_comes_back_whole(store: ChatStore, thread: Thread, tmp_path: Path) -> None:
    data = json.loads(json.dumps(to_json(store, thread.id)))
    back = import_json(store, data)
    assert back.id != thread.id
    assert shape(store, back.id) == shape(store, thread.id)
    ids = {message.id for message in store.tree(thread.id)[1]}
    assert ids.isdisjoint(message.id for message in store.tree(back.id)[1])
    with ChatStore(tmp_path / "other.db") as other:
        there = import_json(other, data)
        assert shape(other, there.id) == shape(store, thread.id)
        assert {hit.role for hit in other.search("sky")} == {"title", "user"}


def test_an_empty_chat_comes_back(store: ChatStore) -> None:
    back = import_json(store, to_json(store, store.create(title="t").id))
    assert (back.title, back.leaf, back.messages) == ("t", None, 0)


def test_an_answer_under_way_comes_in_as_stopped(store: ChatStore) -> None:
    made = store.create()
    answer = store.begin_answer(made.id, None)
    store.save_answer(answer.id, "half", "")
    (message,) = store.path(import_json(store, to_json(store, made.id)).id)
    assert (message.content, message.state) == ("half", "stopped")


def test_messages_may_stand_in_any_order(store: ChatStore, thread: Thread) -> None:
    data = to_json(store, thread.id)
    data["messages"].reverse()
    back = import_json(store, data)
    assert [message.content for message in store.path(back.id)] == [
        message.content for message in store.path(thread.id)
    ]


def test_what_is_not_there_is_not_exported(store: ChatStore) -> None:
    for export in (to_markdown, to_json):
        with pytest.raises(ChatNotFound):
            export(store, "nothing")


BREAKS: list[tuple[str, Any, str]] = [
    ("format", "other", "format"),
    ("version", 2, "version"),
    ("version", True, "version"),
    ("messages", {}, "messages"),
    ("thread", [], "thread"),
    ("extra", 1, "chat.extra"),
    ("thread.title", 1, "thread.title"),
    ("thread.pinned", 1, "thread.pinned"),
    ("thread.created_at", "now", "thread.created_at"),
    ("thread.created_at", float("nan"), "thread.created_at"),
    ("thread.created_at", 1e300, "thread.created_at"),
    ("thread.changed_at", 253_402_300_799, "thread.changed_at"),  # 10000 in the east
    ("thread.changed_at", -1, "thread.changed_at"),
    ("thread.settings", [], "thread.settings"),
    ("thread.settings", {"set": {"temperature": float("inf")}}, "thread.settings"),
    ("thread.settings", {"set": {"seed": 10**5000}}, "thread.settings"),
    ("thread.settings", {1: 2}, "thread.settings"),
    ("thread.settings", {"preset": b"x"}, "thread.settings"),
    ("thread.settings", {"constraint": "json"}, "thread.settings"),
    ("thread.settings", {"set": [1]}, "thread.settings"),
    ("thread.leaf", None, "thread.leaf"),
    ("thread.leaf", "nobody", "thread.leaf"),
    ("thread.extra", 1, "thread.extra"),
    ("messages.1", "text", "messages[1]"),
    ("messages.1.role", "boss", "messages[1].role"),
    ("messages.1.role", [], "messages[1].role"),
    ("messages.1.state", "lost", "messages[1].state"),
    ("messages.1.content", None, "messages[1].content"),
    ("messages.1.parent", "nobody", "messages[1].parent"),
    ("messages.1.parent", 0, "messages[1].parent"),
    ("messages.1.tool_calls", "x", "messages[1].tool_calls"),
    ("messages.1.tool_calls", [{"id": "1"}], "messages[1].tool_calls[0].arguments"),
    ("messages.1.numbers", 5, "messages[1].numbers"),
    ("messages.2.numbers.prompt_tokens", 1.5, "messages[2].numbers.prompt_tokens"),
    ("messages.2.numbers.prompt_tokens", 2**60, "messages[2].numbers.prompt_tokens"),
    ("messages.2.numbers.ttft_s", True, "messages[2].numbers.ttft_s"),
    ("messages.2.numbers.extra", 1, "messages[2].numbers.extra"),
]


def put(data: Any, where: str, value: Any) -> None:
    """Set the field at `where`."""
    *parents, last = where.split(".")
    for name in parents:
        data = data[int(name)] if isinstance(data, list) else data[name]
    data[int(last) if isinstance(data, list) else last] = value


@pytest.mark.parametrize(
    ("where", "value", "field"), BREAKS, ids=[f"{each[0]}-{at}" for at, each in enumerate(BREAKS)]
)
def test_what_is_wrong_is_named_and_nothing_is_kept(
    store: ChatStore, thread: Thread, where: str, value: Any, field: str
) -> None:
    data = copy.deepcopy(to_json(store, thread.id))
    put(data, where, value)
    with pytest.raises(InvalidChat) as caught:
        import_json(store, data)
    assert caught.value.field == field == caught.value.data["field"]
    assert len(store.threads()) == 1


@pytest.mark.parametrize("name", ["title", "leaf", "settings"])
def test_what_is_missing_is_named(store: ChatStore, thread: Thread, name: str) -> None:
    data = to_json(store, thread.id)
    del data["thread"][name]
    with pytest.raises(InvalidChat, match=rf"thread\.{name}: it is missing"):
        import_json(store, data)


@pytest.mark.parametrize("data", [None, [], "chat", 5, {}])
def test_what_is_no_chat_is_refused(store: ChatStore, data: Any) -> None:
    with pytest.raises(InvalidChat):
        import_json(store, data)


def test_cycles_and_twins_are_refused(store: ChatStore, thread: Thread) -> None:
    data = to_json(store, thread.id)
    data["messages"][0]["parent"] = data["messages"][2]["id"]
    with pytest.raises(InvalidChat, match="follows itself"):
        import_json(store, data)
    data = to_json(store, thread.id)
    data["messages"][1]["id"] = data["messages"][0]["id"]
    with pytest.raises(InvalidChat, match=r"messages\[1\]\.id"):
        import_json(store, data)
    data = to_json(store, thread.id)
    data["thread"]["leaf"] = data["messages"][0]["id"]
    with pytest.raises(InvalidChat, match="follow it"):
        import_json(store, data)


def test_deep_settings_are_refused(store: ChatStore, thread: Thread) -> None:
    data = to_json(store, thread.id)
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    data["thread"]["settings"] = {"set": {"stop": deep}}
    with pytest.raises(InvalidChat, match="nested"):
        import_json(store, data)


def test_what_is_too_large_is_refused(
    store: ChatStore, thread: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = to_json(store, thread.id)
    for limit, field in (
        ("MOST_MESSAGES", "messages"),
        ("LONGEST_TEXT", "messages[0].id"),
        ("LONGEST_CHAT", "messages[0].id"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(files, limit, 2)
            with pytest.raises(InvalidChat) as caught:
                import_json(store, data)
        assert caught.value.field == field


def test_a_long_chat_comes_back(store: ChatStore) -> None:
    made = store.create(title="t")
    data = to_json(store, made.id)
    message = {
        "role": "user",
        "content": "x",
        "reasoning": "",
        "tool_calls": [],
        "created_at": 0,
        "state": "complete",
        "finish_reason": "",
        "error": "",
        "numbers": None,
    }
    count = 3000
    data["messages"] = [
        {**message, "id": f"{at}", "parent": f"{at - 1}" if at else None} for at in range(count)
    ][::-1]
    data["thread"]["leaf"] = f"{count - 1}"
    back = import_json(store, data)
    assert len(store.path(back.id)) == back.messages == count
    assert store.delete_branch(back.id, store.path(back.id)[0].id) == []
