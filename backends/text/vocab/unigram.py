"""The most likely tokens of a text, by a unigram model (`llm_tokenizer_ugm_session` in llama.cpp's
`llama-vocab.cpp`; SentencePiece, arXiv 1808.06226).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Final

from hearth.backends.text.vocab.gguf_vocabulary import GgufVocabulary
from hearth.backends.text.vocab.merges import SPACE_MARK
from hearth.backends.text.vocab.partition import Partition
from hearth.quant.gguf.types import TokenKind

_UNKNOWN_PENALTY: Final = 10.0
_SPELLABLE: Final = (TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.UNUSED)


class UnigramEncoder:
    """Text without special tokens to ids. Thread-safe. The tokens are chosen whose scores (log
    probabilities) have the largest sum; stretches that no token covers become one unknown token.
    """

    def __init__(self, vocabulary: GgufVocabulary) -> None:
        self._vocabulary = vocabulary
        self._unknown = 0 if vocabulary.unknown is None else vocabulary.unknown
        self._scores: dict[str, tuple[float, int]] = {}
        tokens = zip(vocabulary.tokens, vocabulary.kinds, vocabulary.scores, strict=False)
        lowest = math.inf
        written: dict[str, int] = {}
        for ident, (text, kind, score) in enumerate(tokens):
            if kind is TokenKind.NORMAL:
                lowest = min(lowest, score)
            if kind is TokenKind.USER_DEFINED:
                written[text] = ident
            if kind in _SPELLABLE:
                self._scores[text] = (0.0 if kind is TokenKind.USER_DEFINED else score, ident)
        self._unknown_score = lowest - _UNKNOWN_PENALTY
        self._longest = max(map(len, self._scores), default=0)
        self._prefixes = {text[:end] for text in self._scores for end in range(1, len(text) + 1)}
        self._charsmap = Charsmap(vocabulary.charsmap) if vocabulary.charsmap else None
        self._written = Partition(written)

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """Token ids of `text`; `at_start` makes no difference to this kind."""
        del at_start
        return self._best(self._normalised(text))

    def _normalised(self, text: str) -> str:
        vocabulary = self._vocabulary
        found: list[str] = []
        in_word = begun = False
        for char in self._replaced(text):
            if char == " ":
                in_word = False
                if not vocabulary.merges_spaces:
                    found.append(SPACE_MARK)
                continue
            if not in_word:
                in_word = True
                if (vocabulary.adds_space and not begun) or vocabulary.merges_spaces:
                    found.append(SPACE_MARK)
                    begun = True
            found.append(char)
        return "".join(found)

    def _replaced(self, text: str) -> Iterator[str]:
        """Characters after SentencePiece's normalisation, which spares user-defined tokens."""
        if self._charsmap is None:
            yield from text
            return
        for part in self._written.parts(text):
            if isinstance(part, int):
                yield from self._vocabulary.tokens[part]
            else:
                yield from self._charsmap.replaced(part)

    def _best(self, text: str) -> list[int]:
        size = len(text)
        sums = [0.0] + [-math.inf] * size
        came_from: list[tuple[int, int]] = [(0, self._unknown)] * (size + 1)
        for start in range(size):
            total = sums[start]
            for end in range(start + 1, min(size, start + self._longest) + 1):
                token = text[start:end]
                if token not in self._prefixes:
                    break
                score, ident = self._scores.get(token, (-math.inf, self._unknown))
                if total + score > sums[end]:
                    sums[end], came_from[end] = total + score, (start, ident)
            if text[start] not in self._scores and total + self._unknown_score > sums[start + 1]:
                sums[start + 1] = total + self._unknown_score
                came_from[start + 1] = (start, self._unknown)
        ids: list[int] = []
        end = size
        while end:
            end, ident = came_from[end]
            if not (ids and ids[-1] == ident == self._unknown):
                ids.append(ident)
        return ids[::-1]


class Charsmap:
    """SentencePiece's compiled table of replacements: a double-array trie of UTF-8, then the
    replacements, each ended by NUL (`normalizer.cc` of SentencePiece; the trie is Darts-clone's).
    """

    def __init__(self, data: bytes) -> None:
        (size,) = struct.unpack_from("<I", data)
        self._trie = struct.unpack_from(f"<{min(size, len(data) - 4) // 4}I", data, 4)
        self._replacements = data[4 + size :]

    def replaced(self, text: str) -> str:
        """`text` with the longest entry of the table at each place replaced."""
        data = text.encode()
        found: list[bytes] = []
        place = 0
        while place < len(data):
            length, replacement = self._longest(data, place)
            if not length:
                length = _length_of_character(data[place])
                replacement = data[place : place + length]
            found.append(replacement)
            place += length
        return b"".join(found).decode("utf-8", "replace")

    def _longest(self, data: bytes, start: int) -> tuple[int, bytes]:
        """How many bytes from `start` on are an entry, and what replaces them; 0 and b"" if none
        are.
        """
        node = _base(self._node(0))
        length, offset = 0, 0
        for place in range(start, len(data)):
            byte = data[place]
            if byte == 0:
                break
            node ^= byte
            unit = self._node(node)
            if unit & 0x800000FF != byte:
                break
            node ^= _base(unit)
            if unit >> 8 & 1:
                length, offset = place + 1 - start, self._node(node) & 0x7FFFFFFF
        if not length:
            return 0, b""
        return length, self._replacements[offset:].split(b"\0", 1)[0]

    def _node(self, index: int) -> int:
        return self._trie[index] if index < len(self._trie) else 0


def _base(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)


def _length_of_character(first: int) -> int:
    return 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
