"""`POST /v1/completions`: text completion without a chat template."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.answer import Answer, Choice
from hearth.app.server import answers, prompt_tokens, sse
from hearth.app.server.exchange import Exchange
from hearth.app.server.generation import GenerationEvents
from hearth.app.server.leaving import all_of
from hearth.app.server.prompt_tokens import PromptTokens
from hearth.app.server.requests import StreamOptions, build, constraint_of, stream_options
from hearth.app.server.tables.completions import COMPLETIONS
from hearth.backends.contract import (
    Backend,
    ChoiceFinished,
    Finished,
    Progress,
    Request,
    Started,
    Token,
    TokenLogprob,
)
from hearth.backends.errors import ConflictingParameters

DEFAULT_MAX_TOKENS: Final = 16
"""OpenAI's default, used if neither the request nor the settings have a limit."""
_KIND: Final = "text_completion"
_NAMES: Final = {"text": "prompt", "token_ids": "prompt"}


@dataclass(frozen=True, slots=True)
class _Echo:
    """The prompt at the beginning of an answer."""

    text: str = ""
    tokens: tuple[TokenLogprob, ...] = ()
    """Those of the prompt, if log probabilities are requested; the first has none."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request for each prompt, with the same parameters."""

    requests: list[Request]
    echoes: list[_Echo]
    wanted: int
    """Choices to return for each prompt; more may be generated."""
    logprobs: bool
    options: StreamOptions
    ids: bool
    """Return token ids too."""
    prompts: list[PromptTokens]

    @property
    def each(self) -> int:
        """Choices that are generated for each prompt."""
        return self.requests[0].n


async def create_completion(http: HttpRequest) -> Response:
    """Complete one prompt or several, whole or as a stream of chunks.

    Raises:
        HearthError: the request is refused, or fails before the first chunk.
    """
    exchange = await Exchange.open(http, COMPLETIONS, _NAMES)
    given = exchange.given
    options = stream_options(given)
    prompt_tokens.check(given)
    _check(given)
    with exchange.translate_param_names():
        requests = _requests(exchange)
    backend = await exchange.backend()
    echoes = [_Echo() for _ in requests]
    if given.get("echo"):
        top = given.get("logprobs")
        echoes = await exchange.attend(_echoes(backend, requests, top, exchange.at_once))
    prompts = [PromptTokens() for _ in requests]
    if prompt_tokens.wanted(given):
        read = partial(prompt_tokens.read, backend, given=given)
        prompts = await exchange.attend(all_of(read, requests, exchange.at_once))
    asked = _Asked(
        requests,
        echoes,
        given.get("n", 1),
        given.get("logprobs") is not None,
        options,
        given.get("return_token_ids", False),
        prompts,
    )
    head = answers.Head(_KIND, "cmpl", exchange.model)
    if given.get("max_tokens") == 0:
        return JSONResponse(await exchange.attend(_prompts_alone(head, asked, exchange)))
    events = await exchange.events(requests)
    if options.stream:
        return await exchange.stream(_chunks(head, asked, events))
    return JSONResponse(_whole(head, asked, await exchange.collect(events)))


def _check(given: dict[str, Any]) -> None:
    """Raises `ConflictingParameters` where two fields exclude each other."""
    streamed = given.get("stream", False)
    n = given.get("n", 1)
    if given.get("best_of", n) < n:
        raise ConflictingParameters(
            "best_of",
            f"best_of ({given['best_of']}) is smaller than n ({n}).",
            "Raise best_of, or lower n.",
        )
    if given.get("best_of", n) > n and streamed:
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
    made = max(given.get("best_of", 1), given.get("n", 1))
    logprobs = given.get("logprobs")
    if made > given.get("n", 1) and logprobs is None:
        logprobs = 0  # The best answers are chosen by their log probabilities.
    limits = {"n": made}
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
            suffix=given.get("suffix") if "text" in prompt else None,
            **limits,
            **prompt,
        )
        for prompt in _prompts(given)
    ]


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


async def _prompts_alone(head: answers.Head, asked: _Asked, exchange: Exchange) -> dict[str, Any]:
    """The answer for `max_tokens: 0`."""
    backend = await exchange.backend()
    prompts = await all_of(backend.render, asked.requests, exchange.at_once)
    made = []
    for position, prompt in enumerate(prompts):
        answer = Answer(asked.each, position)
        answer.add(Started(len(prompt.ids)))
        for index in range(asked.each):
            answer.add(ChoiceFinished(index, "length"))
        made.append(answer)
    return _whole(head, asked, made)


