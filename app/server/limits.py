"""Limits on the size and duration of a request, checked before its contents."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Final

from starlette.types import Scope

from hearth.backends.errors import Busy, HearthError

MOST_HEADERS: Final = 100
MOST_HEAD_BYTES: Final = 64 << 10
MOST_URL_BYTES: Final = 8 << 10
MOST_CONNECTIONS: Final = 1024
HEAD_S: Final = 20.0
"""Time from the first byte (or from connecting) to the end of the headers."""
BODY_S: Final = 60.0
"""Time from the end of the headers to the end of the body."""
STALL_S: Final = 60.0
"""How long a client may read nothing of a response that it has not read completely."""
FREE_PIECES: Final = 10_000
LEAST_PIECE_BYTES: Final = 8
"""Least mean size of the chunks of a body with more than `FREE_PIECES`: each chunk costs as much
time as a kilobyte of content.
"""
MOST_HELD_BYTES: Final = 256 << 20
"""Maximum total size of large bodies that are being received or wait to be parsed."""
_SPARE_FILES: Final = 64
"""Number of open files reserved for everything except connections."""


class Unreadable(HearthError):
    """A request that is not read completely, so that its connection is closed."""

    code = "unreadable"
    http_status = 400


class MalformedRequest(Unreadable):
    """The request is not HTTP, or is ambiguous HTTP."""

    code = "malformed_request"


class RequestTimeout(Unreadable):
    """The request did not arrive in time."""

    code = "request_timeout"
    http_status = 408


class UrlTooLong(Unreadable):
    """Path and query are longer than any URL of this server."""

    code = "url_too_long"
    http_status = 414


class HeadersTooLarge(Unreadable):
    """The request has more headers, or more bytes of headers, than are accepted."""

    code = "headers_too_large"
    http_status = 431


class TooManyConnections(Busy):
    """The limit of connections is reached."""

    code = "too_many_connections"
    http_status = 503


class TooManyBodies(Busy):
    """Large bodies take all the memory reserved for them, or one client's take half of it."""

    code = "too_many_bodies"
    http_status = 503


class HeldBodies:
    """Counts, by client, the bytes of large bodies that are being received or wait to be parsed.

    One client has at most half of `most_bytes`.
    """

    def __init__(self, most_bytes: int = MOST_HELD_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: Counter[str] = Counter()

    def add(self, client: str, size_bytes: int) -> None:
        """Count `size_bytes` more of `client`. Raises `TooManyBodies`."""
        total, own = self._held.total() + size_bytes, self._held[client] + size_bytes
        if total > self._most_bytes or own > self._most_bytes // 2:
            raise TooManyBodies(
                "Large requests that are being read take all the memory for them,"
                f" {self._most_bytes:,} bytes, or one client's take half of it.",
                "Retry soon, or send fewer large requests at the same time.",
                retry_after_s=1,
            )
        self._held[client] = own

    def remove(self, client: str, size_bytes: int) -> None:
        """Stop counting `size_bytes` of `client`."""
        self._held[client] -= size_bytes
        if not self._held[client]:
            del self._held[client]


def headers_too_large() -> HeadersTooLarge:
    """The error for a request with more than `MOST_HEADERS` or `MOST_HEAD_BYTES`."""
    return HeadersTooLarge(
        f"The request has more than {MOST_HEADERS} headers or {MOST_HEAD_BYTES >> 10} KiB of them.",
        "Send fewer or shorter headers.",
    )


def check_head(scope: Scope, headers: Mapping[bytes, list[bytes]]) -> None:
    """Check the headers and URL of an HTTP request.

    Args:
        headers: the headers of `scope`: values by lower-case name.

    Raises:
        HeadersTooLarge, UrlTooLong: a limit above is exceeded.
        MalformedRequest: two lengths (request smuggling), or a WebSocket request.
    """
    lines = scope["headers"]
    size_bytes = sum(len(name) + len(value) + 4 for name, value in lines)
    if len(lines) > MOST_HEADERS or size_bytes > MOST_HEAD_BYTES:
        raise headers_too_large()
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MOST_URL_BYTES:
        raise UrlTooLong(
            f"The URL is longer than {MOST_URL_BYTES >> 10} KiB.", "Send parameters in the body."
        )
    if b"content-length" in headers and b"transfer-encoding" in headers:
        raise MalformedRequest(
            "The request has both Content-Length and Transfer-Encoding.", "Send only one of them."
        )
    if any(b"websocket" in value.lower() for value in headers.get(b"upgrade", ())):
        raise MalformedRequest(
            "WebSockets are not supported.", "Use streaming responses (server-sent events)."
        )


def most_connections() -> int:
    """`MOST_CONNECTIONS`, or fewer if the process may open fewer files."""
    if sys.platform == "win32":
        return MOST_CONNECTIONS
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, files - _SPARE_FILES))
