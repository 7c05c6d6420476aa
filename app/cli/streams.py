"""The standard streams, for what must not wait for the rest of `output`."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def is_terminal(stream: TextIO | None) -> bool:
    """A person sits at the other end of `stream`."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def can_draw() -> bool:
    """A person sits at a terminal that can show more than lines."""
    drawn = is_terminal(sys.stdin) and is_terminal(sys.stdout)
    return drawn and os.environ.get("TERM", "") not in ("", "dumb")


def use_utf8() -> None:
    """Make stdout and stderr UTF-8, with a replacement for what a terminal cannot show; key strokes
    that are no text become lone surrogates, which `prompt.clean` replaces.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            encoding = stream.encoding if is_terminal(stream) else "utf-8"
            stream.reconfigure(encoding=encoding, errors="replace")
    if is_terminal(sys.stdin) and hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="surrogateescape")
