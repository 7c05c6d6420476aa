"""Ends a computation of llama.cpp early, from another thread."""

from __future__ import annotations

import ctypes
import sys
from typing import Any


class Interrupt:
    """A flag that llama.cpp looks at after each operation of a graph on the processor.

    The callback is the C library's `strlen` over a string of one character or none: a Python
    function would wait for the interpreter lock hundreds of times in a step.
    """

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(2)
        library = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
        self._strlen = ctypes.cast(library.strlen, ctypes.c_void_p)

    def set(self, wanted: bool) -> None:
        """Whether computations end now, and each that begins; from any thread."""
        self._text.raw = b"\1\0" if wanted else b"\0\0"

    def attach(self, api: Any, context: Any) -> None:
        """Let the flag end what the `llama_context` computes; it must outlive the context."""
        callback = ctypes.cast(self._strlen, api.ggml_abort_callback)
        api.llama_set_abort_callback(context, callback, ctypes.addressof(self._text))
