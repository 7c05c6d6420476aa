"""A tokenizer without a model: a character is a token, and so is each special token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

_MARKS = (
    *("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|User|>", "<|Assistant|>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]"),
)
_FIRST_SPECIAL = 0x11_0000
"""Above every character code."""


class LetterTokenizer:
    """Implements `hearth.backends.text.tokenizer.Tokenizer`. Token 0 begins a text, 1 ends it."""

    vocab_size = _FIRST_SPECIAL + len(_MARKS)
    bos_text = "<s>"
    eos_text = "</s>"
    named_tokens: Mapping[str, str] = MappingProxyType({"pad_token": "<pad>"})

    def __init__(self, *, infill_ids: tuple[int, int, int] | None = None) -> None:
        self.infill_ids = infill_ids
        self.encoded: list[str] = []

    @property
    def control_tokens(self) -> Mapping[str, int]:
        marks = {mark: _FIRST_SPECIAL + index for index, mark in enumerate(_MARKS)}
        return {self.bos_text: 0, self.eos_text: 1, **marks}

    def encode(
        self, text: str, *, special: bool, add_bos: bool, add_eos: bool = False
    ) -> list[int]:
        self.encoded.append(text)
        ids = [0] if add_bos else []
        known = self.control_tokens if special else {}
        place = 0
        while place < len(text):
            mark = next((one for one in known if text.startswith(one, place)), None)
            ids.append(known[mark] if mark else ord(text[place]))
            place += len(mark) if mark else 1
        return ids + [1] * add_eos

    def encode_pair(self, query: str, text: str) -> list[int]:
        return [0, *map(ord, query), 1, *map(ord, text), 1]

    def piece(self, token_id: int, *, special: bool = False) -> bytes:
        texts = {ident: text for text, ident in self.control_tokens.items()}
        if token_id in texts:
            return texts[token_id].encode() if special else b""
        return chr(token_id).encode()

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        return b"".join(self.piece(ident, special=special) for ident in ids).decode()
