"""Unicode as llama.cpp's word patterns see it: each character stands for its category.

A text is mapped to one of the same length in which every character above ASCII is replaced by a
mark of its category (`unicode_regex_split` in llama.cpp's `unicode.cpp` does the same), so that
`re`, which knows no categories, can cut it. Categories are those of Python's `unicodedata`; they
differ from llama.cpp's (Unicode 15.1) only for characters that one of the two does not know yet.
"""

from __future__ import annotations

import unicodedata
from typing import Final

NUMBER: Final = "\xd1"
LETTER: Final = "\xd2"
PUNCTUATION: Final = "\xd3"
MARK: Final = "\xd4"
SYMBOL: Final = "\xd5"
HAN: Final = "\xd6"
OTHER: Final = "\xd0"
SPACE: Final = "\x0b"

_OF_CATEGORY: Final = {
    "N": NUMBER,
    "L": LETTER,
    "P": PUNCTUATION,
    "M": MARK,
    "S": SYMBOL,
    "Z": SPACE,
}
_HAN_RANGES: Final = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2EBEF),
    (0x2F800, 0x2FA1F),
)


class Categories(dict[int, str]):
    """For `str.translate`: categories of characters, worked out when they are first met."""

    def __init__(self, *, han: bool = False) -> None:
        """`han`: Chinese characters have a mark of their own instead of the letters'."""
        super().__init__({code: chr(code) for code in range(0x80)})
        self._han = han

    def __missing__(self, code: int) -> str:
        if self._han and any(first <= code <= last for first, last in _HAN_RANGES):
            mark = HAN
        elif code == 0x85:
            mark = SPACE
        else:
            mark = _OF_CATEGORY.get(unicodedata.category(chr(code))[0], OTHER)
        self[code] = mark
        return mark


class Spaces(dict[int, str]):
    """For `str.translate`: white space above ASCII becomes one that C's `isspace` knows."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        self[code] = SPACE if code > 0x7F and char.isspace() else char
        return self[code]
