"""`POST /v1/completions`, `/v1/generate` and its batch: text completion without a chat template."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.answer import Answer, Choice, total_usage
from hearth.app.server import answers, sse
from hearth.app.server.chunks import Chunks, ending, head, is_streamed, prompt_fields
from hearth.app.server.exchange import Exchange, GenerationEvents
from hearth.app.server.requests import build, constraint_of
from hearth.app.server.tables.text import COMPLETIONS, GENERATE, GENERATE_BATCH
from hearth.app.tasks import all_of
from hearth.backends.contract.backend import Backend
from hearth.backends.contract.events import (
    Channel,
    Event,
    Finished,
    Token,
    TokenLogprob,
)
from hearth.backends.contract.requests import BeamSearch, Request
from hearth.backends.errors import ConflictingParameters

Json = dict[str, Any]

_USUAL_BEAMS: Final = 4
DEFAULT_MAX_TOKENS: Final = 16
"""OpenAI's default, used if neither the request nor the settings have a limit."""
_NAMES: Final = {"text": "prompt", "token_ids": "prompt"}


@dataclass(frozen=True, slots=True)
class _Echo:
    """The prompt at the beginning of an answer."""

    text: str = ""
    tokens: tuple[TokenLogprob, ...] = ()
    """The prompt's tokens, if log probabilities are requested; the first has no probability."""

    def logprobs(self, choice: Choice) -> Json:
        """The log probabilities of the prompt and of `choice`, which follows it."""
        # The prompt of many models begins with a token that its text does not contain.
        begins = len(self.text) - sum(len(token.text) for token in self.tokens)
        logprobs = answers.text_logprobs(
            [*self.tokens, *choice.logprobs], begins if self.tokens else 0
        )
        if self.tokens:
            logprobs["token_logprobs"][0] = logprobs["top_logprobs"][0] = None
        return logprobs


async def create_completion(http: HttpRequest) -> Response:
    """Complete one prompt or several, whole or as a stream of chunks.

    Raises:
        HearthError: the request is refused, or fails before the first chunk.
    """
    exchange = await Exchange.open(http, COMPLETIONS, _NAMES)
    given = exchange.given
    stream = is_streamed(given)
    _check(given)
    requests = _requests(exchange)
    backend = await exchange.backend()
    echoes = [_Echo() for _ in requests]
    if given.get("echo"):
        top = given.get("logprobs")
        echoes = await exchange.attend(_echoes(backend, requests, top, exchange.at_once))
    prompts = await prompt_fields(exchange, requests)
    first = head("text_completion", "cmpl", exchange.model)
    if given.get("max_tokens") == 0:
        finished = await exchange.prompts_alone(requests)
        return JSONResponse(_whole(first, given, finished, echoes, prompts))
    events = await exchange.events(requests)
    if stream:
        return await exchange.stream(_Chunks(first, given, echoes, prompts).parts(events))
    finished = await exchange.collect(events)
    return JSONResponse(_whole(first, given, finished, echoes, prompts))


def _check(given: dict[str, Any]) -> None:
    """Raises `ConflictingParameters` if two fields exclude each other."""
    streamed = given.get("stream", False)
    n = given.get("n", 1)
    if given.get("best_of", n) < n:
        raise ConflictingParameters(
            "best_of",
            f"best_of ({given['best_of']}) is smaller than n ({n}).",
            "Raise best_of, or lower n.",
        )
    if given.get("best_of", n) > n and streamed and not given.get("use_beam_search"):
        raise ConflictingParameters(
            "best_of",
            "best_of cannot be streamed: the best answers are chosen when all are complete.",
            "Leave out best_of or stream.",
        )
    if given.get("max_tokens") == 0 and streamed:
        raise ConflictingParameters(
            "max_tokens",
            "max_tokens is 0, which leaves nothing to stream.",
            "Leave out stream, or raise max_tokens.",
        )
    if "suffix" in given and given.get("echo"):
        raise ConflictingParameters(
            "echo",
            "echo cannot be combined with suffix: the answer is between prompt and suffix.",
            "Leave out echo.",
        )


