"""Ends strings, arrays and objects of JSON in which a model repeats itself without end.

A weak model at a low temperature that has written "USA, USA, USA, " a few dozen times goes on until
the limit, and JSON that is cut off there is lost as a whole. So the language that an answer in JSON
must follow has one rule more than its schema: what has repeated itself exactly for as long as the
bounds of this module is closed, wherever the schema allows that. `minLength` and `minItems` hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hearth.backends.engine.matcher import Matcher

_STRING_BYTES: Final = 256
"""Of repetition, before a string is closed."""
_LIST_BYTES: Final = 512
"""Of repetition, before an array or an object is closed."""
_MOST_PERIOD_BYTES: Final = 256
_LEAST_REPEATS: Final = 4
_PROBE_BYTES: Final = 16
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
        """[V]: begin with a closing bracket."""
        letters: list[int] = []
        breaks: list[int] = []
        for ident, piece in enumerate(pieces):
            first = piece[:1]
            self.of_strings[ident] = first == b'"'
            self.of_lists[ident] = first in (b"]", b"}")
            if piece in (b"Q", b"z", b" "):
                letters.append(ident)
            elif piece == b"\n":
                breaks.append(ident)
        self._letters, self._breaks = np.array(letters, np.intp), np.array(breaks, np.intp)

    def among(
        self, allowed: NDArray[np.bool_], repeated: bytes, *, is_closing: bool
    ) -> NDArray[np.bool_]:
        """What of `allowed` ends the string, array or object in which `repeated` is what repeats
        itself; nothing, if that is too short, or the text is not JSON there.

        Args:
            is_closing: an array or object in this one was ended so.
        """
        is_free = bool(allowed[self._breaks].any())  # JSON has no line breaks in strings.
        if self._letters.size and allowed[self._letters].all():
            is_loop = len(repeated) >= _STRING_BYTES and b'"' not in repeated.replace(rb"\"", b"")
            closers = self.of_strings
        else:
            is_loop = len(repeated) >= _LIST_BYTES or is_closing
            closers = self.of_lists
        return allowed & closers if is_loop and not is_free else np.zeros_like(allowed)


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

    def allows(self, token: int) -> bool:
        if self._repeated or self._is_closing:
            return bool(self.allowed()[token])
        return self._matcher.allows(token)

    def allowed(self) -> NDArray[np.bool_]:
        allowed = self._matcher.allowed()
        closing = self._closing(allowed)
        return closing if closing.any() else allowed

    def accept(self, token: int) -> None:
        if self._repeated or self._is_closing:
            closing = self._closing(self._matcher.allowed())
            self._is_closing = bool(closing[token]) and not self._closers.of_strings[token]
        self._matcher.accept(token)
        self._text = (self._text + self._piece(token))[-_KEPT_BYTES:]
        self._repeated = self._text[len(self._text) - repeated_bytes(self._text) :]

    def _closing(self, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[V]: what must come next, if something must."""
        if not (self._repeated or self._is_closing):
            return np.zeros_like(allowed)
        return self._closers.among(allowed, self._repeated, is_closing=self._is_closing)

    @property
    def complete(self) -> bool:
        return self._matcher.complete


def repeated_bytes(text: bytes) -> int:
    """How many bytes at the end of `text` repeat those before them, as far as it is kept here: at
    least as many as the smaller bound of this module, and 4 times their period; else 0.
    """
    size = len(text)
    if size < _STRING_BYTES:
        return 0
    probe, at = text[-_PROBE_BYTES:], size - _PROBE_BYTES
    while (at := text.rfind(probe, 0, at + _PROBE_BYTES - 1)) >= 0:
        period = size - _PROBE_BYTES - at
        if period > _MOST_PERIOD_BYTES:
            return 0
        for least in (_LIST_BYTES, _STRING_BYTES):
            length = max(least, _LEAST_REPEATS * period)
            if (
                length <= size
                and text[size - length : size - period] == text[size - length + period :]
            ):
                return length
    return 0
