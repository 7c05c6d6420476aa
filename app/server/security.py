"""Who may ask: requests by our own name, from no foreign page, with the key if there is one."""

from __future__ import annotations

import hmac
import ipaddress
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hearth.app.server import cors
from hearth.app.server.answers import notices_header
from hearth.app.server.api_key import check_key
from hearth.app.server.errors import Forbidden, InvalidKey, error_response
from hearth.app.server.life import Life
from hearth.app.server.limits import Unreadable, check_head
from hearth.app.server.metrics import Recorder
from hearth.app.server.request_log import RequestLog
from hearth.app.server.services import Services
from hearth.backends.errors import HearthError, InvalidParameter

OPEN_PATHS: Final = ("/health",)
"""Asked for without a key, and answered while the server ends."""
_AUTHORITY: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")

Headers = Mapping[bytes, list[bytes]]


@dataclass(frozen=True, slots=True)
class Policy:
    """What a request must say.

    Attributes:
        names: host names that are ours, besides `localhost`.
        addresses: any address of this machine is ours; otherwise only loopback. A page that was
            rebound to us by DNS always asks by a name.
        key: the API key; empty if there is none.
        origins: other sites whose pages may ask, as `cors.parse_origin` writes them.
    """

    names: frozenset[str] = frozenset()
    addresses: bool = False
    key: str = ""
    origins: frozenset[str] = frozenset()

    def check_source(self, headers: Headers) -> None:
        """Let a request pass that asks us, and comes from no foreign page.

        Args:
            headers: values by lower-case name.

        Raises:
            Forbidden: by Host, Origin or Sec-Fetch-Site.
        """
        hosts = [value.decode("latin-1") for value in headers.get(b"host", [])]
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            raise Forbidden(
                f"The host {' and '.join(hosts)[:100] or '(none)'} is not a name of this server.",
                "Ask by the address that hearth serve printed.",
            )
        if cors.named_page(self.origins, headers):
            return
        host = hosts[0].lower()
        own = (f"http://{host}", f"https://{host}")
        foreign = b"cross-site" in headers.get(b"sec-fetch-site", [])
        for origin in headers.get(b"origin", []):
            foreign = foreign or origin.decode("latin-1").lower() not in own
        if foreign:
            raise Forbidden(
                "Pages of other sites may not ask this server.",
                "hearth serve --cors-origin names one that may.",
            )

    def check_key(self, path: str, headers: Headers) -> None:
        """Let a request pass that has the key: as a bearer, in x-api-key, or in both.

        Raises:
            InvalidKey: it is missing, wrong, or there is a wrong one too.
        """
        if not self.key or path in OPEN_PATHS:
            return
        given = [*headers.get(b"x-api-key", []), *map(_bearer, headers.get(b"authorization", []))]
        right = [hmac.compare_digest(key, self.key.encode()) for key in given]
        if not right or not all(right):
            raise InvalidKey(
                "The API key is wrong." if any(given) else "An API key is needed.",
                "Send it as Authorization: Bearer KEY, or as x-api-key: KEY.",
            )

    def _is_ours(self, authority: str) -> bool:
        found = _AUTHORITY.fullmatch(authority)
        if found is None or (found[2] is not None and not 0 < int(found[2]) < 65536):
            return False
        name = found[1].lower()
        if name == "localhost" or name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return address.is_loopback or self.addresses


def _bearer(value: bytes) -> bytes:
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def policy_for(host: str, address: str, key: str, origins: Iterable[str] = ()) -> Policy:
    """The policy of a server that was asked to listen on `host`, and so listens on `address`.

    Args:
        origins: other sites whose pages may ask.

    Raises:
        InvalidParameter: others could reach it, and there is no key; the key fits no header; or an
            origin is none.
    """
    if key:
        check_key(key)
    reachable = not ipaddress.ip_address(address).is_loopback
    if reachable and not key:
        raise InvalidParameter(
            "host",
            f"{host} can be reached from other machines, and no API key is set.",
            "Add --generate-key, or set serve_key to true: that makes one and keeps it in a file;"
            " or set HEARTH_API_KEY; or leave the host (serve_host) at 127.0.0.1.",
        )
    named = frozenset(cors.parse_origin(origin) for origin in origins)
    return Policy(frozenset({host.lower()}), reachable, key, named)


class Guard:
    """ASGI middleware, the one door of the application: a request's head keeps to the limits, then
    to the `Policy`, and then the server still takes requests.
    """

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may pass; nothing but HTTP is served."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()
        headers = _by_name(scope["headers"])
        services = cast(Services, scope["app"].state.services)
        life = services.life
        closes = False
        status = 0
        with ExitStack() as running:
            try:
                answer = self._admit(scope, headers, life, running)
            except HearthError as error:
                answer = error_response(error, scope["path"])
                closes = isinstance(error, Unreadable)
            more = self._more_headers(headers)

            async def reply(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                    last = [(b"connection", b"close")] if closes or life.draining else []
                    notes = notices_header(scope.get("state", {}).get("notices", ()))
                    message = {**message, "headers": [*message["headers"], *notes, *more, *last]}
                await send(message)

            try:
                await answer(scope, receive, reply)
            finally:
                _note(services.log, scope, status, time.perf_counter() - began_s)

    def _admit(self, scope: Scope, headers: Headers, life: Life, running: ExitStack) -> ASGIApp:
        """Who answers: the application, or CORS. Raises what `Guard` refuses."""
        path = scope["path"]
        check_head(scope, headers)
        self._policy.check_source(headers)
        if self._page(headers) and cors.is_preflight(scope["method"], headers):
            return cors.preflight(headers)
        self._policy.check_key(path, headers)
        if path not in OPEN_PATHS:
            running.enter_context(life.request())
        return self._app

    def _page(self, headers: Headers) -> str:
        return cors.named_page(self._policy.origins, headers)

    def _more_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        if not self._policy.origins:
            return []
        page = self._page(headers)
        return [(b"vary", b"origin"), *(cors.sharing(page) if page else ())]


def _note(log: RequestLog | None, scope: Scope, status: int, lasted_s: float) -> None:
    """Note the request in the `log`, with what was measured of it."""
    if log is not None:
        recorder: Recorder | None = scope.get("state", {}).get("recorder")
        facts = {} if recorder is None else recorder.facts
        ended = recorder.status if recorder is not None else 0
        log.note(scope["method"], scope["path"], ended or status or 500, 1000 * lasted_s, **facts)


def _by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        found.setdefault(name.lower(), []).append(value)
    return found
