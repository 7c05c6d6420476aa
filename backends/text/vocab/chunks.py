"""Text with ▁ for spaces, cut into pieces that are merged by themselves and can be remembered."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

SPACE_MARK: Final = "▁"
_INNER: Final = re.compile(f"[^{SPACE_MARK}](?={SPACE_MARK})")


class Chunks:
    """Cuts text before the marks that begin a word.

    Merging never joins two characters that no token holds side by side, so a cut between a
    character and a mark that follows it in no token changes nothing.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        """`tokens`: everything that merging may make."""
        joined = {char for token in tokens for char in _INNER.findall(token)}
        inside = "".join(map(re.escape, sorted(joined)))
        goes_on = f"(?:(?<=[{inside}]){SPACE_MARK}+[^{SPACE_MARK}]*)*" if inside else ""
        self._chunk = re.compile(f"{SPACE_MARK}*[^{SPACE_MARK}]+{goes_on}|{SPACE_MARK}+", re.DOTALL)

    def cut(self, text: str) -> list[str]:
        """The pieces of `text`; joined they are `text`."""
        return self._chunk.findall(text)
