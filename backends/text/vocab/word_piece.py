"""WordPiece of BERT's vocabularies (`llm_tokenizer_wpm_session` in llama.cpp's
`llama-vocab.cpp`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Final

from hearth.backends.text.vocab.merges import SPACE_MARK, WordCache

_IDEOGRAPHS: Final = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
_C_SEPARATORS: Final = "\x1c\x1d\x1e\x1f"
"""White space to Python and control characters to everybody else."""


class WordPieceEncoder:
    """Text without special tokens to ids. Thread-safe. White space, control characters and, where
    the vocabulary says so, accents and capitals are lost.

    Args:
        ids: of the tokens that text may become, by their text; those that begin a word have a ▁.
        unknown: of a word that cannot be made of tokens.
    """

    def __init__(
        self, ids: Mapping[str, int], unknown: int, *, lowercase: bool, strip_accents: bool
    ) -> None:
        self._ids = ids
        self._unknown = unknown
        self._lowercase = lowercase
        self._strip_accents = strip_accents
        self._longest = max(map(len, ids), default=0)
        self._cache = WordCache(self._encode_word)

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """Token ids of `text`; `at_start` makes no difference to this kind."""
        del at_start
        return self._cache.ids("".join(map(self._separated, text)).split(" "))

    def _separated(self, char: str) -> str:
        """What a character becomes: itself, nothing, or a word between spaces."""
        if char.isspace() and char not in _C_SEPARATORS:
            return " "
        if self._strip_accents:
            char = unicodedata.normalize("NFD", char)[0]
        category = unicodedata.category(char)
        code = ord(char)
        if code in (0, 0xFFFD) or (category[0] == "C" and category != "Cn"):
            return ""
        if self._strip_accents and category[0] == "M":
            return ""
        written = char.lower()[0] if self._lowercase else char
        is_sign = category[0] == "P" or (code < 0x7F and category[0] == "S")
        if is_sign or any(first <= code <= last for first, last in _IDEOGRAPHS):
            return f" {written} "
        return written

    def _encode_word(self, word: str) -> tuple[int, ...]:
        if not word:
            return ()
        marked = SPACE_MARK + word
        ids: list[int] = []
        place = 0
        while place < len(marked):
            for end in range(min(len(marked), place + self._longest), place, -1):
                found = self._ids.get(marked[place:end])
                if found is not None:
                    ids.append(found)
                    place = end
                    break
            else:
                return (self._unknown,)
        return tuple(ids)
