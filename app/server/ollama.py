"""`/api/chat`, `/api/generate` and `/api/embed`: a thin face of Ollama's own API."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.server import answers, sse
from hearth.app.server.embeddings import shortened
from hearth.app.server.errors import OLLAMA, error_body
from hearth.app.server.exchange import Exchange
from hearth.app.server.generation import Choice, Happenings, Tally
from hearth.app.server.loaded import host_stats, worker_of
from hearth.app.server.ollama_request import NAMES, read_chat, read_generate
from hearth.app.server.tables.ollama import CHAT, EMBED, GENERATE
from hearth.backends.contract import (
    ChoiceFinished,
    Request,
    Timings,
    Token,
    ToolCallPart,
    Usage,
)
from hearth.backends.errors import PromptTooLong

Json = dict[str, Any]
Shape = Callable[[Choice], Json]
"""Where the text of an answer stands."""

NDJSON: Final = "application/x-ndjson"
_LATEST: Final = ":latest"


async def chat(http: HttpRequest) -> Response:
    """Answer a conversation; streamed unless `stream` is false."""
    exchange = await Exchange.open(http, CHAT, NAMES, suffix=_LATEST)
    if not exchange.given.get("messages"):
        return await _load(exchange, {"message": {"role": "assistant", "content": ""}})
    return await _answer(exchange, read_chat, _message)


async def generate(http: HttpRequest) -> Response:
    """Answer a prompt; streamed unless `stream` is false."""
    exchange = await Exchange.open(http, GENERATE, NAMES, suffix=_LATEST)
    if not exchange.given.get("prompt"):
        return await _load(exchange, {"response": ""})
    return await _answer(exchange, read_generate, _response)


def _message(choice: Choice) -> Json:
    message: Json = {"role": "assistant", "content": choice.text}
    if choice.reasoning:
        message["thinking"] = choice.reasoning
    if choice.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "function": {"name": call.name, "arguments": answers.arguments(call.arguments)},
            }
            for call in choice.calls
        ]
    return {"message": message}


def _response(choice: Choice) -> Json:
    found: Json = {"response": choice.text}
    return found | ({"thinking": choice.reasoning} if choice.reasoning else {})


async def _answer(
    exchange: Exchange, read: Callable[[Exchange], Request], shape: Shape
) -> Response:
    with exchange.translate_param_names():
        request = read(exchange)
    await _check_context(exchange)
    if exchange.given.get("options", {}).get("num_predict") == 0:
        return await _prompt_alone(exchange, request, shape)
    events = await exchange.events([request])
    if exchange.given.get("stream", True):
        dialect = sse.Dialect(
            lambda error: _line(error_body(error, OLLAMA)),
            _line(_head(exchange) | shape(Choice()) | {"done": False}),
            NDJSON,
        )
        return await exchange.stream(_lines(exchange, events, shape), dialect)
    choice = Choice()
    tally = await exchange.collect(events, [choice], 1)
    return JSONResponse(_head(exchange) | shape(choice) | _ending(choice, tally))


async def _prompt_alone(exchange: Exchange, request: Request, shape: Shape) -> Response:
    """The answer where no token is asked for: one line, streamed or not."""
    prompt = await exchange.attend((await exchange.backend()).render(request))
    nothing = Choice(reason="length")
    tally = Tally(Usage(len(prompt.ids)), [Timings()])
    return Response(
        _line(_head(exchange) | shape(nothing) | _ending(nothing, tally)),
        media_type=NDJSON if exchange.given.get("stream", True) else "application/json",
    )


async def _check_context(exchange: Exchange) -> None:
    """Raises `PromptTooLong` where fewer tokens than `num_ctx` fit into the loaded context."""
    wanted = exchange.given.get("options", {}).get("num_ctx")
    if wanted is None:
        return
    info = await exchange.attend((await exchange.backend()).info())
    if info.context and wanted > info.context:
        raise PromptTooLong(
            "options.num_ctx",
            f"num_ctx is {wanted:,}; the context of {exchange.model} holds {info.context:,}.",
            "Ask for fewer, or set context for this model in the settings.",
            context=info.context,
        )


async def _lines(exchange: Exchange, events: Happenings, shape: Shape) -> sse.Parts:
    """The answer as it comes, a JSON object a line; calls come whole, with the last but one."""
    tally, whole = Tally(), Choice()
    async with aclosing(events):
        async for _, event in events:
            tally.add(event)
            if isinstance(event, Token) and event.text:
                piece = Choice()
                piece.add(event)
                yield _line(_head(exchange) | shape(piece) | {"done": False})
            elif isinstance(event, ToolCallPart | ChoiceFinished):
                whole.add(event)
    if whole.calls:
        yield _line(_head(exchange) | shape(whole) | {"done": False})
    last = Choice(reason=whole.reason)
    yield _line(_head(exchange) | shape(last) | _ending(last, tally))


def _line(value: Json) -> bytes:
    return sse.one_line(value) + b"\n"


def _head(exchange: Exchange) -> Json:
    return {"model": exchange.model, "created_at": datetime.now(UTC).isoformat()}


def _ending(choice: Choice, tally: Tally) -> Json:
    """Why it ended, and what it took; times in nanoseconds."""
    timings = tally.timings[0]
    total_s = timings.queued_s + timings.prefill_s + timings.decode_s
    return {
        "done": True,
        "done_reason": "length" if choice.reason == "length" else "stop",
        "total_duration": _ns(total_s),
        "prompt_eval_count": tally.usage.prompt_tokens,
        "prompt_eval_duration": _ns(timings.prefill_s),
        "eval_count": tally.usage.completion_tokens,
        "eval_duration": _ns(timings.decode_s),
    }


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


async def _load(exchange: Exchange, empty: Json) -> Response:
    """Nothing is asked: the model is loaded, or unloaded where it is to be kept for no time."""
    reason = "load"
    if exchange.chosen.spec.settings.keep_alive_s == 0 and "keep_alive" in exchange.given:
        await exchange.attend(_unload(exchange))
        reason = "unload"
    else:
        await exchange.attend((await exchange.backend()).info())
    return JSONResponse(_head(exchange) | empty | {"done": True, "done_reason": reason})


async def _unload(exchange: Exchange) -> None:
    """Now if nobody uses the model, else as soon as that is so."""
    hosts = exchange.services.hosts
    worker = await worker_of(await host_stats(hosts), exchange.chosen.found)
    if worker is not None and worker.running + worker.waiting:
        await (await exchange.backend()).info()  # The host learns how long to keep it.
    else:
        await (await hosts.host()).unload(exchange.chosen.spec.path)


async def embed(http: HttpRequest) -> Response:
    """One vector a text."""
    exchange = await Exchange.open(http, EMBED, {"texts": "input"}, suffix=_LATEST)
    texts = exchange.given["input"]
    if isinstance(texts, str):
        exchange.names["texts[0]"] = "input"
        texts = [texts]
    backend = await exchange.backend()
    asked = backend.embed(texts, session=exchange.session)
    found = await exchange.attend(exchange.measured(asked))
    vectors = [list(vector) for vector in found.vectors]
    if "dimensions" in exchange.given:
        vectors = [shortened(vector, exchange.given["dimensions"]) for vector in vectors]
    return JSONResponse(
        {
            "model": exchange.model,
            "embeddings": vectors,
            "prompt_eval_count": found.prompt_tokens,
        }
    )
