"""Titles of chats: one line, safe to print."""

from __future__ import annotations

import re
from typing import Final

from hearth.app.terminal import safe_text

LONGEST: Final = 60
"""Maximum length in characters of a title made from a message."""
_READ: Final = 1000
_FILES: Final = re.compile(r"\n\n[^\n]+:\n```.*", re.DOTALL)
"""Files attached to a message, after the typed text."""
_FOLDERS: Final = re.compile(r'(?<!\S)@"?[^\s"]*/([^\s"/]+)"?')
_CODE: Final = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1|\Z)", re.DOTALL | re.MULTILINE)
_MARKS: Final = re.compile(r"^[ \t]*(?:[#>*+-]+[ \t]+)+", re.MULTILINE)


def one_line(text: str) -> str:
    """`text` in one line, without control or invisible characters for a terminal."""
    return safe_text(" ".join(text.split()))


def title_from(content: str) -> str:
    """The first words of a message, at most `LONGEST` characters. Typed text is preferred to code
    and attached files.
    """
    typed = _FOLDERS.sub(r"@\1", _FILES.sub("", content[:_READ]))
    line = one_line(_MARKS.sub("", _CODE.sub(" ", typed))) or one_line(typed)
    if len(line) <= LONGEST:
        return line
    words = line[:LONGEST].rpartition(" ")[0].rstrip(" ,;:.–—-(")
    return (words or line[: LONGEST - 1]) + "…"
