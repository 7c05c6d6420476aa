"""What every tokenizer refuses."""

from __future__ import annotations

from hearth.backends.errors import InvalidParameter


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


def refuse_unknown_id(token_id: int, vocab_size: int) -> None:
    """Raises `InvalidParameter` where `token_id` is not in a vocabulary of `vocab_size`."""
    if not 0 <= token_id < vocab_size:
        raise InvalidParameter(
            "token_ids", f"Token {token_id} is not in the vocabulary of {vocab_size:,}."
        )
