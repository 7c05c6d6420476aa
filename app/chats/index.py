"""The index of words: what each ended message and each title says, under their numbers."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from hearth.app.chats.words import spaced


def index_message(connection: sqlite3.Connection, number: int, content: str) -> None:
    """Note the words of the message `number`, in place of those it had."""
    connection.execute("DELETE FROM message_words WHERE rowid = ?", (number,))
    if words := spaced(content):
        connection.execute("INSERT INTO message_words(rowid, words) VALUES (?, ?)", (number, words))


def index_title(connection: sqlite3.Connection, number: int, title: str) -> None:
    """Note the words of the title of the thread `number`, in place of those it had."""
    connection.execute("DELETE FROM title_words WHERE rowid = ?", (number,))
    if words := spaced(title):
        connection.execute("INSERT INTO title_words(rowid, words) VALUES (?, ?)", (number, words))


def forget_messages(connection: sqlite3.Connection, numbers: Iterable[int]) -> None:
    """Drop the words of messages that are deleted."""
    connection.executemany(
        "DELETE FROM message_words WHERE rowid = ?", ((number,) for number in numbers)
    )


def index_everything(connection: sqlite3.Connection) -> None:
    """Note the words of all that is kept, in place of the whole index."""
    connection.execute("DELETE FROM message_words")
    connection.execute("DELETE FROM title_words")
    ended = "SELECT number, content FROM message WHERE state <> 'streaming'"
    for number, content in connection.execute(ended):
        index_message(connection, number, content)
    for number, title in connection.execute("SELECT number, title FROM thread"):
        index_title(connection, number, title)
