"""Search over messages and titles: the words of a text, the index, and the snippets of the results.

A word is a run of letters and digits, ignoring case and accents. In scripts that put no spaces
between words, each character is a word. Both stored texts and queries are split by `words`, so that
they agree; SQLite only sees words separated by spaces.

The index holds the words of each ended message and each title, under their numbers. FTS5 keeps
deleted words until everything in a table has been merged. Messages are therefore indexed in parts,
so that the cost of merging does not grow with the history. The merge runs when the store closes;
until then, `deleted_words` holds the numbers of deleted messages, which are not reused.
"""

from __future__ import annotations

import functools
import re
import sqlite3
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from hearth.app.chats.tree import Hit

WIDTH: Final = 160
"""Length of a snippet in characters."""
_BEFORE: Final = 40
"""Characters of a snippet before the first mark."""
_MOST_MATCHES: Final = 1000
"""Maximum number of matches in one message that are compared."""
TITLES: Final = -1
"""Stands for titles in place of the number of a deleted message."""
_PART: Final = 4096
"""Number of messages that one table indexes."""
LONGEST: Final = 64
"""Characters of a word that are significant; runs of base64 need no more."""
MOST_ASKED: Final = 64
"""Maximum number of words of a query that are searched, from the first: SQLite limits the depth of
a query.
"""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai and Lao, Myanmar, Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"  # Hiragana, Katakana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
_ACCENTS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff"


class Word(NamedTuple):
    """A word of a text."""

    text: str
    """The word, without case and accents."""
    start: int
    end: int


class Phrase(NamedTuple):
    """Words that must follow each other; if `is_open`, the last may be the beginning of a word."""

    words: tuple[str, ...]
    is_open: bool


@functools.cache
def _pattern() -> re.Pattern[str]:
    return re.compile(f"[{_UNSPACED}]|[^\\W_{_UNSPACED}](?:[^\\W_{_UNSPACED}]|[{_ACCENTS}])*")


def words(text: str) -> Iterator[Word]:
    """The words of `text`, in order."""
    for match in _pattern().finditer(text):
        word = _bare(match[0])
        if word:
            yield Word(word, match.start(), match.end())


def spaced(text: str) -> str:
    """The words of `text` separated by spaces: the form stored in the index."""
    return " ".join(word.text for word in words(text))


def _bare(word: str) -> str:
    word = word[:LONGEST]
    if word.isascii():
        return word.lower()
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", word).casefold())
    return "".join(part for part in decomposed if _counts(part))


def _counts(character: str) -> bool:
    """Whether `character` belongs in the index: not an accent, and not a character that a letter's
    decomposition can produce and SQLite would split at.
    """
    if character.isascii():
        return character.isalnum()
    return not unicodedata.combining(character) and not character.isspace()


def phrases(query: str) -> list[Phrase]:
    """The phrases of a query, all of which must occur, in any order. The query has no syntax: each
    part between spaces is a phrase of one or more words, and the last word may be unfinished.
    """
    parts = [tuple(word.text for word in words(part)) for part in query.split()]
    kept = [part for part in parts if part][:MOST_ASKED]
    return [Phrase(part[:MOST_ASKED], is_open=at == len(kept) - 1) for at, part in enumerate(kept)]


def match_expression(query: list[Phrase]) -> str:
    """`query` in the query language of FTS5; words never contain quotes.

    Source: https://www.sqlite.org/fts5.html, section 3.
    """
    return " AND ".join(
        f'"{" ".join(phrase.words)}"{"*" if phrase.is_open else ""}' for phrase in query
    )


# ---- the index


def _parts(connection: sqlite3.Connection) -> list[str]:
    """The tables that index messages."""
    query = (
        "SELECT name FROM sqlite_master "
        "WHERE name GLOB 'message_words_*' AND sql LIKE 'CREATE VIRTUAL TABLE%'"
    )
    return [row[0] for row in connection.execute(query)]


def index_message(connection: sqlite3.Connection, number: int, content: str) -> None:
    """Index the words of the message `number`, replacing its previous ones."""
    _index(connection, _part_of(connection, number), number, content)


def index_title(connection: sqlite3.Connection, number: int, title: str) -> None:
    """Index the words of the title of the thread `number`, replacing its previous ones."""
    _index(connection, "title_words", number, title)


def forget(connection: sqlite3.Connection, numbers: Iterable[int]) -> None:
    """Record that these messages, or titles (`TITLES`), are deleted."""
    rows = ((number,) for number in numbers)
    connection.executemany("INSERT INTO deleted_words(message) VALUES (?)", rows)


def remove_forgotten(connection: sqlite3.Connection) -> None:
    """Remove the words of everything that was deleted from the index."""
    tables = set[str]()
    for (number,) in connection.execute("SELECT message FROM deleted_words").fetchall():
        table = "title_words" if number == TITLES else _part_of(connection, number)
        connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (number,))
        tables.add(table)
    for table in tables:
        connection.execute(f"INSERT INTO {table}({table}) VALUES ('optimize')")


