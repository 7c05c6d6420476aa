"""The server's log of warnings and errors. It contains no prompts, answers or values of fields; the
names of fields that have no effect are logged.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hearth.backends.logs import open_log

_CONTROL: Final = re.compile("[\\x00-\\x1f\\x7f-\\x9f\u2028\u2029\ud800-\udfff]")
_KNOWN: Final = "ASGI callable returned without completing response."
"""uvicorn's error about a failed stream, which is cut off on purpose."""


class PrivateFormatter(logging.Formatter):
    """One line per record, with control characters escaped. Exceptions are written as traceback and
    type without their text, which may contain a part of a request.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The record's text, ignoring the exception text that another formatter has cached."""
        cached, record.exc_text = record.exc_text, None
        try:
            return super().format(record)
        finally:
            record.exc_text = cached

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The record's line."""
        return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        """Tracebacks of an exception and its causes, the most recent last."""
        error = ei[1] if isinstance(ei, tuple) else None
        parts: list[str] = []
        while isinstance(error, BaseException):
            stack = "".join(traceback.format_tb(error.__traceback__))
            kind = type(error)
            parts.append(
                f"Traceback (most recent call last):\n{stack}{kind.__module__}.{kind.__qualname__}"
            )
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n\n".join(reversed(parts))


def _is_unexpected(record: logging.LogRecord) -> bool:
    return record.msg != _KNOWN


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Write warnings and errors to the file `path` within the block, not to the terminal."""
    with open_log(path) as file, open(file.fileno(), "w", encoding="utf-8", closefd=False) as text:
        handler = logging.StreamHandler(text)
        handler.setLevel(logging.WARNING)
        handler.setFormatter(PrivateFormatter())
        handler.addFilter(_is_unexpected)
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)
