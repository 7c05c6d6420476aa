"""Base classes of tokenizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from hearth.backends.errors import InvalidParameter, UnsupportedParameter
from hearth.backends.text.vocab.special_ids import SpecialIds


class Pieces(ABC):
    """Tokens to bytes and text: the same for every tokenizer that knows the bytes of each token."""

    vocab_size: int

    def piece(self, token_id: int, *, special: bool = False) -> bytes:
        """The bytes of one token (see the protocol).

        Raises:
            InvalidParameter: `token_id` is not in the vocabulary.
        """
        if not 0 <= token_id < self.vocab_size:
            raise InvalidParameter(
                "token_ids", f"Token {token_id} is not in the vocabulary of {self.vocab_size:,}."
            )
        return self._piece(token_id, special)

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        """The text of `ids` (see the protocol): their pieces joined. If the vocabulary marks words
        by a leading space, the first space is kept too.

        Raises:
            InvalidParameter: an id is not in the vocabulary.
        """
        joined = b"".join(self.piece(token_id, special=special) for token_id in ids)
        return joined.decode("utf-8", "replace")

    @abstractmethod
    def _piece(self, token_id: int, special: bool) -> bytes:
        """The bytes of a token of the vocabulary."""


class BaseTokenizer(Pieces):
    """The part of `hearth.backends.text.tokenizer.Tokenizer` that needs only pieces of tokens."""

    bos_text: str
    eos_text: str
    named_tokens: Mapping[str, str]

    def __init__(
        self,
        pieces: Sequence[bytes],
        special: SpecialIds,
        *,
        unspoken: Collection[int],
        control_tokens: Mapping[str, int],
    ) -> None:
        """
        Args:
            pieces: the bytes of each token.
            unspoken: tokens whose text is not shown.
        """
        self._pieces = pieces
        self._unspoken = unspoken
        self.vocab_size = len(pieces)
        self.end_ids = special.end_ids
        """Every end-of-generation token."""
        self.infill_ids = special.infill
        self.control_tokens = MappingProxyType(control_tokens)

    def _piece(self, token_id: int, special: bool) -> bytes:
        return b"" if not special and token_id in self._unspoken else self._pieces[token_id]

    def encode_pair(self, query: str, text: str) -> list[int]:
        """Raises `UnsupportedParameter`: the native runner does not rank texts."""
        raise UnsupportedParameter(
            "model", "The native runner does not rank texts.", "Use --backend llamacpp."
        )
