"""Text cut into words by a vocabulary's patterns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hearth.backends.text.vocab.characters import NUMBER, Categories, Spaces
from hearth.backends.text.vocab.patterns import Cut, Step, View

_DIGITS: Final = {
    "after digits": re.compile(f"[0-9{NUMBER}]+"),
    "before digits": re.compile("[0-9]+"),
}


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
    """Matches and what lies between them, in each of `spans`."""
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
