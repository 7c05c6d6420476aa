"""Finds the end of a JSON value, character by character."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

DEEPEST: Final = 128
"""Most arrays and objects inside each other; deeper nesting is treated as malformed."""
SPACE: Final = " \t\n\r"
"""White space of JSON."""
_DIGITS: Final = "0123456789"
_HEX_DIGITS: Final = "0123456789abcdefABCDEF"

STRINGS: Final = ("string", "key")
"""States inside a string or key, outside of escapes."""
NUMBER_ENDS: Final = ("zero", "integer", "fraction", "power")
"""States in which a number may end."""
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
"""For each state, the characters that are allowed and the states that follow them."""
_FOLLOWING: Final = {
    state: {char: following for chars, following in ways for char in chars}
    for state, ways in _EXPECTED.items()
}


class Step(Enum):
    """The role of a character in the value."""

    MORE = "part of it, and it goes on"
    END = "its last character"
    BEYOND = "no part of it: the value, a number, ended before"
    BAD = "not possible here"


class JsonScanner:
    """Scans one JSON value (RFC 8259) from its first character. The state is the expected input
    and the stack of open brackets, so each character takes constant time.
    """

    def __init__(self) -> None:
        self.closers: list[str] = []
        """The closing brackets of the open arrays and objects, the outermost first."""
        self.expected = "value"
        """The state: a key of `_EXPECTED`."""

    def take(self, char: str) -> Step:
        """The role of `char`, the next character. Do not call again after anything but `MORE`."""
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
    """Whether `text` is the beginning of an incomplete JSON value."""
    scanner = JsonScanner()
    return all(scanner.take(char) is Step.MORE for char in text)


def is_json(text: str) -> bool:
    """Whether `text` is exactly one JSON value, without white space around it."""
    if text[:1] in SPACE:  # Also true of an empty text.
        return False
    scanner = JsonScanner()
    step = Step.MORE
    for index, char in enumerate(text):
        step = scanner.take(char)
        if step is not Step.MORE:
            return step is Step.END and index == len(text) - 1
    # Numbers have no end mark: a character after the text shows whether it is a complete number.
    return scanner.take(" ") is Step.BEYOND
