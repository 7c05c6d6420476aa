"""The characters that stand for bytes in byte-level BPE (GPT-2's `bytes_to_unicode`): printable
Latin-1 characters for themselves, characters from U+0100 on for the other bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_PRINTABLE: Final = frozenset((*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)))


def _characters() -> tuple[str, ...]:
    shifted = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in _PRINTABLE else next(shifted)) for byte in range(256))


CHARACTERS: Final = _characters()
"""[256] The character of each byte."""
BYTES: Final[Mapping[str, int]] = MappingProxyType({char: b for b, char in enumerate(CHARACTERS)})
_TABLE: Final = dict(enumerate(CHARACTERS))


def to_characters(data: bytes) -> str:
    """`data` written in the alphabet."""
    return data.decode("latin-1").translate(_TABLE)


def to_bytes(text: str) -> bytes:
    """The bytes that `text` stands for; characters outside the alphabet stand for their UTF-8."""
    try:
        return bytes(map(BYTES.__getitem__, text))
    except KeyError:
        return b"".join(
            bytes((BYTES[char],)) if char in BYTES else char.encode("utf-8", "surrogateescape")
            for char in text
        )
