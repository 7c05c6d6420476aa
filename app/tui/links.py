"""Links that stand in answers: opened on a person's word alone, who sees where they lead."""

from __future__ import annotations

from urllib.parse import urlsplit

from hearth.backends.errors import InvalidParameter

_SCHEMES = ("http", "https")


def host_of(url: str) -> str:
    """The host that `url` leads to, in ASCII: letters that look alike are seen for what they are.

    Raises:
        InvalidParameter: it leads to no host by HTTP.
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
