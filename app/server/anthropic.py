"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.server import answers, sse
from hearth.app.server.anthropic_request import NAMES, read_request
from hearth.app.server.errors import ANTHROPIC, error_body
from hearth.app.server.exchange import Exchange
from hearth.app.server.generation import GenerationEvent, GenerationEvents
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

Json = dict[str, Any]
Named = Iterator[tuple[str, Json]]
"""Events: (name, fields)."""

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
    with exchange.translate_param_names():
        request = read_request(exchange)
    answer = _Answer(exchange.model)
    events = await exchange.events([request])
    if exchange.given.get("stream", False):
        return await exchange.stream(answer.parts(events), DIALECT)
    await exchange.attend(answer.complete(events))
    return JSONResponse(answer.message())


async def count_tokens(http: HttpRequest) -> Response:
    """Respond with the number of tokens in the prompt of a request."""
    exchange = await Exchange.open(http, COUNT_TOKENS, NAMES)
    with exchange.translate_param_names():
        request = read_request(exchange)
    prompt = await exchange.attend((await exchange.backend()).render(request))
    return exchange.answer({"input_tokens": len(prompt.ids)})


def _usage(usage: Usage) -> Json:
    """Each prompt token is counted once: read from the cache, written to it, or neither."""
    written = min(usage.kept_tokens, usage.prompt_tokens - usage.cached_tokens)
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _ending(reason: str, stop: str | None) -> Json:
    if reason == "stop" and stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": _REASONS[reason], "stop_sequence": None}


class _Answer:
    """One message while it is generated, as a sequence of blocks. Streams and complete responses
    are built by the same steps.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._ident = f"msg_{secrets.token_hex(12)}"
        self._usage = Usage()
        self._notices: dict[str, None] = {}
        self._ending: Json = {"stop_reason": None, "stop_sequence": None}
        self._blocks: list[Json] = []
        self._is_open = False
        """Whether the last block is."""
        self._pieces: list[str] = []
        """The text of the last block."""

    def message(self) -> Json:
        """The message so far."""
        return {
            "id": self._ident,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": self._blocks,
            **self._ending,
            "usage": _usage(self._usage),
            **answers.notices(self._notices),
        }

    async def complete(self, events: GenerationEvents) -> None:
        """Consume all events."""
        async with aclosing(events):
            async for _, event in events:
                for _ in self._take(event):
                    pass

    async def parts(self, events: GenerationEvents) -> sse.Parts:
        """The bytes of the stream."""
        async with aclosing(events):
            async for _, event in events:
                if isinstance(event, Progress):
                    yield DIALECT.ping
                for name, fields in self._take(event):
                    yield sse.named(name, {"type": name, **fields})

    def _take(self, event: GenerationEvent) -> Named:
        if isinstance(event, Token):
            if event.text:
                yield from self._token(event)
        elif isinstance(event, ToolCallPart):
            yield from self._call(event)
        elif isinstance(event, Started):
            self._usage = Usage(event.prompt_tokens, event.cached_tokens)
            self._notices.update(dict.fromkeys(event.notices))
            yield "message_start", {"message": self.message()}
        elif isinstance(event, ChoiceFinished):
            self._ending = _ending(event.reason, event.stop)
        elif isinstance(event, Finished):
            if not self._blocks:
                yield from self._open({"type": "text", "text": ""})
            yield from self._close()
            self._usage = event.usage
            self._notices.update(dict.fromkeys(event.notices))
            ending = {"delta": self._ending, "usage": _usage(event.usage)}
            yield "message_delta", ending | answers.notices(event.notices)
            yield "message_stop", {}

    def _token(self, event: Token) -> Named:
        thinks = event.channel == "reasoning"
        kind = "thinking" if thinks else "text"
        if not (self._is_open and self._blocks[-1]["type"] == kind):
            signature = {"signature": ""} if thinks else {}
            yield from self._open({"type": kind, kind: "", **signature})
        yield self._delta(f"{kind}_delta", kind, event.text)

    def _call(self, event: ToolCallPart) -> Named:
        if event.name:
            call = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
            yield from self._open(call)
        if event.arguments:
            yield self._delta("input_json_delta", "partial_json", event.arguments)

    def _open(self, block: Json) -> Named:
        yield from self._close()
        self._blocks.append(block)
        self._is_open = True
        yield "content_block_start", {"index": len(self._blocks) - 1, "content_block": block}

    def _delta(self, kind: str, field: str, text: str) -> tuple[str, Json]:
        self._pieces.append(text)
        delta = {"type": kind, field: text}
        return "content_block_delta", {"index": len(self._blocks) - 1, "delta": delta}

    def _close(self) -> Named:
        """Complete the open block, if any."""
        if not self._is_open:
            return
        block, text = self._blocks[-1], "".join(self._pieces)
        if block["type"] == "tool_use":
            block["input"] = answers.arguments(text)
        else:
            block[block["type"]] = text
        self._is_open = False
        self._pieces.clear()
        yield "content_block_stop", {"index": len(self._blocks) - 1}
