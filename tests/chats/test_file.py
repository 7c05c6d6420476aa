"""The file: private, durable, moved to newer versions, left alone where it is not ours, and what is
said when it cannot be used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth.app.chats import database
from hearth.app.chats.errors import (
    ChatsCorrupt,
    ChatsDiskFull,
    ChatsError,
    ChatsForeign,
    ChatsLocked,
    ChatsUnwritable,
)
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage

posix = pytest.mark.skipif(sys.platform == "win32", reason="rights of POSIX")


@contextlib.contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fill(path: Path) -> None:
    with ChatStore(path) as store:
        thread = store.create()
        parent = None
        for number in range(50):
            parent = store.add(thread.id, parent, "user", f"message {number} " * 50).id


@posix
def test_the_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "chats.db"
    with ChatStore(path) as store:
        store.begin_answer(store.create().id, None)
        assert len(list(path.parent.iterdir())) == 5
        assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.chmod(0o644)
    ChatStore(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The connections that stores make from now on."""
    found: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noting(*args: object, **options: object) -> sqlite3.Connection:
        found.append(connect(*args, **options))  # type: ignore[call-overload]
        return found[-1]

    monkeypatch.setattr(sqlite3, "connect", noting)
    return found


def test_commits_are_durable(path: Path, made: list[sqlite3.Connection]) -> None:
    with ChatStore(path):
        values = {
            name: made[0].execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "foreign_keys", "secure_delete")
        }
    assert values == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "secure_delete": 1,
    }


def test_a_file_of_the_first_version_is_moved_to_the_newest(path: Path) -> None:
    with ChatStore(path) as store:
        thread = store.create(title="birch")
        store.add(thread.id, None, "user", "cedar")
    with raw(path) as connection:
        for table in ("message_words_0", "title_words", "deleted_words", "draft"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("PRAGMA user_version = 1")
    for _ in range(2):
        with ChatStore(path) as store:
            assert [hit.role for hit in store.search("birch")] == ["title"]
            assert [hit.role for hit in store.search("cedar")] == ["user"]
            assert [message.content for message in store.path(thread.id)] == ["cedar"]


def test_an_index_in_one_table_is_moved_to_parts(path: Path) -> None:
    with ChatStore(path) as store:
        thread = store.create(title="t")
        store.add(thread.id, None, "user", "cedar")
    with raw(path) as connection:
        connection.execute("DROP TABLE message_words_0")
        connection.execute("DROP TABLE deleted_words")
        connection.execute("CREATE TABLE deletion (number INTEGER PRIMARY KEY)")
        connection.execute("CREATE VIRTUAL TABLE message_words USING fts5(words, tokenize='ascii')")
        connection.execute("INSERT INTO message_words(rowid, words) VALUES (1, 'cedar birch')")
        connection.execute("PRAGMA user_version = 3")
    with ChatStore(path) as store:
        assert len(store.search("cedar")) == 1
    assert b"birch" not in path.read_bytes()


@pytest.mark.parametrize("done", range(database.LATEST))
def test_a_migration_that_is_cut_off_is_undone_and_done_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    whole = database.MIGRATIONS

    def cut_off(connection: sqlite3.Connection) -> None:
        whole[done](connection)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(database, "MIGRATIONS", (*whole[:done], cut_off, *whole[done + 1 :]))
        with pytest.raises(KeyboardInterrupt):
            ChatStore(path)
    with raw(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (done,)
    with ChatStore(path) as store:
        store.create(title="t")
        assert len(store.search("t")) == 1


def test_every_migration_can_be_done_twice(path: Path) -> None:
    with ChatStore(path) as store:
        store.add(store.create().id, None, "user", "cedar")
    with raw(path) as connection:
        for migration in database.MIGRATIONS * 2:
            migration(connection)
    with ChatStore(path) as store:
        assert len(store.search("cedar")) == 2


def test_a_newer_file_is_left_as_it_is(path: Path) -> None:
    fill(path)
    with raw(path) as connection:
        connection.execute(f"PRAGMA user_version = {database.LATEST + 1}")
        connection.execute("PRAGMA journal_mode = DELETE")
    before = digest(path)
    with pytest.raises(ChatsForeign, match="newer") as caught:
        ChatStore(path)
    assert caught.value.data == {"version": database.LATEST + 1, "known": database.LATEST}
    assert "Update" in caught.value.hint
    assert digest(path) == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_database_of_another_program_is_left_as_it_is(path: Path) -> None:
    with raw(path) as connection:
        connection.execute("CREATE TABLE mine(a)")
    before = digest(path)
    with pytest.raises(ChatsForeign, match="another program"):
        ChatStore(path)
    assert digest(path) == before


@pytest.mark.parametrize(
    "content", [b"This is a letter.\n" * 100, b"\x00" * 5000, b"SQLite format"]
)
def test_what_is_no_database_is_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ChatsCorrupt) as caught:
        ChatStore(path)
    assert "Move it away" in caught.value.hint
    assert path.read_bytes() == content


def test_a_damaged_file_gives_typed_errors_only(path: Path) -> None:
    fill(path)
    good = path.read_bytes()
    damaged = path.with_name("damaged.db")
    errors: list[ChatsError] = []
    for page in range(1, len(good) // 4096):
        start = page * 4096
        damaged.write_bytes(good[:start] + b"\xa5" * 4096 + good[start + 4096 :])
        try:
            with ChatStore(damaged) as store:
                for thread in store.threads():
                    store.path(thread.id)
                    store.search("message")
                    store.add(thread.id, thread.leaf, "user", "more")
        except ChatsError as error:
            errors.append(error)
    assert {type(error) for error in errors} == {ChatsCorrupt}
    assert all(error.hint for error in errors)


@posix
def test_a_file_cut_short_gives_typed_errors(path: Path) -> None:
    fill(path)
    with path.open("r+b") as file:
        file.truncate(3 * 4096 + 100)
    with pytest.raises(ChatsCorrupt), ChatStore(path) as store:
        store.path(store.threads()[0].id)


def test_a_folder_in_its_place_cannot_be_opened(path: Path) -> None:
    path.mkdir()
    with pytest.raises(ChatsUnwritable, match=r"chats\.db"):
        ChatStore(path)


@posix
@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="rights do not bind the superuser"
)
def test_a_folder_that_may_not_be_written_is_said_to_be(tmp_path: Path) -> None:
    folder = tmp_path / "shut"
    folder.mkdir(mode=0o500)
    with pytest.raises(ChatsUnwritable, match="shut"):
        ChatStore(folder / "chats.db")


def test_a_file_that_another_process_holds_is_said_to_be_locked(path: Path) -> None:
    with ChatStore(path, busy_timeout_s=0.02) as store, raw(path) as other:
        thread = store.create()
        kept = store.add(thread.id, None, "user", "kept")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ChatsLocked) as caught:
            store.add(thread.id, kept.id, "user", "more")
        assert caught.value.hint
        assert store.path(thread.id) == [kept]
        other.execute("COMMIT")
        store.add(thread.id, kept.id, "user", "more")
        assert [message.content for message in store.path(thread.id)] == ["kept", "more"]


