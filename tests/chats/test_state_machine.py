"""Any sequence of operations leaves the store as a plain model of trees says it should."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from hearth.app.chats.files import import_json, to_json
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage

PICK = st.integers(0, 1000)
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
WORD = "kept"


@dataclass
class Said:
    """A message as the model knows it."""

    parent: str | None
    role: str
    content: str
    state: str = "complete"


@dataclass
class Chat:
    """A thread: its messages in the order of their making, and which child was shown last."""

    messages: list[str] = field(default_factory=list)
    shown: dict[str, str] = field(default_factory=dict)
    leaf: str | None = None
    pinned: bool = False


class Model(RuleBasedStateMachine):
    """The store beside a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="hearth-chats-"))
        self.path = self.folder / "chats.db"
        self.store = ChatStore(self.path)
        self.said: dict[str, Said] = {}
        self.chats: dict[str, Chat] = {}
        self.count = 0

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    # ---- the model

    def children(self, chat: Chat, parent: str | None) -> list[str]:
        return [each for each in chat.messages if self.said[each].parent == parent]

    def line(self, leaf: str | None) -> list[str]:
        line: list[str] = []
        while leaf is not None:
            line.insert(0, leaf)
            leaf = self.said[leaf].parent
        return line

    def end_of(self, chat: Chat, message: str) -> str:
        children = self.children(chat, message)
        if not children:
            return message
        last = chat.shown.get(message)
        return self.end_of(chat, last if last in children else children[-1])

    def show(self, chat: Chat, leaf: str) -> None:
        chat.leaf = leaf
        for after in self.line(leaf):
            before = self.said[after].parent
            if before is not None:
                chat.shown[before] = after

    def made(self, chat: Chat, message: str, said: Said) -> None:
        self.said[message] = said
        chat.messages.append(message)
        self.show(chat, message)

    def drop(self, chat: Chat, messages: set[str]) -> None:
        chat.messages = [each for each in chat.messages if each not in messages]
        held = {each for other in self.chats.values() for each in other.messages}
        for message in messages - held:
            del self.said[message]

    # ---- what to do it with

    def chat(self, pick: int) -> tuple[str, Chat]:
        return list(self.chats.items())[pick % len(self.chats)]

    def some(self, chat: Chat, pick: int) -> str:
        return chat.messages[pick % len(chat.messages)]

    def text(self, text: str) -> str:
        self.count += 1
        return f"{WORD} {text} {self.count}"

    def is_free(self, message: str | None) -> bool:
        return message is None or self.said[message].state != "streaming"

    def any_message(self) -> bool:
        return any(chat.messages for chat in self.chats.values())

    # ---- the rules

    @initialize()
    def begin(self) -> None:
        self.chats[self.store.create().id] = Chat()

    @rule()
    def create(self) -> None:
        if len(self.chats) < 5:
            self.chats[self.store.create().id] = Chat()

    @rule(pick=PICK, at=PICK, is_first=st.booleans(), text=TEXT)
    def add(self, pick: int, at: int, is_first: bool, text: str) -> None:
        thread, chat = self.chat(pick)
        parent = None if is_first or not chat.messages else self.some(chat, at)
        if self.is_free(parent):
            content = self.text(text)
            added = self.store.add(thread, parent, "user", content)
            self.made(chat, added.id, Said(parent, "user", content))

    @rule(pick=PICK, text=TEXT)
    def add_at_the_end(self, pick: int, text: str) -> None:
        thread, chat = self.chat(pick)
        if self.is_free(chat.leaf):
            content, parent = self.text(text), chat.leaf
            added = self.store.add(thread, parent, "user", content)
            self.made(chat, added.id, Said(parent, "user", content))

    @rule(pick=PICK)
    def begin_answer(self, pick: int) -> None:
        thread, chat = self.chat(pick)
        if self.is_free(chat.leaf):
            parent = chat.leaf
            begun = self.store.begin_answer(thread, parent)
            self.made(chat, begun.id, Said(parent, "assistant", "", "streaming"))

    @rule(text=TEXT, at=PICK, state=st.sampled_from(["streaming", "complete", "stopped", "failed"]))
    def write(self, text: str, at: int, state: str) -> None:
        under_way = [key for key, said in self.said.items() if said.state == "streaming"]
        if not under_way:
            return
        message = under_way[at % len(under_way)]
        content = self.text(text)
        if state == "streaming":
            self.store.save_answer(message, content, "")
        else:
            self.store.end_answer(ChatMessage(message, None, "assistant", content, state=state))  # type: ignore[arg-type]
        self.said[message].content, self.said[message].state = content, state

    @rule(at=PICK)
    def go_on(self, at: int) -> None:
        free = [
            key
            for key, said in self.said.items()
            if said.role == "assistant"
            and said.state != "streaming"
            and all(other.parent != key for other in self.said.values())
            and sum(key in chat.messages for chat in self.chats.values()) == 1
        ]
        if free:
            message = free[at % len(free)]
            self.store.continue_answer(message)
            self.said[message].state = "streaming"

    @precondition(any_message)
    @rule(pick=PICK, at=PICK, text=TEXT)
    def edit(self, pick: int, at: int, text: str) -> None:
        thread, chat = self.chat(pick)
        if chat.messages:
            old = self.some(chat, at)
            content = self.text(text)
            edited = self.store.edit(thread, old, content)
            said = self.said[old]
            self.made(chat, edited.id, Said(said.parent, said.role, content))

    @precondition(any_message)
    @rule(pick=PICK, at=PICK)
    def select(self, pick: int, at: int) -> None:
        thread, chat = self.chat(pick)
        if chat.messages:
            message = self.some(chat, at)
            shown = self.store.select(thread, message)
            self.show(chat, self.end_of(chat, message))
            assert [each.id for each in shown] == self.line(chat.leaf)

    @precondition(any_message)
    @rule(pick=PICK, at=PICK)
    def delete_branch(self, pick: int, at: int) -> None:
        thread, chat = self.chat(pick)
        if not chat.messages:
            return
        message = self.some(chat, at)
        gone = {each for each in chat.messages if message in self.line(each)}
        siblings = self.children(chat, self.said[message].parent)
        if chat.leaf in gone:
            index = siblings.index(message)
            beside = siblings[index - 1] if index else next(iter(siblings[1:]), None)
            parent = self.said[message].parent
            leaf = parent if beside is None else self.end_of(chat, beside)
        else:
            leaf = chat.leaf
        shown = self.store.delete_branch(thread, message)
        self.drop(chat, gone)
        chat.leaf = leaf
        if leaf is not None:
            self.show(chat, leaf)
        assert [each.id for each in shown] == self.line(leaf)

    @rule(pick=PICK, at=PICK, whole=st.booleans())
    def clone(self, pick: int, at: int, whole: bool) -> None:
        if len(self.chats) >= 5:
            return
        thread, chat = self.chat(pick)
        leaf = chat.leaf if whole or not chat.messages else self.some(chat, at)
        clone = self.store.clone(thread, None if whole else leaf)
        line = self.line(leaf)
        new = Chat(list(line))
        self.chats[clone.id] = new
        if line:
            last = self.said[line[-1]]
            if last.role == "assistant":
                state = "stopped" if last.state == "streaming" else last.state
                assert clone.leaf is not None
                self.said[clone.leaf] = Said(last.parent, last.role, last.content, state)
                new.messages[-1] = clone.leaf
            self.show(new, new.messages[-1])

    @rule(pick=PICK)
    def delete(self, pick: int) -> None:
        if len(self.chats) > 1:
            thread, chat = self.chat(pick)
            self.store.delete(thread)
            self.drop(chat, set(chat.messages))
            del self.chats[thread]

    @rule(pick=PICK)
    def pin(self, pick: int) -> None:
        thread, chat = self.chat(pick)
        chat.pinned = not chat.pinned
        self.store.update(thread, pinned=chat.pinned)

    @rule(pick=PICK)
    def take_a_copy_in(self, pick: int) -> None:
        thread, chat = self.chat(pick)
        imported = import_json(self.store, to_json(self.store, thread))
        _, there = self.store.tree(imported.id)
        at = {each.id: index for index, each in enumerate(there)}
        assert [
            (None if each.parent is None else at[each.parent], each.role, each.content)
            for each in there
        ] == [
            (None if said.parent is None else chat.messages.index(said.parent), said.role, text)
            for said, text in ((self.said[each], self.said[each].content) for each in chat.messages)
        ]
        assert imported.leaf is None or at[imported.leaf] == chat.messages.index(str(chat.leaf))
        self.store.delete(imported.id)

    @rule()
    def open_again(self) -> None:
        self.store.close()
        self.store = ChatStore(self.path)
        for said in self.said.values():
            if said.state == "streaming":
                said.state = "stopped"

    # ---- what must hold

    @invariant()
    def every_thread_is_as_the_model_says(self) -> None:
        threads = self.store.threads()
        assert {thread.id for thread in threads} == set(self.chats)
        assert [thread.pinned for thread in threads] == sorted(
            (chat.pinned for chat in self.chats.values()), reverse=True
        )
        for thread in threads:
            chat = self.chats[thread.id]
            assert (thread.leaf, thread.messages) == (chat.leaf, len(chat.messages))
            assert [each.id for each in self.store.path(thread.id)] == self.line(chat.leaf)
            _, tree = self.store.tree(thread.id)
            assert [each.id for each in tree] == chat.messages
            for each in tree:
                said = self.said[each.id]
                assert (each.parent, each.role, each.content, each.state) == (
                    said.parent,
                    said.role,
                    said.content,
                    said.state,
                )
                assert list(each.siblings) == self.children(chat, said.parent)

    @invariant()
    def the_search_finds_every_message_that_has_ended(self) -> None:
        found = {hit.message_id for hit in self.store.search(WORD, 10_000)} - {""}
        streaming = {key for key, said in self.said.items() if said.state == "streaming"}
        ended = {key for key, said in self.said.items() if said.content} - streaming
        assert found - streaming == ended

    @invariant()
    def the_file_holds_nothing_else(self) -> None:
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            (messages,) = connection.execute("SELECT count(*) FROM message").fetchone()
            assert messages == len(self.said)
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
