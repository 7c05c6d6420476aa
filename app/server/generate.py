"""`POST /v1/generate` and `/v1/generate/batch`: text completion with timings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.server import answers, sse
from hearth.app.server.exchange import Exchange
from hearth.app.server.generation import Choice, GenerationEvents, Tally
from hearth.app.server.requests import build
from hearth.app.server.tables.text import GENERATE, GENERATE_BATCH
from hearth.backends.contract import ChoiceFinished, Finished, Request, Token


async def generate_text(http: HttpRequest) -> Response:
    """Continue one prompt.

    Raises:
        HearthError: the request is refused, or fails before its first event.
    """
    exchange = await Exchange.open(http, GENERATE, {"text": "prompt"})
    began = time.perf_counter()
    requests = _requests(exchange, [exchange.given["prompt"]])
    events = await exchange.events(requests)
    if exchange.given.get("stream", False):
        return await exchange.stream(_parts(events, _optimization(exchange), began))
    choice = Choice()
    tally = await exchange.collect(events, [choice], 1)
    return JSONResponse(
        {
            "model": exchange.model,
            "text": choice.text,
            **_result(tally, choice.reason, _optimization(exchange), began),
        }
    )


async def generate_batch(http: HttpRequest) -> Response:
    """Continue several prompts; `optimization` decides whether they are computed together.

    Raises:
        HearthError: the error of the first prompt that fails.
    """
    exchange = await Exchange.open(http, GENERATE_BATCH, {"text": "prompts"})
    began = time.perf_counter()
    requests = _requests(exchange, exchange.given["prompts"])
    events = await exchange.events(requests, 1 if _optimization(exchange) == "none" else 0)
    results: list[dict[str, Any]] = [{} for _ in requests]
    choices = [Choice() for _ in requests]
    tally = await exchange.attend(_collect(events, choices, results, exchange, began))
    total_s = time.perf_counter() - began
    tokens = tally.usage.completion_tokens
    return JSONResponse(
        {
            "model": exchange.model,
            "results": results,
            "tokens_generated": tokens,
            "cached_tokens": tally.usage.cached_tokens,
            "total_latency_ms": 1000 * total_s,
            "throughput_tokens_per_sec": tokens / total_s,
            "optimization_used": _optimization(exchange),
            **answers.notices(tally.notices),
        }
    )


def _optimization(exchange: Exchange) -> str:
    return str(exchange.given.get("optimization", "full"))


def _requests(exchange: Exchange, prompts: Sequence[str]) -> list[Request]:
    reuse = _optimization(exchange) == "full"
    given = {**exchange.given, "cache_prompt": reuse}
    with exchange.translate_param_names():
        return [
            build(given, exchange.chosen.use, exchange.session, None, text=prompt)
            for prompt in prompts
        ]


def _result(tally: Tally, reason: str, optimization: str, began: float) -> dict[str, Any]:
    took_s = time.perf_counter() - began
    return {
        "finish_reason": reason,
        "tokens_generated": tally.usage.completion_tokens,
        "prompt_tokens": tally.usage.prompt_tokens,
        "cached_tokens": tally.usage.cached_tokens,
        "latency_ms": 1000 * took_s,
        "optimization_used": optimization,
        **answers.notices(tally.notices),
    }


async def _collect(
    events: GenerationEvents,
    choices: list[Choice],
    results: list[dict[str, Any]],
    exchange: Exchange,
    began: float,
) -> Tally:
    """Fill `results` as prompts finish; latencies are measured from the request's arrival."""
    tally = Tally()
    async with aclosing(events):
        async for position, event in events:
            tally.add(event)
            choice = choices[position]
            if isinstance(event, Token | ChoiceFinished):
                choice.add(event)
            elif isinstance(event, Finished):
                own = Tally(event.usage)
                result = _result(own, choice.reason, _optimization(exchange), began)
                results[position] = {"index": position, "text": choice.text, **result}
    return tally


async def _parts(events: GenerationEvents, optimization: str, began: float) -> sse.Parts:
    """The text as it is generated, then the counts and timings."""
    tally, reason = Tally(), "stop"
    async with aclosing(events):
        async for _, event in events:
            tally.add(event)
            if isinstance(event, Token) and event.text:
                yield sse.event({"text": event.text})
            elif isinstance(event, ChoiceFinished):
                reason = event.reason
    yield sse.event({"text": "", **_result(tally, reason, optimization, began)})
    yield sse.DONE
