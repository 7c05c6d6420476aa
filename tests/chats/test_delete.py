"""What is deleted is gone from all files, to the last byte, when the store has closed."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage


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
        store.end_answer(
            ChatMessage(answer.id, None, "assistant", text * 3, name, state="failed", error=name)
        )
        parent = answer.id
    return thread.id


def test_a_deleted_thread_leaves_no_trace(path: Path) -> None:
    chance = random.Random(5)
    names = [f"secret{number:02}" for number in range(10)]
    with ChatStore(path) as store:
        threads = {name: fill(store, name, chance) for name in names}
        gone = set(chance.sample(names, 5))
        for name in sorted(gone):
            store.delete(threads[name])
    assert {name for name in names if name.encode() in bytes_of(path)} == set(names) - gone
    with ChatStore(path) as store:
        for name in names:
            assert bool(store.search(name)) == (name not in gone)


@pytest.mark.parametrize("seed", [109, 110])
def test_rows_that_moved_between_pages_leave_no_trace(path: Path, seed: int) -> None:
    """Without `zero_gaps`, the first seed leaves words of a deleted chat (SQLite 3.40)."""
    chance = random.Random(seed)
    leaves: dict[str, tuple[str, str | None]] = {}
    answers: dict[str, tuple[str, str]] = {}
    gone: set[str] = set()
    with ChatStore(path) as store:
        for step in range(900):
            name = chance.choice([*leaves] or [""])
            act = chance.random()
            if act < 0.15 or not leaves:
                leaves[f"secret{step:04}"] = store.create(title=f"secret{step:04}").id, None
            elif act < 0.4 and name not in answers:
                text = f"{name} " * chance.choice([1, 5, 60, 300])
                thread, leaf = leaves[name]
                leaves[name] = thread, store.add(thread, leaf, "user", text).id
            elif act < 0.55 and name not in answers:
                answers[name] = store.begin_answer(*leaves[name]).id, ""
            elif act < 0.85 and name in answers:
                answer, text = answers[name]
                answers[name] = answer, text + f"{name} " * chance.choice([3, 20, 100])
                store.save_answer(*answers[name], "")
            elif act < 0.93 and name in answers:
                answer, text = answers[name]
                store.end_answer(ChatMessage(answer, None, "assistant", text))
                leaves[name] = leaves[name][0], answers.pop(name)[0]
            elif act > 0.93 and len(leaves) > 3:
                answers.pop(name, None)
                store.delete(leaves.pop(name)[0])
                gone.add(name)
    left = bytes_of(path)
    assert len(gone) > 20
    assert [name for name in sorted(gone) if name.encode() in left] == []
    assert all(name.encode() in left for name in leaves)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_deleted_branch_leaves_no_trace_unless_it_is_shared(path: Path) -> None:
    with ChatStore(path) as store:
        thread = store.create(title="t")
        first = store.add(thread.id, None, "user", "public")
        private = store.add(thread.id, first.id, "user", "confidential " * 400)
        clone = store.clone(thread.id)
        store.delete_branch(thread.id, private.id)
    assert b"confidential" in bytes_of(path)
    with ChatStore(path) as store:
        store.delete_branch(clone.id, private.id)
    assert b"confidential" not in bytes_of(path)
    assert b"public" in bytes_of(path)


DELETE = """
import os, signal, sys
from pathlib import Path
from hearth.app.chats.store import ChatStore
store = ChatStore(Path(sys.argv[1]))
store.delete(sys.argv[2])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_the_deletion_of_a_process_that_was_killed_is_completed(path: Path) -> None:
    with ChatStore(path) as store:
        thread = store.create(title="t")
        store.add(thread.id, None, "user", "confidential " * 1000)
    command = [sys.executable, "-c", DELETE, str(path), thread.id]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert b"confidential" in bytes_of(path)
    ChatStore(path).close()
    assert b"confidential" not in bytes_of(path)


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
    store.close()
    assert "traces" in caplog.text
    assert b"confidential" in bytes_of(path)
    reader.execute("COMMIT")
    ChatStore(path).close()
    assert b"confidential" not in bytes_of(path)
    reader.close()


def test_the_last_store_of_a_process_removes_the_traces(path: Path) -> None:
    with ChatStore(path) as first, ChatStore(path) as second:
        thread = first.create(title="confidential")
        first.delete(thread.id)
        first.close()
        assert second.create(title="t").title == "t"
    assert b"confidential" not in bytes_of(path)
