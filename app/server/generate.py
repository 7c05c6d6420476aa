"""`POST /v1/generate` and `/v1/generate/batch`: text completion with timings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.answer import Answer, total_usage
from hearth.app.server import answers, sse
from hearth.app.server.exchange import Exchange
from hearth.app.server.generation import GenerationEvents
from hearth.app.server.requests import build
from hearth.app.server.tables.text import GENERATE, GENERATE_BATCH
from hearth.backends.contract import Finished, Request, Token


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
    [answer] = await exchange.collect(events)
    result = _result(answer, _optimization(exchange), began) | answers.notices(answer.notices)
    return JSONResponse({"model": exchange.model, "text": answer.content, **result})


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
    made = await exchange.attend(_collect(events, results, exchange, began))
    total_s = time.perf_counter() - began
    used = total_usage(made)
    return JSONResponse(
        {
            "model": exchange.model,
            "results": results,
            "tokens_generated": used.completion_tokens,
            "cached_tokens": used.cached_tokens,
            "total_latency_ms": 1000 * total_s,
            "throughput_tokens_per_sec": used.completion_tokens / total_s,
            "optimization_used": _optimization(exchange),
            **answers.notices(answers.all_notices(made)),
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


def _result(answer: Answer, optimization: str, began: float) -> dict[str, Any]:
    took_s = time.perf_counter() - began
    return {
        "finish_reason": answer.last.reason,
        "tokens_generated": answer.usage.completion_tokens,
        "prompt_tokens": answer.usage.prompt_tokens,
        "cached_tokens": answer.usage.cached_tokens,
        "latency_ms": 1000 * took_s,
        "optimization_used": optimization,
    }


async def _collect(
    events: GenerationEvents, results: list[dict[str, Any]], exchange: Exchange, began: float
) -> list[Answer]:
    """Fill `results` as prompts finish; latencies are measured from the request's arrival."""
    made = []
    async with aclosing(events):
        async for answer, event in events:
            if isinstance(event, Finished):
                made.append(answer)
                result = _result(answer, _optimization(exchange), began)
                results[answer.position] = {
                    "index": answer.position,
                    "text": answer.content,
                    **result,
                }
    return made


async def _parts(events: GenerationEvents, optimization: str, began: float) -> sse.Parts:
    """The text as it is generated, then the counts and timings."""
    async with aclosing(events):
        async for answer, event in events:
            if isinstance(event, Token) and event.text:
                yield sse.event({"text": event.text})
            elif isinstance(event, Finished):
                result = _result(answer, optimization, began) | answers.notices(answer.notices)
                yield sse.event({"text": "", **result})
    yield sse.DONE
