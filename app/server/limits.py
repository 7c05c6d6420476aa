"""How much a client may send before its request is looked at, and how long it may take."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from starlette.types import Scope

from hearth.backends.errors import Busy, HearthError

MOST_HEADERS: Final = 100
MOST_HEAD_BYTES: Final = 64 << 10
MOST_URL_BYTES: Final = 8 << 10
MOST_CONNECTIONS: Final = 1024
HEAD_S: Final = 20.0
"""How long a client may take from its first byte (or from connecting) to the end of its headers."""
BODY_S: Final = 60.0
"""How long it may take from there to the end of the body."""
FREE_PIECES: Final = 10_000
LEAST_PIECE_BYTES: Final = 8
"""A body in more pieces than `FREE_PIECES` must have so many bytes a piece on average: each costs
as much time as a page of text.
"""
_SPARE_FILES: Final = 64
"""Open files that are left to everything but connections."""


class Unreadable(HearthError):
    """A request that is not read to its end, so that its connection is closed."""

    code = "unreadable"
    http_status = 400


class MalformedRequest(Unreadable):
    """What came is no HTTP, or HTTP that others might read differently."""

    code = "malformed_request"
    http_status = 400


class RequestTimeout(Unreadable):
    """The request did not arrive in time."""

    code = "request_timeout"
    http_status = 408


class UrlTooLong(Unreadable):
    """Path and query have more bytes than any URL of ours."""

    code = "url_too_long"
    http_status = 414


class HeadersTooLarge(Unreadable):
    """More headers, or more bytes of them, than are read."""

    code = "headers_too_large"
    http_status = 431


class TooManyConnections(Busy):
    """As many clients are connected as may be."""

    code = "too_many_connections"
    http_status = 503


def headers_too_large() -> HeadersTooLarge:
    """For a request of more than `MOST_HEADERS` or `MOST_HEAD_BYTES`."""
    return HeadersTooLarge(
        f"The request has more than {MOST_HEADERS} headers or {MOST_HEAD_BYTES >> 10} KiB of them.",
        "Send fewer.",
    )


def check_head(scope: Scope, headers: Mapping[bytes, list[bytes]]) -> None:
    """Let the head of an HTTP request pass.

    Args:
        headers: those of `scope`, values by lower-case name.

    Raises:
        HeadersTooLarge, UrlTooLong: by the numbers above.
        MalformedRequest: two lengths (request smuggling), or a WebSocket.
    """
    found = scope["headers"]
    size_bytes = sum(len(name) + len(value) + 4 for name, value in found)
    if len(found) > MOST_HEADERS or size_bytes > MOST_HEAD_BYTES:
        raise headers_too_large()
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MOST_URL_BYTES:
        raise UrlTooLong(
            f"The URL has more than {MOST_URL_BYTES >> 10} KiB.", "Parameters go into the body."
        )
    if b"content-length" in headers and b"transfer-encoding" in headers:
        raise MalformedRequest(
            "The request has both a Content-Length and a Transfer-Encoding.", "Send one of them."
        )
    if any(b"websocket" in value.lower() for value in headers.get(b"upgrade", ())):
        raise MalformedRequest("There are no WebSockets here.", "Streams are server-sent events.")


def most_connections() -> int:
    """`MOST_CONNECTIONS`, or as many as this process may have files open."""
    if sys.platform == "win32":
        return MOST_CONNECTIONS
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, files - _SPARE_FILES))
