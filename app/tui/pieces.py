"""The texts of single tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hearth.backends.contract import Backend

BROKEN: Final = "\ufffd"
"""In the text of a token that holds a part of a character."""
_LONGEST_CHARACTER: Final = 4
"""Tokens that one character may need: each has at least one of its bytes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that are shown together: mostly one, more where they make up one character.

    Attributes:
        is_special: no text that a user writes gives this token.
    """

    ids: tuple[int, ...]
    text: str
    is_special: bool = False


class Pieces:
    """Asks a backend for the texts of tokens, of each once.

    Args:
        backend: whose tokens they are.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[tuple[int, ...], Piece] = {}

    async def of(self, ids: Sequence[int]) -> list[Piece]:
        """The pieces of `ids`, in their order. Raises what the backend raises."""
        found: list[Piece] = []
        at = 0
        while at < len(ids):
            piece = await self._piece(tuple(ids[at : at + 1]))
            for count in range(2, min(_LONGEST_CHARACTER, len(ids) - at) + 1):
                if BROKEN not in piece.text:
                    break
                together = await self._piece(tuple(ids[at : at + count]))
                if BROKEN not in together.text:
                    piece = together
            found.append(piece)
            at += len(piece.ids)
        return found

    async def _piece(self, ids: tuple[int, ...]) -> Piece:
        if ids not in self._known:
            text = await self._backend.detokenize(ids)
            is_special = len(ids) == 1 and await self._is_special(ids[0], text)
            self._known[ids] = Piece(ids, text, is_special)
        return self._known[ids]

    async def _is_special(self, token: int, text: str) -> bool:
        """Only where special tokens are recognised does its text give this token."""
        if not text.startswith(("<", "[")) or len(text) < 3:  # As all of them are written.
            return False
        recognised = await self._backend.tokenize(text, special=True)
        return recognised == [token] and await self._backend.tokenize(text) != [token]