def _requests(exchange: Exchange) -> list[Request]:
    given, use = exchange.given, exchange.chosen.use
    if use.max_tokens is None:  # In `given`, None means no limit (-1).
        use = replace(use, max_tokens=DEFAULT_MAX_TOKENS)
    beams = _beams(given)
    choices = max(given.get("best_of", 1) if beams is None else 1, given.get("n", 1))
    logprobs = given.get("logprobs")
    if choices > given.get("n", 1) and logprobs is None:
        logprobs = 0  # The best answers are chosen by their log probabilities.
    limits = {"n": choices}
    if given.get("max_tokens") == 0:
        limits["max_tokens"] = 1  # The request is only rendered, never run.
    constraint, exchange.names["constraint"] = constraint_of(given)
    return [
        build(
            given,
            use,
            exchange.session,
            logprobs,
            constraint=constraint,
            beams=beams,
            suffix=given.get("suffix") if "text" in prompt else None,
            **limits,
            **prompt,
        )
        for prompt in _prompts(given)
    ]


def _beams(given: Mapping[str, Any]) -> BeamSearch | None:
    """Raises `ConflictingParameters` for a parameter of beam search without `use_beam_search`."""
    if given.get("use_beam_search"):
        count = max(given.get("best_of", 1), given.get("n", 1))
        width = given.get("beam_width", count if count > 1 else _USUAL_BEAMS)
        penalty, early = given.get("length_penalty", 1.0), given.get("early_stopping", False)
        return BeamSearch(width, penalty, early)
    for name in ("beam_width", "length_penalty", "early_stopping"):
        if name in given:
            raise ConflictingParameters(
                name,
                f"{name} is for beam search, which is not asked for.",
                f"Set use_beam_search to true too, or leave out {name}.",
            )
    return None


def _prompts(given: dict[str, Any]) -> list[dict[str, Any]]:
    """The `text` or `token_ids` of each prompt.

    Raises:
        ConflictingParameters: token ids with a suffix.
    """
    prompt = given["prompt"]
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        prompt = [prompt]
    if given.get("suffix") is not None and not all(isinstance(item, str) for item in prompt):
        raise ConflictingParameters(
            "suffix",
            "suffix requires a prompt of text, and prompt has token ids.",
            "Send the prompt as a string.",
        )
    return [
        {"text": item} if isinstance(item, str) else {"token_ids": tuple(item)} for item in prompt
    ]


async def _echoes(
    backend: Backend, requests: Sequence[Request], top: int | None, at_once: int
) -> list[_Echo]:
    async def echo(request: Request) -> _Echo:
        if top is None and request.text is not None:
            return _Echo(request.text)
        prompt = await backend.render(request)
        text = prompt.text if request.text is None else request.text
        if top is None:
            return _Echo(text)
        first = TokenLogprob(prompt.ids[0], await backend.detokenize(prompt.ids[:1]), 0.0)
        if len(prompt.ids) == 1:
            return _Echo(text, (first,))
        # Scores name tokens only if alternatives are requested.
        scores = await backend.score(prompt.ids, top=max(1, top), session=request.session)
        tokens = (replace(token, top=token.top[:top]) for token in scores.tokens)
        return _Echo(text, (first, *tokens))

    return await all_of(echo, requests, at_once)


def _whole(
    first: Json,
    given: Mapping[str, Any],
    made: Sequence[Answer],
    echoes: Sequence[_Echo],
    prompts: Sequence[Json],
) -> Json:
    returned: list[tuple[Choice, _Echo, Json]] = []
    for answer, echo, prompt in zip(made, echoes, prompts, strict=True):
        choices, wanted = answer.choices, given.get("n", 1)
        if len(choices) > wanted:
            choices = sorted(choices, key=_mean_logprob, reverse=True)[:wanted]
        returned += [(choice, echo, prompt) for choice in choices]
    return {
        **first,
        "choices": [
            {
                "index": index,
                "text": echo.text + choice.content,
                "logprobs": echo.logprobs(choice) if "logprobs" in given else None,
                "finish_reason": choice.reason,
                **({"token_ids": choice.ids} if given.get("return_token_ids") else {}),
                **prompt,
            }
            for index, (choice, echo, prompt) in enumerate(returned)
        ],
        **ending(made),
    }


def _mean_logprob(choice: Choice) -> float:
    """The mean log probability of the tokens, by which OpenAI's `best_of` ranks answers.

    An empty answer has none and is ranked last.
    """
    values = [token.logprob for token in choice.logprobs]
    return sum(values) / len(values) if values else -math.inf


