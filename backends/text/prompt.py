"""From a rendered template to token ids, so that nobody can forge a turn by typing a special token.

A template's own special tokens must be recognised; the same characters inside a message must not.
Messages are protected before rendering: a control token written out in one is wrapped in two
private-use characters, which the tokenization of the rendered text takes out again, reading what
stands between them as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from hearth.backends.contract import Message
from hearth.backends.text.tokenizer import Tokenizer

_OPEN, _CLOSE = "\U0010fff0", "\U0010fff1"
_PROTECTED = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}")


def protect(messages: Iterable[Message], control_texts: Iterable[str]) -> list[Message]:
    """`messages` with every control token that is written out in them marked as plain text."""
    texts = sorted((text for text in control_texts if text), key=len, reverse=True)
    if not texts:
        return list(messages)
    pattern = re.compile("|".join(map(re.escape, texts)))
    guarded = []
    for message in messages:
        content = message.content.replace(_OPEN, "").replace(_CLOSE, "")
        content = pattern.sub(lambda found: f"{_OPEN}{found[0]}{_CLOSE}", content)
        guarded.append(replace(message, content=content))
    return guarded


def unprotect(rendered: str) -> str:
    """The rendered text as a person should see it."""
    return _PROTECTED.sub(r"\1", rendered)


def encode_rendered(rendered: str, tokenizer: Tokenizer) -> list[int]:
    """Token ids of a rendered template; protected spans are plain text.

    The beginning-of-sequence token is added only where the template did not write it itself.
    """
    add_bos = not (tokenizer.bos_text and rendered.startswith(tokenizer.bos_text))
    ids: list[int] = []
    for index, part in enumerate(_PROTECTED.split(rendered)):
        plain = index % 2 == 1
        if part:
            ids += tokenizer.encode(part, special=not plain, add_bos=add_bos and not ids)
    return ids
