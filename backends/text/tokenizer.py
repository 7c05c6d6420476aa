"""The tokenizer interface that the worker uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text to token ids and back. Thread-safe: the worker tokenizes outside of its step loop."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_text(self) -> str:
        """The text of the beginning-of-sequence token; "" if the model has none."""
        ...

    @property
    def eos_text(self) -> str:
        """The text of the end-of-sequence token; "" if the model has none."""
        ...

    @property
    def named_tokens(self) -> Mapping[str, str]:
        """Further special tokens that the model's files name, by the names that chat templates use:
        "unk_token", "sep_token", "pad_token", "cls_token", "mask_token".
        """
        ...

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """The id of every special token, by its text, e.g. "<|im_end|>"."""
        ...

    @property
    def infill_ids(self) -> tuple[int, int, int] | None:
        """The tokens before the prefix, before the suffix, and before the middle to be filled in;
        None if the vocabulary lacks one of them.
        """
        ...

    def encode(
        self, text: str, *, special: bool, add_bos: bool, add_eos: bool = False
    ) -> list[int]:
        """Token ids of `text`.

        Args:
            special: recognise special tokens that are written out in `text` (rendered templates);
                otherwise they are plain text (typed text), so that no message can be forged.
            add_bos: put the beginning-of-sequence token first if the model expects one.
            add_eos: put the end-of-sequence (or separator) token last if the model expects one,
                which matters for embeddings.
        """
        ...

    def encode_pair(self, query: str, text: str) -> list[int]:
        """Token ids of a query and a text to rank for it, in the form that a reranking model was
        trained on; special tokens in either are plain text.
        """
        ...

    def piece(self, token_id: int, *, special: bool = False) -> bytes:
        """The bytes of one token; a control token gives b"" unless `special`."""
        ...

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        ...