def _whole(head: answers.Head, asked: _Asked, made: list[Answer]) -> dict[str, Any]:
    returned = []
    for answer, echo, prompt in zip(made, asked.echoes, asked.prompts, strict=True):
        choices = answer.choices
        if len(choices) > asked.wanted:
            choices = sorted(choices, key=_mean_logprob, reverse=True)[: asked.wanted]
        returned += [(echo, choice, prompt) for choice in choices]
    return head.body(
        choices=[
            {
                "index": index,
                "text": echo.text + choice.content,
                "logprobs": _logprobs(echo, choice) if asked.logprobs else None,
                "finish_reason": choice.reason,
                **({"token_ids": choice.ids} if asked.ids else {}),
                **prompt.fields(),
            }
            for index, (echo, choice, prompt) in enumerate(returned)
        ],
        **answers.usage_and_timings(made),
        **answers.notices(answers.all_notices(made)),
    )


def _mean_logprob(choice: Choice) -> float:
    """The mean log probability of the tokens, by which OpenAI's `best_of` ranks. An empty answer
    has none and is ranked last.
    """
    values = [token.logprob for token in choice.logprobs]
    return sum(values) / len(values) if values else -math.inf


def _logprobs(echo: _Echo, choice: Choice) -> dict[str, Any]:
    # The prompt of many models begins with a token that its text does not contain.
    begins = len(echo.text) - sum(len(token.text) for token in echo.tokens) if echo.tokens else 0
    logprobs = answers.text_logprobs([*echo.tokens, *choice.logprobs], begins)
    if echo.tokens:
        logprobs["token_logprobs"][0] = logprobs["top_logprobs"][0] = None
    return logprobs


async def _chunks(head: answers.Head, asked: _Asked, events: GenerationEvents) -> sse.Parts:
    """The beginning of every choice, its text as it is generated, its end; then the usage, if
    requested. The last chunk of a prompt's choices has the final notices.
    """
    made: dict[int, Answer] = {}
    offsets = [0] * (len(asked.requests) * asked.each)

    def rest(answer: Answer) -> dict[str, Any]:
        if asked.options.running_usage:
            return {"usage": answers.openai_usage(answer.usage)}
        return {"usage": None} if asked.options.include_usage else {}

    def chunk(
        answer: Answer,
        index: int,
        text: str,
        reason: str | None,
        logprobs: Any,
        ids: Sequence[int] = (),
        prompt: PromptTokens | None = None,
        **more: Any,
    ) -> bytes:
        choice = {
            "index": answer.position * asked.each + index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": reason,
        }
        if asked.ids:
            choice["token_ids"] = list(ids)
        if prompt is not None:
            choice |= prompt.fields()
        return sse.event(head.body(choices=[choice], **rest(answer), **more))

    async with aclosing(events):
        async for answer, event in events:
            made[answer.position] = answer
            first = answer.position * asked.each
            if isinstance(event, Token):
                index, logprobs = first + event.index, None
                if event.logprobs:
                    logprobs = answers.text_logprobs(event.logprobs, offsets[index])
                    offsets[index] += sum(len(token.text) for token in event.logprobs)
                if event.text or logprobs or (asked.ids and event.ids):
                    yield chunk(answer, event.index, event.text, None, logprobs, event.ids)
            elif isinstance(event, Started):
                echo = asked.echoes[answer.position]
                logprobs = _logprobs(echo, Choice()) if echo.tokens else None
                prompt, more = asked.prompts[answer.position], answers.notices(answer.notices)
                for index in range(asked.each):
                    offsets[first + index] = len(echo.text)
                    yield chunk(answer, index, echo.text, None, logprobs, prompt=prompt, **more)
            elif isinstance(event, Progress):
                if asked.options.progress:
                    progress = {"processed": event.done, "total": event.total}
                    yield sse.event(head.body(choices=[], prompt_progress=progress, **rest(answer)))
                else:
                    yield sse.comment(f"prefill {event.done}/{event.total}")
            elif isinstance(event, ChoiceFinished):
                if answer.unfinished:
                    yield chunk(answer, event.index, "", event.reason, None)
            elif isinstance(event, Finished):
                last, more = answer.last, answers.notices(event.notices)
                yield chunk(answer, last.index, "", last.reason, None, **more)
    if asked.options.include_usage:
        whole = [made[position] for position in sorted(made)]
        usage = answers.usage_and_timings(whole) | answers.notices(answers.all_notices(whole))
        yield sse.event(head.body(choices=[], **usage))
    yield sse.DONE
