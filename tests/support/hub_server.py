"""A stand-in for the Hugging Face Hub: two HTTP servers of this process, one for the Hub itself on
127.0.0.1 and one on 127.0.0.2 for the contents in LFS, which the Hub also serves from another host.

It answers the requests of huggingface_hub (search, the list of a commit's files, heads and contents
of files with ranges and redirects), records every request, and fails as configured.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

HUB_HOST, BLOB_HOST = "127.0.0.1", "127.0.0.2"
LFS_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt")
_SEND_BYTES = 65_536
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Repo:
    """A repository of the stand-in.

    Attributes:
        gated: its files need a token in `HubServer.tokens`.
        private: even its name does.
    """

    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    licence: str = "apache-2.0"
    tags: tuple[str, ...] = ("gguf",)
    downloads: int = 1000
    likes: int = 10
    parameters: int | None = None
    dtypes: dict[str, int] = field(default_factory=dict)
    """Number of values in its safetensors, by type."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of files that are only listed, instead of the sizes of their contents."""

    @property
    def commit(self) -> str:
        texts = [f"{path} {etag(path, data)}" for path, data in sorted(self.files.items())]
        return hashlib.sha1("\n".join(texts).encode()).hexdigest()


@dataclass
class Fault:
    """A fault in serving the content of one file.

    Attributes:
        kind: `break` closes the connection at byte `at` of the file, `stall` sends nothing after
            it, `flip` corrupts that byte, `status` answers with `status`, `whole` does not support
            ranges, `short` and `other` have another content than was listed: fewer bytes, or the
            same number with another ETag.
        times: number of requests that it affects.
        host: where it occurs: at the server of the contents, or at the Hub.
    """

    kind: Literal["break", "stall", "flip", "status", "whole", "short", "other"]
    path: str
    at: int = 0
    times: int = 1
    status: int = 503
    host: Literal["hub", "blobs"] = "blobs"


@dataclass
class Request:
    """A request that came to the stand-in."""

    host: str
    method: str
    path: str
    headers: dict[str, str]
    status: int = 0
    sent_bytes: int = 0

    @property
    def range(self) -> tuple[int, int] | None:
        """From the first byte to the one after the last, if the request has a range."""
        found = _RANGE.fullmatch(self.headers.get("range", ""))
        return (int(found[1]), int(found[2]) + 1) if found and found[2] else None


class HubServer:
    """The stand-in; `hub_server` starts it.

    Attributes:
        url: of the Hub, for `HF_ENDPOINT`.
        tokens: tokens that give access to gated and private repositories.
        on_sent: called with the bytes of contents sent so far, after each piece.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.tokens: set[str] = set()
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.on_sent: Callable[[int], None] | None = None
        self.sent_bytes = 0
        self.released = threading.Event()
        """Set when stalled connections should end."""
        self.lock = threading.Lock()
        self._quiet = threading.Condition()
        self._sending = 0
        self._servers = [_server(self, HUB_HOST, "hub"), _server(self, BLOB_HOST, "blobs")]
        self.url, self.blob_url = (
            f"http://{server.server_address[0]}:{server.server_address[1]}"
            for server in self._servers
        )

    def start(self) -> None:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self.released.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def contents_asked(self, path: str) -> list[Request]:
        """The requests for the content of a file in LFS."""
        return [
            request
            for request in self.requests
            if request.host == "blobs" and request.path.endswith(f"/{path}")
        ]

    def fault(self, path: str, host: str) -> Fault | None:
        """The fault that affects this request; its count decreases by one."""
        with self.lock:
            for fault in self.faults:
                if fault.path == path and fault.host == host and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Count a content as being sent while the block runs."""
        with self._quiet:
            self._sending += 1
        try:
            yield
        finally:
            with self._quiet:
                self._sending -= 1
                self._quiet.notify_all()

    def wait_until_quiet(self) -> None:
        """Wait until nothing is sent any more, including to clients that have disconnected."""
        with self._quiet:
            assert self._quiet.wait_for(lambda: self._sending == 0, timeout=20)

    def count(self, request: Request, sent: int) -> None:
        with self.lock:
            request.sent_bytes += sent
            self.sent_bytes += sent
            total = self.sent_bytes
        if self.on_sent is not None:
            self.on_sent(total)


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """A stand-in that runs until the block ends."""
    server = HubServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()


