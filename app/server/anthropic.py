"""`POST /v1/messages` and `/v1/messages/count_tokens`: what coding agents send."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.server import sse
from hearth.app.server.anthropic_request import NAMES, read_request
from hearth.app.server.errors import ANTHROPIC, error_body
from hearth.app.server.exchange import Exchange
from hearth.app.server.generation import Choice, Happenings
from hearth.app.server.tables.anthropic import COUNT_TOKENS, CREATE_MESSAGE
from hearth.backends.contract import (
    ChoiceFinished,
    Finished,
    Progress,
    Started,
    Token,
    ToolCallPart,
    Usage,
)

DIALECT: Final = sse.Dialect(
    lambda error: sse.named("error", error_body(error, ANTHROPIC)),
    sse.named("ping", {"type": "ping"}),
)
_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


async def create_message(http: HttpRequest) -> Response:
    """Answer one request, whole or as a stream of events.

    Raises:
        HearthError: the request is refused, or fails before its first event.
    """
    exchange = await Exchange.open(http, CREATE_MESSAGE, NAMES)
    with exchange.in_their_words():
        request = read_request(exchange)
    events = await exchange.events([request])
    if exchange.given.get("stream", False):
        return await exchange.stream(_Events(exchange.model).parts(events), DIALECT)
    choice = Choice()
    tally = await exchange.collect(events, [choice], 1)
    message = _message(exchange.model, _blocks(choice), tally.usage)
    return JSONResponse({**message, **_ending(choice.reason, choice.stop)})


async def count_tokens(http: HttpRequest) -> Response:
    """How many tokens the prompt of a request has."""
    exchange = await Exchange.open(http, COUNT_TOKENS, NAMES)
    with exchange.in_their_words():
        request = read_request(exchange)
    prompt = await exchange.attend((await exchange.backend()).render(request))
    return JSONResponse({"input_tokens": len(prompt.ids)})


def _message(model: str, content: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(usage),
    }


def _usage(usage: Usage) -> dict[str, Any]:
    """Prompt tokens stand in one of three places: found, kept from now on, or neither."""
    written = min(usage.kept_tokens, usage.prompt_tokens - usage.cached_tokens)
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _ending(reason: str, stop: str | None) -> dict[str, Any]:
    if reason == "stop" and stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": _REASONS[reason], "stop_sequence": None}


def _blocks(choice: Choice) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if choice.reasoning:
        blocks.append({"type": "thinking", "thinking": choice.reasoning, "signature": ""})
    if choice.text or not (choice.calls or blocks):
        blocks.append({"type": "text", "text": choice.text})
    for call in choice.calls:
        given = _arguments(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
    return blocks


def _arguments(text: str) -> dict[str, Any]:
    """The object that a call's arguments write; a call that was cut has none."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class _Events:
    """Makes the events of a stream: a message of blocks, each begun, continued and ended."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._block = -1
        self._kind = ""
        """Of the block that is open: "text", "thinking", or the position of a call."""

    async def parts(self, events: Happenings) -> sse.Parts:
        """The bytes of the stream."""
        ending: dict[str, Any] = {}
        async with aclosing(events):
            async for _, event in events:
                if isinstance(event, Token):
                    if event.text:
                        for part in self._token(event):
                            yield part
                elif isinstance(event, ToolCallPart):
                    for part in self._call(event):
                        yield part
                elif isinstance(event, Started):
                    usage = Usage(event.prompt_tokens, event.cached_tokens)
                    message = _message(self._model, [], usage)
                    yield self._event("message_start", message=message)
                elif isinstance(event, Progress):
                    yield DIALECT.ping
                elif isinstance(event, ChoiceFinished):
                    ending = _ending(event.reason, event.stop)
                elif isinstance(event, Finished):
                    for part in self._close():
                        yield part
                    yield self._event("message_delta", delta=ending, usage=_usage(event.usage))
                    yield self._event("message_stop")

    def _token(self, event: Token) -> Iterator[bytes]:
        thinks = event.channel == "reasoning"
        kind = "thinking" if thinks else "text"
        if self._kind != kind:
            empty = {"thinking": "", "signature": ""} if thinks else {"text": ""}
            yield from self._open(kind, {"type": kind, **empty})
        yield self._delta({"type": f"{kind}_delta", kind: event.text})

    def _call(self, event: ToolCallPart) -> Iterator[bytes]:
        if event.name:
            call = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
            yield from self._open(f"call {event.position}", call)
        if event.arguments:
            yield self._delta({"type": "input_json_delta", "partial_json": event.arguments})

    def _open(self, kind: str, block: dict[str, Any]) -> Iterator[bytes]:
        yield from self._close()
        self._block += 1
        self._kind = kind
        yield self._event("content_block_start", index=self._block, content_block=block)

    def _close(self) -> Iterator[bytes]:
        if self._kind:
            self._kind = ""
            yield self._event("content_block_stop", index=self._block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return self._event("content_block_delta", index=self._block, delta=delta)

    @staticmethod
    def _event(name: str, **rest: Any) -> bytes:
        return sse.named(name, {"type": name, **rest})
