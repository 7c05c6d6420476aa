"""`POST /v1/responses`, stateless."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.answer import Answer
from hearth.app.server import answers, sse
from hearth.app.server.errors import as_hearth_error, error_body
from hearth.app.server.exchange import Exchange
from hearth.app.server.generation import GenerationEvents
from hearth.app.server.response_items import Items
from hearth.app.server.responses_request import NAMES, Names, read_request
from hearth.app.server.tables.responses import CREATE_RESPONSE
from hearth.backends.contract import (
    Event,
    Finished,
    Progress,
    Request,
    Started,
    Token,
    ToolCallPart,
    Usage,
)
from hearth.backends.errors import HearthError

Json = dict[str, Any]


async def create_response(http: HttpRequest) -> Response:
    """Answer one request, whole or as a stream of events.

    Raises:
        HearthError: the request is refused, or fails before its first event.
    """
    exchange = await Exchange.open(http, CREATE_RESPONSE, NAMES)
    with exchange.translate_param_names():
        request, names = read_request(exchange)
    reply = _Reply(_frame(exchange, request, names), Items(names))
    events = await exchange.events([request])
    if exchange.given.get("stream", False):
        dialect = sse.Dialect(reply.failure)
        return await exchange.stream(reply.parts(events), dialect)
    await exchange.attend(reply.complete(events))
    return JSONResponse(reply.response())


def _frame(exchange: Exchange, request: Request, names: Names) -> Json:
    """The fields of a response that repeat its request."""
    given = exchange.given
    wanted = given.get("text", {}).get("format", {"type": "text"})
    return {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response",
        "created_at": float(int(time.time())),
        "model": exchange.model,
        "background": False,
        "instructions": given.get("instructions"),
        "max_output_tokens": request.max_tokens,
        "metadata": given.get("metadata", {}),
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": given.get("reasoning", {}).get("effort"), "summary": None},
        "store": False,
        "temperature": request.sampling.temperature,
        "text": {"format": wanted},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": [
            {
                "type": "function",
                **names.of_client(tool.name),
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": tool.strict,
            }
            for tool in request.tools
        ],
        "top_logprobs": request.sampling.logprobs or 0,
        "top_p": request.sampling.top_p,
        "truncation": "disabled",
        "user": given.get("user"),
    }


_INCOMPLETE: Final = {"reason": "max_output_tokens"}


@dataclass(slots=True)
class _Reply:
    """One response while it is generated. Streams and complete responses are built by the same
    steps.
    """

    frame: Json
    items: Items
    status: str = "in_progress"
    answer: Answer = field(default_factory=Answer)
    error: Json | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def response(self) -> Json:
        """The response so far."""
        done = self.status != "in_progress"
        return {
            **self.frame,
            "status": self.status,
            "completed_at": float(int(time.time())) if self.status == "completed" else None,
            "error": self.error,
            "incomplete_details": _INCOMPLETE if self.status == "incomplete" else None,
            "output": self.items.done if done else [],
            "usage": _usage(self.answer.usage) if self.answer.finished else None,
            **answers.notices(self.answer.notices),
        }

    async def complete(self, events: GenerationEvents) -> None:
        """Consume all events."""
        async with aclosing(events):
            async for self.answer, event in events:
                for _ in self._take(event):
                    pass

    async def parts(self, events: GenerationEvents) -> sse.Parts:
        """The bytes of the stream."""
        async with aclosing(events):
            async for self.answer, event in events:
                if isinstance(event, Progress):
                    yield sse.comment(f"prefill {event.done}/{event.total}")
                for name, fields in self._take(event):
                    yield self._event(name, fields)

    def failure(self, error: HearthError) -> bytes:
        """The last events of a stream that failed."""
        found = error_body(as_hearth_error(error))["error"]
        self.status = "failed"
        self.error = {"code": "server_error", "message": found["message"]}
        failed = self._event("response.failed", {"response": self.response()})
        fields = {key: found[key] for key in ("message", "code", "param")}
        return failed + self._event("error", fields)

    def _event(self, name: str, fields: Json) -> bytes:
        return sse.named(name, {"type": name, "sequence_number": next(self._numbers), **fields})

    def _take(self, event: Event) -> Iterator[tuple[str, Json]]:
        parts = self.answer.choices[0].parts
        if isinstance(event, (Token, ToolCallPart)):
            yield from self.items.add(parts, event)
        elif isinstance(event, Started):
            yield "response.created", {"response": self.response()}
            yield "response.in_progress", {"response": self.response()}
        elif isinstance(event, Finished):
            self.status = "incomplete" if event.reason == "length" else "completed"
            yield from self.items.close(parts, self.status)
            yield f"response.{self.status}", {"response": self.response()}


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.kept_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
