"""The state of the server: loading its model, serving, or finishing running requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from hearth.backends.errors import Busy

Status = Literal["loading", "ok", "draining"]
RETRY_S: Final = 5
"""Retry-After while the server accepts no requests."""


class Draining(Busy):
    """The server is shutting down and accepts no new requests."""

    code = "draining"
    http_status = 503


class ServerState:
    """The state of one server, reported by `/health`; `Guard` counts running requests in it."""

    def __init__(self) -> None:
        self._loading = False
        self._draining = False
        self._busy = 0

    @property
    def status(self) -> Status:
        """The status that `/health` reports."""
        if self._draining:
            return "draining"
        return "loading" if self._loading else "ok"

    @property
    def draining(self) -> bool:
        """New requests are refused and running ones finish."""
        return self._draining

    @property
    def busy(self) -> int:
        """Number of running requests."""
        return self._busy

    def drain(self) -> None:
        """Accept no new requests from now on."""
        self._draining = True

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Report `loading` within the block."""
        self._loading = True
        try:
            yield
        finally:
            self._loading = False

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as running within the block. Raises `Draining` if none are accepted."""
        if self._draining:
            raise Draining(
                "hearth serve is shutting down and accepts no new requests.",
                "Retry when it is running again.",
                retry_after_s=RETRY_S,
            )
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
