"""The index of words: what each ended message and each title says, under their numbers.

Messages are indexed in parts. FTS5 keeps deleted words until it has merged everything that a table
holds; with parts, the work for a deleted chat does not grow with the history.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

from hearth.app.chats.words import spaced

_MESSAGES: Final = 4096
"""Of one part."""


def parts(connection: sqlite3.Connection) -> list[str]:
    """The tables that index messages."""
    query = (
        "SELECT name FROM sqlite_master "
        "WHERE name GLOB 'message_words_*' AND sql LIKE 'CREATE VIRTUAL TABLE%'"
    )
    return [row[0] for row in connection.execute(query)]


def part_of(connection: sqlite3.Connection, number: int) -> str:
    """The table that indexes the message `number`, made where it is missing."""
    table = f"message_words_{number // _MESSAGES}"
    connection.execute(
        f"CREATE VIRTUAL TABLE IF NOT EXISTS {table} USING fts5(words, tokenize = 'ascii')"
    )
    return table


def index_message(connection: sqlite3.Connection, number: int, content: str) -> None:
    """Note the words of the message `number`, in place of those it had."""
    _index(connection, part_of(connection, number), number, content)


def index_title(connection: sqlite3.Connection, number: int, title: str) -> None:
    """Note the words of the title of the thread `number`, in place of those it had."""
    _index(connection, "title_words", number, title)


def forget_messages(connection: sqlite3.Connection, numbers: Iterable[int]) -> None:
    """Drop the words of messages that are deleted."""
    tables = {part_of(connection, number): None for number in numbers}
    for number in numbers:
        connection.execute(f"DELETE FROM {part_of(connection, number)} WHERE rowid = ?", (number,))
    for table in tables:
        mark_deleted(connection, table)


def mark_deleted(connection: sqlite3.Connection, table: str) -> None:
    """Note that words were deleted from the index `table`, and rows with them."""
    connection.execute("INSERT INTO deleted_words(part) VALUES (?)", (table,))


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
