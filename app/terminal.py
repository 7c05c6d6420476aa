"""Terminals: which streams are one, and `safe_text`, the only way to print untrusted text to them.

Untrusted is all text that Hearth did not write itself: model output, prompts, file names, metadata
of models, and messages that quote them. Each character that could control a terminal, or hide or
reorder text, is replaced by one visible character:

- ESC becomes U+241B, other C0 and C1 controls and DEL become U+FFFD; newline and tab stay;
- bidirectional controls, line and paragraph separators, tag characters, invisible and zero-width
  characters become U+FFFD (Unicode's Default_Ignorable_Code_Point and Bidi_Control properties);
- joiners stay where writing needs them: U+200D between emoji, U+200C and U+200D between letters of
  the scripts that use them; a variation selector stays after a character that has variants.

Terminal escapes in model output are a known attack: clipboard writes (OSC 52), fake links (OSC 8),
window titles.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from typing import TextIO

REPLACEMENT = "\ufffd"
VISIBLE_ESCAPE = "\u241b"

_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # invisible ones of several scripts
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero-width, separators, bidi controls
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"  # fillers, variation selectors, BOM, interlinear
    "\ud800-\udfff"  # lone surrogates
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # shorthand and music format controls
    "\U000e0000-\U000e0fff"  # tags, further variation selectors
)
# Without invisible characters: what becomes U+FFFD has no variants and joins nothing.
_PICTOGRAPH = "\u203c-\u205f\u2070-\u3163\u3165-\u3299\U0001f000-\U0001faff"
_JOINED_SCRIPT = (
    "\u0600-\u0605\u0610-\u061b\u061d-\u08ff"  # Arabic, Syriac, Thaana, N'Ko, Mandaic
    "\u0900-\u0dff\u0f00-\u109f\u1780-\u17b3\u17b6-\u17ff"  # Indic, Tibetan, Myanmar, Khmer
    "\u1800-\u180a\u1810-\u18af"  # Mongolian
    "\ufb50-\ufdff\ufe70-\ufefc"  # Arabic presentation forms
)
_IDEOGRAPH = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"

_IN_PLACE = (
    f"(?:(?<=[{_PICTOGRAPH}\ufe0f])\u200d(?=[{_PICTOGRAPH}]))"
    f"|(?:(?<=[{_JOINED_SCRIPT}])[\u200c\u200d](?=[{_JOINED_SCRIPT}]))"
    f"|(?:(?<=[#*0-9\u00a9\u00ae{_PICTOGRAPH}{_IDEOGRAPH}])[\ufe00-\ufe0f])"
    f"|(?:(?<=[{_IDEOGRAPH}])[\U000e0100-\U000e01ef])"
)
_JOINERS = ("\u200c", "\u200d")


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person is at the other end of `stream`."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def can_draw() -> bool:
    """Whether a person is at a terminal that can show more than lines."""
    drawn = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    return drawn and os.environ.get("TERM", "") not in ("", "dumb")


def use_utf8() -> None:
    """Make stdout and stderr UTF-8, with replacements for what a terminal cannot show. Undecodable
    key strokes become lone surrogates, which `cli.typed.clean` replaces.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            encoding = stream.encoding if is_terminal(stream) else "utf-8"
            stream.reconfigure(encoding=encoding, errors="replace")
    if is_terminal(sys.stdin) and hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="surrogateescape")


@functools.cache
def _suspect() -> re.Pattern[str]:
    """Compiled on first use, which saves 2 ms at import."""
    return re.compile(f"[{_UNSAFE}]")


@functools.cache
def _in_place() -> re.Pattern[str]:
    """Compiled for the first text that has suspect characters, which saves 5 ms."""
    return re.compile(_IN_PLACE)


def _visible(match: re.Match[str]) -> str:
    if match[0] == "\x1b":
        return VISIBLE_ESCAPE
    return match[0] if _in_place().match(match.string, match.start()) else REPLACEMENT


def safe_text(text: str) -> str:
    """`text` of the same length without anything that a terminal obeys or hides."""
    return _suspect().sub(_visible, text)


class SafeStream:
    """`safe_text` for text in pieces: the results together equal that of the whole text.

    A joiner at the end of a piece is held back until the next character shows whether it joins
    anything.
    """

    def __init__(self) -> None:
        self._before = ""
        self._held = ""

    def feed(self, text: str) -> str:
        """The safe form of the text that can be shown by now."""
        text = self._held + text
        self._held = ""
        if text.endswith(_JOINERS):
            text, self._held = text[:-1], text[-1]
        if not text:
            return ""
        # No character of `text` depends on what follows it, since it does not end in a joiner.
        safe = safe_text(self._before + text)[len(self._before) :]
        self._before = text[-1]
        return safe

    def flush(self) -> str:
        """The text that was held back, when the input has ended."""
        safe = safe_text(self._before + self._held)[len(self._before) :] if self._held else ""
        self._before = self._held = ""
        return safe
