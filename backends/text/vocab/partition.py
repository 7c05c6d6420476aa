"""Finds special tokens in text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

_WHITE: Final = " \t\n\v\f\r"
_MOST_TANGLES: Final = 4096


class Partition:
    """Cuts text at special tokens, as llama.cpp does (`tokenizer_st_partition`): where tokens
    overlap, the longest is cut out first, not the one that begins first. Thread-safe.

    Args:
        ids: ids of the special tokens, by their text.
        strips_after: ids of tokens that swallow the white space after them.
    """

    def __init__(self, ids: Mapping[str, int], *, strips_after: Collection[int] = ()) -> None:
        by_length = sorted(ids, key=lambda text: len(text.encode("utf-8", "surrogateescape")))
        self._ids = {text: ids[text] for text in reversed(by_length)}
        self._any = re.compile(longest_of(sorted(ids))) if ids else None
        self._after = frozenset(strips_after)
        self._tangles: dict[str, tuple[str | int, ...]] = {}

    def parts(self, text: str) -> list[str | int]:
        """The ids of special tokens and the text between them, never empty, in order."""
        if not text:
            return []
        if self._any is None:
            return [text]
        parts = _joined(self._raw_parts(self._any, text))
        return self._stripped(parts) if self._after else parts

    def _raw_parts(self, any_token: re.Pattern[str], text: str) -> Iterator[str | int]:
        place = 0
        for start, end, count in _stretches(any_token, text):
            if start > place:
                yield text[place:start]
            stretch = text[start:end]
            if count == 1:
                yield self._ids[stretch]
            else:
                yield from self._untangled(stretch)
            place = end
        if place < len(text):
            yield text[place:]

    def _untangled(self, stretch: str) -> tuple[str | int, ...]:
        """The parts of a text that consists of overlapping tokens."""
        known = self._tangles.get(stretch)
        if known is None:
            parts: list[str | int] = [stretch]
            for token, ident in self._ids.items():
                if token in stretch:
                    parts = [piece for part in parts for piece in _cut(part, token, ident)]
            known = tuple(parts)
            if len(self._tangles) >= _MOST_TANGLES:
                self._tangles = {}
            self._tangles[stretch] = known
        return known

    def _stripped(self, parts: Sequence[str | int]) -> list[str | int]:
        kept: list[str | int] = []
        for index, part in enumerate(parts):
            if isinstance(part, str) and index and parts[index - 1] in self._after:
                part = part.lstrip(_WHITE)
            if part != "":
                kept.append(part)
        return kept


def _stretches(any_token: re.Pattern[str], text: str) -> Iterator[tuple[int, int, int]]:
    """Start and end of each stretch of overlapping tokens, and how many were found in it, at most
    one (the longest) per position.
    """
    match = any_token.search(text)
    while match is not None:
        start, end = match.span()
        count = 1
        following = any_token.search(text, start + 1)
        while following is not None and following.start() < end:
            end = max(end, following.end())
            count += 1
            following = any_token.search(text, following.start() + 1)
        yield start, end, count
        match = following


def _joined(parts: Iterable[str | int]) -> list[str | int]:
    """`parts` with adjacent texts joined."""
    joined: list[str | int] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, str) and isinstance(last, str):
            joined[-1] = last + part
        else:
            joined.append(part)
    return joined


def _cut(part: str | int, token: str, ident: int) -> list[str | int]:
    if isinstance(part, int) or token not in part:
        return [part]
    pieces = part.split(token)
    cut: list[str | int] = [pieces[0]]
    for piece in pieces[1:]:
        cut += (ident, piece)
    return [piece for piece in cut if piece != ""]


def longest_of(texts: Sequence[str]) -> str:
    """A regular expression for the longest of `texts` at a position; they are sorted and distinct.

    Common prefixes are compared once: trying thousands of alternatives in turn would be very slow
    on text that nearly matches.
    """
    pairs = enumerate(zip(texts[0], texts[-1], strict=False))
    alike = next((place for place, (one, other) in pairs if one != other), len(texts[0]))
    head = texts[0][:alike]
    rests = [text[alike:] for text in texts]
    is_whole = not rests[0]
    branches = [
        longest_of(list(branch))
        for _, branch in itertools.groupby(filter(None, rests), key=lambda rest: rest[0])
    ]
    if not branches:
        return re.escape(head)
    return f"{re.escape(head)}(?:{'|'.join(branches)}){'?' * is_whole}"