def etag(path: str, data: bytes) -> str:
    """The ETag of a content: SHA-256 in LFS, git's SHA-1 otherwise."""
    if path.endswith(LFS_SUFFIXES):
        return hashlib.sha256(data).hexdigest()
    return git_sha1(data)


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Servers(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing: clients that disconnect are part of these tests."""


def _server(hub: HubServer, host: str, name: str) -> _Servers:
    class Handler(_Handler):
        pass

    Handler.hub, Handler.host = hub, name
    return _Servers((host, 0), Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer
    host: str

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing to the terminal."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        address = urlsplit(self.path)
        self._request = Request(self.host, self.command, unquote(address.path), headers)
        self.hub.requests.append(self._request)
        with suppress(ConnectionError):
            if self.host == "blobs":
                self._blob(unquote(address.path))
            elif address.path == "/api/models":
                self._search(parse_qs(address.query))
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", address.path):
                self._info(found[1], unquote(found[2]))
            elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", address.path):
                self._resolve(found[1], unquote(found[2]), unquote(found[3]))
            else:
                self._send(404, {}, b"nothing here")

    def _is_welcome(self) -> bool:
        token = self._request.headers.get("authorization", "").removeprefix("Bearer ")
        return token in self.hub.tokens

    def _search(self, query: dict[str, list[str]]) -> None:
        wanted = query.get("search", [""])[0].lower()
        tags = query.get("filter", [])
        found = [
            _described(repo_id, repo)
            for repo_id, repo in self.hub.repos.items()
            if wanted in repo_id.lower() and not repo.private and set(tags) <= set(repo.tags)
        ]
        key = query.get("sort", ["trendingScore"])[0]
        found.sort(key=lambda entry: entry.get(key) or 0, reverse=True)
        self._json(found[: int(query.get("limit", ["1000"])[0])])

    def _info(self, repo_id: str, revision: str) -> None:
        repo = self._open(repo_id, revision)
        if repo is None:
            return
        siblings = []
        for path, data in repo.files.items():
            size = repo.sizes.get(path, len(data))
            sibling: dict[str, Any] = {"rfilename": path, "size": size, "blobId": git_sha1(data)}
            if path.endswith(LFS_SUFFIXES):
                sibling["lfs"] = {"size": size, "sha256": etag(path, data), "pointerSize": 134}
            siblings.append(sibling)
        self._json({**_described(repo_id, repo), "siblings": siblings})

    def _resolve(self, repo_id: str, revision: str, path: str) -> None:
        repo = self._open(repo_id, revision)
        if repo is None:
            return
        if repo.gated and not self._is_welcome():
            status = 403 if "authorization" in self._request.headers else 401
            self._refuse(status, "GatedRepo", f"Access to model {repo_id} is restricted.")
            return
        if path not in repo.files:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        data = repo.files[path]
        fault = self.hub.fault(path, "hub")
        if fault is not None and fault.kind == "status":
            self._send(fault.status, {"Retry-After": "0"}, b"not now")
            return
        name = "0" * len(etag(path, data)) if fault and fault.kind == "other" else etag(path, data)
        headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{name}"', "Accept-Ranges": "bytes"}
        if not path.endswith(LFS_SUFFIXES):
            self._content(data, headers, fault)
            return
        headers |= {"X-Linked-Etag": f'"{name}"', "X-Linked-Size": str(len(data))}
        headers["Location"] = f"{self.hub.blob_url}/{repo_id}/{path}?signature=abc"
        self._send(302, headers, b"")

    def _blob(self, address: str) -> None:
        organisation, name, path = address.strip("/").split("/", 2)
        data = self.hub.repos[f"{organisation}/{name}"].files[path]
        fault = self.hub.fault(path, "blobs")
        self._content(data, {"ETag": '"of-the-store"', "Accept-Ranges": "bytes"}, fault)

    def _open(self, repo_id: str, revision: str) -> Repo | None:
        """The repository, or None after a refusal was sent."""
        repo = self.hub.repos.get(repo_id)
        if repo is None or (repo.private and not self._is_welcome()):
            self._refuse(401 if repo else 404, "RepoNotFound", "Repository not found")
            return None
        if revision not in ("main", repo.commit):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repo

    def _content(self, data: bytes, headers: dict[str, str], fault: Fault | None) -> None:
        """Send `data`, or the requested range of it, with `fault` applied."""
        kind = fault.kind if fault else None
        if fault is not None and kind == "status":
            self._send(fault.status, {"Retry-After": "0"}, b"not now")
            return
        if fault is not None and kind == "short":
            data = data[: fault.at]
        if fault is not None and kind == "flip":
            data = data[: fault.at] + bytes([data[fault.at] ^ 1]) + data[fault.at + 1 :]
        start, end, status = 0, len(data), 200
        found = _RANGE.fullmatch(self._request.headers.get("range", ""))
        if found is not None and kind != "whole":
            start, end = int(found[1]), min(int(found[2] or len(data)) + 1, len(data))
            status = 206
            if start >= len(data):
                self._send(416, {"Content-Range": f"bytes */{len(data)}"}, b"")
                return
            headers |= {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
        self._start(status, headers, end - start)
        if self.command == "HEAD":
            return
        stop = end if fault is None or kind not in ("break", "stall") else max(fault.at, start)
        position = start
        with self.hub.sending():
            while position < min(end, stop):
                piece = data[position : min(position + _SEND_BYTES, end, stop)]
                self.wfile.write(piece)
                position += len(piece)
                self.hub.count(self._request, len(piece))
        if position < end:
            if kind == "stall":
                self.hub.released.wait()
            self.close_connection = True

    def _json(self, document: Any) -> None:
        self._send(200, {"Content-Type": "application/json"}, json.dumps(document).encode())

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self._send(status, headers, json.dumps({"error": message}).encode())

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self._start(status, headers, len(body))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _start(self, status: int, headers: dict[str, str], length: int) -> None:
        self._request.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


def _described(repo_id: str, repo: Repo) -> dict[str, Any]:
    """The Hub's description of a repository, without its files."""
    return {
        "id": repo_id,
        "sha": repo.commit,
        "downloads": repo.downloads,
        "likes": repo.likes,
        "gated": "manual" if repo.gated else False,
        "private": repo.private,
        "tags": [*repo.tags, f"license:{repo.licence}"],
        "lastModified": "2026-05-01T10:00:00.000Z",
        "gguf": {"total": repo.parameters, "context_length": 4096} if repo.parameters else None,
        "safetensors": {"parameters": repo.dtypes, "total": sum(repo.dtypes.values())}
        if repo.dtypes
        else None,
    }


@contextmanager
def only_hub(patch: pytest.MonkeyPatch, folder: Path) -> Iterator[HubServer]:
    """A stand-in that is the Hub, also for child processes; there is no token and no proxy.

    Args:
        folder: for the files of huggingface_hub.
    """
    import httpx2
    from huggingface_hub import constants, set_async_client_factory, set_client_factory
    from huggingface_hub.utils import _http as defaults
    from huggingface_hub.utils import close_session

    for name in list(os.environ):
        if name.startswith("HF_") or name.lower().endswith("_proxy"):
            patch.delenv(name)
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    patch.setattr(constants, "HF_TOKEN_PATH", str(folder / "no-token"))
    patch.setattr(constants, "HF_STORED_TOKENS_PATH", str(folder / "no-tokens"))
    patch.setenv("HF_HOME", str(folder / "hf-home"))
    patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    # Nothing here speaks TLS, and to read the certificates takes 60 ms each time.
    set_client_factory(lambda: httpx2.Client(verify=False, follow_redirects=True))
    set_async_client_factory(lambda: httpx2.AsyncClient(verify=False, follow_redirects=True))
    with hub_server() as server:
        patch.setenv("HF_ENDPOINT", server.url)
        yield server
    set_client_factory(defaults.default_client_factory)
    set_async_client_factory(defaults.default_async_client_factory)
    close_session()
