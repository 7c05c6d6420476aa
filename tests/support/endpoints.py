"""An application over a scripted host, and the requests that tests send to it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import Any

import asgi
from fake_host import FakeHost
from hearth.app.server.catalog import Catalog
from hearth.backends.machine.fair_pool import FairPool

HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
ONCE = {"model": "tiny", "prompt": "Once"}
START = {"prompt_tokens": 7}
HI = [START, {"text": "Hi"}, {"text": " there"}, {"finish": "stop"}]
CALL = {"call": {"position": 0, "id": "call_1", "name": "weather", "arguments": ""}}
MORE = {"call": {"position": 0, "arguments": '{"city":"Bern"}'}}
THINKS_AND_CALLS = [START, {"reasoning": "Hm."}, {"text": "Let me see."}, CALL, MORE]
THINKS_AND_CALLS += [{"finish": "tool_calls"}]
"""Scripts of `fake_host`."""


@dataclass
class Endpoint:
    """An application and the host behind it."""

    app: Any
    host: FakeHost
    catalog: Catalog = field(repr=False)

    def post(self, path: str, body: Any, headers: asgi.Headers = asgi.JSON) -> asgi.Reply:
        """POST `body`, as JSON unless it is bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", path, headers, data)

    def send(
        self, method: str, path: str, headers: asgi.Headers = asgi.JSON, body: bytes = b""
    ) -> asgi.Reply:
        return asyncio.run(asgi.exchange(self.app, method, path, body, headers))

    def chat(self, **more: Any) -> asgi.Reply:
        return self.post("/v1/chat/completions", {**HELLO, **more})

    def complete(self, **more: Any) -> asgi.Reply:
        return self.post("/v1/completions", {**ONCE, **more})

    def get(self, path: str, headers: asgi.Headers = asgi.JSON) -> asgi.Reply:
        return self.send("GET", path, headers)

    def unpaced(self) -> Endpoint:
        """The same application without its limit on the rate of large bodies of one client."""
        services = self.app.state.services
        self.app.state.services = replace(services, bodies=FairPool(2, "body"))
        return self

    @property
    def asked(self) -> dict[str, Any]:
        """The last request that reached the host."""
        return self.host.requests[-1]
