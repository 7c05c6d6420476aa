"""Ranges of a repository's files, over HTTP.

Every request begins at the Hub's endpoint, which may redirect it to a URL that is valid only for a
while. The token is sent only to the endpoint's own scheme, host and port.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from hearth.app.library.errors import HubRefused
from hearth.app.library.hub import RepositoryFile, hub_errors, prepare_library

if TYPE_CHECKING:
    import httpx2

_MOST_REDIRECTS: Final = 10
_PASSING: Final = (408, 425, 429, 500, 502, 503, 504)
_CHECKSUM: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_CONNECT_S: Final = 20.0
_STALL_BYTES: Final = 65_536


class BrokenOff(Exception):
    """A connection failed in a way that may be temporary.

    Attributes:
        retry_after_s: the wait that the server asked for; 0 if none.
    """

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class NoRanges(Exception):
    """The server sends only whole files."""


class Changed(Exception):
    """The server has a different content than the repository listed."""


class FileSource:
    """The files of one commit. Use it in an `async with` block.

    Args:
        endpoint: the Hub's address.
        stall_s: a connection that delivers less than 64 KiB in this time counts as broken.
    """

    def __init__(self, endpoint: str, repo_id: str, commit: str, *, stall_s: float) -> None:
        self.endpoint = endpoint
        self._repo_id = repo_id
        self._commit = commit
        self._stall_s = stall_s

    async def __aenter__(self) -> FileSource:
        prepare_library()
        import httpx2
        from huggingface_hub import get_async_session
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        # huggingface_hub's own client, so that its proxies, certificates and offline mode apply.
        self._client = get_async_session()
        self._home = _origin(httpx2.URL(self.endpoint))
        self._headers = dict(build_hf_headers(library_name="hearth"))
        self._token = self._headers.pop("authorization", None)
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._client.aclose()

    async def stream(
        self, file: RepositoryFile, start: int, end: int
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of `file` from `start` to before `end`, as they arrive.

        Raises:
            BrokenOff: the connection ended or stalled before `end`.
            Changed: the server has a different content.
            NoRanges: the server sends only whole files, and `start` is not 0.
            HearthError: the Hub does not deliver the file.
        """
        import httpx2

        position = start
        try:
            async with self._open(file, start, end) as response:
                if response.status_code == 206:
                    _check_range(response, file, start)
                elif start:
                    raise NoRanges(file.path)
                else:
                    _check_length(response, file)
                since, brought = time.monotonic(), 0
                async for data in response.aiter_raw():
                    rest = data[: end - position]
                    position += len(rest)
                    brought += len(rest)
                    yield rest
                    if position >= end:
                        return
                    if (now := time.monotonic()) - since > self._stall_s:
                        if brought < _STALL_BYTES:
                            raise BrokenOff(f"only {brought} bytes in {now - since:.0f} s")
                        since, brought = now, 0
        except httpx2.TransportError as error:
            raise BrokenOff(str(error) or type(error).__name__) from error
        raise BrokenOff(f"it ended {end - position} bytes early")

    @asynccontextmanager
    async def _open(
        self, file: RepositoryFile, start: int, end: int
    ) -> AsyncIterator[httpx2.Response]:
        """The response that has the content, after redirects."""
        import httpx2

        url = httpx2.URL(
            f"{self.endpoint}/{self._repo_id}/resolve/{self._commit}/{quote(file.path)}"
        )
        timeout = httpx2.Timeout(self._stall_s, connect=min(self._stall_s, _CONNECT_S))
        for _ in range(_MOST_REDIRECTS):
            is_home = _origin(url) == self._home
            headers = {
                **self._headers,
                "accept-encoding": "identity",
                "range": f"bytes={start}-{end - 1}",
            }
            if is_home and self._token is not None:
                headers["authorization"] = self._token
            request = self._client.build_request("GET", url, headers=headers, timeout=timeout)
            response = await self._client.send(request, stream=True, follow_redirects=False)
            try:
                if is_home:
                    _check_etag(response, file)
                if not response.has_redirect_location:
                    await self._require_content(response, file, is_home)
                    yield response
                    return
                try:
                    url = url.join(response.headers["location"])
                except httpx2.InvalidURL as error:
                    raise HubRefused(
                        f"The Hub points {file.path} at an invalid address.", "Try again."
                    ) from error
                if url.scheme not in ("http", "https"):
                    raise HubRefused(f"The Hub points {file.path} at {url.scheme}:.", "Try again.")
            finally:
                await response.aclose()
        raise HubRefused(f"The Hub sends {file.path} around in a circle.", "Try again later.")

    async def _require_content(
        self, response: httpx2.Response, file: RepositoryFile, is_home: bool
    ) -> None:
        """Raise an error unless `response` has the content."""
        from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

        status = response.status_code
        if status in (200, 206):
            return
        if status == 416:
            raise Changed(f"{file.path} is shorter than {file.size_bytes} bytes")
        if status in _PASSING or (status in (401, 403) and not is_home):
            # A signed URL that has expired is refused; the next request gets a fresh one.
            raise BrokenOff(f"HTTP {status}", _retry_after_s(response))
        if not is_home:
            raise HubRefused(
                f"{response.url.host}, where the Hub keeps {file.path}, refused it "
                f"(HTTP {status}).",
                "Try again later.",
                status=status,
            )
        await response.aread()
        with hub_errors(self._repo_id, self.endpoint):
            hf_raise_for_status(response)
        raise HubRefused(f"The Hub answered {file.path} with HTTP {status}.", "Try again later.")


def _origin(url: httpx2.URL) -> tuple[str, str, int]:
    port = url.port or {"http": 80, "https": 443}.get(url.scheme, 0)
    return url.scheme, url.host, port


def _check_etag(response: httpx2.Response, file: RepositoryFile) -> None:
    """Raises `Changed` if the endpoint's ETag is the checksum of another content.

    ETags of another form, such as those of a cache, are ignored.
    """
    linked = response.headers.get("x-linked-etag")
    if linked is None and response.status_code in (200, 206):
        linked = response.headers.get("etag")
    etag = (linked or "").removeprefix("W/").strip('"')
    if _CHECKSUM.fullmatch(etag) and len(etag) == len(file.etag) and etag != file.etag:
        raise Changed(f"it has the checksum {etag[:12]}…, not {file.etag[:12]}…")


def _check_range(response: httpx2.Response, file: RepositoryFile, start: int) -> None:
    match = _RANGE.fullmatch(response.headers.get("content-range", ""))
    if match is None or int(match[1]) != start:
        raise BrokenOff("it sent another range than the one asked for")
    if match[3] not in ("*", str(file.size_bytes)):
        raise Changed(f"it has {match[3]} bytes, not {file.size_bytes}")


def _check_length(response: httpx2.Response, file: RepositoryFile) -> None:
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length) != file.size_bytes:
        raise Changed(f"it has {length} bytes, not {file.size_bytes}")


def _retry_after_s(response: httpx2.Response) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), 300.0) if text.isdecimal() else 0.0
