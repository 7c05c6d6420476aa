"""A reverse proxy that writes each request and its response to a JSON file."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"}
_KEPT_BYTES = 8192
"""Bytes that are kept of each response."""


@contextmanager
def recorded(target: str, folder: Path) -> Iterator[str]:
    """Yield the address of a proxy of `target` that writes to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    numbers = itertools.count(1)
    host = urlsplit(target).netloc

    class Handler(BaseHTTPRequestHandler):
        """Forwards one request."""

        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Log nothing: the files are the log."""

        def _pass_on(self) -> None:
            body = self._body()
            number = next(numbers)
            replaced = {*_HOP_BY_HOP, "host", "content-length"}
            headers = {k: v for k, v in self.headers.items() if k.lower() not in replaced}
            upstream = HTTPConnection(host)
            upstream.request(self.command, self.path, body or None, headers)
            answer = upstream.getresponse()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            sized = answer.getheader("content-length") is not None
            if not sized:
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            kept = b""
            if self.command != "HEAD":
                while part := answer.read1(65536):
                    kept += part[: _KEPT_BYTES - len(kept)]
                    self.wfile.write(part if sized else b"%x\r\n%s\r\n" % (len(part), part))
                if not sized:
                    self.wfile.write(b"0\r\n\r\n")
            upstream.close()
            _write(folder, number, self, body, answer.status, dict(answer.getheaders()), kept)

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        do_GET = do_HEAD = do_POST = do_DELETE = do_PUT = do_OPTIONS = _pass_on  # noqa: N815 - http.server looks for these

    class Proxy(ThreadingHTTPServer):
        """Does not report clients that disconnect early as errors."""

        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Log nothing: the client sees a closed connection."""

    with Proxy(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}"
        finally:
            proxy.shutdown()
            thread.join()


def _write(
    folder: Path,
    number: int,
    request: BaseHTTPRequestHandler,
    body: bytes,
    status: int,
    answer_headers: dict[str, str],
    answer: bytes,
) -> None:
    try:
        read = json.loads(body) if body else None
    except ValueError:
        read = {"raw": body[:_KEPT_BYTES].decode(errors="replace")}
    record = {
        "method": request.command,
        "path": request.path,
        "headers": dict(request.headers.items()),
        "body": read,
        "status": status,
        "answer_headers": answer_headers,
        "answer": answer.decode(errors="replace"),
    }
    name = re.sub(r"\W+", "_", urlsplit(request.path).path)
    path = folder / f"{number:03}{name}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False))
