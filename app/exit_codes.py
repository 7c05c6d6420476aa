"""The exit codes of commands; `HearthError.exit_code` uses the same numbers."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit code of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    MODEL_NOT_FOUND = 3
    DOES_NOT_FIT = 4
    NETWORK = 5
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """A short description, for `hearth --help`."""
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
