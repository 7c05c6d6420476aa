"""A small vocabulary for grammars: every byte, some longer tokens, some special ones."""

from __future__ import annotations

from collections.abc import Sequence

from hearth.backends.engine.matcher import Matcher

LONGER = (
    '{"',
    '":',
    '": ',
    '", "',
    '"}',
    "true",
    "false",
    "null",
    "hel",
    "hello",
    "wor",
    "12",
    "é",
)
SPECIAL = ("<|end|>", "<|stop|>", "<|call|>")


class ByteTokenizer:
    """Implements `Tokenizer`: ids are bytes, then `LONGER`, then `SPECIAL`, then one without text.

    The first two special tokens end a text.
    """

    def __init__(self) -> None:
        texts = [bytes([value]) for value in range(256)] + [text.encode() for text in LONGER]
        self._first_special = len(texts)
        self._pieces = [*texts, *(text.encode() for text in SPECIAL), b""]
        self.end_ids = frozenset((self._first_special, self._first_special + 1))
        self.call_id = self._first_special + 2

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def bos_text(self) -> str:
        return ""

    @property
    def eos_text(self) -> str:
        return SPECIAL[0]

    @property
    def control_texts(self) -> Sequence[str]:
        return SPECIAL

    def encode(
        self, text: str, *, special: bool, add_bos: bool, add_eos: bool = False
    ) -> list[int]:
        return list(text.encode())

    def piece(self, token_id: int, *, special: bool = False) -> bytes:
        is_text = token_id < self._first_special or special
        return self._pieces[token_id] if is_text else b""

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        return b"".join(self.piece(one, special=special) for one in ids).decode(errors="replace")


def fits(matcher: Matcher, text: str) -> bool:
    """Whether the grammar lets `text` be written, byte by byte, and end there."""
    for byte in text.encode():
        if not matcher.allows(byte):
            return False
        matcher.accept(byte)
    return matcher.allows(min(ByteTokenizer().end_ids))
