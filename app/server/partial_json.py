"""Reading JSON that was cut off."""

from __future__ import annotations

import json
from typing import Any, Final

_DEEPEST: Final = 256
_CLOSERS: Final = {"{": "}", "[": "]"}


def read_partial(text: str, **options: Any) -> Any:
    """The value of the JSON `text`, which may have been cut off anywhere: a string that was cut has
    what there is of it; a name, number or literal that was cut is left out.

    Args:
        options: of `json.loads`.

    Raises:
        ValueError: it is not the beginning of a JSON text, or is too deep.
    """
    try:
        return json.loads(text, **options)
    except ValueError:
        whole, shorter = _closed(text)
    try:
        return json.loads(whole, **options)
    except ValueError:
        return json.loads(shorter, **options)


def _closed(text: str) -> tuple[str, str]:
    """`text` with what is open closed, and the same cut before its last member or item. Raises
    ValueError: it is too deep.
    """
    still_open: list[str] = []
    cut, cut_closers = 0, ""
    escape = 0
    in_string = is_escaped = False
    for at, character in enumerate(text):
        if in_string:
            in_string = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
            escape = at if is_escaped else escape
        elif character == '"':
            in_string = True
        elif character in "{[":
            still_open.append(_CLOSERS[character])
            cut, cut_closers = at + 1, "".join(reversed(still_open))
            if len(still_open) > _DEEPEST:
                raise ValueError("too deep")
        elif character in "}]" and still_open:
            still_open.pop()
        elif character == ",":
            cut, cut_closers = at, "".join(reversed(still_open))
    closers = "".join(reversed(still_open))
    if in_string:
        last = text[escape:]  # From the last backslash that begins an escape.
        is_cut = last == "\\" or (last.startswith("\\u") and len(last) < len("\\u0000"))
        text = (text[:escape] if is_cut else text) + '"'
    elif text[-1:].isdecimal():
        text = text[:cut]  # A number may have had further digits.
        closers = cut_closers
    return text + closers, text[:cut] + cut_closers