class _Chunks(Chunks):
    """The chunks of a completion; each choice begins with the prompt, if `echo` is set."""

    def __init__(
        self,
        first: Json,
        given: Mapping[str, Any],
        echoes: Sequence[_Echo],
        prompts: Sequence[Json],
    ) -> None:
        super().__init__(first, given, {"text": ""})
        self._echoes = echoes
        self._prompts = prompts
        self._offsets: dict[tuple[int, int], int] = {}

    async def begin(self, answer: Answer, index: int) -> bytes:
        echo = self._echoes[answer.position]
        self._offsets[answer.position, index] = len(echo.text)
        logprobs = echo.logprobs(Choice()) if echo.tokens else None
        first = {"text": echo.text, **self._prompts[answer.position]}
        more = answers.notices(answer.notices)
        return self.chunk(answer, index, first, None, logprobs, **more)

    def content(self, text: str, channel: Channel) -> Json:
        return {"text": text}

    def logprobs(self, answer: Answer, event: Token) -> Json | None:
        if not event.logprobs:
            return None
        place = answer.position, event.index
        offset = self._offsets[place]
        self._offsets[place] += sum(len(token.text) for token in event.logprobs)
        return answers.text_logprobs(event.logprobs, offset)


async def generate_text(http: HttpRequest) -> Response:
    """Continue one prompt, and report timings.

    Raises:
        HearthError: the request is refused, or fails before its first event.
    """
    exchange = await Exchange.open(http, GENERATE, {"text": "prompt"})
    began = time.perf_counter()
    events = await exchange.events(_generations(exchange, [exchange.given["prompt"]]))
    if exchange.given.get("stream", False):
        return await exchange.stream(_parts(events, exchange, began))
    [answer] = await exchange.collect(events)
    result = _result(answer, exchange, began) | answers.notices(answer.notices)
    return JSONResponse({"model": exchange.model, "text": answer.content, **result})


async def generate_batch(http: HttpRequest) -> Response:
    """Continue several prompts; `optimization` decides whether they are computed together.

    Raises:
        HearthError: the error of the first prompt that fails.
    """
    exchange = await Exchange.open(http, GENERATE_BATCH, {"text": "prompts"})
    began = time.perf_counter()
    requests = _generations(exchange, exchange.given["prompts"])
    events = await exchange.events(requests, 1 if _optimization(exchange) == "none" else 0)
    results: list[Json] = [{} for _ in requests]

    def add(answer: Answer, event: Event) -> None:
        if isinstance(event, Finished):  # Latencies are measured from the request's arrival.
            place = {"index": answer.position, "text": answer.content}
            results[answer.position] = place | _result(answer, exchange, began)

    finished = await exchange.collect(events, add)
    total_s = time.perf_counter() - began
    used = total_usage(finished)
    return JSONResponse(
        {
            "model": exchange.model,
            "results": results,
            "tokens_generated": used.completion_tokens,
            "cached_tokens": used.cached_tokens,
            "total_latency_ms": 1000 * total_s,
            "throughput_tokens_per_sec": used.completion_tokens / total_s,
            "optimization_used": _optimization(exchange),
            **answers.notices(answers.all_notices(finished)),
        }
    )


def _optimization(exchange: Exchange) -> str:
    return str(exchange.given.get("optimization", "full"))


def _generations(exchange: Exchange, prompts: Sequence[str]) -> list[Request]:
    reuse = _optimization(exchange) == "full"
    given = {**exchange.given, "cache_prompt": reuse}
    return [
        build(given, exchange.chosen.use, exchange.session, None, text=prompt) for prompt in prompts
    ]


def _result(answer: Answer, exchange: Exchange, began: float) -> Json:
    return {
        "finish_reason": answer.last.reason,
        "tokens_generated": answer.usage.completion_tokens,
        "prompt_tokens": answer.usage.prompt_tokens,
        "cached_tokens": answer.usage.cached_tokens,
        "latency_ms": 1000 * (time.perf_counter() - began),
        "optimization_used": _optimization(exchange),
    }


async def _parts(events: GenerationEvents, exchange: Exchange, began: float) -> sse.Parts:
    """The text as it is generated, then the counts and timings."""
    async with aclosing(events):
        async for answer, event in events:
            if isinstance(event, Token) and event.text:
                yield sse.event({"text": event.text})
            elif isinstance(event, Finished):
                result = _result(answer, exchange, began) | answers.notices(answer.notices)
                yield sse.event({"text": "", **result})
    yield sse.DONE
