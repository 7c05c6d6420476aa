"""Matching module names against the regular expressions in a checkpoint's config."""

from __future__ import annotations

import functools
import re
from typing import Final

from hearth.quant.errors import CorruptFile, UnsupportedModel

_MOST_REPEATS: Final = 4
_MOST_CHARACTERS: Final = 500
_MOST_NAME: Final = 120
_REPEATS: Final = re.compile(r"(?<!\\)[*+{]")
_SLOW: Final = re.compile(r"\)[*+{]|\\[1-9]|\(\?P=")
"""Constructs that may take exponential time: repeated groups and back-references."""


def matches(pattern: str, name: str) -> bool:
    """Whether the regular expression `pattern` matches at the beginning of `name`.

    Patterns come with the model, so those that may take very long are refused.

    Raises:
        CorruptFile: `pattern` is not a regular expression.
        UnsupportedModel: `pattern` may take very long to match.
    """
    return len(name) <= _MOST_NAME and _compiled(pattern).match(name) is not None


@functools.lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    is_long = len(pattern) > _MOST_CHARACTERS or len(_REPEATS.findall(pattern)) > _MOST_REPEATS
    if is_long or _SLOW.search(pattern):
        raise UnsupportedModel(
            f"The quantization_config has the pattern {pattern[:80]!r}, which may take very long "
            "to match.",
            "Choose another quantization of this model, or a GGUF of it.",
            field="quantization_config",
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise CorruptFile(
            f"The quantization_config has the pattern {pattern[:80]!r}, which is no regular "
            f"expression: {error}.",
            field="quantization_config",
        ) from error
