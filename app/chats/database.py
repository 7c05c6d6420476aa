"""`Database`: a store's single connection to its SQLite file, and the tables in that file.

Source of the facts about SQLite: https://www.sqlite.org/wal.html, pragma.html, rescode.html,
fileformat2.html.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import shutil
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from hearth.app.chats.errors import (
    ChatsCorrupt,
    ChatsDiskFull,
    ChatsForeign,
    ChatsLocked,
    ChatsUnwritable,
)
from hearth.app.chats.search import TITLES, forget, index_everything, remove_forgotten
from hearth.app.paths import private_folder
from hearth.backends.errors import HearthError, InternalError

log = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x48525448
"""`HRTH`; identifies the database as one of Hearth."""
_FULL_BELOW_BYTES: Final = 1 << 20
"""With less free space than this, an I/O error is taken for that of a full disk."""
_WAL_RETRY_S: Final = 0.02
_OPEN: Final[list[Path]] = []
"""The files of all open databases of this process."""
_HEAD: Final = struct.Struct(">BHHH")
"""Page type, first free block, number of cells, start of the cell contents."""
_INTERIOR: Final = (2, 5)
_LEAF: Final = (10, 13)


class Database:
    """Transactions on the file at `path`, from any thread, one at a time.

    Every commit is on disk when it returns (WAL, synchronous=FULL). Deleted data is overwritten;
    `close` removes the remaining traces.

    Args:
        path: the file; created if missing, accessible only to its owner.
        busy_timeout_s: how long to wait for other processes.

    Raises:
        ChatsForeign, ChatsCorrupt: this version cannot use the file, which is left unchanged.
        ChatsLocked, ChatsDiskFull, ChatsUnwritable: the file cannot be used now.
    """

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self.path = path
        self._busy_timeout_s = busy_timeout_s
        self.lock = threading.RLock()
        self._is_closed = False
        with self.translated():
            _make_private(path)
            self._connection = sqlite3.connect(
                path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            try:
                self._open()
            except BaseException:
                self._connection.close()
                raise
        _OPEN.append(path)

    def _open(self) -> None:
        self._refuse_foreign()
        connection = self._connection
        self._set_wal()
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        while self._version() < LATEST:
            with self.write():
                done = self._version()  # Another process may have migrated it meanwhile.
                if done < LATEST:
                    MIGRATIONS[done](connection)
                    connection.execute(f"PRAGMA user_version = {done + 1}")

    def _refuse_foreign(self) -> None:
        # In one transaction, because another process may be creating the file right now.
        with self.read() as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            version = self._version()
        if application != APPLICATION_ID and (application or tables):
            raise ChatsForeign(
                f"{self.path} is a database of another program.",
                "Move it away: Hearth keeps its chats in a file of that name.",
            )
        if version > LATEST:
            raise ChatsForeign(
                f"The chats in {self.path} were kept by a newer Hearth "
                f"(version {version} of the file; this Hearth knows {LATEST}).",
                "Update Hearth, or set HEARTH_HOME to begin an empty history elsewhere.",
                version=version,
                known=LATEST,
            )

    def _version(self) -> int:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        return int(version)

    def _set_wal(self) -> None:
        """Turn on the write-ahead log, where the file system supports it. SQLite itself does not
        wait while another process does the same.
        """
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if not _is(error, sqlite3.SQLITE_BUSY) or time.monotonic() > deadline:
                    raise
            time.sleep(_WAL_RETRY_S)

    def read(self) -> AbstractContextManager[sqlite3.Connection]:
        """A read transaction, which sees one state of the file."""
        return self._transaction("BEGIN")

    def write(self) -> AbstractContextManager[sqlite3.Connection]:
        """A write transaction: on disk when the block ends, rolled back if the block raises."""
        return self._transaction("BEGIN IMMEDIATE")

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self.lock, self.translated():
            self._connection.execute(begin)
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # After some errors, such as a full disk, SQLite has already rolled back.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Within the block, a lock held by another process raises at once."""
        with self.lock, self.translated():
            self._connection.execute("PRAGMA busy_timeout = 0")
            try:
                yield
            finally:
                wait_ms = int(1000 * self._busy_timeout_s)
                self._connection.execute(f"PRAGMA busy_timeout = {wait_ms}")

    def close(self) -> None:
        """Close the file after removing the traces of deleted chats. Further calls do nothing.

        The word index keeps deleted words until it is merged, and pages keep rows that were moved
        elsewhere. If the traces cannot be removed now (another process is reading, or the disk is
        full), the next store that closes removes them.
        """
        with self.lock:
            if self._is_closed:
                return
            self._is_closed = True
            with contextlib.ExitStack() as after:
                try:
                    with self.translated():
                        query = "SELECT max(number) FROM deleted_words"
                        (marked,) = self._connection.execute(query).fetchone()
                        if marked is not None and _OPEN.count(self.path) == 1:
                            file = after.enter_context(io.FileIO(self.path, "r+"))
                            self._erase(file, marked)
                except (ChatsLocked, ChatsDiskFull) as error:
                    log.warning("traces of deleted chats stay for now: %s", error.message)
                finally:
                    # Before `file` is closed: closing it would release SQLite's locks in this
                    # process (https://www.sqlite.org/howtocorrupt.html, section 2.2).
                    self._connection.close()
                    _OPEN.remove(self.path)

    def _erase(self, file: io.FileIO, marked: int) -> None:
        connection = self._connection
        with self.write():
            remove_forgotten(connection)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with self.write():
            wal = Path(f"{self.path}-wal")
            if wal.exists() and wal.stat().st_size:
                raise ChatsLocked("Another process uses the chats.")
            (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
            roots = connection.execute("SELECT rootpage FROM sqlite_master WHERE rootpage > 0")
            _zero_gaps(file, page_bytes, [1, *(root for (root,) in roots)])
            os.fsync(file.fileno())
            connection.execute("DELETE FROM deleted_words WHERE number <= ?", (marked,))

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Convert errors of SQLite and the operating system into typed errors."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._typed(error) from error
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise self._disk_full() from error
            raise ChatsUnwritable(
                f"{error.filename or self.path}: {error.strerror}.",
                "Check its rights and its device.",
            ) from error

    def _typed(self, error: sqlite3.Error) -> HearthError:
        path = self.path
        if _is(error, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return ChatsLocked(
                f"Another process has held {path} for {self._busy_timeout_s:g} s.",
                "Try again; if it stays so, look for a program that has the file open.",
            )
        if _is(error, sqlite3.SQLITE_FULL) or (
            _is(error, sqlite3.SQLITE_IOERR)
            and shutil.disk_usage(path.parent).free < _FULL_BELOW_BYTES
        ):
            return self._disk_full()
        if _is(error, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return ChatsCorrupt(
                f"{path} is damaged, or no database: {error}.",
                "Hearth does not change it. Move it away to begin an empty history; "
                "`sqlite3 FILE .recover` reads what can still be read.",
            )
        if _is(
            error,
            sqlite3.SQLITE_IOERR,
            sqlite3.SQLITE_READONLY,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_PERM,
            sqlite3.SQLITE_AUTH,
        ):
            return ChatsUnwritable(f"{path}: {error}.", "Check its rights and its device.")
        return InternalError(f"The history of chats: {type(error).__name__}: {error}")

    def _disk_full(self) -> ChatsDiskFull:
        return ChatsDiskFull(
            f"There is no room to write to {self.path}.",
            "Free some space and try again: what was kept before is safe.",
        )


def _make_private(path: Path) -> None:
    """Create an empty file that only its owner can access, unless it exists. SQLite gives the files
    that it creates next to it the same permissions.
    """
    private_folder(path.parent)
    if not path.exists():
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
    if os.name == "posix" and path.stat().st_mode & 0o077 and path.stat().st_uid == os.geteuid():
        path.chmod(0o600)


def _is(error: sqlite3.Error, *codes: int) -> bool:
    """Whether the primary result code, the low byte of the extended code, is one of `codes`."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in codes


def _zero_gaps(file: io.RawIOBase, page_bytes: int, roots: Iterable[int]) -> None:
    """Overwrite the bytes between the cell pointers and the cell contents in all pages of these
    B-trees: SQLite leaves rows there that it moved to another page. It never reads those bytes, so
    other processes may read the file meanwhile, but must not write it.

    Source: https://www.sqlite.org/fileformat2.html, section 1.6.

    Args:
        file: the database, with an empty write-ahead log.
        roots: numbers of root pages, counted from 1.

    Raises:
        ChatsCorrupt: a page is not of the form that its parent requires.
    """
    pending, seen = list(roots), set[int]()
    while pending:
        number = pending.pop()
        place = (number - 1) * page_bytes
        file.seek(place)
        page = file.read(page_bytes) or b""
        head = 100 if number == 1 else 0
        try:
            kind, _, cells, contents = _HEAD.unpack_from(page, head)
            gap = head + (12 if kind in _INTERIOR else 8)
            pointers = struct.unpack_from(f">{cells}H", page, gap)
            gap += 2 * cells
            contents = contents or 65536
            if number in seen or kind not in _INTERIOR + _LEAF or min(pointers, default=gap) < gap:
                raise struct.error
            if kind in _INTERIOR:
                children = (head + 8, *pointers)
                pending += [struct.unpack_from(">I", page, at)[0] for at in children]
        except struct.error:
            raise ChatsCorrupt(f"{file} is damaged at page {number}.") from None
        seen.add(number)
        left = page[gap : min((contents, *pointers))]
        if left.strip(b"\0"):
            file.seek(place + gap)
            file.write(bytes(len(left)))


def m001_threads_and_messages(connection: sqlite3.Connection) -> None:
    """Messages are stored in one table, each with its parent. `branch` records which threads hold
    which messages, so that a clone shares its past. A thread that holds a message also holds its
    parent.
    """
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for statement in _TABLES:
        connection.execute(statement)


def m002_words(connection: sqlite3.Connection) -> None:
    """The word index (`hearth.app.chats.search`). Replaced by `m004_parts`."""


def m003_drafts(connection: sqlite3.Connection) -> None:
    """The unsent text in the prompt of each chat; that of the new chat is stored under ''."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS draft "
        "(thread TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID"
    )


def m004_parts(connection: sqlite3.Connection) -> None:
    """The word index in parts, and the numbers of deleted messages that it still contains. The
    content of the old tables is erased when the store closes.
    """
    for statement in _WORDS:
        connection.execute(statement)
    index_everything(connection)
    forget(connection, [TITLES])


MIGRATIONS: Final[tuple[Callable[[sqlite3.Connection], None], ...]] = (
    m001_threads_and_messages,
    m002_words,
    m003_drafts,
    m004_parts,
)
LATEST: Final = len(MIGRATIONS)


# Numbers increase from parent to child, and from sibling to sibling in the order of creation.
# References are checked at the end of a transaction, so that subtrees can be deleted in any order.
# `hash` is not used: it is NULL while a message is being written, and empty afterwards.
_TABLES: Final = (
    """
    CREATE TABLE IF NOT EXISTS message (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        parent TEXT REFERENCES message(id) DEFERRABLE INITIALLY DEFERRED,
        role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')),
        content TEXT NOT NULL,
        reasoning TEXT NOT NULL,
        tool_calls TEXT NOT NULL,
        created_at REAL NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('complete', 'streaming', 'stopped', 'failed')),
        finish_reason TEXT NOT NULL DEFAULT '',
        error TEXT NOT NULL DEFAULT '',
        numbers TEXT,
        writer TEXT NOT NULL DEFAULT '',
        hash BLOB,
        CHECK ((state = 'streaming') = (hash IS NULL))
    )
    """,
    "CREATE INDEX IF NOT EXISTS message_parent ON message(parent)",
    """
    CREATE INDEX IF NOT EXISTS message_streaming ON message(writer) WHERE state = 'streaming'
    """,
    """
    CREATE TABLE IF NOT EXISTS thread (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        title TEXT NOT NULL,
        created_at REAL NOT NULL,
        changed_at REAL NOT NULL,
        pinned INTEGER NOT NULL DEFAULT 0,
        archived INTEGER NOT NULL DEFAULT 0,
        model TEXT NOT NULL,
        system TEXT NOT NULL,
        settings TEXT NOT NULL,
        leaf TEXT REFERENCES message(id) DEFERRABLE INITIALLY DEFERRED
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS branch (
        thread TEXT NOT NULL REFERENCES thread(id) DEFERRABLE INITIALLY DEFERRED,
        message TEXT NOT NULL REFERENCES message(id) DEFERRABLE INITIALLY DEFERRED,
        shown TEXT REFERENCES message(id) DEFERRABLE INITIALLY DEFERRED,
        PRIMARY KEY (thread, message)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX IF NOT EXISTS branch_message ON branch(message)",
    "CREATE INDEX IF NOT EXISTS branch_shown ON branch(shown)",
    "CREATE INDEX IF NOT EXISTS thread_leaf ON thread(leaf)",
)
_WORDS: Final = (
    "DROP TABLE IF EXISTS message_words",
    "DROP TABLE IF EXISTS deletion",
    "CREATE VIRTUAL TABLE IF NOT EXISTS title_words USING fts5(words, tokenize = 'ascii')",
    """
    CREATE TABLE IF NOT EXISTS deleted_words (number INTEGER PRIMARY KEY, message INTEGER NOT NULL)
    """,
)
