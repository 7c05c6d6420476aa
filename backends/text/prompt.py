"""Converts a rendered template to token ids so that a typed special token cannot forge a message.

A template's own special tokens must be recognised; the same characters in messages, tool results
and schemas must not. So all values are protected before rendering: each control token written out
in them is put between two marks. The marks are removed from the rendered text, and the text between
them is encoded as plain text. The marks are digits that cannot be guessed, so they survive a
template that trims, quotes, escapes or changes the case of its input.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection
from typing import Any, Final

from hearth.backends.text.tokenizer import Tokenizer
from hearth.backends.text.vocab.partition import longest_of

_NONCE_DIGITS: Final = 16


class Guard:
    """Protects the values given to a template, and encodes the rendered text. Thread-safe.

    Args:
        control_texts: the texts of all special tokens.

    Attributes:
        end: a mark to append to a text, so that its end can be found in the rendered template.
    """

    def __init__(self, control_texts: Collection[str]) -> None:
        nonce = str(secrets.randbelow(9 * 10**_NONCE_DIGITS) + 10**_NONCE_DIGITS)
        self._open, self._close, self.end = (f"7{nonce}{kind}" for kind in "123")
        texts = sorted(set(filter(None, control_texts)))
        self._control = re.compile(longest_of(texts)) if texts else None
        longest = max(map(len, texts), default=1)
        self._protected = re.compile(
            f"{self._open}((?:(?!{self._open}).){{1,{longest}}}?){self._close}", re.DOTALL
        )
        self._marks = re.compile(f"{self._open}|{self._close}|{self.end}")

    def protect(self, value: Any) -> Any:
        """`value`, a JSON value, with every control token in its strings marked as plain text."""
        if isinstance(value, str):
            if self._control is None:
                return value
            return self._control.sub(lambda found: f"{self._open}{found[0]}{self._close}", value)
        if isinstance(value, dict):
            return {self.protect(name): self.protect(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.protect(item) for item in value]
        return value

    def plain(self, rendered: str) -> str:
        """The rendered text without marks."""
        return self._marks.sub("", rendered)

    def encode(self, rendered: str, tokenizer: Tokenizer) -> list[int]:
        """Token ids of a rendered template; protected spans are encoded as plain text.

        The beginning-of-sequence token is added only if the template did not write it itself.
        """
        add_bos = not (tokenizer.bos_text and rendered.startswith(tokenizer.bos_text))
        ids: list[int] = []
        for index, part in enumerate(self._protected.split(rendered)):
            is_typed = index % 2 == 1
            text = self.plain(part)
            if text:
                ids += tokenizer.encode(text, special=not is_typed, add_bos=add_bos and not ids)
        return ids
