"""What the worker asks of a tokenizer, whatever made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text to token ids and back. Thread-safe: the worker tokenizes outside of its step loop."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_text(self) -> str:
        """The beginning-of-sequence token written out; "" if the model has none."""
        ...

    @property
    def eos_text(self) -> str:
        """The end-of-sequence token written out; "" if the model has none."""
        ...

    @property
    def named_tokens(self) -> Mapping[str, str]:
        """Further special tokens that the model's files name, by the names that chat templates give
        them: "unk_token", "sep_token", "pad_token", "cls_token", "mask_token".
        """
        ...

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """Every special token written out, e.g. "<|im_end|>", and its id."""
        ...

    @property
    def infill_ids(self) -> tuple[int, int, int] | None:
        """The tokens before a prefix, before a suffix, and before the middle that is to be found;
        None where the vocabulary lacks one of them.
        """
        ...

    def encode(
        self, text: str, *, special: bool, add_bos: bool, add_eos: bool = False
    ) -> list[int]:
        """Token ids of `text`.

        Args:
            special: recognise special tokens that are written out in `text` (rendered templates);
                otherwise they are plain text (what people typed), so that no message can be forged.
            add_bos: put the beginning-of-sequence token first where the model wants one.
            add_eos: put the end-of-sequence (or separator) token last where the model wants one,
                which matters for embeddings.
        """
        ...

    def encode_pair(self, query: str, text: str) -> list[int]:
        """Token ids of a question and a text that may answer it, as a model that ranks was trained
        on them; special tokens in either are plain text.
        """
        ...

    def piece(self, token_id: int, *, special: bool = False) -> bytes:
        """The bytes of one token; a control token gives b"" unless `special`."""
        ...

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        ...
