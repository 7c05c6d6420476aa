"""`/api/chat`, `/api/generate`, `/api/embed` and `/api/embeddings` of Ollama's API."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.answer import Answer, Choice
from hearth.app.server import answers, sse
from hearth.app.server.embeddings import shortened
from hearth.app.server.errors import OLLAMA, error_body
from hearth.app.server.exchange import Exchange
from hearth.app.server.generation import GenerationEvents
from hearth.app.server.ollama_context import LimitedContext
from hearth.app.server.ollama_request import NAMES, read_chat, read_generate
from hearth.app.server.services import worker_of
from hearth.app.server.tables.ollama import CHAT, EMBED, EMBEDDINGS, GENERATE
from hearth.backends.contract import Embeddings, Finished, Request, Token, Usage

Json = dict[str, Any]
Shape = Callable[[Choice], Json]
"""Puts an answer into the fields of one endpoint."""

NDJSON: Final = "application/x-ndjson"
LATEST: Final = ":latest"
"""Ollama's tag of models that have no other; names may end in it."""


async def chat(http: HttpRequest) -> Response:
    """Answer a conversation; streamed unless `stream` is false."""
    exchange = await Exchange.open(http, CHAT, {**NAMES, "text": "messages"}, suffix=LATEST)
    if not exchange.given.get("messages"):
        return await _load(exchange, {"message": {"role": "assistant", "content": ""}})
    return await _answer(exchange, read_chat, _message)


async def generate(http: HttpRequest) -> Response:
    """Answer a prompt; streamed unless `stream` is false."""
    exchange = await Exchange.open(http, GENERATE, NAMES, suffix=LATEST)
    if not exchange.given.get("prompt") and not exchange.given.get("suffix"):
        return await _load(exchange, {"response": ""})
    return await _answer(exchange, read_generate, _response)


def _message(choice: Choice) -> Json:
    message: Json = {"role": "assistant", "content": choice.content}
    if choice.reasoning:
        message["thinking"] = choice.reasoning
    if calls := choice.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "function": {"name": call.name, "arguments": answers.arguments(call.arguments)},
            }
            for call in calls
        ]
    return {"message": message} | _logprobs(choice)


def _response(choice: Choice) -> Json:
    fields: Json = {"response": choice.content}
    if choice.reasoning:
        fields["thinking"] = choice.reasoning
    return fields | _logprobs(choice)


def _logprobs(choice: Choice) -> Json:
    logprobs = choice.logprobs
    return {"logprobs": answers.chat_logprobs(logprobs)["content"]} if logprobs else {}


async def _answer(
    exchange: Exchange, read: Callable[[Exchange], Request], shape: Shape
) -> Response:
    answer = _Answer(exchange, shape, time.perf_counter())
    with exchange.translate_param_names():
        request = read(exchange)
    options = exchange.given.get("options", {})
    if options.get("num_predict") == 0:
        return await answer.of_prompt_alone(request)
    source = LimitedContext(await exchange.backend(), options.get("num_ctx"))
    events = await exchange.events([request], source=source)
    if exchange.given.get("stream", True):
        return await exchange.stream(answer.lines(events, source), answer.dialect())
    [made] = await exchange.collect(events)
    return JSONResponse(answer.ended(made.last, made, source.load_s))


