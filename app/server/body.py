"""Reads a request's query and, strictly, its JSON body, whose size is checked before parsing."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, HTTPConnection, Request

from hearth.app.server.errors import BodyTooLarge, ClientGone, UnsupportedMedia
from hearth.app.server.leaving import until_gone
from hearth.app.server.schema import Reading, shown
from hearth.app.server.services import services_of
from hearth.backends.errors import InvalidParameter, LimitExceeded

T = TypeVar("T")
MOST_BYTES: Final = 10 << 20
DEEPEST: Final = 32
MOST_VALUES: Final = 250_000
_LARGE_BYTES: Final = 256 << 10
"""Larger bodies are parsed in a thread: parsing them would delay other requests noticeably."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SCALARS: Final = {int, bool, type(None)}


async def read_object(request: Request, take: Callable[[dict[str, Any]], T], reading: Reading) -> T:
    """The result of `take` for the JSON object in the body of `request`.

    Large bodies are parsed, and passed to `take`, in a thread, one per client at a time, so that
    other requests do not wait for them. Lone surrogates in values become U+FFFD, which `reading`
    records: clients cut texts within an emoji, and then send them with every request of that
    conversation.

    Raises:
        UnsupportedMedia: the body is compressed, or its content type is not application/json and
            `security.is_undeclared_json` does not apply. A page of another site can send other
            types without a CORS preflight, but not JSON.
        BodyTooLarge: the body has more than `MOST_BYTES` bytes.
        InvalidParameter: the body is not a JSON object, or contains NaN, infinities, numbers too
            large for a double, duplicate names, or lone surrogates in names.
        LimitExceeded: the body has more than `DEEPEST` levels or `MOST_VALUES` values.
        TooManyBodies: the bodies counted in `Services.held` take too much memory.
        ClientGone: the client disconnected before the body was parsed.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not getattr(request.state, "undeclared_json", False):
        raise UnsupportedMedia(
            f"The content type is {kind[:100] or 'missing'}.",
            "Send the header Content-Type: application/json.",
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMedia(
            "The body is compressed, which is not supported.", "Send it without Content-Encoding."
        )
    services, client, body = services_of(request), client_of(request), bytearray()

    def work() -> T:
        value = parse(body, reading)
        if not isinstance(value, dict):
            raise _malformed(f"The body must be a JSON object, not {shown(value)}")
        return take(value)

    counted_bytes = 0
    try:
        async for piece in _pieces(request):
            body += piece
            _check_size(len(body))
            if len(body) > _LARGE_BYTES:
                services.held.add(client, len(body) - counted_bytes)
                counted_bytes = len(body)
        if len(body) <= _LARGE_BYTES:
            return work()
        parsed = asyncio.wrap_future(services.bodies.submit(client, work))
        return await until_gone(request.receive, parsed)
    finally:
        if counted_bytes:
            services.held.remove(client, counted_bytes)


def query(http: Request, *names: str) -> dict[str, str]:
    """The query parameters in `names` that the URL has; others have no effect.

    Raises:
        InvalidParameter: one of `names` is given twice.
    """
    given: dict[str, str] = {}
    for name, value in http.query_params.multi_items():
        if name in given:
            raise InvalidParameter(name, f"{name} is given twice in the URL.", "Send it once.")
        if name in names:
            given[name] = value
    return given


def client_of(connection: HTTPConnection) -> str:
    """The identity of a client that sends no `user`: its API key, else address and User-Agent."""
    headers = connection.headers
    key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
    if key:
        return f"http key {sha256(key.encode()).hexdigest()[:16]}"
    host = connection.client.host if connection.client else ""
    name = f"{host} {headers.get('user-agent', '')}".strip()
    return f"http {name if len(name.encode()) <= 100 else sha256(name.encode()).hexdigest()}"


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises `BodyTooLarge` and `ClientGone`."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdecimal() and len(declared) < 20:
        _check_size(int(declared))
    try:
        async for piece in request.stream():
            yield piece
    except ClientDisconnect as error:
        raise ClientGone("The client disconnected before the end of its request.") from error


def _check_size(size_bytes: int) -> None:
    if size_bytes > MOST_BYTES:
        raise BodyTooLarge(
            f"The body has {size_bytes:,} bytes or more; the limit is {MOST_BYTES:,}.",
            "Send a smaller request.",
        )


def parse(body: bytes | bytearray, reading: Reading) -> Any:
    """The value of the JSON text `body`, with its lone surrogates replaced.

    Raises `InvalidParameter` and `LimitExceeded` as `read_object` does.
    """
    _check_count(body)
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_object)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # JSON, UTF-8, or a whole number of thousands of digits
        raise _malformed(f"The body is not JSON: {error}") from error
    if not _check_shape(value):
        return value
    reading.has_surrogates = True
    return without_surrogates(value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has a duplicate name")
    return members


def _check_count(body: bytes | bytearray) -> None:
    """Refuse a body with too many values before they are created.

    Values are separated by commas outside of strings, and each has at most two strings (its name
    and itself).
    """
    if body.count(b",") < MOST_VALUES:
        return
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    has_many_strings = unescaped.count(b'"') // 2 > 2 * MOST_VALUES
    if has_many_strings or sum(p.count(b",") for p in unescaped.split(b'"')[::2]) >= MOST_VALUES:
        raise _too_many()


def _check_shape(value: Any) -> bool:
    """Check the size, the numbers and the names of `value`.

    Returns:
        Whether a string in it has a lone surrogate.
    """
    level, count, has_surrogates = [value], 0, False
    for _ in range(DEEPEST):
        below: list[Any] = []
        # Arrays of only integers, such as token ids, need no check of each item.
        for item in level if set(map(type, level)) - _SCALARS else ():
            if isinstance(item, str):
                has_surrogates |= _has_surrogates(item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise _not_finite(value)
            elif isinstance(item, dict):
                if any(map(_has_surrogates, item)):
                    raise _malformed("A name in the body is not valid Unicode: a lone surrogate")
                below += item.values()
            elif isinstance(item, list):
                below += item
        count += len(below)
        if count > MOST_VALUES:
            raise _too_many()
        if not below:
            return has_surrogates
        level = below
    raise _too_deep()


def _has_surrogates(text: str) -> bool:
    """Whether `text`, decoded from JSON, has lone surrogates; pairs became one character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def without_surrogates(value: Any) -> Any:
    """`value` with U+FFFD in place of each lone surrogate in its strings and names."""
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, list):
        return [without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {without_surrogates(name): without_surrogates(item) for name, item in value.items()}
    return value


def _not_finite(value: Any) -> InvalidParameter:
    """The error for the first number of `value` that is not finite: NaN, an infinity, or a number
    too large for a double.
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
        place,
        f"{place or 'The body'} is {item}, which is not a JSON number.",
        "Send a finite number.",
    )


def _too_many() -> LimitExceeded:
    return LimitExceeded(
        "", f"The body has more than {MOST_VALUES:,} values.", "Send a smaller request."
    )


def _too_deep() -> LimitExceeded:
    return LimitExceeded(
        "", f"The body is nested deeper than {DEEPEST} levels.", "Nest values less deeply."
    )


def _malformed(message: str) -> InvalidParameter:
    return InvalidParameter("", f"{message}.", "Send a JSON object in UTF-8.")
