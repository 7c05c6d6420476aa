"""The logs of the server.

The log of requests contains method, path, status, time and token counts. The log of warnings and
errors may name fields that have no effect. Neither contains prompts, answers or values of fields.
"""

from __future__ import annotations

import json
import logging
import re
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from hearth.app.log_file import tail
from hearth.backends.machine.logs import MAX_LOG_BYTES, open_log

log = logging.getLogger(__name__)

REQUESTS_LOG: Final = "requests.log"
_ONLY_FAILURES: Final = ("/health", "/metrics")
"""Polled by monitoring programs; only failed requests for them are logged."""
_LONGEST_PATH: Final = 120
_CONTROL: Final = re.compile("[\\x00-\\x1f\\x7f-\\x9f\u2028\u2029\ud800-\udfff]")
_KNOWN: Final = "ASGI callable returned without completing response."
"""uvicorn's error about a failed stream, which is cut off on purpose."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One line of the log of requests.

    Attributes:
        at: Unix time of the end of the response.
        path: without the query.
        status: HTTP status of the response; 499 if the client disconnected.
        ms: milliseconds from the request's head to the end of the response.
        model: the model's name in the catalog; empty if the request is not for a model.
    """

    at: float
    method: str
    path: str
    status: int
    ms: float
    model: str = ""
    prompt_tokens: int = 0
    generated_tokens: int = 0


class RequestLog:
    """Appends to the private file `path`, which is rotated; a context manager.

    Args:
        clock: returns Unix time.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._file: BinaryIO = open_log(path)
        self._size = self._file.tell()

    def __enter__(self) -> RequestLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def note(self, method: str, path: str, status: int, ms: float, **facts: Any) -> None:
        """Log a request that has ended.

        Args:
            facts: `model`, `prompt_tokens` and `generated_tokens`, if known.
        """
        if path in _ONLY_FAILURES and status < 400:
            return
        entry = Answered(
            round(self._clock(), 3), method, path[:_LONGEST_PATH], status, round(ms, 1), **facts
        )
        line = json.dumps(asdict(entry)).encode() + b"\n"
        try:
            if self._size > MAX_LOG_BYTES:
                self._file.close()
                self._file = open_log(self._path)
                self._size = self._file.tell()
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            log.warning("cannot write to the request log: %s", error.strerror or error)
        self._size += len(line)


def last_requests(path: Path, most: int) -> list[Answered]:
    """The last requests in the log at `path`, newest first; malformed lines are skipped."""
    requests: list[Answered] = []
    for line in reversed(tail(path, most)):
        try:
            requests.append(Answered(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return requests


class PrivateFormatter(logging.Formatter):
    """Writes one line per record, with control characters escaped.

    Exceptions are written as traceback and type, without their text, which may contain a part of a
    request.
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


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Write warnings and errors to the file `path` within the block, not to the terminal."""
    with open_log(path) as file, open(file.fileno(), "w", encoding="utf-8", closefd=False) as text:
        handler = logging.StreamHandler(text)
        handler.setLevel(logging.WARNING)
        handler.setFormatter(PrivateFormatter())
        handler.addFilter(lambda record: record.msg != _KNOWN)
        logging.getLogger().addHandler(handler)
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)
