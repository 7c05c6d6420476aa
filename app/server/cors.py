"""CORS: pages of other sites are allowed only if `hearth serve --cors-origin` names the site."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from hearth.backends.errors import InvalidParameter

Headers = Mapping[bytes, list[bytes]]

_ORIGIN: Final = re.compile(
    r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?/?", re.IGNORECASE
)
_USUAL_PORTS: Final = {"http": 80, "https": 443}
_REMEMBER_S: Final = 600
_ALLOWED_HEADERS: Final = (
    "authorization",
    "content-type",
    "x-api-key",
    "anthropic-version",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "openai-beta",
    "openai-organization",
    "openai-project",
    "idempotency-key",
)
_ALLOWED_PREFIX: Final = "x-stainless-"
"""Headers in which the clients of OpenAI and Anthropic describe themselves."""


def parse_origin(text: str) -> str:
    """`text` in the form in which browsers send that origin.

    Raises:
        InvalidParameter: it is not scheme, host and optionally port; wildcards are not supported.
    """
    match = _ORIGIN.fullmatch(text.strip())
    port_is_right = match is not None and (match[3] is None or 0 < int(match[3]) < 65536)
    if match is None or not port_is_right:
        raise InvalidParameter(
            "cors_origin",
            f'"{text[:100]}" is not an origin.',
            "Give scheme and host in full: --cors-origin https://chat.example.org.",
        )
    scheme, host = match[1].lower(), match[2].lower()
    port = int(match[3] or 0)
    unusual = port not in (0, _USUAL_PORTS.get(scheme))
    return f"{scheme}://{host}:{port}" if unusual else f"{scheme}://{host}"


def named_page(origins: frozenset[str], headers: Headers) -> str:
    """The request's origin if it is one of `origins`, else an empty string."""
    given = headers.get(b"origin", [])
    origin = given[0].decode("latin-1") if len(given) == 1 else ""
    return origin if origin in origins else ""


def is_preflight(method: str, headers: Headers) -> bool:
    """Whether the request is a CORS preflight."""
    return method == "OPTIONS" and b"access-control-request-method" in headers


def preflight(headers: Headers) -> Response:
    """The answer to the preflight of an allowed page."""
    asked = b",".join(headers.get(b"access-control-request-headers", [])).decode("latin-1")
    more = {name for name in re.split(r"[,\s]+", asked.lower()) if _is_of_a_client(name)}
    return Response(
        status_code=204,
        headers={
            "access-control-allow-methods": "GET, POST, DELETE",
            "access-control-allow-headers": ", ".join([*_ALLOWED_HEADERS, *sorted(more)]),
            "access-control-max-age": str(_REMEMBER_S),
        },
    )


def _is_of_a_client(name: str) -> bool:
    return re.fullmatch(rf"{_ALLOWED_PREFIX}[a-z0-9-]+", name) is not None


def sharing(page: str) -> list[tuple[bytes, bytes]]:
    """The headers that let a browser pass a response on to `page`; without credentials."""
    return [
        (b"access-control-allow-origin", page.encode("latin-1")),
        (b"access-control-expose-headers", b"retry-after, x-should-retry, hearth-notices"),
    ]
