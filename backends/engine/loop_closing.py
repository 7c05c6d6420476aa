"""Ends strings, arrays and objects of JSON in which a model repeats itself without end.

A weak model at a low temperature that has written "USA, USA, USA, " a few dozen times goes on until
the limit, and JSON that is cut off there is lost as a whole. So the language that an answer in JSON
must follow has one rule more than its schema: what has repeated itself exactly for as long as the
bounds of this module is closed, wherever the schema allows that. `minLength` and `minItems` hold.
An object that repeats its members has the same names again, so its bound is the smallest. A slip
now and then, as a space less between two items, does not make a repetition an answer: over a longer
stretch, most of it must be exact. Rows of a table, each with its own number, are not that.
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
"""Of repetition, before a string is closed."""
_LIST_BYTES: Final = 512
"""Of repetition, before an array or an object is closed,"""
_MEMBERS_BYTES: Final = 128
"""and before an object is whose members are the same again."""
_SLIPS_BYTES: Final = 1024
"""Of repetition with slips, before any of these is closed,"""
_EXACT_BYTES: Final = 0.9 * _SLIPS_BYTES
"""of which at least so much is in stretches that repeat exactly for 4 periods,"""
_STRETCH_BYTES: Final = 64
"""and for at least this long."""
_MOST_PERIOD_BYTES: Final = 256
_LEAST_REPEATS: Final = 4
_PROBE_BYTES: Final = 16
_NOTICE: Final = (
    "The model repeated itself, so a string, array or object of the answer was closed early."
)
_KEPT_BYTES: Final = _MOST_PERIOD_BYTES * (_LEAST_REPEATS + 1)


class JsonClosers:
    """The tokens that tell where in JSON a text is, and those that end something there.

    Args:
        pieces: the bytes of each token.
        vocab_size: V, at least as many.
    """

    def __init__(self, pieces: Iterable[bytes], vocab_size: int) -> None:
        self.of_strings = np.zeros(vocab_size, dtype=np.bool_)
        """[V]: begin with a quotation mark."""
        self.of_lists = np.zeros(vocab_size, dtype=np.bool_)
        """[V]: closing brackets, which a quotation mark may precede."""
        self._quotes = np.zeros(vocab_size, dtype=np.bool_)
        """[V]: a quotation mark and nothing else."""
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
        """What of `allowed` may come where the end of the text, `repeated`, repeats itself: what
        ends a string, array or object if that is all that repeats itself.

        Args:
            is_closing: an array or object in this one was ended so.
        """
        if allowed[self._breaks].any():  # Free text: JSON has no line breaks in strings.
            return allowed
        is_list = len(repeated) >= _LIST_BYTES or is_closing
        in_string = bool(self._letters.size and allowed[self._letters].all())
        wanted: tuple[NDArray[np.bool_], ...] = ()
        if in_string:
            if len(repeated) >= _STRING_BYTES and b'"' not in repeated.replace(rb"\"", b""):
                wanted = (self.of_strings,)
            elif is_list:  # It may go on. If it ends, the token must not begin the next item.
                wanted = (~self.of_strings | self._quotes | self.of_lists,)
        elif is_list or _repeats_members(repeated):
            wanted = (self.of_lists & ~self.of_strings, self._quotes)
        for tokens in wanted:
            if (allowed & tokens).any():
                return allowed & tokens
        return allowed


class LoopClosing:
    """A `Matcher` that allows what another one does, unless that only repeats what there is.

    Args:
        matcher: of a grammar that contains JSON.
        piece: the bytes of a token.
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
    """Whether `repeated`, which ends outside of strings, is members of one object, without arrays
    or objects in them.
    """
    outside = b"".join(re.split(rb'(?<!\\)"', repeated)[::-2])
    return b":" in outside and not any(bracket in outside for bracket in (b"[", b"]", b"{", b"}"))


def repeated_bytes(text: bytes) -> int:
    """How many bytes at the end of `text` repeat those before them, as far as it is kept here: at
    least as many as the smallest bound of this module, and 4 times their period; else 0.
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
    """How many bytes at the end of `text` are exactly those `period` bytes before them."""
    size = len(text)
    for least in (_LIST_BYTES, _STRING_BYTES, _MEMBERS_BYTES):
        length = max(least, _LEAST_REPEATS * period)
        if length <= size and text[size - length : size - period] == text[size - length + period :]:
            return length
    return 0


def _repeats_with_slips(text: bytes, period: int) -> bool:
    """Whether most of the last `_SLIPS_BYTES` of `text` are what was `period` bytes before them."""
    codes = np.frombuffer(text, np.uint8)
    slips = np.flatnonzero(codes[-_SLIPS_BYTES:] != codes[-_SLIPS_BYTES - period : -period])
    stretches = np.diff(slips, prepend=-1, append=_SLIPS_BYTES) - 1
    least = max(_STRETCH_BYTES, _LEAST_REPEATS * period)
    return bool(stretches[stretches >= least].sum() >= _EXACT_BYTES)
