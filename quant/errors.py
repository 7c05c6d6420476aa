"""The base of Hearth's error classes, in the lowest layer that raises them.

Every error that users see is a `HearthError`: `message` says what happened, `hint` says what to
do next, `code` is its stable name, and the class carries the exit code of a command and the HTTP
status of the endpoint. The other errors (requests, workers, limits) are in
`hearth.backends.errors`.
"""

from __future__ import annotations

from typing import ClassVar


class HearthError(Exception):
    """Base of all errors that are shown to users.

    Args:
        message: what happened, with the numbers or names involved.
        hint: what to do next.
        data: machine-readable details (JSON values only), sent to programs with the message.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, hint: str = "", **data: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class CorruptFile(HearthError):
    """A model file violates its format; `field` in `data` names the offending field."""

    code = "corrupt_file"
    http_status = 422

    def __init__(self, message: str, hint: str = "", **data: object) -> None:
        super().__init__(message, hint or "Download the file again, or check its sha256.", **data)


class UnsupportedModel(HearthError):
    """The file is well formed, but this version or this backend cannot run it."""

    code = "unsupported_model"
    http_status = 422


class BadGrid(HearthError):
    """The requested grid is impossible; `field` in `data` names the invalid parameter."""

    code = "bad_grid"
    exit_code = 2
    http_status = 400
