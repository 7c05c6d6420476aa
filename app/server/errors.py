"""Error responses in the formats of the APIs: status, body, and whether to retry."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any, Final, cast

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from hearth.app.library.errors import LibraryNotRead
from hearth.app.nearest import did_you_mean
from hearth.app.server.endpoint import BaseUrls
from hearth.backends.errors import (
    Busy,
    HearthError,
    HostUnreachable,
    InternalError,
    Interrupted,
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
"""Codes that have another name in OpenAI's API."""


class InvalidKey(HearthError):
    """The API key is missing or wrong."""

    code = "invalid_api_key"
    http_status = 401


class Forbidden(HearthError):
    """The request comes from a page of another site, or its Host is not allowed."""

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
    """The body has more bytes than are accepted."""

    code = "body_too_large"
    http_status = 413


class UnsupportedMedia(HearthError):
    """According to its headers the body is not uncompressed JSON."""

    code = "unsupported_media_type"
    http_status = 415


class NotOffered(HearthError):
    """An operation of another server that is not implemented here."""

    code = "not_offered"
    http_status = 501


class ClientGone(HearthError):
    """The client has disconnected, so that nothing reads the response."""

    code = "client_gone"
    http_status = 499


def server_ended() -> Interrupted:
    """For requests that were running when `hearth serve` ended."""
    return Interrupted("hearth serve was stopped.", "Retry when it is running again.")


def unknown_url(path: str, known: Iterable[str], urls: BaseUrls) -> UnknownUrl:
    """The error for `path`, with the most similar path among `known`."""
    paths = list(known)
    ends = [one for one in paths if one != "/" and (path.endswith(one) or one.endswith(path))]
    near = f" Did you mean {max(ends, key=len)}?" if ends else did_you_mean(path[:100], paths)
    return UnknownUrl(
        f"Nothing is served at {path[:100]}.{near}",
        f"Base URLs of this server: {urls.openai} for OpenAI clients, {urls.anthropic} for"
        f" Anthropic and Ollama clients; {urls.anthropic}/docs lists every URL.",
    )


def as_hearth_error(error: Exception) -> HearthError:
    """The typed error for `error`; a defect is logged, and the client is referred to the log."""
    if isinstance(error, HearthError):
        return error
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = sorted((error.headers or {}).get("Allow", "").split(", "))
        return MethodNotAllowed(
            "This URL does not support that method.",
            f"Use {' or '.join(allowed)}.",
            allow=allowed,
        )
    log.error("unexpected error in a request", exc_info=error)
    return InternalError("Internal error; see server.log for details.")


def error_body(error: HearthError, path: str = "") -> dict[str, Any]:
    """`{"error": {"message", "type", "param", "code"}}`, each a string; `param` may be null.

    On the paths of other APIs (`ANTHROPIC`, `OLLAMA`), the body has their format, with `param` and
    `code` added.
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
        details = {"details": error.data["details"]} if "details" in error.data else {}
        return {"type": "error", "error": {"type": kind, "message": str(error), **named, **details}}
    kind = _TYPES.get(status, "server_error" if status >= 500 else _INVALID)
    return {"error": {"message": str(error), "type": kind, **named}}


def error_response(error: HearthError, path: str = "") -> Response:
    """The response for `error`.

    It has `Retry-After` if the error's data has `retry_after_s`. OpenAI's clients retry twice from
    status 500 on; `x-should-retry: false` is set if retrying would not help, or would reload a
    model that was just unloaded on purpose.
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
