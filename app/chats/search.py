"""Search over messages and titles, and the snippets that show where the words are."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

from hearth.app.chats.index import parts
from hearth.app.chats.tree import Hit
from hearth.app.chats.words import Phrase, Word, match_expression, phrases, words

WIDTH: Final = 160
"""Characters of a snippet."""
_BEFORE: Final = 40
"""Of them before the first mark."""
_MOST_MATCHES: Final = 1000
"""Maximum number of places of one message that are compared."""


class _Match(NamedTuple):
    phrase: int
    start: int
    end: int


def search(connection: sqlite3.Connection, query: str, limit: int) -> list[Hit]:
    """Titles, then messages that have all that `query` asks for, the best first; a message of
    several threads once, in the one that changed last, archived ones behind others.
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
        for part in parts(connection)
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
    """About `WIDTH` characters of `text`, in one line, where most of what is asked stands together;
    and where in them it is.
    """
    found = list(islice(_matches(list(words(text)), asked), _MOST_MATCHES))
    first = max(found, key=lambda match: (_variety(found, match.start), -match.start), default=None)
    start = max(0, first.start - _BEFORE) if first is not None else 0
    end = min(len(text), start + WIDTH)
    marks = sorted({(match.start, match.end) for match in found})
    inside = [mark for mark in marks if start <= mark[0] and mark[1] <= end]
    line = "".join(" " if character.isspace() else character for character in text[start:end])
    head, tail = "…" if start else "", "…" if end < len(text) else ""
    shift = len(head) - start
    return f"{head}{line}{tail}", tuple((a + shift, b + shift) for a, b in inside)


def _variety(found: Sequence[_Match], start: int) -> int:
    """How many different phrases stand in a snippet whose first mark is at `start`."""
    within = range(start, start + WIDTH - _BEFORE)
    return len({match.phrase for match in found if match.start in within and match.end in within})


def _matches(text: Sequence[Word], asked: Sequence[Phrase]) -> list[_Match]:
    return [
        _Match(index, word.start, text[at + len(phrase.words) - 1].end)
        for at, word in enumerate(text)
        for index, phrase in enumerate(asked)
        if _stands_at(text, at, phrase)
    ]


def _stands_at(text: Sequence[Word], at: int, phrase: Phrase) -> bool:
    last = at + len(phrase.words) - 1
    if last >= len(text):
        return False
    *whole, open_one = phrase.words
    if any(text[at + i].text != word for i, word in enumerate(whole)):
        return False
    end = text[last].text
    return end.startswith(open_one) if phrase.is_open else end == open_one
