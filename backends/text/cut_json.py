"""Reads JSON that was cut off, as in a tool call of an answer that reached its token limit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from hearth.backends.text.output.json_scanner import NUMBER_ENDS, STRINGS, JsonScanner, Step

_RUN: Final = re.compile(r'(?:[^"\\\x00-\x1f]+|\\.)+|.', re.DOTALL)
"""Characters that do not end a string, or one character of any kind."""
_CONSTANT: Final = re.compile(r'("(?:[^"\\]|\\.)*"?)|NaN|-?Infinity', re.DOTALL)
"""A string, or one of the numbers that Python writes and JSON does not have."""
_HALF_ESCAPE: Final = re.compile(
    r"(?<!\\)(?:\\\\)*(?P<half>(?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?)$"
)
"""An incomplete escape at the end of a string, with the first half of a surrogate pair, if any."""


def read_json(
    text: str,
    *,
    parse_constant: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] | None = None,
) -> Any:
    """The value of a JSON text, or of the beginning of one.

    Of a beginning, complete values are kept, and an unfinished string as a string. A key without a
    value and an incomplete number or literal are left out.

    Args:
        parse_constant: converts NaN, Infinity and -Infinity; None: they are refused.
        parse_float: converts numbers with a fraction or an exponent.

    Raises:
        ValueError: `text` is not the beginning of a JSON text.
    """
    constant = parse_constant or _refuse
    try:
        return json.loads(text, parse_constant=constant, parse_float=parse_float)
    except ValueError:
        whole = _completed(text)
        return json.loads(whole, parse_constant=constant, parse_float=parse_float)


def _completed(text: str) -> str:
    """`text` up to the last place where a value can end, and the brackets that close it there."""
    scanner = JsonScanner()
    standard = text
    if "NaN" in text or "Infinity" in text:
        standard = _CONSTANT.sub(lambda found: found[1] or "1" * len(found[0]), text)
    end, string = 0, 0
    closers: list[str] = []
    for run in _RUN.finditer(standard):
        if scanner.expected in STRINGS and len(run[0]) > 1:
            continue
        for place, char in enumerate(run[0], run.start()):
            if scanner.take(char) is not Step.MORE:
                raise ValueError("not the beginning of JSON")
            if char == '"' and scanner.expected == "string":
                string = place
            elif char == "," and scanner.expected in ("value", "next key"):
                end, closers = place, scanner.closers[:]
            elif scanner.expected in ("after", "first key", "first item"):
                end, closers = place + 1, scanner.closers[:]
    if scanner.expected in NUMBER_ENDS:
        end, closers = len(text), scanner.closers
    if scanner.expected.startswith("string"):
        half = _HALF_ESCAPE.search(text, string)
        assert half is not None
        text, end, closers = text[: half.start("half")] + '"', len(text) + 1, scanner.closers
    if not closers:
        raise ValueError("not the beginning of JSON")
    return text[:end] + "".join(reversed(closers))


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
