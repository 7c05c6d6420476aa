"""Access control: the Host, Origin and API key of a request, checked before anything else."""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hearth.app.server import cors
from hearth.app.server.answers import notices_header
from hearth.app.server.api_key import check_key, check_key_length
from hearth.app.server.errors import OLLAMA, Forbidden, InvalidKey, error_response
from hearth.app.server.limits import Unreadable, check_head
from hearth.app.server.metrics import Recorder
from hearth.app.server.request_log import RequestLog
from hearth.app.server.server_state import ServerState
from hearth.app.server.services import Services
from hearth.backends.errors import HearthError, InvalidParameter

HEALTH: Final = "/health"
HOME: Final = "/"
OPEN_PATHS: Final = (HEALTH, HOME)
"""Served without a key; `HOME` then only states that a key is required."""
_ALWAYS_OURS: Final = ("localhost", "host.docker.internal")
_NAME: Final = r"[A-Za-z0-9._-]+"
_AUTHORITY: Final = re.compile(rf"(\[[0-9a-fA-F:.]+\]|{_NAME})(?::([0-9]{{1,5}}))?")
_FORM: Final = b"application/x-www-form-urlencoded"
"""The content type that `curl -d` declares by default."""
_BROWSER_HEADERS: Final = (b"origin", b"referer", b"cookie")
_BROWSER_PREFIXES: Final = (b"sec-fetch-", b"sec-ch-")

Headers = Mapping[bytes, list[bytes]]


@dataclass(frozen=True, slots=True)
class Policy:
    """Which requests are accepted.

    Attributes:
        names: accepted host names, in lower case, besides `localhost` and `host.docker.internal`.
        addresses: accept any IP address as the host; otherwise only loopback addresses. DNS
            rebinding always uses a name.
        key: the API key; empty if none is required.
        origins: other sites whose pages are allowed, in the form of `cors.parse_origin`.
    """

    names: frozenset[str] = frozenset()
    addresses: bool = False
    key: str = ""
    origins: frozenset[str] = frozenset()

    def has_key(self, headers: Headers) -> bool:
        """Whether the request has the right key, as a bearer token, in x-api-key or in both, and
        no wrong one.
        """
        given = _keys(headers)
        right = [hmac.compare_digest(key, self.key.encode()) for key in given]
        return bool(self.key and right) and all(right)

    def check_host(self, headers: Headers) -> None:
        """Check that the request was sent to one of this server's names (DNS rebinding).

        Raises:
            Forbidden: it was not, or it has no Host header or several.
        """
        hosts = [value.decode("latin-1") for value in headers.get(b"host", [])]
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            raise Forbidden(
                f"The Host {' and '.join(hosts)[:100] or '(missing)'} is not allowed.",
                "Use a URL printed by hearth serve, or allow the name with --allow-host or the"
                " setting serve_allow_hosts.",
            )

    def check_origin(self, headers: Headers) -> None:
        """Check that the request does not come from a page of another site.

        Raises:
            Forbidden: by Origin or Sec-Fetch-Site.
        """
        if cors.named_page(self.origins, headers):
            return
        own = [
            f"{scheme}://{host.decode('latin-1').lower()}"
            for host in headers.get(b"host", [])
            for scheme in ("http", "https")
        ]
        origins = [origin.decode("latin-1") for origin in headers.get(b"origin", [])]
        foreign = [origin for origin in origins if origin.lower() not in own]
        if foreign or b"cross-site" in headers.get(b"sec-fetch-site", []):
            site = f" ({foreign[0][:100]})" if foreign else ""
            raise Forbidden(
                f"Requests from pages of other sites are not allowed{site}.",
                "Allow a site with hearth serve --cors-origin.",
            )

    def _is_ours(self, authority: str) -> bool:
        match = _AUTHORITY.fullmatch(authority)
        if match is None or (match[2] is not None and not 0 < int(match[2]) < 65536):
            return False
        name = match[1].lower().strip("[]")
        if name in _ALWAYS_OURS or name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self.addresses


def _keys(headers: Headers) -> list[bytes]:
    return [*headers.get(b"x-api-key", []), *map(_bearer, headers.get(b"authorization", []))]


def _bearer(value: bytes) -> bytes:
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def wrong_key(headers: Headers) -> InvalidKey:
    """The error for a request that lacks the right key."""
    return InvalidKey(
        "The API key is wrong." if any(_keys(headers)) else "An API key is required.",
        "Send it as Authorization: Bearer KEY or x-api-key: KEY.",
    )


def is_undeclared_json(headers: Headers, *, keyed: bool) -> bool:
    """Whether a body is read as JSON although its content type is missing or that of `curl -d`:
    only if no web page can have sent it. A page can send such a body to any site without a CORS
    preflight, but not without the headers of a browser.

    Args:
        keyed: the request has the right key; otherwise its Host was checked.
    """
    if headers.get(b"content-type", []) not in ([], [_FORM]):
        return False
    if keyed:
        return True
    return not (
        any(name in headers for name in _BROWSER_HEADERS)
        or any(name.startswith(_BROWSER_PREFIXES) for name in headers)
        or any(b"Mozilla/" in agent for agent in headers.get(b"user-agent", []))
    )


