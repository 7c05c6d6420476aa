"""The prompt of a one-shot command: what is piped in, then what stands on the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from hearth.app.cli.streams import is_terminal


def read_prompt(words: Sequence[str]) -> str:
    """Piped text first, then `words`, with an empty line between the two. Raises UsageError if
    stdin is not UTF-8.
    """
    typed = clean(" ".join(words))
    if sys.stdin is None or is_terminal(sys.stdin):
        return typed
    piped = decode(sys.stdin.buffer.read()).rstrip("\r\n")
    return "\n\n".join(part for part in (piped, typed) if part)


def decode(data: bytes) -> str:
    """The text of piped bytes, without a byte order mark. Raises UsageError if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"The piped text is not UTF-8 (byte {data[error.start]:#04x} at {error.start})."
        ) from None


def clean(text: str) -> str:
    """`text` without the lone surrogates that undecodable arguments and key strokes become."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
