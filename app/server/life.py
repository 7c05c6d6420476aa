"""Where the endpoint is in its life: loading its model, serving, or finishing what still runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from hearth.backends.errors import Busy

Status = Literal["loading", "ok", "draining"]
RETRY_S: Final = 5
"""When to ask again while the endpoint is not serving."""


class Draining(Busy):
    """The endpoint was told to end, and takes no new requests."""

    code = "draining"
    http_status = 503


class Life:
    """One server's. `/health` says its status; the guard of the endpoint counts requests in it."""

    def __init__(self) -> None:
        self._loading = False
        self._draining = False
        self._busy = 0

    @property
    def status(self) -> Status:
        """What `/health` says."""
        if self._draining:
            return "draining"
        return "loading" if self._loading else "ok"

    @property
    def draining(self) -> bool:
        """New requests are refused, running ones finish."""
        return self._draining

    @property
    def busy(self) -> int:
        """Requests that are being answered."""
        return self._busy

    def drain(self) -> None:
        """Take no new requests from now on."""
        self._draining = True

    @contextmanager
    def loading(self) -> Iterator[None]:
        """The model that the server was opened with is loaded within the block."""
        self._loading = True
        try:
            yield
        finally:
            self._loading = False

    @contextmanager
    def request(self) -> Iterator[None]:
        """A request is answered within the block. Raises `Draining` if none is taken any more."""
        if self._draining:
            raise Draining(
                "hearth serve is ending and takes no new requests.",
                "Ask again when it runs.",
                retry_after_s=RETRY_S,
            )
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