def index_everything(connection: sqlite3.Connection) -> None:
    """Rebuild the whole index from the stored messages and titles."""
    for table in (*_parts(connection), "title_words"):
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
    """The table that indexes the message `number`, created if missing."""
    table = f"message_words_{number // _PART}"
    connection.execute(
        f"CREATE VIRTUAL TABLE IF NOT EXISTS {table} USING fts5(words, tokenize = 'ascii')"
    )
    return table


# ---- searches


class _Match(NamedTuple):
    phrase: int
    start: int
    end: int


def find(connection: sqlite3.Connection, query: str, limit: int) -> list[Hit]:
    """Titles, then messages, that match all phrases of `query`: titles by date with archived
    threads last, messages best first. A message in several threads is found once, in the thread
    that changed last, and in an archived one only if all are.
    """
    asked = phrases(query)
    if not asked or limit < 1:
        return []
    expression = match_expression(asked)
    hits = _titles(connection, asked, expression, limit)
    return hits + _messages(connection, asked, expression, limit - len(hits))


def _titles(
    connection: sqlite3.Connection, asked: Sequence[Phrase], expression: str, limit: int
) -> list[Hit]:
    rows = connection.execute(
        "SELECT thread.id, thread.title, thread.changed_at FROM title_words "
        "JOIN thread ON thread.number = title_words.rowid WHERE title_words MATCH ? "
        "ORDER BY thread.archived, thread.changed_at DESC, thread.number DESC LIMIT ?",
        (expression, limit),
    )
    return [
        Hit(thread, title, "", "title", *snippet(title, asked), changed_at)
        for thread, title, changed_at in rows
    ]


def _messages(
    connection: sqlite3.Connection, asked: Sequence[Phrase], expression: str, limit: int
) -> list[Hit]:
    best = " UNION ALL ".join(
        f"SELECT * FROM (SELECT rowid AS number, rank FROM {part} "
        f"WHERE {part} MATCH ?1 AND rowid NOT IN (SELECT message FROM deleted_words) "
        "ORDER BY rank LIMIT ?2)"
        for part in _parts(connection)
    )
    if not best:
        return []
    rows = connection.execute(
        f"WITH found AS (SELECT * FROM ({best}) ORDER BY rank LIMIT ?2) "
        "SELECT thread.id, thread.title, message.id, message.role, message.content, "
        "message.created_at FROM found JOIN message ON message.number = found.number "
        "JOIN thread ON thread.number = (SELECT holding.number FROM branch "
        "JOIN thread AS holding ON holding.id = branch.thread WHERE branch.message = message.id "
        "ORDER BY holding.archived, holding.changed_at DESC, holding.number DESC LIMIT 1) "
        "ORDER BY found.rank, message.number DESC",
        (expression, limit),
    )
    return [
        Hit(thread, title, message, role, *snippet(content, asked), created_at)
        for thread, title, message, role, content, created_at in rows
    ]


def snippet(text: str, asked: Sequence[Phrase]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """About `WIDTH` characters of `text` in one line, from the place where the most phrases of
    `asked` occur together, and the positions of the matches in that line.
    """
    matches = list(islice(_matches(list(words(text)), asked), _MOST_MATCHES))
    first = max(range(len(matches)), key=lambda at: _variety(matches, at), default=None)
    start = max(0, matches[first].start - _BEFORE) if first is not None else 0
    end = min(len(text), start + WIDTH)
    marks = sorted({(match.start, match.end) for match in matches})
    inside = [mark for mark in marks if start <= mark[0] and mark[1] <= end]
    line = "".join(" " if character.isspace() else character for character in text[start:end])
    head, tail = "…" if start else "", "…" if end < len(text) else ""
    shift = len(head) - start
    return f"{head}{line}{tail}", tuple((a + shift, b + shift) for a, b in inside)


def _variety(found: Sequence[_Match], at: int) -> int:
    """The number of different phrases in a snippet whose first mark is `found[at]`; `found` is
    sorted by start.
    """
    end = found[at].start + WIDTH - _BEFORE
    near = found[at : bisect_left(found, end, at, key=attrgetter("start"))]
    return len({match.phrase for match in near if match.end < end})


def _matches(text: Sequence[Word], asked: Sequence[Phrase]) -> list[_Match]:
    return [
        _Match(index, word.start, text[at + len(phrase.words) - 1].end)
        for at, word in enumerate(text)
        for index, phrase in enumerate(asked)
        if _stands_at(text, at, phrase)
    ]


def _stands_at(text: Sequence[Word], at: int, phrase: Phrase) -> bool:
    here = [word.text for word in text[at : at + len(phrase.words)]]
    if phrase.is_open:
        here[-1] = here[-1][: len(phrase.words[-1])]
    return tuple(here) == phrase.words
