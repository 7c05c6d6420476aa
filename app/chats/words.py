"""The words of a text, as the search knows them, and where they stand.

A word is a run of letters and digits, without case and accents. In scripts that put no spaces
between words, each character counts as one. Both what is kept and what is asked go through here,
so that they agree; SQLite only sees words between spaces.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator
from typing import Final, NamedTuple

LONGEST: Final = 64
"""Characters of a word that count; runs of base64 need no more."""
MOST_ASKED: Final = 64
"""Number of words of a query that are searched: the first. SQLite bounds the depth of a query."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai and Lao, Myanmar, Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"  # Hiragana, Katakana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
_ACCENTS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff"


class Word(NamedTuple):
    """A word of a text."""

    text: str
    """Without case and accents."""
    start: int
    end: int


class Phrase(NamedTuple):
    """Words that must follow each other; with `is_open`, the last may go on."""

    words: tuple[str, ...]
    is_open: bool


@functools.cache
def _pattern() -> re.Pattern[str]:
    return re.compile(f"[{_UNSPACED}]|[^\\W_{_UNSPACED}](?:[^\\W_{_UNSPACED}]|[{_ACCENTS}])*")


def words(text: str) -> Iterator[Word]:
    """The words of `text`, first to last."""
    for match in _pattern().finditer(text):
        word = _bare(match[0])
        if word:
            yield Word(word, match.start(), match.end())


def spaced(text: str) -> str:
    """The words of `text` with spaces between: what goes into the index."""
    return " ".join(word.text for word in words(text))


def _bare(word: str) -> str:
    word = word[:LONGEST]
    if word.isascii():
        return word.lower()
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", word).casefold())
    return "".join(part for part in decomposed if _counts(part))


def _counts(character: str) -> bool:
    """Not an accent; and not what one letter may decompose into and SQLite would split at."""
    if character.isascii():
        return character.isalnum()
    return not unicodedata.combining(character) and not character.isspace()


def phrases(query: str) -> list[Phrase]:
    """What a person's query asks for: all of these, in any order. Nothing in it is syntax: what
    stands between spaces is a phrase of one word or more, and the last may be unfinished.
    """
    found = [tuple(word.text for word in words(part)) for part in query.split()]
    kept = [part for part in found if part][:MOST_ASKED]
    return [Phrase(part[:MOST_ASKED], is_open=at == len(kept) - 1) for at, part in enumerate(kept)]


def match_expression(query: list[Phrase]) -> str:
    """`query` in FTS5's language; words have no quotes in them.

    Source: https://www.sqlite.org/fts5.html, section 3.
    """
    return " AND ".join(
        f'"{" ".join(phrase.words)}"{"*" if phrase.is_open else ""}' for phrase in query
    )
