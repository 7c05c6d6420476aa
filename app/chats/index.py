"""The index of words: what each ended message and each title says, under their numbers.

FTS5 keeps deleted words until it has merged everything that a table holds. Messages are indexed in
parts, so that this work does not grow with the history, and it is done when the store closes:
`deleted_words` has the numbers of messages until then, which are not used again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

from hearth.app.chats.words import spaced

_PART: Final = 4096
"""Numbers of messages that one table indexes."""
TITLES: Final = -1
"""Stands for titles where the number of a deleted message is meant."""


def parts(connection: sqlite3.Connection) -> list[str]:
    """The tables that index messages."""
    query = (
        "SELECT name FROM sqlite_master "
        "WHERE name GLOB 'message_words_*' AND sql LIKE 'CREATE VIRTUAL TABLE%'"
    )
    return [row[0] for row in connection.execute(query)]


def index_message(connection: sqlite3.Connection, number: int, content: str) -> None:
    """Note the words of the message `number`, in place of those it had."""
    _index(connection, _part_of(connection, number), number, content)


def index_title(connection: sqlite3.Connection, number: int, title: str) -> None:
    """Note the words of the title of the thread `number`, in place of those it had."""
    _index(connection, "title_words", number, title)


def forget(connection: sqlite3.Connection, numbers: Iterable[int]) -> None:
    """Note that these messages are deleted, or titles."""
    rows = ((number,) for number in numbers)
    connection.executemany("INSERT INTO deleted_words(message) VALUES (?)", rows)


def remove_forgotten(connection: sqlite3.Connection) -> None:
    """Remove the words of all that was deleted."""
    tables = set[str]()
    for (number,) in connection.execute("SELECT message FROM deleted_words").fetchall():
        table = "title_words" if number == TITLES else _part_of(connection, number)
        connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (number,))
        tables.add(table)
    for table in tables:
        connection.execute(f"INSERT INTO {table}({table}) VALUES ('optimize')")


def index_everything(connection: sqlite3.Connection) -> None:
    """Note the words of all that is kept, in place of the whole index."""
    for table in (*parts(connection), "title_words"):
        connection.execute(f"DELETE FROM {table}")
    ended = "SELECT number, content FROM message WHERE state <> 'streaming'"
    for number, content in connection.execute(ended).fetchall():
        index_message(connection, number, content)
    for number, title in connection.execute("SELECT number, title FROM thread"):
        index_title(connection, number, title)


def _index(connection: sqlite3.Connection, table: str, number: int, text: str) -> None:
    connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (number,))
    if words := spaced(text):
        connection.execute(f"INSERT INTO {table}(rowid, words) VALUES (?, ?)", (number, words))


def _part_of(connection: sqlite3.Connection, number: int) -> str:
    """The table that indexes the message `number`, made where it is missing."""
    table = f"message_words_{number // _PART}"
    connection.execute(
        f"CREATE VIRTUAL TABLE IF NOT EXISTS {table} USING fts5(words, tokenize = 'ascii')"
    )
    return table
