"""The log of requests: method, path, status, time and token counts, but no prompts or answers."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from hearth.app.log_file import tail
from hearth.backends.logs import MAX_LOG_BYTES, open_log

log = logging.getLogger(__name__)

REQUESTS_LOG: Final = "requests.log"
_ONLY_FAILURES: Final = ("/health", "/metrics")
"""Polled by monitoring programs; only failed requests for them are logged."""
_LONGEST_PATH: Final = 120


@dataclass(frozen=True, slots=True)
class Answered:
    """One line of the log.

    Attributes:
        at: Unix time of the end of the response.
        path: without the query.
        status: HTTP status of the response; 499: the client disconnected.
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
        clock: Unix time.
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
            facts: `model`, `prompt_tokens` and `generated_tokens`, if there are any.
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
