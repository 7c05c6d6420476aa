"""What is deleted is gone from the file and from what lies beside it, to the last byte."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from hearth.app.chats.store import ChatStore


def bytes_of(path: Path) -> bytes:
    """All files of the store: database, write-ahead log, its index, lock files."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.iterdir()))


def fill(store: ChatStore, name: str, chance: random.Random) -> str:
    """A thread whose title, texts, calls and settings all say `name`; texts of any size."""
    thread = store.create(
        title=f"{name} title", system=f"{name} system", settings={"name": name}, model=name
    )
    parent = None
    for _ in range(6):
        text = f"{name} " * chance.choice([1, 5, 60, 900])
        parent = store.add(thread.id, parent, "user", text).id
        answer = store.begin_answer(thread.id, parent, name)
        for part in (text[:40], text * 2):
            store.save_answer(answer.id, part, f"{name} thought")
        store.end_answer(answer.id, text * 3, name, state="failed", error=name)
        parent = answer.id
    return thread.id


def test_a_deleted_thread_leaves_no_trace_while_open_and_after(path: Path) -> None:
    chance = random.Random(5)
    names = [f"secret{number:02}" for number in range(10)]
    with ChatStore(path) as store:
        threads = {name: fill(store, name, chance) for name in names}
        gone = set(chance.sample(names, 5))
        for name in sorted(gone):
            store.delete(threads[name])
            assert name.encode() not in bytes_of(path)
        assert {name for name in names if name.encode() in bytes_of(path)} == set(names) - gone
    assert {name for name in names if name.encode() in bytes_of(path)} == set(names) - gone
    with ChatStore(path) as store:
        for name in names:
            assert bool(store.search(name)) == (name not in gone)


def test_a_deleted_branch_leaves_no_trace_unless_it_is_shared(path: Path) -> None:
    with ChatStore(path) as store:
        thread = store.create(title="t")
        first = store.add(thread.id, None, "user", "public")
        private = store.add(thread.id, first.id, "user", "confidential " * 400)
        clone = store.clone(thread.id)
        store.delete_branch(thread.id, private.id)
        assert b"confidential" in bytes_of(path)
        store.delete_branch(clone.id, private.id)
        assert b"confidential" not in bytes_of(path)
        assert b"public" in bytes_of(path)


def test_what_cannot_be_removed_yet_is_removed_later(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = ChatStore(path, busy_timeout_s=0.05)
    thread = store.create(title="t")
    store.add(thread.id, None, "user", "confidential")
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM message").fetchone()
    store.delete(thread.id)
    assert "traces" in caplog.text
    assert store.threads() == [] and store.search("confidential") == []
    assert b"confidential" in bytes_of(path)
    reader.execute("COMMIT")
    with ChatStore(path):
        assert b"confidential" not in bytes_of(path)
    reader.close()
    store.close()
