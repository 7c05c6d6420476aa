"""Ends a computation of llama.cpp early, from another thread."""

from __future__ import annotations

import ctypes
import sys
from typing import Any


class Interrupt:
    """A flag that llama.cpp checks after each operation of a graph on the processor.

    The callback is the C library's `strlen` on a string of one character or none, because a Python
    function would have to wait for the interpreter lock hundreds of times in a step.
    """

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(2)
        library = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
        self._strlen = ctypes.cast(library.strlen, ctypes.c_void_p)

    def set(self, wanted: bool) -> None:
        """Set whether present and future computations end early. May be called from any thread."""
        self._text.raw = b"\1\0" if wanted else b"\0\0"

    def attach(self, api: Any, context: Any) -> None:
        """Let the flag end computations of the `llama_context`, which it must outlive."""
        callback = ctypes.cast(self._strlen, api.ggml_abort_callback)
        api.llama_set_abort_callback(context, callback, ctypes.addressof(self._text))
