"""Cuts text into words by a vocabulary's patterns.

Character categories are those of Python's `unicodedata`; they differ from llama.cpp's (Unicode
15.1) only for characters that one of the two does not define yet.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from hearth.backends.text.vocab.patterns import OF_CATEGORY, OTHER, SPACE, Step, View


class Categories(dict[int, str]):
    """For `str.translate`: the category of each character, looked up on first use."""

    def __init__(self) -> None:
        super().__init__({code: chr(code) for code in range(0x80)})
        self[0x85] = SPACE

    def __missing__(self, code: int) -> str:
        self[code] = OF_CATEGORY.get(unicodedata.category(chr(code))[0], OTHER)
        return self[code]


class Spaces(dict[int, str]):
    """For `str.translate`: white space above ASCII becomes one that C's `isspace` accepts."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        self[code] = SPACE if code > 0x7F and char.isspace() else char
        return self[code]


class WordCutter:
    """Cuts text by `steps`, each of which cuts the pieces from the one before it. Thread-safe.

    Text between two matches of an expression is a word as well, so nothing is lost.
    """

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self._steps = [(step, re.compile(step.expression)) for step in steps]
        self._views: dict[View, dict[int, str]] = {
            "categories": Categories(),
            "spaces": Spaces(),
        }

    def cut(self, text: str) -> list[str]:
        """The words of `text`, in order, which add up to `text`."""
        spans = [(0, len(text))]
        is_ascii = text.isascii()
        views: dict[View, str] = {}
        for step, expression in self._steps:
            view = step.view
            if view not in views:
                views[view] = text if is_ascii else text.translate(self._views[view])
            spans = list(_matches(expression, views[view], spans))
        return [text[start:end] for start, end in spans]


def _matches(
    expression: re.Pattern[str], text: str, spans: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """The matches and the text between them, in each of `spans`."""
    for start, end in spans:
        place = start
        for match in expression.finditer(text, start, end):
            first, last = match.span()
            if first > place:
                yield place, first
            yield first, last
            place = last
        if place < end:
            yield place, end
