"""Scored merging of SentencePiece vocabularies (`llm_tokenizer_spm_session` in llama.cpp's
`llama-vocab.cpp`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hearth.backends.text.vocab.merges import SPACE_MARK, Chunks, WordCache, merged


class SentencePieceEncoder:
    """Text without special tokens to ids. Thread-safe.

    Args:
        ids: of the tokens that text may become, by their text; <0x00> to <0xFF> are its bytes.
        scores: of every token; of two neighbours that could be joined, the best go first.
        adds_space: text begins with a space, as every word does.
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
            at_start: nothing stands before it, or a special token.
        """
        if self._adds_space and at_start:
            text = f" {text}"
        text = text.replace(" ", SPACE_MARK)
        return self._cache.ids(self._chunks.cut(text))

    def _encode_chunk(self, chunk: str) -> tuple[int, ...]:
        ids: list[int] = []
        for part in merged(list(chunk), self._priority):
            found = self._ids.get(part)
            if found is None:
                ids += [self._byte_id(byte) for byte in part.encode()]
            else:
                ids.append(found)
        return tuple(ids)

    def _priority(self, left: str, right: str) -> float | None:
        found = self._ids.get(left + right)
        return None if found is None else -self._scores[found]

    def _byte_id(self, byte: int) -> int:
        found = self._ids.get(f"<0x{byte:02X}>")
        return self._ids[chr(byte)] if found is None else found
