"""A client that calls an application through ASGI: a test sees every part as it is sent, and can
disconnect in the middle.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hearth.app.server.protocol import STREAMED_BODY

Headers = Iterable[tuple[str, str]]


class Body:
    """Implements `protocol.StreamedBody`: passes parts on until the client has `gone`."""

    is_full = False

    def __init__(self, reply: Reply, gone: asyncio.Event, on_part: Callable[[bytes], None]) -> None:
        self.writes = 0
        self._reply = reply
        self._gone = gone
        self._on_part = on_part

    def write(self, part: bytes) -> None:
        self.writes += 1
        assert part and not self._reply.complete
        if self._reply.status and not self._gone.is_set():
            self._reply.parts.append(part)
            self._on_part(part)


@dataclass
class Reply:
    """A response; `complete` is false if the body was cut off."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def lines(self) -> list[str]:
        """The payload of each event and each comment, in order."""
        blocks = self.body.decode("ascii").split("\n\n")
        assert blocks.pop() == ""
        return blocks

    @property
    def events(self) -> list[Any]:
        """The JSON of each event; the text if it is not JSON."""
        found = [line.removeprefix("data: ") for line in self.lines if line.startswith("data: ")]
        return [text if text == "[DONE]" else json.loads(text) for text in found]

    @property
    def named_events(self) -> list[Any]:
        """The JSON of each event with a name, which must be the event's type too."""
        events = []
        for line in self.lines:
            if not line.startswith(":"):
                name, _, data = line.partition("\ndata: ")
                events.append(json.loads(data))
                assert name == f"event: {events[-1]['type']}"
        return events


async def exchange(
    app: Any,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Headers = (),
    *,
    leave: asyncio.Event | None = None,
    on_part: Callable[[bytes], None] = lambda part: None,
) -> Reply:
    """Send one request; the client disconnects when `leave` is set."""
    reply = Reply()
    gone = leave or asyncio.Event()
    path, _, query = path.partition("?")
    unread = [body[: len(body) // 2], body[len(body) // 2 :]]

    async def receive() -> dict[str, Any]:
        if unread:
            return {"type": "http.request", "body": unread.pop(0), "more_body": bool(unread)}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        assert not reply.complete
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            return
        reply.parts.append(message.get("body", b""))
        reply.complete = not message.get("more_body", False)
        on_part(reply.parts[-1])

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 4242),
        "extensions": {STREAMED_BODY: Body(reply, gone, on_part)},
    }
    await app(scope, receive, send)
    return reply


JSON: Headers = (("host", "127.0.0.1:4242"), ("content-type", "application/json"))


def streaming(app: Any) -> Any:
    """`app` behind a server with `protocol.StreamedBody`, for clients that speak plain ASGI."""

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        streamed = Reply(status=200)

        async def joined(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": streamed.body + message.get("body", b"")}
                streamed.parts.clear()
            await send(message)

        body = Body(streamed, asyncio.Event(), lambda part: None)
        await app({**scope, "extensions": {STREAMED_BODY: body}}, receive, joined)
        if streamed.parts:
            await send({"type": "http.response.body", "body": streamed.body, "more_body": True})

    return behind
