"""JSON that was cut off before its end, as in a tool call of an answer that reached its limit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

_DEEPEST: Final = 64
_STRING: Final = r'"(?:[^"\\]|\\.)*'
_TOKEN: Final = re.compile(rf'{_STRING}"?|[{{}}\[\],:]|[^\s"{{}}\[\],:]+', re.DOTALL)
_CLOSERS: Final = {"{": "}", "[": "]"}
_SCALAR: Final = r"(?:-?[0-9.eE+-]*|tr?u?|fa?l?s?|nu?l?)"
_LEFT_OUT: Final = {
    "}": re.compile(rf'\s*,?\s*(?:{_STRING}\\?(?:"\s*(?::\s*{_SCALAR})?)?)?\s*', re.DOTALL),
    "]": re.compile(rf"\s*,?\s*{_SCALAR}\s*"),
}
"""What may follow the last value that is kept of an object, or of an array."""
_HALF_ESCAPE: Final = re.compile(
    r"(?<!\\)(?:\\\\)*(?P<half>(?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?)$"
)
"""An incomplete escape at the end of a string, and the first half of a surrogate pair."""


def read_json(
    text: str,
    *,
    parse_constant: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] | None = None,
) -> Any:
    """The value of a JSON text, or of the beginning of one: what is complete, and the beginning of
    a string as a string. A key without a value and an incomplete number or literal are left out.

    Args:
        parse_constant: makes a value of NaN, Infinity or -Infinity; None: they are refused.
        parse_float: makes a value of a number with a fraction or an exponent.

    Raises:
        ValueError: `text` is neither.
    """
    constant = parse_constant or _refuse
    try:
        return json.loads(text, parse_constant=constant, parse_float=parse_float)
    except ValueError:
        whole = _completed(text)
        return json.loads(whole, parse_constant=constant, parse_float=parse_float)


def _completed(text: str) -> str:
    """`text` up to where a value can end, and what ends it there."""
    closers: list[str] = []
    end, open_at_end = 0, ""
    before = ""
    for match in _TOKEN.finditer(text):
        token = match[0]
        is_value = before == ":" or (before in ("[", ",") and closers[-1:] == ["]"])
        before = token[0]
        if before in _CLOSERS:
            closers.append(_CLOSERS[before])
        elif before in "}]" and closers:
            closers.pop()
        elif before in ",:" or not is_value:
            continue
        if len(closers) > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} levels deep")
        if before == '"' and not _is_closed(token):
            half = _HALF_ESCAPE.search(token)
            assert half is not None
            return text[: match.start() + half.start("half")] + '"' + "".join(reversed(closers))
        if before in '"{}[]' or match.end() < len(text) or _is_scalar(token):
            end, open_at_end = match.end(), "".join(reversed(closers))
    if not open_at_end or not _LEFT_OUT[open_at_end[0]].fullmatch(text, end):
        raise ValueError("not the beginning of JSON")
    return text[:end] + open_at_end


def _is_closed(token: str) -> bool:
    """Does a string end with its quotation mark?"""
    body = token[1:-1]
    is_escaped = (len(body) - len(body.rstrip("\\"))) % 2 == 1
    return len(token) > 1 and token.endswith('"') and not is_escaped


def _is_scalar(token: str) -> bool:
    try:
        json.loads(token)
    except ValueError:
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
