"""Turns errors that a server reports, by status or in a stream, into `HearthError`s."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from hearth.backends.errors import (
    Busy,
    ErrorInfo,
    HearthError,
    InvalidParameter,
    PromptTooLong,
    UnsupportedParameter,
    from_info,
)
from hearth.backends.remote.errors import (
    RemoteDenied,
    RemoteError,
    RemoteFailed,
    RemoteInterrupted,
    RemoteKeyMissing,
    RemoteMalformed,
    RemoteModelMissing,
    RemoteTimeout,
)
from hearth.backends.remote.server import RemoteServer

ASK_AGAIN: Final = "Ask again; if it happens again, look into the log of that server."
_LONGEST_QUOTE: Final = 400
_RETRY_AFTER_S: Final = 1.0
"""Default for a busy server that sends no `Retry-After`."""
_PARAMS: Final[Mapping[str, str]] = {
    "user": "session",
    "top_logprobs": "logprobs",
    "max_completion_tokens": "max_tokens",
    "response_format": "constraint",
    "structured_outputs": "constraint",
    "regex": "constraint",
    "grammar": "constraint",
    "chat_template_kwargs": "template_values",
    "reasoning_effort": "template_values",
    "continue_final_message": "continue_last",
    "cache_prompt": "reuse_prefix",
    "cache_salt": "reuse_prefix",
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "repetition_window",
    "dry_penalty_last_n": "dry_window",
}
"""The contract's names of parameters, by the names that were sent."""
_TOO_LONG_CODES: Final = ("context_length_exceeded", "exceed_context_size_error")
_TOO_LONG: Final = re.compile(
    r"maximum (context|model) length|max_model_len|longer than the (model's )?context|"
    r"exceeds? the (available )?(model'?s )?(maximum )?context",
    re.IGNORECASE,
)
_STATUS: Final[Mapping[str, int]] = {
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "authentication_error": 401,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "unavailable_error": 503,
}
"""HTTP status by the type of an error in a stream, where errors have a type but no status."""
_KINDS: Final[Mapping[int, tuple[type[RemoteError], str]]] = {
    401: (RemoteDenied, "failed"),
    403: (RemoteDenied, "failed"),
    404: (RemoteModelMissing, "answers"),
    408: (RemoteTimeout, "gave up"),
    504: (RemoteTimeout, "gave up"),
}
"""Error class by status, and the verb for the message."""
_OURS: Final = ("worker_died", "does_not_fit", "no_chat_template", "template_error")
"""Codes of another Hearth that keep their meaning here."""


_NO_REASONS: Final = (None, "Not Found")
"""What a 404 says if nothing is at its URL; FastAPI answers "Not Found"."""


def refused(
    server: RemoteServer, status: int, headers: Mapping[str, str], body: bytes
) -> HearthError:
    """The error for an answer with `status`, whose body may give a reason in any known format."""
    said = _error_in(server, body)
    if 300 <= status < 400:
        return server.error(
            RemoteMalformed,
            f"at {server.url} redirects to another address (HTTP {status}); Hearth sends nothing"
            " there.",
            f"Write the final address into url of remotes.{server.name}.",
        )
    if not said and is_page(headers, body):
        return not_an_api(server, f"answers {status} with a web page")
    if status in (401, 403):
        return _denied(server, status, said)
    if status == 404 and said.get("message") in _NO_REASONS:
        return not_an_api(server, "answers 404 (nothing there)")
    return _by_status(server, status, said, retry_after_s(headers))


def reported(server: RemoteServer, error: Any) -> HearthError:
    """The error for an object or text in a stream in place of a chunk."""
    said = _said(server, error)
    code = said.get("status") or said.get("code")
    if isinstance(code, int) and 400 <= code < 600:
        status = code
    else:
        status = _STATUS.get(str(said.get("type")), 500)
    return _by_status(server, status, said, _RETRY_AFTER_S)


def error_in(value: Any) -> Any:
    """The error in a JSON object, in any known format; None if there is none."""
    if not isinstance(value, dict):
        return None
    if value.get("error"):
        return value["error"]
    if value.get("object") == "error":  # vLLM and SGLang, before they nested it
        return value
    detail = value.get("detail")  # FastAPI
    return (
        {"message": json.dumps(detail) if isinstance(detail, list) else detail} if detail else None
    )


