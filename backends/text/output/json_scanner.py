"""Finds the end of a JSON value, character by character."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

DEEPEST: Final = 128
"""Arrays and objects inside each other; what is nested deeper counts as malformed."""
SPACE: Final = " \t\n\r"
"""White space of JSON."""
_DIGITS: Final = "0123456789"
_HEX_DIGITS: Final = "0123456789abcdefABCDEF"
_ESCAPES: Final = '"\\/bfnrt'
_LITERALS: Final = {"t": "rue", "f": "alse", "n": "ull"}


class Step(Enum):
    """What a character is to the value."""

    MORE = "part of it, and it goes on"
    END = "its last character"
    BEYOND = "no part of it: the value, a number, ended before"
    BAD = "not possible here"


class JsonScanner:
    """One JSON value (RFC 8259), from its first character on. Its state is the kind of what is
    expected next and the stack of open brackets, so each character costs the same.
    """

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._rest = ""
        self._in_key = False
        self._expected: Callable[[str], Step] = self._value

    def take(self, char: str) -> Step:
        """What `char`, which comes next, is. After anything but `MORE` the scanner is spent."""
        return self._expected(char)

    def _value(self, char: str) -> Step:
        if char == '"':
            self._in_key = False
            self._expected = self._string
        elif char in "{[":
            if len(self._closers) == DEEPEST:
                return Step.BAD
            self._closers.append("}" if char == "{" else "]")
            self._expected = self._first_key if char == "{" else self._first_item
        elif char == "-":
            self._expected = self._minus
        elif char == "0":
            self._expected = self._after_integer
        elif char in _DIGITS:
            self._expected = self._integer
        elif char in _LITERALS:
            self._rest = _LITERALS[char]
            self._expected = self._literal
        elif char not in SPACE:
            return Step.BAD
        return Step.MORE

    def _first_item(self, char: str) -> Step:
        return self._close() if char == "]" else self._unless_space(char, self._value)

    def _first_key(self, char: str) -> Step:
        return self._close() if char == "}" else self._unless_space(char, self._key)

    def _unless_space(self, char: str, expected: Callable[[str], Step]) -> Step:
        return Step.MORE if char in SPACE else expected(char)

    def _key(self, char: str) -> Step:
        if char == '"':
            self._in_key = True
            self._expected = self._string
            return Step.MORE
        if char in SPACE:
            self._expected = self._key
            return Step.MORE
        return Step.BAD

    def _string(self, char: str) -> Step:
        if char == '"':
            if not self._in_key:
                return self._ended()
            self._expected = self._colon
        elif char == "\\":
            self._expected = self._escape
        elif char < " ":
            return Step.BAD
        return Step.MORE

    def _escape(self, char: str) -> Step:
        if char == "u":
            self._rest = "0000"
            self._expected = self._hex
        elif char in _ESCAPES:
            self._expected = self._string
        else:
            return Step.BAD
        return Step.MORE

    def _hex(self, char: str) -> Step:
        if char not in _HEX_DIGITS:
            return Step.BAD
        self._rest = self._rest[1:]
        if not self._rest:
            self._expected = self._string
        return Step.MORE

    def _colon(self, char: str) -> Step:
        if char == ":":
            self._expected = self._value
            return Step.MORE
        return Step.MORE if char in SPACE else Step.BAD

    def _literal(self, char: str) -> Step:
        if char != self._rest[0]:
            return Step.BAD
        self._rest = self._rest[1:]
        return Step.MORE if self._rest else self._ended()

    def _minus(self, char: str) -> Step:
        if char not in _DIGITS:
            return Step.BAD
        self._expected = self._after_integer if char == "0" else self._integer
        return Step.MORE

    def _integer(self, char: str) -> Step:
        return Step.MORE if char in _DIGITS else self._after_integer(char)

    def _after_integer(self, char: str) -> Step:
        if char == ".":
            self._expected = self._point
            return Step.MORE
        return self._after_fraction(char)

    def _point(self, char: str) -> Step:
        self._expected = self._fraction
        return Step.MORE if char in _DIGITS else Step.BAD

    def _fraction(self, char: str) -> Step:
        return Step.MORE if char in _DIGITS else self._after_fraction(char)

    def _after_fraction(self, char: str) -> Step:
        if char in "eE":
            self._expected = self._exponent
            return Step.MORE
        return self._after_number(char)

    def _exponent(self, char: str) -> Step:
        if char in "+-":
            self._expected = self._signed_exponent
            return Step.MORE
        return self._signed_exponent(char)

    def _signed_exponent(self, char: str) -> Step:
        self._expected = self._power
        return Step.MORE if char in _DIGITS else Step.BAD

    def _power(self, char: str) -> Step:
        return Step.MORE if char in _DIGITS else self._after_number(char)

    def _after_number(self, char: str) -> Step:
        if not self._closers:
            return Step.BEYOND
        self._expected = self._after_value
        return self._after_value(char)

    def _after_value(self, char: str) -> Step:
        if char == ",":
            self._expected = self._key if self._closers[-1] == "}" else self._value
            return Step.MORE
        if char == self._closers[-1]:
            return self._close()
        return Step.MORE if char in SPACE else Step.BAD

    def _close(self) -> Step:
        self._closers.pop()
        return self._ended()

    def _ended(self) -> Step:
        if not self._closers:
            return Step.END
        self._expected = self._after_value
        return Step.MORE


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
