"""What the exit status of a command means; `HearthError.exit_code` has the same numbers."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    MODEL_NOT_FOUND = 3
    DOES_NOT_FIT = 4
    NETWORK = 5
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """In a few words, for `hearth --help`."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.OK: "it worked",
    ExitCode.FAILED: "it failed",
    ExitCode.USAGE: "wrong usage or settings",
    ExitCode.MODEL_NOT_FOUND: "no such model",
    ExitCode.DOES_NOT_FIT: "does not fit into memory",
    ExitCode.NETWORK: "network trouble, or offline",
    ExitCode.INTERRUPTED: "interrupted",
}
