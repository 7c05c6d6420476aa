"""Random text of many scripts, for tokenizers."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Sequence

_RANGES = (
    (0x00, 0x7F),
    (0x80, 0x24F),
    (0x250, 0x52F),
    (0x5D0, 0x6FF),
    (0x905, 0x939),
    (0xE01, 0xE3A),
    (0x1E00, 0x1FFF),
    (0x2000, 0x2BFF),
    (0x3000, 0x30FF),
    (0x4E00, 0x9FA5),
    (0xAC00, 0xD7A3),
    (0xE000, 0xE010),
    (0xF900, 0xFFFD),
    (0x10400, 0x1044F),
    (0x1D400, 0x1D7FF),
    (0x1F300, 0x1F64F),
    (0x20000, 0x2A6D6),
)
"""Ranges whose character properties are the same in all versions of Unicode that are in use."""
_ODD = (
    "don't",
    "I'LL we'Ve",
    "\n\n\n",
    "\r\n\t",
    "12345678",
    "\u3000",
    "\xa0",
    "e\u0301",
    "\x1c",
    "\u0130",
    "ſ",
    "\u200d",
    "\ufeff",
    "\x85",
)
_LETTERS = "abcdefgh ABC's  \n\r\t.,!?0123456789"


class RandomTexts:
    """Makes texts, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._scripts = [
            [
                chr(code)
                for code in range(first, last + 1)
                if unicodedata.category(chr(code)) != "Cn"
            ]
            for first, last in _RANGES
        ]

    def characters(self, most: int = 24) -> str:
        """Arbitrary characters."""
        draw = self._random
        return "".join(
            draw.choice(draw.choice(self._scripts)) for _ in range(draw.randint(1, most))
        )

    def code_points(self, most: int = 24) -> str:
        """Arbitrary code points, most of which are unassigned; no surrogates."""
        draw = self._random
        # There are 2,048 surrogates, before U+E000.
        drawn = (draw.randrange(0x110000 - 2048) for _ in range(draw.randint(1, most)))
        return "".join(chr(code if code < 0xD800 else code + 2048) for code in drawn)

    def mixed(self, prose: str, specials: Sequence[str]) -> str:
        """Words, runs of spaces, odd characters, pieces of `prose`, and some of `specials`."""
        draw = self._random
        parts = []
        for _ in range(draw.randint(1, 12)):
            match draw.randrange(6):
                case 0:
                    parts.append("".join(draw.choices(_LETTERS, k=draw.randint(1, 9))))
                case 1:
                    parts.append(self.characters(5))
                case 2:
                    parts.append(draw.choice(specials) if specials else "")
                case 3:
                    parts.append(" " * draw.randint(1, 40))
                case 4:
                    start = draw.randrange(max(1, len(prose) - 40))
                    parts.append(prose[start : start + draw.randint(1, 40)])
                case _:
                    parts.append(draw.choice(_ODD))
        return "".join(parts)
