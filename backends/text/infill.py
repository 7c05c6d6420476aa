"""The prompt for text that is to be found between two others (fill in the middle)."""

from __future__ import annotations

from hearth.backends.errors import UnsupportedParameter
from hearth.backends.text.tokenizer import Tokenizer


def infill_ids(before: str, after: str, tokenizer: Tokenizer) -> list[int]:
    """Token ids in the order prefix, suffix, middle (arXiv 2207.14255), which most models learn and
    llama.cpp's server uses too. Special tokens in the texts are plain text.

    Raises:
        UnsupportedParameter: the vocabulary has no tokens for this.
    """
    marks = tokenizer.infill_ids
    if marks is None:
        raise UnsupportedParameter(
            "suffix",
            "This model has no tokens for filling in text before a suffix.",
            "Use a model for code that was trained to fill in the middle, or leave suffix out.",
        )
    prefix, suffix, middle = marks
    return [
        *tokenizer.encode("", special=False, add_bos=True),
        prefix,
        *tokenizer.encode(before, special=False, add_bos=False),
        suffix,
        *tokenizer.encode(after, special=False, add_bos=False),
        middle,
    ]
