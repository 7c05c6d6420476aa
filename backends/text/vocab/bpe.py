"""Encoders that merge characters: byte-pair encoding, and SentencePiece's merging by score
(`llm_tokenizer_bpe_session` and `llm_tokenizer_spm_session` in llama.cpp's `llama-vocab.cpp`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hearth.backends.text.vocab.byte_alphabet import to_characters
from hearth.backends.text.vocab.merges import SPACE_MARK, Chunks, WordCache, merged
from hearth.backends.text.vocab.patterns import PreType
from hearth.backends.text.vocab.words import WordCutter


class BpeEncoder:
    """Encodes text without special tokens. Thread-safe.

    Args:
        ids: ids of the tokens that text may become, by token text.
        merges: "left right" pairs in the order of their rank.
    """

    def __init__(self, ids: Mapping[str, int], merges: Sequence[str], kind: PreType) -> None:
        self._ids = ids
        # If a merge is listed twice, its first rank counts.
        self._ranks = {merges[rank]: rank for rank in range(len(merges) - 1, -1, -1)}
        self._ignores_merges = kind.ignore_merges
        self._cutter = WordCutter(kind.steps)
        self._cache = WordCache(self._encode_word)

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """Token ids of `text`; `at_start` makes no difference here."""
        del at_start
        return self._cache.ids(self._cutter.cut(text))

    def _encode_word(self, word: str) -> tuple[int, ...]:
        written = to_characters(word.encode())
        known = self._ids.get(written)
        if known is not None and self._ignores_merges:
            return (known,)
        ids: list[int] = []
        for part in merged(list(written), self._rank):
            ident = self._ids.get(part)
            if ident is None:
                ids += self._spelled(part)
            else:
                ids.append(ident)
        return tuple(ids)

    def _rank(self, left: str, right: str) -> int | None:
        return self._ranks.get(f"{left} {right}")

    def _spelled(self, part: str) -> list[int]:
        """Ids of the ASCII bytes of `part`, which is not a token; bytes without an id are lost."""
        names = (chr(byte) for byte in part.encode() if byte < 0x80)
        return [self._ids[name] for name in names if name in self._ids]


class SentencePieceEncoder:
    """Encodes text without special tokens. Thread-safe.

    Args:
        ids: ids of the tokens that text may become, by token text. A byte is <0x00> to <0xFF> or
            the byte itself, a lone surrogate if it is not ASCII.
        scores: the score of every token; the pair whose joined token scores highest merges first.
        adds_space: put a space before text, so that its first word begins like any other.
    """

    def __init__(
        self, ids: Mapping[str, int], scores: Sequence[float], *, adds_space: bool
    ) -> None:
        self._ids = ids
        self._scores = scores
        self._adds_space = adds_space
        self._chunks = Chunks(ids)
        self._cache = WordCache(self._encode_chunk)

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """Token ids of `text`.

        Args:
            at_start: nothing or a special token precedes `text`.
        """
        if self._adds_space and at_start:
            text = f" {text}"
        text = text.replace(" ", SPACE_MARK)
        return self._cache.ids(self._chunks.cut(text))

    def _encode_chunk(self, chunk: str) -> tuple[int, ...]:
        ids: list[int] = []
        for part in merged(list(chunk), self._priority):
            ident = self._ids.get(part)
            if ident is None:
                ids += [self._byte_id(byte) for byte in part.encode()]
            else:
                ids.append(ident)
        return tuple(ids)

    def _priority(self, left: str, right: str) -> float | None:
        ident = self._ids.get(left + right)
        return None if ident is None else -self._scores[ident]

    def _byte_id(self, byte: int) -> int:
        ident = self._ids.get(f"<0x{byte:02X}>")
        itself = bytes((byte,)).decode("utf-8", "surrogateescape")
        return self._ids[itself] if ident is None else ident
