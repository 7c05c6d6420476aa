"""The list of requests that the endpoint has answered: method, path, status, time and tokens, and
nothing of what anybody asked or was answered.
"""

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
_UNTOLD: Final = ("/health", "/metrics")
"""Asked for every few seconds by programs that watch; told only where they fail."""
_LONGEST_PATH: Final = 120


@dataclass(frozen=True, slots=True)
class Answered:
    """One line of the log.

    Attributes:
        at: Unix time of its end.
        path: without the query.
        status: of the answer; 499: whoever asked has left.
        ms: from the request's head to the end of its answer.
        model: the name that the catalog has for it; empty where none was asked.
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
    """Appends to the file `path`, which is private and kept small; a context manager.

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
        """Note a request that is over.

        Args:
            facts: `model`, `prompt_tokens`, `generated_tokens`, where there are any.
        """
        if path in _UNTOLD and status < 400:
            return
        told = Answered(
            round(self._clock(), 3), method, path[:_LONGEST_PATH], status, round(ms, 1), **facts
        )
        line = json.dumps(asdict(told)).encode() + b"\n"
        try:
            if self._size > MAX_LOG_BYTES:
                self._file.close()
                self._file = open_log(self._path)
                self._size = self._file.tell()
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            log.warning("a request could not be noted: %s", error.strerror or error)
        self._size += len(line)


def last_requests(path: Path, most: int) -> list[Answered]:
    """The last requests in the log at `path`, the newest first; lines that are none are left
    out.
    """
    found: list[Answered] = []
    for line in reversed(tail(path, most)):
        try:
            found.append(Answered(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found