def test_a_full_disk_loses_nothing_that_was_kept(
    path: Path, made: list[sqlite3.Connection]
) -> None:
    with ChatStore(path) as store:
        thread = store.create()
        kept = store.add(thread.id, None, "user", "kept " * 2000)
        answer = store.begin_answer(thread.id, kept.id)
        store.save_answer(answer.id, "half", "")
        (pages,) = made[0].execute("PRAGMA page_count").fetchone()
        made[0].execute(f"PRAGMA max_page_count = {pages}")
        for act in (
            lambda: store.add(thread.id, kept.id, "user", "more " * 10_000),
            lambda: store.save_answer(answer.id, "long " * 10_000, ""),
            lambda: store.end_answer(ChatMessage(answer.id, None, "assistant", "long " * 10_000)),
        ):
            with pytest.raises(ChatsDiskFull) as caught:
                act()
            assert "Free some space" in caught.value.hint
        assert [message.content[:4] for message in store.path(thread.id)] == ["kept", "long"]
        made[0].execute("PRAGMA max_page_count = 100000")
        store.end_answer(ChatMessage(answer.id, None, "assistant", "long " * 10_000))
        assert store.message(answer.id).content == "long " * 10_000
        assert made[0].execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_copy_of_the_open_files_is_whole(path: Path, tmp_path: Path) -> None:
    with ChatStore(path) as store:
        thread = store.create()
        answer = store.begin_answer(thread.id, None)
        store.save_answer(answer.id, "half", "")
        other = tmp_path / "copy"
        other.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", other / f"{path.name}{suffix}")
        with ChatStore(other / path.name) as copied:
            (message,) = copied.path(thread.id)
            assert (message.content, message.state) == ("half", "stopped")
