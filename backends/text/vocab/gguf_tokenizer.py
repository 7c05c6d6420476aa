"""The tokenizer of a GGUF file, made from its metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from hearth.backends.contract.checks import check_text
from hearth.backends.text.vocab.base import BaseTokenizer
from hearth.backends.text.vocab.bpe import BpeEncoder, SentencePieceEncoder
from hearth.backends.text.vocab.byte_alphabet import to_bytes
from hearth.backends.text.vocab.gguf_vocabulary import BPE, GgufVocabulary
from hearth.backends.text.vocab.merges import BYTE_TOKEN, SPACE_MARK
from hearth.backends.text.vocab.partition import Partition
from hearth.quant.gguf.types import TokenKind

_UNSPOKEN: Final = (TokenKind.CONTROL, TokenKind.UNKNOWN)
_RECOGNISED: Final = (*_UNSPOKEN, TokenKind.USER_DEFINED)


class GgufTokenizer(BaseTokenizer):
    """Implements `hearth.backends.text.tokenizer.Tokenizer`. Thread-safe.

    Ids are those of llama.cpp, except that plain text never becomes a control token or one of
    gpt-oss's marks, which are not control tokens because they have a text.
    """

    def __init__(self, vocabulary: GgufVocabulary) -> None:
        pieces = [
            _piece(vocabulary, text, kind)
            for text, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
        ]
        special = {
            ident: kind for ident, kind in enumerate(vocabulary.kinds) if kind in _RECOGNISED
        }
        super().__init__(
            pieces,
            vocabulary.special,
            unspoken=frozenset(_ids_of(special, *_UNSPOKEN)),
            control_tokens={
                pieces[ident].decode("utf-8", "replace"): ident
                for ident in reversed(_ids_of(special, TokenKind.CONTROL))  # The first id wins.
            },
        )
        self._vocabulary = vocabulary
        self._encoder = _encoder(vocabulary)
        written = vocabulary.special.written
        plain = [one for one in _ids_of(special, TokenKind.USER_DEFINED) if one not in written]
        self._all_special = _partition(vocabulary, special)
        self._plain_special = _partition(vocabulary, plain)
        self.bos_text = self._written(vocabulary.bos)
        self.eos_text = self._written(vocabulary.eos)
        self.named_tokens = {name: self._written(ident) for name, ident in vocabulary.named.items()}

    def encode(
        self, text: str, *, special: bool, add_bos: bool, add_eos: bool = False
    ) -> list[int]:
        """Token ids of `text` (see the protocol).

        Raises:
            InvalidParameter: `text` holds a lone surrogate.
        """
        check_text("text", text)
        vocabulary = self._vocabulary
        ids: list[int] = []
        if add_bos and vocabulary.adds_bos and vocabulary.bos is not None:
            ids.append(vocabulary.bos)
        partition = self._all_special if special else self._plain_special
        at_start = True
        for part in partition.parts(text):
            if isinstance(part, int):
                ids.append(part)
                at_start = True
            else:
                ids += self._encoder.encode(part, at_start=at_start)
                at_start = False
        if add_eos and vocabulary.adds_eos and vocabulary.eos is not None:
            ids.append(vocabulary.eos)
        return ids

    def _written(self, token_id: int | None) -> str:
        return "" if token_id is None else self.decode([token_id])


def _encoder(vocabulary: GgufVocabulary) -> BpeEncoder | SentencePieceEncoder:
    ids = vocabulary.spellable()
    if vocabulary.model == BPE:
        return BpeEncoder(ids, vocabulary.merges, vocabulary.pre)
    return SentencePieceEncoder(ids, vocabulary.scores, adds_space=vocabulary.adds_space)


def _ids_of(tokens: Mapping[int, TokenKind], *kinds: TokenKind) -> list[int]:
    return [ident for ident, kind in tokens.items() if kind in kinds]


def _partition(vocabulary: GgufVocabulary, special: Iterable[int]) -> Partition:
    return Partition(
        {vocabulary.tokens[ident]: ident for ident in special},
        strips_after=vocabulary.strips_after,
    )


def _piece(vocabulary: GgufVocabulary, text: str, kind: TokenKind) -> bytes:
    """The bytes that a token stands for; none for unused tokens."""
    if kind in _RECOGNISED:
        return text.encode("utf-8", "surrogateescape")
    if kind is TokenKind.BYTE:
        byte = BYTE_TOKEN.fullmatch(text)
        return bytes((int(byte[1], 16),)) if byte else text.encode("utf-8", "surrogateescape")
    if kind is not TokenKind.NORMAL:
        return b""
    if vocabulary.model != BPE:
        return text.replace(SPACE_MARK, " ").encode("utf-8", "surrogateescape")
    return to_bytes(text)
