"""Bytes of tokens to text, as they come: a character is shown when its last byte has arrived."""

from __future__ import annotations

import codecs


class StreamDetokenizer:
    """Incremental UTF-8.

    What it returns, joined, is `bytes.decode("utf-8", "replace")` of all the bytes it was given.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, piece: bytes) -> str:
        """The text that `piece` completes; bytes that are not UTF-8 become U+FFFD."""
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """The end: U+FFFD for a character that was cut off, else nothing."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
