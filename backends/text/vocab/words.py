"""Text cut into words by a vocabulary's patterns.

Categories of characters are those of Python's `unicodedata`; they differ from llama.cpp's (Unicode
15.1) only for characters that one of the two does not know yet.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from hearth.backends.text.vocab.patterns import (
    HAN,
    NUMBER,
    OF_CATEGORY,
    OTHER,
    SPACE,
    Cut,
    Step,
    View,
)

_DIGITS: Final = {
    "after digits": re.compile(f"[0-9{NUMBER}]+"),
    "before digits": re.compile("[0-9]+"),
}
_HAN_RANGES: Final = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2EBEF),
    (0x2F800, 0x2FA1F),
)


class Categories(dict[int, str]):
    """For `str.translate`: categories of characters, worked out when they are first met."""

    def __init__(self, *, han: bool = False) -> None:
        """`han`: Chinese characters have a mark of their own instead of the letters'."""
        super().__init__({code: chr(code) for code in range(0x80)})
        self._han = han

    def __missing__(self, code: int) -> str:
        if self._han and any(first <= code <= last for first, last in _HAN_RANGES):
            mark = HAN
        elif code == 0x85:
            mark = SPACE
        else:
            mark = OF_CATEGORY.get(unicodedata.category(chr(code))[0], OTHER)
        self[code] = mark
        return mark


class Spaces(dict[int, str]):
    """For `str.translate`: white space above ASCII becomes one that C's `isspace` knows."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        self[code] = SPACE if code > 0x7F and char.isspace() else char
        return self[code]


class WordCutter:
    """Cuts text by `steps`, each of which cuts what the one before it left. Thread-safe.

    What an expression does not match between two matches is a word as well, so nothing is lost.
    """

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self._steps = [(step, re.compile(step.expression)) for step in steps]
        self._views: dict[View, dict[int, str]] = {
            "categories": Categories(),
            "han": Categories(han=True),
            "spaces": Spaces(),
        }

    def cut(self, text: str) -> list[str]:
        """The words of `text`, in order; joined they are `text`."""
        spans = [(0, len(text))]
        is_ascii = text.isascii()
        views: dict[View, str] = {}
        for step, expression in self._steps:
            view = step.view
            if view not in views:
                views[view] = text if is_ascii else text.translate(self._views[view])
            seen = views[view]
            if step.cut == "expression":
                spans = list(_matches(expression, seen, spans))
            else:
                spans = list(_digit_groups(step.cut, seen, spans))
        return [text[start:end] for start, end in spans]


def _matches(
    expression: re.Pattern[str], text: str, spans: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Matches and what is between them, in each of `spans`."""
    for start, end in spans:
        place = start
        for found in expression.finditer(text, start, end):
            first, last = found.span()
            if first > place:
                yield place, first
            yield first, last
            place = last
        if place < end:
            yield place, end


def _digit_groups(cut: Cut, text: str, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Runs of digits cut at every third digit from their end: after each group ("after digits"), or
    before each whole one ("before digits").
    """
    is_after = cut == "after digits"
    for start, end in spans:
        place = start
        for found in _DIGITS[cut].finditer(text, start, end):
            first, last = found.span()
            for edge in range(first + (last - first) % 3, last + is_after, 3):
                if edge > (first if is_after else place):
                    yield place, edge
                    place = edge
        if place < end:
            yield place, end