def not_an_api(server: RemoteServer, what: str) -> RemoteMalformed:
    """The error for a URL without an OpenAI-style API."""
    return server.error(
        RemoteMalformed,
        f"at {server.url} {what}, not as an OpenAI-style API does.",
        f"Correct url of remotes.{server.name}; most servers' ends in /v1.",
    )


def model_missing(server: RemoteServer, model: str, names: Sequence[str]) -> RemoteModelMissing:
    """The error for a server that has the models `names`, but not `model`."""
    shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
    return RemoteModelMissing(
        f"{server.url} has no model called {model!r}."
        if model
        else f"{server.url} has {len(names)} models, and {server.name} does not say which.",
        f"It has {shown}: set model of remotes.{server.name} to one of them."
        if names
        else "It has none now: start it with one.",
        remote=server.name,
        names=list(names[:100]),
    )


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds to wait before a retry, from `Retry-After` in either of its forms."""
    text = headers.get("retry-after", "")
    try:
        wait_s = float(text)
    except ValueError:
        try:
            wait_s = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return _RETRY_AFTER_S
    return max(0.0, wait_s) if math.isfinite(wait_s) else _RETRY_AFTER_S


def quoted(text: object) -> str:
    """`text` of another machine, joined into one line and shortened."""
    line = " ".join(str(text).split())
    return line if len(line) <= _LONGEST_QUOTE else line[: _LONGEST_QUOTE - 1] + "…"


def _error_in(server: RemoteServer, body: bytes) -> dict[str, Any]:
    try:
        error = error_in(json.loads(body))
    except (ValueError, RecursionError):
        return {}
    return _said(server, error) if error is not None else {}


def _said(server: RemoteServer, error: Any) -> dict[str, Any]:
    """The fields of an error; if its message contains the key, that is masked."""
    fields = dict(error) if isinstance(error, dict) else {"message": error}
    message = str(fields.get("message") or "no reason given")
    with suppress(RemoteKeyMissing):
        if key := server.key():
            message = message.replace(key, "[key]")
    fields["message"] = quoted(message)
    return fields


def is_page(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether an answer is a web page, as gateways and wrong addresses return."""
    return "html" in headers.get("content-type", "") or body.lstrip()[:1] == b"<"


def _denied(server: RemoteServer, status: int, said: dict[str, Any]) -> RemoteDenied:
    reason = f": {said['message']}" if said else ""
    what = "asks for a key"
    hint = f"Name a variable that has its key as key_env of remotes.{server.name}."
    if server.key_source:
        what = "refuses the key"
        hint = f"Put the key that it asks for into {server.key_source}."
    return server.error(RemoteDenied, f"at {server.url} {what} (HTTP {status}){reason}", hint)


def _by_status(
    server: RemoteServer, status: int, said: dict[str, Any], wait_s: float
) -> HearthError:
    """The error for `status`, with details from `said`."""
    message = said.get("message") or f"{server.name} answers HTTP {status}."
    code = said.get("code")
    hint = f"So says {server.name} at {server.url}."
    data = {"remote": server.name}
    if code in _TOO_LONG_CODES or said.get("type") in _TOO_LONG_CODES:
        return PromptTooLong("", message, "", **data)
    if code == "interrupted":
        return RemoteInterrupted(message, hint, **data)
    if code in _OURS:
        return from_info(ErrorInfo(str(code), message, hint, dict(data)))
    if status in (400, 413, 422):
        if _TOO_LONG.search(message):
            return PromptTooLong("", message, "", **data)
        return _parameter(said, message, hint, code)
    if status in (429, 503):
        return server.error(Busy, f"is busy: {message}", hint, retry_after_s=wait_s)
    kind, what = _KINDS.get(status, (RemoteFailed, "failed"))
    return server.error(kind, f"{what}: {message}", hint)


def _parameter(said: dict[str, Any], message: str, hint: str, code: object) -> InvalidParameter:
    param = said.get("param")
    name = param if isinstance(param, str) else ""
    ours = _PARAMS.get(name, name)
    if ours != name and message.startswith(name):
        message = ours + message.removeprefix(name)
    kind = UnsupportedParameter if code == UnsupportedParameter.code else InvalidParameter
    return kind(ours, message, hint)
