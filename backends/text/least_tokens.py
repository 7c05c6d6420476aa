"""A lower bound on the tokens of a long text, computed from its beginning."""

from __future__ import annotations

import time
from typing import Final

from hearth.backends.text.tokenizer import Tokenizer

_SLICE: Final = 32 << 10
"""Characters tokenized at once, which takes 10 to 20 ms."""
_LONGEST_WORD: Final = 512
_SLACK: Final = 64
"""Tokens per cut by which the sum over slices may exceed the tokens of the whole text, because
tokens at a cut may differ."""
_REST: Final = 3.0
"""Seconds of sleep for each second of work, so that a long text does not hold up the steps of
running requests all the time."""


def least_tokens(text: str, tokenizer: Tokenizer, most: int) -> int:
    """A lower bound on the tokens of `text`, counted from its beginning until it exceeds `most`; 0
    for a text of less than two slices, which is cheaper to tokenize as a whole.

    A text of 2 MB takes a second to tokenize, and a context of 128k tokens is exceeded by its first
    quarter.
    """
    tokens = start = 0
    if len(text) < 2 * _SLICE:
        return 0
    while start < len(text) and tokens <= most:
        began_s = time.monotonic()
        end = _cut(text, start + _SLICE)
        ids = tokenizer.encode(text[start:end], special=False, add_bos=False)
        tokens += max(0, len(ids) - _SLACK)
        start = end
        time.sleep(_REST * (time.monotonic() - began_s))
    return tokens


def _cut(text: str, end: int) -> int:
    """The last place up to `end` where white space begins; `end` if there is none nearby."""
    for place in range(min(end, len(text) - 1), max(0, end - _LONGEST_WORD), -1):
        if text[place].isspace() and not text[place - 1].isspace():
            return place
    return end
