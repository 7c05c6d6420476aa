"""`POST /v1/completions`: text continued as it stands, without a chat template."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.server import answers, sse
from hearth.app.server.body import read_object
from hearth.app.server.generation import Choice, Happenings, Tally, collect, happenings
from hearth.app.server.leaving import until_gone
from hearth.app.server.parameters import COMPLETIONS, accept
from hearth.app.server.requests import (
    build,
    flag,
    renamed,
    renaming,
    session_of,
    stream_options,
)
from hearth.app.server.services import services_of
from hearth.app.settings import ModelUse
from hearth.backends.contract import (
    Backend,
    ChoiceFinished,
    Progress,
    Request,
    Started,
    Token,
)
from hearth.backends.errors import InvalidParameter, UnsupportedParameter

MOST_PROMPTS: Final = 256
DEFAULT_MAX_TOKENS: Final = 16
"""OpenAI's, for where neither the request nor the settings say how long the text may become."""
_KIND: Final = "text_completion"
_NAMES: Final = {"text": "prompt", "token_ids": "prompt", "session": "user"}


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request a prompt, alike in all but the prompt; the answers begin with `echoes`."""

    requests: list[Request]
    echoes: list[str]

    @property
    def each(self) -> int:
        """Choices of a request."""
        return self.requests[0].n

    @property
    def wants_logprobs(self) -> bool:
        """The choices carry log probabilities."""
        return self.requests[0].sampling.logprobs is not None


async def create_completion(http: HttpRequest) -> Response:
    """Complete one prompt or several, whole or as a stream of chunks.

    Raises:
        HearthError: the request is refused, or fails before the first chunk.
    """
    services = services_of(http)
    given = accept(COMPLETIONS, await read_object(http))
    chosen = services.catalog.find(given.get("model"))
    options = stream_options(given)
    try:
        requests = _requests(given, chosen.use, session_of(given, http))
        backend = await services.hosts.backend(chosen.spec)
        head = answers.Head(_KIND, "cmpl", chosen.found.name)
        echoes = [""] * len(requests)
        if flag(given, "echo"):
            echoes = await until_gone(http.receive, _echoes(backend, requests))
        asked = _Asked(requests, echoes)
        events = happenings(backend, requests, chosen.use.load.max_sessions)
        events = renaming(events, _NAMES)
        if options.stream:
            parts = _chunks(head, asked, events, include_usage=options.include_usage)
            return await sse.respond(http, parts, services)
        choices = [Choice() for _ in range(len(requests) * asked.each)]
        tally = await until_gone(http.receive, collect(events, choices, asked.each))
    except InvalidParameter as error:
        raise renamed(error, _NAMES) from error
    return JSONResponse(_whole(head, asked, choices, tally))


def _requests(given: dict[str, Any], use: ModelUse, session: str) -> list[Request]:
    n = given.get("n", 1)
    if given.get("best_of", n) != n:
        raise UnsupportedParameter(
            "best_of", "best_of other than n is not possible in this version of Hearth."
        )
    logprobs = given.get("logprobs")
    if flag(given, "echo") and logprobs is not None:
        raise UnsupportedParameter(
            "echo", "echo together with logprobs is not possible in this version of Hearth."
        )
    if use.max_tokens is None:
        use = replace(use, max_tokens=DEFAULT_MAX_TOKENS)
    prompts = read_prompts(given.get("prompt"))
    return [build(given, use, session, logprobs, **prompt) for prompt in prompts]


def read_prompts(value: Any) -> list[dict[str, Any]]:
    """The `text` or `token_ids` of each prompt: a text, a list of texts, token ids, or a list of
    lists of those. Raises `InvalidParameter` for anything else.
    """
    if isinstance(value, str):
        value = [value]
    elif isinstance(value, list) and value and not isinstance(value[0], str | list):
        value = [value]  # token ids; if they are none, they are refused as such
    if not isinstance(value, list) or not value:
        raise InvalidParameter(
            "prompt", "prompt must be text, token ids, or a list of either.", "Send some text."
        )
    if len(value) > MOST_PROMPTS:
        raise InvalidParameter(
            "prompt", f"prompt has {len(value):,} prompts; at most {MOST_PROMPTS} are possible."
        )
    return [_prompt(item) for item in value]


def _prompt(item: Any) -> dict[str, Any]:
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, list):
        return {"token_ids": tuple(item)}
    raise InvalidParameter(
        "prompt", f"prompt has a {type(item).__name__} among its prompts.", "Send text."
    )


async def _echoes(backend: Backend, requests: Sequence[Request]) -> list[str]:
    async def echo(request: Request) -> str:
        if request.text is not None:
            return request.text
        return await backend.detokenize(request.token_ids or ())

    return list(await asyncio.gather(*map(echo, requests)))


def _whole(
    head: answers.Head, asked: _Asked, choices: list[Choice], tally: Tally
) -> dict[str, Any]:
    return head.body(
        choices=[
            {
                "index": index,
                "text": asked.echoes[index // asked.each] + choice.text,
                "logprobs": answers.text_logprobs(choice.logprobs, 0)
                if asked.wants_logprobs
                else None,
                "finish_reason": choice.reason,
            }
            for index, choice in enumerate(choices)
        ],
        **answers.usage_and_timings(tally),
        **answers.notices(tally),
    )


async def _chunks(
    head: answers.Head, asked: _Asked, events: Happenings, *, include_usage: bool
) -> sse.Parts:
    """The beginning of every choice, its text as it comes, its end; then the usage, if wanted."""
    tally = Tally()
    offsets = [0] * (len(asked.requests) * asked.each)
    rest: dict[str, Any] = {"usage": None} if include_usage else {}

    def chunk(index: int, text: str, reason: str | None, logprobs: Any, **more: Any) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return sse.event(head.body(choices=[choice], **rest, **more))

    async with aclosing(events):
        async for position, event in events:
            tally.add(event)
            first = position * asked.each
            if isinstance(event, Started):
                for index in range(first, first + asked.each):
                    yield chunk(index, asked.echoes[position], None, None, **answers.notices(tally))
            elif isinstance(event, Progress):
                yield sse.comment(f"prefill {event.done}/{event.total}")
            elif isinstance(event, Token):
                index, logprobs = first + event.index, None
                if event.logprobs:
                    logprobs = answers.text_logprobs(event.logprobs, offsets[index])
                    offsets[index] += sum(len(token.text) for token in event.logprobs)
                if event.text or logprobs:
                    yield chunk(index, event.text, None, logprobs)
            elif isinstance(event, ChoiceFinished):
                yield chunk(first + event.index, "", event.reason, None)
    if include_usage:
        yield sse.event(head.body(choices=[], **answers.usage_and_timings(tally)))
    yield sse.DONE
