"""Titles of chats: one line, safe to show."""

from __future__ import annotations

from typing import Final

from hearth.app.terminal import safe_text

LONGEST: Final = 60
"""Characters of a title that is made from a message."""
_LOOKED_AT: Final = 1000


def one_line(text: str) -> str:
    """`text` in one line, without anything that a terminal obeys or hides."""
    return safe_text(" ".join(text.split()))


def title_from(content: str) -> str:
    """The first words of a message, at most `LONGEST` characters."""
    line = one_line(content[:_LOOKED_AT])
    if len(line) <= LONGEST:
        return line
    words = line[:LONGEST].rpartition(" ")[0]
    shortest = LONGEST // 2
    return (words if len(words) >= shortest else line[: LONGEST - 1]).rstrip() + "…"
