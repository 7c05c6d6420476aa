"""Closes JSON strings, arrays and objects in which a model repeats itself endlessly.

A weak model at a low temperature that has written "USA, USA, USA, " a few dozen times goes on until
the token limit, and JSON that is cut off there is unusable. So JSON answers follow one rule beyond
their schema: a string, array or object that has repeated itself exactly for as long as the bounds
of this module is closed wherever the schema allows it. `minLength` and `minItems` still hold. An
object that repeats its members repeats the same names, so its bound is the smallest. Occasional
slips, such as a missing space between two items, do not hide a repetition: over a longer stretch,
it is enough that most of the text repeats exactly. Table rows that each have their own number do
not count as repetition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from copy import copy
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hearth.backends.engine.matcher import Matcher

_STRING_BYTES: Final = 256
"""Length of repetition after which a string is closed."""
_LIST_BYTES: Final = 512
"""Length of repetition after which an array or an object is closed."""
_MEMBERS_BYTES: Final = 128
"""Length of repetition after which an object that repeats its members is closed."""
_SLIPS_BYTES: Final = 1024
"""Length of repetition with slips after which a string, array or object is closed."""
_EXACT_BYTES: Final = 0.9 * _SLIPS_BYTES
"""Minimum part of `_SLIPS_BYTES` that must lie in stretches that repeat exactly, each of at least 4
periods and `_STRETCH_BYTES`."""
_STRETCH_BYTES: Final = 64
"""Minimum length of an exact stretch within a repetition with slips."""
_MOST_PERIOD_BYTES: Final = 256
_LEAST_REPEATS: Final = 4
_PROBE_BYTES: Final = 16
_NOTICE: Final = (
    "The model repeated itself, so a string, array or object of the answer was closed early."
)
_KEPT_BYTES: Final = _MOST_PERIOD_BYTES * (_LEAST_REPEATS + 1)


class JsonClosers:
    """The tokens that show where in JSON a text is, and those that close something there.

    Args:
        pieces: the bytes of each token.
        vocab_size: V, at least the number of `pieces`.
    """

    def __init__(self, pieces: Iterable[bytes], vocab_size: int) -> None:
        self.of_strings = np.zeros(vocab_size, dtype=np.bool_)
        """[V]: tokens that begin with a quotation mark."""
        self.of_lists = np.zeros(vocab_size, dtype=np.bool_)
        """[V]: tokens of closing brackets, with or without a quotation mark before them."""
        self._quotes = np.zeros(vocab_size, dtype=np.bool_)
        """[V]: tokens that are a single quotation mark."""
        letters: list[int] = []
        breaks: list[int] = []
        for ident, piece in enumerate(pieces):
            rest = piece.removeprefix(b'"')
            self.of_strings[ident] = piece.startswith(b'"')
            self.of_lists[ident] = bool(rest) and not rest.strip(b"]}")
            self._quotes[ident] = piece == b'"'
            if piece in (b"Q", b"z", b" "):
                letters.append(ident)
            elif piece == b"\n":
                breaks.append(ident)
        self._letters, self._breaks = np.array(letters, np.intp), np.array(breaks, np.intp)

    def among(
        self, allowed: NDArray[np.bool_], repeated: bytes, *, is_closing: bool
    ) -> NDArray[np.bool_]:
        """The tokens of `allowed` that may follow where the end of the text, `repeated`, is a
        repetition: only those that close the repeating string, array or object, if there are any.

        Args:
            is_closing: an array or object nested in this one was just closed for repetition.
        """
        if allowed[self._breaks].any():  # Free text: JSON has no line breaks in strings.
            return allowed
        is_list = len(repeated) >= _LIST_BYTES or is_closing
        in_string = bool(self._letters.size and allowed[self._letters].all())
        wanted: tuple[NDArray[np.bool_], ...] = ()
        if in_string:
            if len(repeated) >= _STRING_BYTES and b'"' not in repeated.replace(rb"\"", b""):
                wanted = (self.of_strings,)
            elif is_list:  # The string may go on; a token that ends it must not begin a new item.
                wanted = (~self.of_strings | self._quotes | self.of_lists,)
        elif is_list or _repeats_members(repeated):
            wanted = (self.of_lists & ~self.of_strings, self._quotes)
        for tokens in wanted:
            if (allowed & tokens).any():
                return allowed & tokens
        return allowed


class LoopClosing:
    """A `Matcher` that allows what another one allows, except endless repetition.

    Args:
        matcher: of a grammar that contains JSON.
        piece: returns the bytes of a token.
    """

    def __init__(
        self, matcher: Matcher, piece: Callable[[int], bytes], closers: JsonClosers
    ) -> None:
        self._matcher = matcher
        self._piece = piece
        self._closers = closers
        self._text = b""
        self._repeated = b""
        self._is_closing = False
        self.notices: tuple[str, ...] = ()

    def allows(self, token: int) -> bool:
        fits = self._matcher.allows(token)
        if fits and (self._repeated or self._is_closing) and not self._among()[token]:
            self.notices = (_NOTICE,)
            return False
        return fits

    def allowed(self) -> NDArray[np.bool_]:
        if not (self._repeated or self._is_closing):
            return self._matcher.allowed()
        among = self._among()
        if (among != self._matcher.allowed()).any():
            self.notices = (_NOTICE,)
        return among

    def _among(self) -> NDArray[np.bool_]:
        allowed = self._matcher.allowed()
        return self._closers.among(allowed, self._repeated, is_closing=self._is_closing)

    def accept(self, token: int) -> None:
        if len(self._repeated) >= _LIST_BYTES or self._is_closing:
            self._is_closing = bool(self._closers.of_lists[token])
        self._matcher.accept(token)
        self._text = (self._text + self._piece(token))[-_KEPT_BYTES:]
        self._repeated = self._text[len(self._text) - repeated_bytes(self._text) :]

    def copy(self) -> LoopClosing:
        made = copy(self)
        made._matcher = self._matcher.copy()
        return made

    @property
    def complete(self) -> bool:
        return self._matcher.complete


def _repeats_members(repeated: bytes) -> bool:
    """Whether `repeated`, which ends outside of strings, consists of members of one object, without
    nested arrays or objects.
    """
    outside = b"".join(re.split(rb'(?<!\\)"', repeated)[::-2])
    return b":" in outside and not any(bracket in outside for bracket in (b"[", b"]", b"{", b"}"))


def repeated_bytes(text: bytes) -> int:
    """How many bytes at the end of `text` are a repetition. 0 if it is shorter than the smallest
    bound of this module or than 4 periods.
    """
    size = len(text)
    if size < _MEMBERS_BYTES:
        return 0
    probe, at = text[-_PROBE_BYTES:], size - _PROBE_BYTES
    while (at := text.rfind(probe, 0, at + _PROBE_BYTES - 1)) >= 0:
        period = size - _PROBE_BYTES - at
        if period > _MOST_PERIOD_BYTES:
            return 0
        if (exact := _exactly_repeated(text, period)) >= _LIST_BYTES:
            return exact
        if size >= _SLIPS_BYTES + period and _repeats_with_slips(text, period):
            return _SLIPS_BYTES
        if exact:
            return exact
    return 0


def _exactly_repeated(text: bytes, period: int) -> int:
    """How many bytes at the end of `text` equal those `period` bytes before them, as the largest
    bound of this module (or 4 periods) that holds; 0 if none does.
    """
    size = len(text)
    for least in (_LIST_BYTES, _STRING_BYTES, _MEMBERS_BYTES):
        length = max(least, _LEAST_REPEATS * period)
        if length <= size and text[size - length : size - period] == text[size - length + period :]:
            return length
    return 0


def _repeats_with_slips(text: bytes, period: int) -> bool:
    """Whether most of the last `_SLIPS_BYTES` of `text` equal the bytes `period` before them."""
    codes = np.frombuffer(text, np.uint8)
    slips = np.flatnonzero(codes[-_SLIPS_BYTES:] != codes[-_SLIPS_BYTES - period : -period])
    stretches = np.diff(slips, prepend=-1, append=_SLIPS_BYTES) - 1
    least = max(_STRETCH_BYTES, _LEAST_REPEATS * period)
    return bool(stretches[stretches >= least].sum() >= _EXACT_BYTES)
