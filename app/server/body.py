"""Reading a request's JSON strictly: size before parsing, then only what JSON and UTF-8 allow."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, HTTPConnection, Request

from hearth.app.server.errors import BodyTooLarge, ClientGone, UnsupportedMedia
from hearth.app.server.services import services_of
from hearth.backends.errors import InvalidParameter, LimitExceeded

T = TypeVar("T")
MOST_BYTES: Final = 10 << 20
DEEPEST: Final = 32
MOST_VALUES: Final = 250_000
_LARGE_BYTES: Final = 256 << 10
"""Larger bodies take longer to parse than a request may wait for another's."""
_SCALARS: Final = {int, bool, type(None)}


async def read_object(request: Request, take: Callable[[dict[str, Any]], T]) -> T:
    """What `take` makes of the JSON object in the body of `request`. Large bodies are parsed and
    taken in a thread, one of each client at a time, so that other requests do not wait for them.

    Raises:
        UnsupportedMedia: the body is compressed, or its content type is not application/json and
            `security.is_undeclared_json` does not apply. A page of another site can send other
            types without a CORS preflight, but not JSON.
        BodyTooLarge: more than `MOST_BYTES`.
        InvalidParameter: not one JSON object; NaN, infinities, numbers too large for a double,
            names that come twice, lone surrogates, more than `DEEPEST` levels or `MOST_VALUES`
            values.
        ClientGone: the client left before the end of the body.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not getattr(request.state, "undeclared_json", False):
        raise UnsupportedMedia(
            f"The content type is {kind[:100] or 'missing'}.",
            "Send the header Content-Type: application/json.",
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMedia("The body is compressed.", "Send it as it is.")
    body = await _read(request)

    def work() -> T:
        value = parse(body)
        if not isinstance(value, dict):
            raise _malformed(f"The body is a JSON {type(value).__name__}, not an object")
        return take(value)

    if len(body) <= _LARGE_BYTES:
        return work()
    return await asyncio.wrap_future(services_of(request).bodies.submit(client_of(request), work))


def client_of(connection: HTTPConnection) -> str:
    """Who sends a request that names no `user`: the API key, else address and User-Agent."""
    headers = connection.headers
    key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
    if key:
        return f"http key {sha256(key.encode()).hexdigest()[:16]}"
    host = connection.client.host if connection.client else ""
    name = f"{host} {headers.get('user-agent', '')}".strip()
    return f"http {name if len(name.encode()) <= 100 else sha256(name.encode()).hexdigest()}"


async def _read(request: Request) -> bytearray:
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdecimal() and len(declared) < 20:
        _check_size(int(declared))
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            _check_size(len(body))
    except ClientDisconnect as error:
        raise ClientGone("The client left in the middle of its request.") from error
    return body


def _check_size(size_bytes: int) -> None:
    if size_bytes > MOST_BYTES:
        raise BodyTooLarge(
            f"The body has {size_bytes:,} bytes or more; at most {MOST_BYTES:,} are read.",
            "Send less at a time.",
        )


def parse(body: bytes | bytearray) -> Any:
    """The value that `body` writes in JSON. Raises `InvalidParameter` as `read_object` does."""
    _check_count(body)
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_object)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # JSON, UTF-8, or a whole number of thousands of digits
        raise _malformed(f"The body is not JSON: {error}") from error
    _check_shape(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has the same name twice")
    return found


def _check_count(body: bytes | bytearray) -> None:
    """Refuse too many values before any is made. Between two of an array or object there is a
    comma, outside of texts; a value is one text at most, and so is its name.
    """
    if body.count(b",") < MOST_VALUES:
        return
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if unescaped.count(b'"') // 2 > 2 * MOST_VALUES:
        raise _too_many()
    if sum(part.count(b",") for part in unescaped.split(b'"')[::2]) >= MOST_VALUES:
        raise _too_many()


def _check_shape(value: Any) -> None:
    level, count = [value], 0
    for _ in range(DEEPEST):
        below: list[Any] = []
        # Lists of hundreds of thousands of token ids need no look at each.
        for item in level if set(map(type, level)) - _SCALARS else ():
            if isinstance(item, str):
                _check_text(item)
            elif isinstance(item, float):
                if not math.isfinite(item):
                    raise _not_finite(value)
            elif isinstance(item, dict):
                for name in item:
                    _check_text(name)
                below += item.values()
            elif isinstance(item, list):
                below += item
        count += len(below)
        if count > MOST_VALUES:
            raise _too_many()
        if not below:
            return
        level = below
    raise _too_deep()


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _malformed("A text in the body has a lone surrogate, which UTF-8 lacks") from error


def _not_finite(value: Any) -> InvalidParameter:
    """For the first NaN or infinity in `value`, which Python reads and JSON lacks; so does a number
    that is too large for a double.
    """
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        place, item = pending.pop()
        if isinstance(item, float) and not math.isfinite(item):
            break
        if isinstance(item, dict):
            named = [(f"{place}.{name[:100]}".lstrip("."), each) for name, each in item.items()]
            pending += reversed(named)
        elif isinstance(item, list):
            pending += reversed([(f"{place}[{at}]", each) for at, each in enumerate(item)])
    return InvalidParameter(
        place, f"{place or 'The body'} is {item}, which is no JSON number.", "Send a finite number."
    )


def _too_many() -> LimitExceeded:
    return LimitExceeded("", f"The body has more than {MOST_VALUES:,} values.", "Send less.")


def _too_deep() -> LimitExceeded:
    return LimitExceeded("", f"The body is nested deeper than {DEEPEST} levels.", "Flatten it.")


def _malformed(message: str) -> InvalidParameter:
    return InvalidParameter("", f"{message}.", "Send one JSON object in UTF-8.")
