"""The bytes of single tokens of a `tokenizer.json`, by what its decoder does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tokenizers import Tokenizer

from hearth.backends.text.vocab.byte_alphabet import to_bytes

_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class PieceRules:
    """How tokens are spelled."""

    is_byte_level: bool
    has_bytes: bool
    """<0x..> stands for a byte."""
    space: str
    """What stands for a space; "" for nothing."""
    continues: str
    """What a token begins with that goes on with a word, where others begin one; "" for no such
    rule.
    """

    def piece(self, text: str) -> bytes:
        """The bytes that the token `text` stands for."""
        if self.is_byte_level:
            return to_bytes(text)
        found = _BYTE.fullmatch(text) if self.has_bytes else None
        if found is not None:
            return bytes.fromhex(found[1])
        if self.continues:
            goes_on = text.startswith(self.continues)
            text = text.removeprefix(self.continues) if goes_on else f" {text}"
        if self.space:
            text = text.replace(self.space, " ")
        return text.encode()


def piece_rules(tokenizer: Tokenizer) -> PieceRules:
    """The rules of a tokenizer, from its decoder and, where that is none, its pre-tokenizer."""
    parts = list(_parts(tokenizer.decoder)) or list(_parts(tokenizer.pre_tokenizer))
    kinds = {str(part.get("type")): part for part in parts}
    space = str(kinds["Metaspace"].get("replacement", "▁")) if "Metaspace" in kinds else ""
    for part in parts:
        if part.get("type") == "Replace" and part.get("content") == " ":
            pattern = part.get("pattern")
            space = str(pattern.get("String", "")) if isinstance(pattern, dict) else space
    return PieceRules(
        is_byte_level="ByteLevel" in kinds,
        has_bytes="ByteFallback" in kinds,
        space=space,
        continues=str(kinds["WordPiece"].get("prefix", "##")) if "WordPiece" in kinds else "",
    )


def _parts(component: Any) -> Iterator[Mapping[str, Any]]:
    """The settings of a decoder or pre-tokenizer, a sequence's one after the other."""
    if component is None:
        return
    state = json.loads(component.__getstate__())
    members = state.get("decoders") or state.get("pretokenizers") or [state]
    yield from (member for member in members if isinstance(member, dict))
