"""Errors as OpenAI's clients read them: a status, `{"error": {...}}`, and whether to try again."""

from __future__ import annotations

import logging
import math
from typing import Any, Final, cast

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from hearth.app.library.errors import LibraryNotRead
from hearth.backends.errors import (
    Busy,
    HearthError,
    HostUnreachable,
    InternalError,
    PromptTooLong,
    WorkerDied,
)
from hearth.backends.remote.errors import RemoteCut, RemoteTimeout, RemoteUnreachable

log = logging.getLogger(__name__)

ANTHROPIC: Final = "/v1/messages"
OLLAMA: Final = "/api/"
_INVALID: Final = "invalid_request_error"
_RETRY_HELPS: Final = (
    Busy,
    WorkerDied,
    HostUnreachable,
    RemoteUnreachable,
    RemoteTimeout,
    RemoteCut,
    LibraryNotRead,
)
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_CODES: Final = {PromptTooLong.code: "context_length_exceeded"}
"""Where programs look for OpenAI's name of an error."""


class InvalidKey(HearthError):
    """The API key is missing or wrong."""

    code = "invalid_api_key"
    http_status = 401


class Forbidden(HearthError):
    """The request comes from a page or by a host name that is not ours."""

    code = "forbidden"
    http_status = 403


class UnknownUrl(HearthError):
    """Nothing is served at this path."""

    code = "unknown_url"
    http_status = 404


class MethodNotAllowed(HearthError):
    """The path exists, but not for this method."""

    code = "method_not_allowed"
    http_status = 405


class BodyTooLarge(HearthError):
    """The body has more bytes than are read."""

    code = "body_too_large"
    http_status = 413


class UnsupportedMedia(HearthError):
    """The body is not plain JSON, by what its headers say."""

    code = "unsupported_media_type"
    http_status = 415


class ClientGone(HearthError):
    """Whoever asked has left, so that nobody reads this."""

    code = "client_gone"
    http_status = 499


class Interrupted(HearthError):
    """Somebody else ended the generation, for example `hearth stop`."""

    code = "interrupted"
    http_status = 503


def server_ended() -> Interrupted:
    """For those whose requests were running when `hearth serve` was ended."""
    return Interrupted("hearth serve was ended.", "Ask again when it runs.")


def as_hearth_error(error: Exception) -> HearthError:
    """The typed error for `error`; a defect is logged, and only its log is named to the client."""
    if isinstance(error, HearthError):
        return error
    if isinstance(error, HTTPException) and error.status_code == 404:
        return UnknownUrl("Nothing is served here.", "The endpoint's URLs begin with /v1/.")
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = sorted((error.headers or {}).get("Allow", "").split(", "))
        return MethodNotAllowed(
            "This URL does not take that method.",
            f"It takes {' and '.join(allowed)}.",
            allow=allowed,
        )
    log.error("answering a request", exc_info=error)
    return InternalError("Something went wrong inside Hearth; server.log has the details.")


def error_body(error: HearthError, path: str = "") -> dict[str, Any]:
    """`{"error": {"message", "type", "param", "code"}}`, each a string, `param` perhaps null; at
    the paths of other families (`ANTHROPIC`, `OLLAMA`) as their clients read it, with `param` and
    `code` beside.
    """
    status = error.http_status
    param = error.data.get("param")
    named: dict[str, str | None] = {
        "param": param if isinstance(param, str) and param else None,
        "code": _CODES.get(error.code, error.code),
    }
    if path.startswith(OLLAMA):
        return {"error": str(error), **named}
    if path.startswith(ANTHROPIC):
        kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else _INVALID)
        return {"type": "error", "error": {"type": kind, "message": str(error), **named}}
    kind = _TYPES.get(status, "server_error" if status >= 500 else _INVALID)
    return {"error": {"message": str(error), "type": kind, **named}}


def error_response(error: HearthError, path: str = "") -> Response:
    """The response for `error`.

    `Retry-After` stands in it where `retry_after_s` does in the error's data; `x-should-retry:
    false` where OpenAI's clients would try again in vain (by default they do so twice from 500 on),
    or would load again at once what somebody has unloaded.
    """
    headers = {}
    wait_s = error.data.get("retry_after_s")
    if isinstance(wait_s, int | float):
        headers["retry-after"] = str(max(1, math.ceil(wait_s)))
    retry_helps = isinstance(error, _RETRY_HELPS) and not error.data.get("unloaded")
    if error.http_status >= 500 and not retry_helps:
        headers["x-should-retry"] = "false"
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(cast("list[str]", error.data["allow"]))
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error_body(error, path), error.http_status, headers)
