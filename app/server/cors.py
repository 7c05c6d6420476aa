"""Pages of other sites that may ask (CORS): only those that `hearth serve --cors-origin` names."""

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
"""What the clients of OpenAI and Anthropic say of themselves; the names are theirs to add to."""


def parse_origin(text: str) -> str:
    """`text` as browsers write that origin.

    Raises:
        InvalidParameter: it is none: scheme, host and perhaps a port, each spelled out.
    """
    found = _ORIGIN.fullmatch(text.strip())
    port_is_right = found is not None and (found[3] is None or 0 < int(found[3]) < 65536)
    if found is None or not port_is_right:
        raise InvalidParameter(
            "cors_origin",
            f'"{text[:100]}" is not the origin of a page.',
            "Name each one as browsers do: --cors-origin https://chat.example.org.",
        )
    scheme, host = found[1].lower(), found[2].lower()
    port = int(found[3] or 0)
    unusual = port not in (0, _USUAL_PORTS.get(scheme))
    return f"{scheme}://{host}:{port}" if unusual else f"{scheme}://{host}"


def named_page(origins: frozenset[str], headers: Headers) -> str:
    """The origin of the page that asks if it is one of `origins`, else nothing."""
    given = headers.get(b"origin", [])
    origin = given[0].decode("latin-1") if len(given) == 1 else ""
    return origin if origin in origins else ""


def is_preflight(method: str, headers: Headers) -> bool:
    """The browser asks on its own behalf whether a page may send a request."""
    return method == "OPTIONS" and b"access-control-request-method" in headers


def preflight(headers: Headers) -> Response:
    """What a named page may send."""
    wanted = b",".join(headers.get(b"access-control-request-headers", [])).decode("latin-1")
    more = {name for name in re.split(r"[,\s]+", wanted.lower()) if _is_of_a_client(name)}
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
    """The headers by which a browser hands a response to `page`; without credentials."""
    return [
        (b"access-control-allow-origin", page.encode("latin-1")),
        (b"access-control-expose-headers", b"retry-after, x-should-retry"),
    ]
