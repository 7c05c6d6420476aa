"""Who may ask: requests by our own name, from no foreign page, with the key if there is one."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from hearth.app.server.errors import Forbidden, InvalidKey, error_response
from hearth.backends.errors import HearthError, InvalidParameter

OPEN_PATHS: Final = ("/health",)
"""Asked for without a key."""
_AUTHORITY: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_KEY: Final = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Policy:
    """What a request must say.

    Attributes:
        names: host names that are ours, besides `localhost`.
        addresses: any address of this machine is ours; otherwise only loopback. A page that was
            rebound to us by DNS always asks by a name.
        key: the API key; empty if there is none.
    """

    names: frozenset[str] = frozenset()
    addresses: bool = False
    key: str = ""

    def check(self, path: str, headers: Mapping[bytes, list[bytes]]) -> None:
        """Let a request pass.

        Args:
            headers: values by lower-case name.

        Raises:
            Forbidden: by Host, Origin or Sec-Fetch-Site.
            InvalidKey: the key is missing or wrong.
        """
        hosts = [value.decode("latin-1") for value in headers.get(b"host", [])]
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            raise Forbidden(
                f"The host {' and '.join(hosts)[:100] or '(none)'} is not a name of this server.",
                "Ask by the address that hearth serve printed.",
            )
        host = hosts[0].lower()
        own = (f"http://{host}", f"https://{host}")
        for origin in headers.get(b"origin", []):
            if origin.decode("latin-1").lower() not in own:
                raise Forbidden("Pages of other sites may not ask this server.")
        if b"cross-site" in headers.get(b"sec-fetch-site", []):
            raise Forbidden("Pages of other sites may not ask this server.")
        if self.key and path not in OPEN_PATHS:
            self._check_key(headers.get(b"authorization", []))

    def _is_ours(self, authority: str) -> bool:
        found = _AUTHORITY.fullmatch(authority)
        if found is None or (found[2] is not None and not 0 < int(found[2]) < 65536):
            return False
        name = found[1].lower()
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name == "localhost" or name in self.names
        return address.is_loopback or self.addresses

    def _check_key(self, values: list[bytes]) -> None:
        scheme, _, given = (values[0] if len(values) == 1 else b"").partition(b" ")
        right = hmac.compare_digest(given.strip(), self.key.encode())
        if scheme.lower() != b"bearer" or not right:
            raise InvalidKey(
                "The API key is wrong." if given else "An API key is needed.",
                "Send it as Authorization: Bearer KEY.",
            )


def policy_for(host: str, address: str, key: str) -> Policy:
    """The policy of a server that was asked to listen on `host`, and so listens on `address`.

    Raises:
        InvalidParameter: others could reach it, and there is no key; or the key fits no header.
    """
    if key and not _KEY.fullmatch(key):
        raise InvalidParameter(
            "api_key",
            "The API key must be of visible ASCII characters, without spaces.",
            "Choose another, such as that of: python -c 'import secrets;"
            " print(secrets.token_urlsafe())'",
        )
    reachable = not ipaddress.ip_address(address).is_loopback
    if reachable and not key:
        raise InvalidParameter(
            "host",
            f"{host} can be reached from other machines, and no API key is set.",
            "Set one in HEARTH_API_KEY, or leave the host at 127.0.0.1.",
        )
    return Policy(frozenset({host.lower()}), reachable, key)


class Guard:
    """ASGI middleware that holds a `Policy`."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what the policy allows; nothing but HTTP is served."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._policy.check(scope["path"], _by_name(scope["headers"]))
        except HearthError as error:
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        found.setdefault(name.lower(), []).append(value)
    return found
