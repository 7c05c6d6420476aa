"""Access control: checks the Host, Origin and API key of a request before anything else.

Pages of other sites are allowed only if `hearth serve --cors-origin` names the site (CORS).
"""

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

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hearth.app.server.answers import notices_header
from hearth.app.server.api_key import LEAST_CHARACTERS, check_key
from hearth.app.server.errors import OLLAMA, Forbidden, InvalidKey, error_response
from hearth.app.server.limits import Unreadable, check_head
from hearth.app.server.logs import RequestLog
from hearth.app.server.metrics import Recorder
from hearth.app.server.services import ServerState, Services
from hearth.backends.errors import HearthError, InvalidParameter

HEALTH: Final = "/health"
HOME: Final = "/"
OPEN_PATHS: Final = (HEALTH, HOME)
"""Paths served without a key; `HOME` then only states that a key is required."""
_ALWAYS_OURS: Final = ("localhost", "host.docker.internal")
_NAME: Final = r"[A-Za-z0-9._-]+"
_AUTHORITY: Final = re.compile(rf"(\[[0-9a-fA-F:.]+\]|{_NAME})(?::([0-9]{{1,5}}))?")
_FORM: Final = b"application/x-www-form-urlencoded"
"""The content type that `curl -d` declares by default."""
_BROWSER_HEADERS: Final = (b"origin", b"referer", b"cookie")
_BROWSER_PREFIXES: Final = (b"sec-fetch-", b"sec-ch-")
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
_CLIENT_HEADER: Final = re.compile("x-stainless-[a-z0-9-]+")
"""Headers in which the clients of OpenAI and Anthropic describe themselves."""

Headers = Mapping[bytes, list[bytes]]


@dataclass(frozen=True, slots=True)
class Policy:
    """Which requests are accepted.

    Attributes:
        names: host names, in lower case, that are accepted in addition to `localhost` and
            `host.docker.internal`.
        addresses: whether any IP address is accepted as the host; otherwise only loopback addresses
            are. DNS rebinding always uses a name.
        key: the API key; empty if none is required.
        origins: other sites whose pages are allowed, in the form of `parse_origin`.
    """

    names: frozenset[str] = frozenset()
    addresses: bool = False
    key: str = ""
    origins: frozenset[str] = frozenset()

    def has_key(self, headers: Headers) -> bool:
        """Whether the request has the right key and no wrong one.

        The key may be a bearer token, in x-api-key, or both.
        """
        given = _keys(headers)
        right = [hmac.compare_digest(key, self.key.encode()) for key in given]
        return bool(self.key and right) and all(right)

    def check_host(self, headers: Headers) -> None:
        """Check that the request was sent to one of this server's names (DNS rebinding).

        Raises:
            Forbidden: it was not, or it has no Host header or more than one.
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
            Forbidden: it does, according to Origin or Sec-Fetch-Site.
        """
        if self.named_page(headers):
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

    def named_page(self, headers: Headers) -> str:
        """The request's origin if it is one of `origins`, else an empty string."""
        given = headers.get(b"origin", [])
        origin = given[0].decode("latin-1") if len(given) == 1 else ""
        return origin if origin in self.origins else ""

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
    """Whether a body is read as JSON although its content type is missing or that of `curl -d`.

    This is done only if no web page can have sent the body. A page can send such a body to any site
    without a CORS preflight, but not without the headers of a browser.

    Args:
        keyed: whether the request has the right key; otherwise its Host was checked.
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
        InvalidParameter: other machines can reach `address` and the key is missing or too short;
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
    if reachable and len(key) < LEAST_CHARACTERS:
        raise InvalidParameter(
            "api_key",
            f"The API key has {len(key)} characters; other machines can reach {host}, which needs"
            f" at least {LEAST_CHARACTERS}.",
            "Create a key with --generate-key in place of your own, or set a longer one.",
        )
    own = socket.gethostname().lower()
    names = {host.lower(), own, own.partition(".")[0], *map(_host_name, allowed_hosts)}
    sites = frozenset(parse_origin(origin) for origin in origins)
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


def parse_origin(text: str) -> str:
    """`text` in the form in which browsers send that origin.

    Raises:
        InvalidParameter: `text` is not a scheme, a host and optionally a port; wildcards are not
            supported.
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


class Guard:
    """ASGI middleware around the application, which also logs each request.

    It checks, in this order, the size of a request's head, the `Policy`, and whether the server
    still accepts requests. It sets in `scope["state"]`: `keyed`, whether the request has the right
    key, and `undeclared_json` (see `is_undeclared_json`).
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
            more = _cors_headers(self._policy, headers)

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
        asks = scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
        if asks and policy.named_page(headers):
            return _preflight(headers)
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


def _preflight(headers: Headers) -> Response:
    """The answer to the CORS preflight of an allowed page."""
    asked = b",".join(headers.get(b"access-control-request-headers", [])).decode("latin-1")
    more = {name for name in re.split(r"[,\s]+", asked.lower()) if _CLIENT_HEADER.fullmatch(name)}
    return Response(
        status_code=204,
        headers={
            "access-control-allow-methods": "GET, POST, DELETE",
            "access-control-allow-headers": ", ".join([*_ALLOWED_HEADERS, *sorted(more)]),
            "access-control-max-age": str(_REMEMBER_S),
        },
    )


def _cors_headers(policy: Policy, headers: Headers) -> list[tuple[bytes, bytes]]:
    """The headers that let a browser pass a response on to an allowed page, without credentials."""
    if not policy.origins:
        return []
    vary, page = (b"vary", b"origin"), policy.named_page(headers)
    if not page:
        return [vary]
    return [
        vary,
        (b"access-control-allow-origin", page.encode("latin-1")),
        (b"access-control-expose-headers", b"retry-after, x-should-retry, hearth-notices"),
    ]


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
