"""How soon the app is drawn and a key is seen: what has to be set before Textual is imported."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

FRAMES_PER_S: Final = 250
"""Most frames a second. What a key changed waits for the next one: with Textual's own 60 up to
17 ms. There are no more frames than changes, and an answer is drawn 18 times a second at most.
"""
SWITCH_S: Final = 0.001
"""How long a thread has Python for itself while another wants it. Keys come in by one thread and
frames go out by another; with Python's own 5 ms each would wait so long while one is drawn.
"""


def set_pace() -> None:
    """For this process; a number of frames that the user set (TEXTUAL_FPS) stays."""
    os.environ.setdefault("TEXTUAL_FPS", str(FRAMES_PER_S))
    sys.setswitchinterval(SWITCH_S)


@contextmanager
def quick_start() -> Iterator[None]:
    """The terminal app is imported and run in this context. Nothing looks for garbage until
    `HearthApp` is drawn, which turns that on again: what its start makes stays, and is much to
    look through.
    """
    set_pace()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
