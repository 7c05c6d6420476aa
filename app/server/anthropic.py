"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API."""

from __future__ import annotations

import secrets
from contextlib import aclosing
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.answer import Answer, Choice, Part
from hearth.app.server import answers, sse
from hearth.app.server.anthropic_request import NAMES, read_request
from hearth.app.server.errors import ANTHROPIC, error_body
from hearth.app.server.exchange import Exchange
from hearth.app.server.generation import GenerationEvents
from hearth.app.server.tables.anthropic import COUNT_TOKENS, CREATE_MESSAGE
from hearth.backends.contract import Finished, Progress, Started, Token, ToolCallPart, Usage

Json = dict[str, Any]

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
    events = await exchange.events([request])
    if exchange.given.get("stream", False):
        return await exchange.stream(_parts(exchange.model, events), DIALECT)
    [answer] = await exchange.collect(events)
    return JSONResponse(_message(exchange.model, answer))


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


def _ending(choice: Choice) -> Json:
    if choice.reason == "stop" and choice.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop}
    return {"stop_reason": _REASONS.get(choice.reason), "stop_sequence": None}


def _block(part: Part, text: str) -> Json:
    if part.kind == "call":
        arguments = answers.arguments(text)
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": ""}
    return {"type": "text", "text": text}


def _message(model: str, answer: Answer) -> Json:
    """The message of `answer`; its blocks once it is complete."""
    choice = answer.choices[0]
    blocks = [_block(part, part.text) for part in choice.parts] or [_block(Part("content"), "")]
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks if choice.reason else [],
        **_ending(choice),
        "usage": _usage(answer.usage),
        **answers.notices(answer.notices),
    }


async def _parts(model: str, events: GenerationEvents) -> sse.Parts:
    """The bytes of the stream."""
    begun = 0
    async with aclosing(events):
        async for answer, event in events:
            if isinstance(event, Progress):
                yield DIALECT.ping
            parts = answer.choices[0].parts
            if isinstance(event, Finished) and not parts:
                parts.append(Part("content"))
            if len(parts) > begun:
                if begun:
                    yield _event("content_block_stop", index=begun - 1)
                block = _block(parts[begun], "")
                yield _event("content_block_start", index=begun, content_block=block)
                begun += 1
            if isinstance(event, Token):
                if event.text:
                    kind = "thinking" if event.channel == "reasoning" else "text"
                    delta = {"type": f"{kind}_delta", kind: event.text}
                    yield _event("content_block_delta", index=begun - 1, delta=delta)
            elif isinstance(event, ToolCallPart):
                if event.arguments:
                    delta = {"type": "input_json_delta", "partial_json": event.arguments}
                    yield _event("content_block_delta", index=begun - 1, delta=delta)
            elif isinstance(event, Started):
                yield _event("message_start", message=_message(model, answer))
            elif isinstance(event, Finished):
                yield _event("content_block_stop", index=begun - 1)
                ending = {"delta": _ending(answer.choices[0]), "usage": _usage(event.usage)}
                yield _event("message_delta", **ending, **answers.notices(event.notices))
                yield _event("message_stop")


def _event(name: str, **fields: Any) -> bytes:
    return sse.named(name, {"type": name, **fields})
