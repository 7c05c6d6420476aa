"""The tables, as numbered migrations; `user_version` of the file says which have been done."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from hearth.app.chats.index import TITLES, forget, index_everything

APPLICATION_ID: Final = 0x48525448
"""`HRTH`; says whose database it is."""

Migration = Callable[[sqlite3.Connection], None]


def m001_threads_and_messages(connection: sqlite3.Connection) -> None:
    """Messages stand in one table, each with its parent; `branch` says which threads hold which,
    so that a clone shares its past. A thread that holds a message holds its parent.
    """
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for statement in _TABLES:
        connection.execute(statement)


def m002_words(connection: sqlite3.Connection) -> None:
    """The index of words (`hearth.app.chats.index`). Rewritten by `m004_parts`."""


def m003_drafts(connection: sqlite3.Connection) -> None:
    """What is written in the prompt of each chat and not sent; of the new chat under ''."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS draft "
        "(thread TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID"
    )


def m004_parts(connection: sqlite3.Connection) -> None:
    """The index of words in parts, and the numbers of deleted messages that it still has. What the
    tables of before held is removed for good when the store closes.
    """
    for statement in _WORDS:
        connection.execute(statement)
    index_everything(connection)
    forget(connection, [TITLES])


MIGRATIONS: Final[tuple[Migration, ...]] = (
    m001_threads_and_messages,
    m002_words,
    m003_drafts,
    m004_parts,
)
LATEST: Final = len(MIGRATIONS)


def migrate(connection: sqlite3.Connection) -> None:
    """Do the next migration that `connection`, within a transaction, still needs; another process
    may have done it.
    """
    (done,) = connection.execute("PRAGMA user_version").fetchone()
    if done < LATEST:
        MIGRATIONS[done](connection)
        connection.execute(f"PRAGMA user_version = {done + 1}")


# Numbers grow from parent to child, and from sibling to sibling in the order of their making.
# References are checked at the end of a transaction, so that subtrees go in any order.
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
