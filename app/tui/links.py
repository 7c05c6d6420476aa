"""Links in answers, which are opened only after the user has seen and confirmed the host."""

from __future__ import annotations

from urllib.parse import urlsplit

from hearth.backends.errors import InvalidParameter

_SCHEMES = ("http", "https")


def host_of(url: str) -> str:
    """Host of `url`, and port if given, in ASCII, which exposes look-alike letters.

    Raises:
        InvalidParameter: `url` is not an HTTP address with a host, or it contains a user name.
    """
    try:
        parts = urlsplit(url.strip())
        host = (parts.hostname or "").encode("idna").decode()
        port = parts.port
    except (UnicodeError, ValueError):
        parts, host, port = None, "", None
    if parts is None or parts.scheme not in _SCHEMES or not host or parts.username is not None:
        raise InvalidParameter(
            "link", f"{url[:200]} is not an address that a browser should open.", "Copy it instead."
        )
    return host if port is None else f"{host}:{port}"
