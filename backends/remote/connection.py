"""HTTP connection to one server, with bounded answers and a typed error for every failure."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import httpx2

from hearth.backends.contract.version import hearth_version
from hearth.backends.errors import HearthError
from hearth.backends.remote.errors import (
    RemoteCut,
    RemoteMalformed,
    RemoteTimeout,
    RemoteUnreachable,
    RemoteUntrusted,
)
from hearth.backends.remote.refusals import (
    ASK_AGAIN,
    error_in,
    is_page,
    not_an_api,
    quoted,
    refused,
    reported,
)
from hearth.backends.remote.server import RemoteServer

_CONNECT_S: Final = 10.0
MOST_ANSWER_BYTES: Final = 256 << 20
"""Largest answer that is not streamed, enough for vectors of thousands of texts."""
MOST_REASON_BYTES: Final = 1 << 20
"""Largest answer that describes an error."""


class Connection:
    """Connection to `server`, used in one event loop.

    Redirects are not followed, because the key is for one host only.

    Args:
        server: the server; its key is read for each request and not kept.
        api_key: replaces the key of `server`.
    """

    def __init__(self, server: RemoteServer, api_key: str | None = None) -> None:
        self.server = server
        self._api_key = api_key
        self._connect_s = min(_CONNECT_S, server.timeout_s)
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(server.timeout_s, connect=self._connect_s),
            limits=httpx2.Limits(max_connections=None),
            follow_redirects=False,
            # A proxy set in the environment is not used for a server on this machine.
            trust_env=not server.is_loopback,
            verify=_trusted(server),
        )

    async def close(self) -> None:
        """Close all open connections."""
        with self._translated():
            await self._client.aclose()

    async def fetch(self, url: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON answer to `body`, or the JSON at `url` if there is none. Raises HearthError."""
        async with self._answer(url, body) as answer:
            return self._parsed(answer, await self._read(answer, MOST_ANSWER_BYTES))

    @asynccontextmanager
    async def stream(self, url: str, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of the event stream that answers `body`. Leaving the block early closes the
        connection, so that the server notices at once.

        Raises:
            HearthError: there is no connection, the request is refused, or the answer is not an
                event stream; within the block, the connection was cut.
        """
        async with self._answer(url, body) as answer:
            if "text/event-stream" not in answer.headers.get("content-type", ""):
                whole = self._parsed(answer, await self._read(answer, MOST_REASON_BYTES))
                error = error_in(whole)
                raise (
                    reported(self.server, error)
                    if error is not None
                    else not_an_api(self.server, "does not stream its answer")
                )
            yield self._pieces(answer)

    async def _pieces(self, answer: httpx2.Response) -> AsyncIterator[bytes]:
        with self._translated():
            async for piece in answer.aiter_raw():
                yield piece

    @asynccontextmanager
    async def _answer(
        self, url: str, body: dict[str, Any] | None
    ) -> AsyncIterator[httpx2.Response]:
        """The answer, with a status of success and its body not read yet."""
        headers = {
            "accept": "application/json, text/event-stream",
            "accept-encoding": "identity",
            "user-agent": f"hearth/{hearth_version()}",
        }
        if key := self.server.key() if self._api_key is None else self._api_key:
            headers["authorization"] = f"Bearer {key}"
        method, content = "GET", None
        if body is not None:
            method = "POST"
            headers["content-type"] = "application/json"
            content = json.dumps(body, allow_nan=False).encode()
        with self._translated():
            request = self._client.build_request(method, url, headers=headers, content=content)
            answer = await self._client.send(request, stream=True)
        try:
            if answer.headers.get("content-encoding", "identity").lower() != "identity":
                raise not_an_api(self.server, "compresses what should not be")
            if answer.status_code != 200:
                reason = await self._read(answer, MOST_REASON_BYTES)
                raise refused(self.server, answer.status_code, answer.headers, reason)
            yield answer
        finally:
            with self._translated():
                await answer.aclose()

    async def _read(self, answer: httpx2.Response, most: int) -> bytes:
        body = bytearray()
        async for piece in self._pieces(answer):
            body += piece
            if len(body) > most:
                what = f"sends more than {most:,} bytes at once."
                raise self.server.error(RemoteMalformed, what, "Ask for less at a time.")
        return bytes(body)

    def _parsed(self, answer: httpx2.Response, body: bytes) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            what = "a web page" if is_page(answer.headers, body) else "no JSON"
            raise not_an_api(self.server, f"answers with {what}") from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translates exceptions of the HTTP library into `HearthError`s."""
        try:
            yield
        except httpx2.HTTPError as error:
            raise self._trouble(error) from error
        except httpx2.StreamError as error:
            raise self._cut(str(error)) from error

    def _trouble(self, error: httpx2.HTTPError) -> HearthError:
        server = self.server
        causes = list(_causes(error))
        if isinstance(error, httpx2.ConnectTimeout):
            return server.error(
                RemoteTimeout,
                f"at {server.url} takes no connection within {self._connect_s:g} s.",
                "Is the address right, and does a firewall let you through?",
            )
        if isinstance(error, httpx2.TimeoutException):
            return server.error(
                RemoteTimeout,
                f"at {server.url} has been silent for {server.timeout_s:g} s.",
                f"It may be overloaded; timeout_s of remotes.{server.name} is how long to wait.",
            )
        for cause in causes:
            if isinstance(cause, ssl.SSLError):
                return server.error(
                    RemoteUntrusted,
                    f"at {server.url} does not prove who it is: {_tls_reason(cause)}.",
                    "Check https or http in the url; name an authority of your own in"
                    " SSL_CERT_FILE.",
                )
        if isinstance(error, httpx2.ConnectError | httpx2.ProxyError | httpx2.UnsupportedProtocol):
            return server.error(
                RemoteUnreachable,
                f"at {server.url} cannot be reached: {_reason(causes, server.host)}.",
                "Is it running, and is the address right?",
            )
        return self._cut(str(error) or type(error).__name__)

    def _cut(self, why: str) -> RemoteCut:
        return self.server.error(RemoteCut, f"cut the connection: {quoted(why)}.", ASK_AGAIN)


def _trusted(server: RemoteServer) -> ssl.SSLContext:
    """The trusted certificates: none for a server on this machine without TLS, which saves reading
    some 150 certificates.
    """
    if server.is_loopback and server.url.startswith("http:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx2.create_ssl_context(trust_env=True)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and its causes, with the members of exception groups."""
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        cause = pending.pop(0)
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        if isinstance(cause, BaseExceptionGroup):
            pending += cause.exceptions
        pending += [cause.__cause__, cause.__context__]


def _reason(causes: list[BaseException], host: str) -> str:
    for cause in causes:
        if isinstance(cause, ConnectionRefusedError):
            return "nobody listens there"
        if isinstance(cause, socket.gaierror):
            return f"the name {host} is not known"
    for cause in causes:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
    return quoted(causes[0]) or type(causes[0]).__name__


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message or "its certificate is not trusted"
    return (error.reason or "the TLS handshake failed").replace("_", " ").lower()
