"""What the tokenizers that are made here share."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from hearth.backends.errors import InvalidParameter
from hearth.backends.text.vocab.special_ids import SpecialIds

_PLACES: Final = re.compile(r"(\{query\}|\{document\})")


class BaseTokenizer:
    """All of `hearth.backends.text.tokenizer.Tokenizer` that the pieces of a vocabulary answer."""

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
            unspoken: tokens that have no text for people.
        """
        self._pieces = pieces
        self._unspoken = unspoken
        self.vocab_size = len(pieces)
        self.end_ids = special.end_ids
        """Every end-of-generation token."""
        self.infill_ids = special.infill
        self.control_tokens = MappingProxyType(control_tokens)

    def piece(self, token_id: int, *, special: bool = False) -> bytes:
        """The bytes of one token (see the protocol).

        Raises:
            InvalidParameter: `token_id` is not in the vocabulary.
        """
        if not 0 <= token_id < self.vocab_size:
            raise InvalidParameter(
                "token_ids", f"Token {token_id} is not in the vocabulary of {self.vocab_size:,}."
            )
        return b"" if not special and token_id in self._unspoken else self._pieces[token_id]

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        """The text of `ids` (see the protocol): their pieces joined.

        Raises:
            InvalidParameter: an id is not in the vocabulary.
        """
        joined = b"".join(self.piece(token_id, special=special) for token_id in ids)
        return joined.decode("utf-8", "replace")


class Encode(Protocol):
    """`Tokenizer.encode`."""

    def __call__(self, text: str, *, special: bool, add_bos: bool) -> list[int]: ...


def pair_ids(
    encode: Encode,
    query: str,
    text: str,
    template: str | None,
    *,
    end: list[int],
    between: list[int],
) -> list[int]:
    """Token ids of a question and a text: as `template` says, the model's own for ranking; without
    it the two are closed by `end` and separated by `between`, as llama.cpp's server does.
    """
    if template is None:
        first = encode(query, special=False, add_bos=True)
        return [*first, *end, *between, *encode(text, special=False, add_bos=False), *end]
    ids: list[int] = []
    for part in _PLACES.split(template):
        typed = {"{query}": query, "{document}": text}.get(part)
        ids += encode(part if typed is None else typed, special=typed is None, add_bos=False)
    return ids


def refuse_surrogates(text: str) -> None:
    """Raises `InvalidParameter` where `text` holds a lone surrogate, which is no character."""
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidParameter(
            "text",
            f"The text holds a lone surrogate (U+{ord(text[error.start]):04X}) "
            f"at position {error.start}.",
            "Send valid Unicode.",
        ) from error
