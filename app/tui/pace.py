"""Settings for fast drawing and key response, made before Textual is imported."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

FRAMES_PER_S: Final = 250
"""Most frames per second.

A change made by a key press waits for the next frame: up to 17 ms with Textual's default of 60.
Frames are drawn only for changes, and an answer is drawn at most 18 times a second.
"""
SWITCH_S: Final = 0.001
"""Seconds that a thread holds the GIL while another one waits for it.

One thread reads keys and another one writes frames; with Python's default of 5 ms, each would wait
that long while a frame is drawn.
"""


def set_pace() -> None:
    """Apply both to this process; a frame rate that the user set (TEXTUAL_FPS) is kept."""
    os.environ.setdefault("TEXTUAL_FPS", str(FRAMES_PER_S))
    sys.setswitchinterval(SWITCH_S)


@contextmanager
def quick_start() -> Iterator[None]:
    """Import and run the terminal app in this context, without garbage collection at its start.

    `HearthApp` enables garbage collection once it is drawn: the objects made at the start stay
    alive, and scanning them takes time.
    """
    set_pace()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
