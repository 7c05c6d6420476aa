"""The endpoint's log: what went wrong, and nothing of what anybody asked or was answered."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from hearth.backends.logs import open_log

_CONTROL: Final = re.compile("[\\x00-\\x1f\\x7f-\\x9f\u2028\u2029\ud800-\udfff]")
_KNOWN: Final = "ASGI callable returned without completing response."
"""uvicorn's complaint about a stream that failed, which is cut off on purpose."""

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class PrivateFormatter(logging.Formatter):
    """One line a record, control characters escaped; of exceptions where they came from and their
    type, not their text, in which there may be a part of a request.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The record as it stands in the log, whatever another formatter made of its exception."""
        elsewhere, record.exc_text = record.exc_text, None
        try:
            return super().format(record)
        finally:
            record.exc_text = elsewhere

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The record's line."""
        return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        """Tracebacks of an exception and of those that it came from, the latest last."""
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


def _is_news(record: logging.LogRecord) -> bool:
    return record.msg != _KNOWN


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Write warnings and errors to the file `path` within the block, not to the terminal."""
    with open_log(path) as file, open(file.fileno(), "w", encoding="utf-8", closefd=False) as text:
        handler = logging.StreamHandler(text)
        handler.setLevel(logging.WARNING)
        handler.setFormatter(PrivateFormatter())
        handler.addFilter(_is_news)
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)
