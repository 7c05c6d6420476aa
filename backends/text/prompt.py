"""From a rendered template to token ids, so that a typed special token cannot forge a message.

A template's own special tokens must be recognised; the same characters in what people, tools and
schemas say must not. So all of that is protected before rendering: a control token written out in
it is put between two marks, which are taken out of the rendered text again, and what is between
them is read as plain text. The marks are digits that cannot be guessed: a template may trim, quote,
escape or change the case of what it is given, and they stay what they are.
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
    """Protects what goes into a template, and reads what comes out. Thread-safe.

    Args:
        control_texts: every special token written out.

    Attributes:
        end: a text to put behind another one, to find in a rendered template where that ends.
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
        """`value`, a JSON value, with every control token in its texts marked as plain text."""
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
        """The rendered text as a person should see it."""
        return self._marks.sub("", rendered)

    def encode(self, rendered: str, tokenizer: Tokenizer) -> list[int]:
        """Token ids of a rendered template; protected spans are plain text.

        The beginning-of-sequence token is added only where the template did not write it itself.
        """
        add_bos = not (tokenizer.bos_text and rendered.startswith(tokenizer.bos_text))
        ids: list[int] = []
        for index, part in enumerate(self._protected.split(rendered)):
            is_typed = index % 2 == 1
            text = self.plain(part)
            if text:
                ids += tokenizer.encode(text, special=not is_typed, add_bos=add_bos and not ids)
        return ids
