"""The llama.cpp library of this process: loaded once, with log captured and structs checked."""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import logging
import os
from collections import deque
from dataclasses import dataclass
from typing import Any

from hearth.backends.errors import BackendUnavailable, InternalError
from hearth.backends.machine.threads import SPINS
from hearth.quant.versions import installed_version

log = logging.getLogger(__name__)

MODULE = "llama_cpp.llama_cpp"
"""The low-level ctypes bindings; nothing above them is used."""

INSTALL = (
    "Install it with `pip install llama-cpp-python==0.3.36`; "
    "`hearth doctor` checks the compiler first."
)
"""Advice if the library is missing."""

_KEPT_LINES = 200
_DEBUG, _WARNING, _CONTINUATION = 1, 3, 5
_LEVELS = {2: logging.DEBUG, 3: logging.INFO, 4: logging.WARNING}
"""ggml_log_level to Python's levels, one level lower: llama.cpp logs a few hundred lines of
information per load."""
_OF_CANCELS = ("compute status: 1", "failed to decode, ret = 2")
"""Ends of lines that are not real warnings: the abort callback ended a cancelled step."""


class LibraryLog:
    """Keeps the last lines of llama.cpp's log for error messages; passes them to Python's logging.

    llama.cpp calls `write` from any of its threads; ctypes holds the interpreter lock meanwhile.
    Debug lines, hundreds for each graph that llama.cpp builds, are dropped.
    """

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=_KEPT_LINES)
        self._partial = ""
        self._level = 0

    def write(self, level: int, text: str) -> None:
        """Add a piece of a line; `level` is a ggml_log_level, where 5 continues the last line."""
        if level != _CONTINUATION:
            self._level = level
        if self._level == _DEBUG:
            return
        *whole, self._partial = (self._partial + text).split("\n")
        for line in filter(None, map(str.strip, whole)):
            self._lines.append((self._level, line))
            level = _LEVELS.get(self._level, logging.DEBUG)
            log.log(logging.DEBUG if line.endswith(_OF_CANCELS) else level, "%s", line)

    def clear(self) -> None:
        """Forget all lines, so that `said` covers only the next call."""
        self._lines.clear()
        self._partial = ""

    def said(self) -> str:
        """The last three warnings or errors, or else the last three lines; "" if there are none."""
        lines = list(self._lines)
        chosen = [line for level, line in lines if level >= _WARNING] or [line for _, line in lines]
        return " | ".join(chosen[-3:])


@dataclass(frozen=True, slots=True)
class Library:
    """The loaded library."""

    api: Any
    """The module of C functions."""
    version: str
    """E.g. "llama-cpp-python 0.3.36, llama.cpp 0c1e570"."""
    system_info: str
    """The features that the build can use on this CPU, e.g. "CPU : AVX2 = 1 | REPACK = 1"."""
    supports_gpu: bool
    max_sequences: int
    """Most sequences that one context may hold."""
    log: LibraryLog
    callbacks: tuple[Any, ...]
    """ctypes callbacks that C code references: they must live as long as the library."""


@functools.cache
def load_library() -> Library:
    """Import llama_cpp and initialise it; returns the same object every time.

    Sets `GOMP_SPINCOUNT` to `SPINS` unless it is already set, because libgomp reads it only when it
    is loaded. Sets `GGML_NO_BACKTRACE`, so that a failed assertion does not start a debugger first.

    Raises:
        BackendUnavailable: llama_cpp is not installed, its shared library does not load, or symbols
            are missing.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    try:
        api = importlib.import_module(MODULE)
    except ModuleNotFoundError as error:
        raise BackendUnavailable(
            f"The llama.cpp backend is not installed ({error}).",
            INSTALL,
        ) from error
    except Exception as error:
        raise BackendUnavailable(
            f"The llama.cpp library does not load: {type(error).__name__}: {error}",
            "`hearth doctor` shows how to build it again for this machine.",
        ) from error
    lines = LibraryLog()

    def receive(level: int, text: bytes, _user_data: object) -> None:
        lines.write(level, text.decode("utf-8", "replace"))

    callback = api.llama_log_callback(receive)
    api.llama_log_set(callback, ctypes.c_void_p(0))
    atexit.register(api.llama_log_set, api.llama_log_callback(), ctypes.c_void_p(0))
    api.llama_backend_init()
    return Library(
        api=api,
        version=_version(api),
        system_info=api.llama_print_system_info().decode("utf-8", "replace"),
        supports_gpu=bool(api.llama_supports_gpu_offload()),
        max_sequences=int(api.llama_max_parallel_sequences()),
        log=lines,
        callbacks=(callback,),
    )


def set_fields(struct: ctypes.Structure, **values: object) -> None:
    """Set fields of a ctypes struct, and check their names, which ctypes does not.

    Raises:
        InternalError: a field does not exist in this version of the library.
    """
    known = {field[0] for field in struct._fields_}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise InternalError(
            f"{type(struct).__name__} of this llama.cpp has no field {', '.join(unknown)}."
        )
    for name, value in values.items():
        setattr(struct, name, value)


def _version(api: Any) -> str:
    package = installed_version("llama-cpp-python") or "of unknown version"
    # ggml_commit is exported by libggml-base, which libllama links; a static build has no such
    # symbol.
    shared = getattr(api, "_lib", None)
    commit = getattr(shared, "ggml_commit", None)
    name = ""
    if commit is not None:
        commit.restype = ctypes.c_char_p
        name = (commit() or b"").decode("utf-8", "replace")
    library = f", llama.cpp {name}" if name not in ("", "unknown") else ""
    return f"llama-cpp-python {package}{library}"