@dataclass(frozen=True, slots=True)
class _Answer:
    """Builds one answer, complete or as lines of a stream.

    Attributes:
        began_s: when the request arrived, by `time.perf_counter`.
    """

    exchange: Exchange
    shape: Shape
    began_s: float

    def ended(self, choice: Choice, made: Answer, load_s: float) -> Json:
        """The complete answer with the reason of its end, counts, and durations in nanoseconds."""
        usage, timings = made.usage, made.timings
        return {
            **_head(self.exchange),
            **self.shape(choice),
            "done": True,
            "done_reason": "length" if made.last.reason == "length" else "stop",
            "total_duration": _ns(time.perf_counter() - self.began_s),
            "load_duration": _ns(load_s),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _ns(timings.prefill_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": _ns(timings.decode_s),
            **answers.notices(made.notices),
        }

    async def lines(self, events: GenerationEvents, source: LimitedContext) -> sse.Parts:
        """The answer as it is generated, one JSON object per line; tool calls are complete, in the
        last line but one.
        """
        async with aclosing(events):
            async for made, event in events:
                if isinstance(event, Token) and (event.text or event.logprobs):
                    piece = Choice()
                    piece.add(event)
                    yield self._piece(piece)
                elif isinstance(event, Finished):
                    calls = [part for part in made.last.parts if part.kind == "call"]
                    if calls:
                        yield self._piece(Choice(parts=calls))
                    yield line(self.ended(Choice(), made, source.load_s))

    async def of_prompt_alone(self, request: Request) -> Response:
        """The answer for `num_predict: 0`: one line, streamed or not."""
        backend = await self.exchange.backend()
        prompt = await self.exchange.attend(backend.render(request))
        made = Answer(notices=(*self.exchange.notices, *prompt.notices))
        made.add(Finished("length", Usage(len(prompt.ids))))
        return Response(
            line(self.ended(made.last, made, 0.0)),
            media_type=NDJSON if self.exchange.given.get("stream", True) else "application/json",
        )

    def dialect(self) -> sse.Dialect:
        """The format of errors and pings of the stream."""
        return dialect(_head(self.exchange) | self.shape(Choice()) | {"done": False})

    def _piece(self, choice: Choice) -> bytes:
        return line(_head(self.exchange) | self.shape(choice) | {"done": False})


def dialect(ping: Json) -> sse.Dialect:
    """The dialect of a stream of lines, with `ping` sent while the stream is silent."""
    return sse.Dialect(lambda error: line(error_body(error, OLLAMA)), line(ping), NDJSON)


def line(value: Json) -> bytes:
    """One line of a stream."""
    return sse.one_line(value) + b"\n"


def _head(exchange: Exchange) -> Json:
    return {"model": exchange.model, "created_at": datetime.now(UTC).isoformat()}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


async def _load(exchange: Exchange, empty: Json) -> Response:
    """Load the model, or unload it if `keep_alive` is 0: the request has no prompt."""
    reason = "load"
    if exchange.chosen.spec.settings.keep_alive_s == 0 and "keep_alive" in exchange.given:
        await exchange.attend(_unload(exchange))
        reason = "unload"
    else:
        await exchange.attend((await exchange.backend()).info())
    return exchange.answer(_head(exchange) | empty | {"done": True, "done_reason": reason})


async def _unload(exchange: Exchange) -> None:
    """Unload the model as soon as no request uses it."""
    services = exchange.services
    worker = await worker_of(await services.host_stats(), exchange.chosen.found)
    if worker is not None and worker.running + worker.waiting:
        await (await exchange.backend()).info()  # Passes keep_alive on to the host.
    else:
        await (await services.hosts.host()).unload(exchange.chosen.spec.path)


async def embed(http: HttpRequest) -> Response:
    """One vector for each text, in the order of `input`."""
    began_s = time.perf_counter()
    exchange = await Exchange.open(http, EMBED, {"texts": "input"}, suffix=LATEST)
    texts = exchange.given["input"]
    if isinstance(texts, str):
        exchange.names["texts[0]"] = "input"
        texts = [texts] if texts else []
    await exchange.attend((await exchange.backend()).info())
    load_s = time.perf_counter() - began_s
    result = await _embeddings(exchange, texts, truncate=exchange.given.get("truncate", True))
    vectors = [list(vector) for vector in result.vectors]
    if "dimensions" in exchange.given:
        vectors = [shortened(vector, exchange.given["dimensions"]) for vector in vectors]
    return exchange.answer(
        {
            "model": exchange.model,
            "embeddings": vectors,
            "total_duration": _ns(time.perf_counter() - began_s),
            "load_duration": _ns(load_s),
            "prompt_eval_count": result.prompt_tokens,
        }
    )


async def embeddings(http: HttpRequest) -> Response:
    """The vector of one text; superseded by `/api/embed`."""
    names = {"texts": "prompt", "texts[0]": "prompt"}
    exchange = await Exchange.open(http, EMBEDDINGS, names, suffix=LATEST)
    prompt = exchange.given.get("prompt", "")
    result = await _embeddings(exchange, [prompt] if prompt else [], truncate=True)
    vector = result.vectors[0] if result.vectors else ()
    return exchange.answer({"embedding": list(vector)})


async def _embeddings(exchange: Exchange, texts: Sequence[str], *, truncate: bool) -> Embeddings:
    """The vectors of `texts`; if there are none, the model is loaded."""
    backend = await exchange.backend()
    if not texts:
        await exchange.attend(backend.info())
        return Embeddings((), 0)
    embedding = backend.embed(texts, session=exchange.session, truncate=truncate)
    return await exchange.attend(exchange.measured(embedding))