def policy_for(
    host: str,
    address: str,
    key: str,
    origins: Iterable[str] = (),
    allowed_hosts: Iterable[str] = (),
) -> Policy:
    """The policy of a server that listens on `address`, to which `host` resolved.

    The accepted names are `host`, the machine's own (`gethostname` and its first label) and
    `allowed_hosts`; never names from DNS or DHCP, which others control.

    Args:
        origins: other sites whose pages are allowed.
        allowed_hosts: further host names or addresses, without port.

    Raises:
        InvalidParameter: other machines can reach `address` and there is no key or a short one;
            the key cannot be sent in a header; an origin or a host name is malformed.
    """
    if key:
        check_key(key)
    reachable = not ipaddress.ip_address(address).is_loopback
    if reachable and not key:
        raise InvalidParameter(
            "host",
            f"Other machines can reach {host}, and no API key is set.",
            "Add --generate-key (setting serve_key) to create a key and keep it in a file, set"
            " HEARTH_API_KEY, or leave --host (setting serve_host) at 127.0.0.1.",
        )
    if reachable:
        check_key_length(key, host)
    own = socket.gethostname().lower()
    names = {host.lower(), own, own.partition(".")[0], *map(_host_name, allowed_hosts)}
    sites = frozenset(cors.parse_origin(origin) for origin in origins)
    return Policy(frozenset(names), reachable, key, sites)


def _host_name(text: str) -> str:
    """`text` in lower case. Raises `InvalidParameter` unless it is a host name or an address."""
    name = text.strip().lower()
    if re.fullmatch(_NAME, name):
        return name
    try:
        return str(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        raise InvalidParameter(
            "allow_host",
            f'"{text[:100]}" is not a host name.',
            "Give a name without scheme, port or wildcard: --allow-host mybox.example.org.",
        ) from None


class Guard:
    """ASGI middleware around the application. It checks, in this order, the size of a request's
    head, the `Policy`, and whether the server still accepts requests, and logs the request.

    It leaves in `scope["state"]`: `keyed`, whether the request has the right key, and
    `undeclared_json` (see `is_undeclared_json`).
    """

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or answer one request; WebSockets are closed."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()
        headers = _by_name(scope["headers"])
        services = cast(Services, scope["app"].state.services)
        server_state = services.state
        closes = False
        status = 0
        with ExitStack() as running:
            try:
                answer = self._admit(scope, headers, server_state, running)
            except HearthError as error:
                answer = error_response(error, scope["path"])
                closes = isinstance(error, Unreadable)
            more = self._more_headers(headers)

            async def reply(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                    last = [(b"connection", b"close")] if closes or server_state.draining else []
                    notes = notices_header(scope.get("state", {}).get("notices", ()))
                    message = {**message, "headers": [*message["headers"], *notes, *more, *last]}
                await send(message)

            try:
                await answer(scope, receive, reply)
            finally:
                _note(services.log, scope, status, time.perf_counter() - began_s)

    def _admit(
        self, scope: Scope, headers: Headers, server_state: ServerState, running: ExitStack
    ) -> ASGIApp:
        """The application or the response to a CORS preflight. Raises `HearthError` to refuse."""
        path, policy = scope["path"], self._policy
        check_head(scope, headers)
        keyed = policy.has_key(headers)
        if not keyed:
            policy.check_host(headers)
        policy.check_origin(headers)
        if self._page(headers) and cors.is_preflight(scope["method"], headers):
            return cors.preflight(headers)
        if policy.key and not keyed and path not in OPEN_PATHS:
            raise wrong_key(headers)
        state: dict[str, Any] = scope.setdefault("state", {})
        state["keyed"] = keyed
        state["undeclared_json"] = path.startswith(OLLAMA) and is_undeclared_json(
            headers, keyed=keyed
        )
        if path != HEALTH:
            running.enter_context(server_state.request())
        return self._app

    def _page(self, headers: Headers) -> str:
        return cors.named_page(self._policy.origins, headers)

    def _more_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        if not self._policy.origins:
            return []
        page = self._page(headers)
        return [(b"vary", b"origin"), *(cors.sharing(page) if page else ())]


def _note(log: RequestLog | None, scope: Scope, status: int, lasted_s: float) -> None:
    """Write the request to `log`, with what its handler recorded."""
    if log is not None:
        recorder: Recorder | None = scope.get("state", {}).get("recorder")
        facts = {} if recorder is None else recorder.facts
        ended = recorder.status if recorder is not None else 0
        log.note(scope["method"], scope["path"], ended or status or 500, 1000 * lasted_s, **facts)


def _by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    by_name: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        by_name.setdefault(name.lower(), []).append(value)
    return by_name
