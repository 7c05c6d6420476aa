"""Finds the end of a JSON value, character by character."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

DEEPEST: Final = 128
"""Arrays and objects inside each other; what is nested deeper counts as malformed."""
SPACE: Final = " \t\n\r"
"""White space of JSON."""
_DIGITS: Final = "0123456789"
_HEX_DIGITS: Final = "0123456789abcdefABCDEF"

STRINGS: Final = ("string", "key")
"""What is expected inside of them, where no escape has begun."""
NUMBER_ENDS: Final = ("zero", "integer", "fraction", "power")
"""What is expected where a number may end."""
_VALUE: Final = (
    (SPACE, "value"),
    ('"', "string"),
    ("{", "first key"),
    ("[", "first item"),
    ("-", "minus"),
    ("0", "zero"),
    ("123456789", "integer"),
    ("t", "rue"),
    ("f", "alse"),
    ("n", "ull"),
)
_EXPECTED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "value": _VALUE,
    "first item": (*_VALUE, (SPACE, "first item"), ("]", "after")),
    "first key": ((SPACE, "first key"), ('"', "key"), ("}", "after")),
    "next key": ((SPACE, "next key"), ('"', "key")),
    "colon": ((SPACE, "colon"), (":", "value")),
    "after": ((SPACE, "after"), (",", "next"), ("}]", "after")),
    "minus": (("0", "zero"), ("123456789", "integer")),
    "zero": ((".", "point"), ("eE", "exponent")),
    "integer": ((_DIGITS, "integer"), (".", "point"), ("eE", "exponent")),
    "point": ((_DIGITS, "fraction"),),
    "fraction": ((_DIGITS, "fraction"), ("eE", "exponent")),
    "exponent": (("+-", "signed exponent"), (_DIGITS, "power")),
    "signed exponent": ((_DIGITS, "power"),),
    "power": ((_DIGITS, "power"),),
    **{
        word[at:]: ((word[at], word[at + 1 :] or "after"),)
        for word in ("true", "false", "null")
        for at in range(1, len(word))
    },
    "string": (('"', "after"), ("\\", "string \\")),
    "key": (('"', "colon"), ("\\", "key \\")),
    **{f"{kind} \\": (('"\\/bfnrt', kind), ("u", f"{kind} u")) for kind in STRINGS},
    **{f"{kind} u": ((_HEX_DIGITS, f"{kind} u0"),) for kind in STRINGS},
    **{f"{kind} u0": ((_HEX_DIGITS, f"{kind} u00"),) for kind in STRINGS},
    **{f"{kind} u00": ((_HEX_DIGITS, f"{kind} u000"),) for kind in STRINGS},
    **{f"{kind} u000": ((_HEX_DIGITS, kind),) for kind in STRINGS},
}
"""By what is expected: the characters that are possible, and what is expected after each."""
_FOLLOWING: Final = {
    state: {char: following for chars, following in ways for char in chars}
    for state, ways in _EXPECTED.items()
}


class Step(Enum):
    """What a character is to the value."""

    MORE = "part of it, and it goes on"
    END = "its last character"
    BEYOND = "no part of it: the value, a number, ended before"
    BAD = "not possible here"


class JsonScanner:
    """One JSON value (RFC 8259), from its first character on. Its state is what is expected next
    and the stack of open brackets, so each character costs the same.
    """

    def __init__(self) -> None:
        self.closers: list[str] = []
        """What ends the open arrays and objects, the outermost first."""
        self.expected = "value"
        """A key of the table above."""

    def take(self, char: str) -> Step:
        """What `char`, which comes next, is. After anything but `MORE` the scanner is spent."""
        state, closers = self.expected, self.closers
        following = _FOLLOWING[state].get(char)
        if following is None:
            if state in STRINGS:
                return Step.MORE if char >= " " else Step.BAD
            if state in NUMBER_ENDS and not closers:
                return Step.BEYOND
            following = _FOLLOWING["after"].get(char) if state in NUMBER_ENDS else None
            if following is None:
                return Step.BAD
        if following == "next":
            following = "next key" if closers[-1] == "}" else "value"
        elif char in "{[":
            if len(closers) == DEEPEST:
                return Step.BAD
            closers.append("}" if char == "{" else "]")
        elif char in "}]" and closers.pop() != char:
            return Step.BAD
        self.expected = following
        return Step.MORE if closers or following != "after" else Step.END


def is_begun(text: str) -> bool:
    """Is `text` the beginning of a JSON value, which is not complete?"""
    scanner = JsonScanner()
    return all(scanner.take(char) is Step.MORE for char in text)


def is_json(text: str) -> bool:
    """Is `text` exactly one JSON value, without white space around it?"""
    if text[:1] in SPACE:  # Empty too.
        return False
    scanner = JsonScanner()
    step = Step.MORE
    for index, char in enumerate(text):
        step = scanner.take(char)
        if step is not Step.MORE:
            return step is Step.END and index == len(text) - 1
    # A number has no end of its own: any character that is no part of it shows whether it was one.
    return scanner.take(" ") is Step.BEYOND
