"""Parts that answers of `/v1/chat/completions` and `/v1/completions` share.

These are the head, the usage, the chunks of a stream, and vLLM's `prompt_logprobs` and
`return_token_ids`.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from typing import Any

from hearth.app.answer import Answer, total_usage
from hearth.app.server import sse
from hearth.app.server.answers import LEAST_LOGPROB, all_notices, notices
from hearth.app.server.exchange import Exchange, GenerationEvents
from hearth.app.tasks import all_of
from hearth.backends.contract.backend import Backend
from hearth.backends.contract.events import (
    Channel,
    ChoiceFinished,
    Finished,
    Progress,
    Started,
    Token,
    TokenLogprob,
    ToolCallPart,
    Usage,
)
from hearth.backends.contract.requests import Request
from hearth.backends.contract.version import hearth_version
from hearth.backends.errors import ConflictingParameters

Json = dict[str, Any]


def head(kind: str, prefix: str, model: str) -> Json:
    """The fields that all chunks of one answer begin with."""
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": f"hearth-{hearth_version()}",
    }


def ending(made: Sequence[Answer]) -> Json:
    """The last fields of a complete answer.

    These are `usage`, for a single request also `timings` (in seconds and tokens per second), and
    the notices of all answers, each once.
    """
    body: Json = {"usage": _usage(total_usage(made))}
    if len(made) == 1 and made[0].finished:
        body["timings"] = asdict(made[0].timings)
    return body | notices(all_notices(made))


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def is_streamed(given: Mapping[str, Any]) -> bool:
    """Whether to stream the answer.

    Raises:
        ConflictingParameters: usage or progress is requested without a stream, or log
            probabilities of the prompt with one.
    """
    stream = bool(given.get("stream", False))
    options = given.get("stream_options", {})
    usage = options.get("include_usage") or options.get("continuous_usage_stats")
    for name, wanted in (
        ("stream_options", usage),
        ("return_progress", given.get("return_progress")),
    ):
        if wanted and not stream:
            raise ConflictingParameters(
                name, f"{name} requires stream.", "Set stream to true, or leave it out."
            )
    if stream and "prompt_logprobs" in given:
        raise ConflictingParameters(
            "prompt_logprobs", "prompt_logprobs cannot be streamed.", "Leave stream out."
        )
    return stream


class Chunks(ABC):
    """Builds the chunks of a stream.

    Each choice has a first chunk, its text as it is generated, and an end; the usage follows, if
    requested. The last chunk of a request's choices has the final notices.

    Args:
        first: the fields of `head`.
        given: the fields of the body, with the options of the stream.
        empty: the content of a choice without text.
    """

    def __init__(self, first: Json, given: Mapping[str, Any], empty: Json) -> None:
        options = given.get("stream_options", {})
        self._first = first
        self._empty = empty
        self._include_usage = options.get("include_usage", False)
        self._running_usage = options.get("continuous_usage_stats", False)
        self._progress = given.get("return_progress", False)
        self._ids = given.get("return_token_ids", False)
        self._is_plain = not (self._ids or self._running_usage)
        """Chunks of text without logprobs differ from each other only in their text."""
        self._repeated: dict[tuple[int, int, str], sse.Repeated] = {}

    @abstractmethod
    async def begin(self, answer: Answer, index: int) -> bytes:
        """The first chunk of a choice."""

    @abstractmethod
    def content(self, text: str, channel: Channel) -> Json:
        """The content of a choice with a piece of text."""

    @abstractmethod
    def logprobs(self, answer: Answer, event: Token) -> Json | None:
        """The log probabilities of the tokens of `event`; None if there are none."""

    async def parts(self, events: GenerationEvents) -> sse.Parts:
        """The bytes of the stream."""
        answers: dict[int, Answer] = {}
        # Number of ended choices by position of their answer. The state of the answer itself may
        # be ahead of the events read here.
        ended: Counter[int] = Counter()
        async with aclosing(events):
            async for answer, event in events:
                if isinstance(event, Token):
                    if event.text or event.logprobs or (self._ids and event.ids):
                        yield self._token(answer, event)
                elif isinstance(event, ToolCallPart):
                    delta = {"delta": {"tool_calls": [_call_delta(event)]}}
                    yield self.chunk(answer, event.index, delta, ids=event.ids)
                elif isinstance(event, Started):
                    answers[answer.position] = answer
                    for choice in answer.choices:
                        yield await self.begin(answer, choice.index)
                elif isinstance(event, Progress):
                    yield self._prefill(answer, event)
                elif isinstance(event, ChoiceFinished):
                    ended[answer.position] += 1
                    # The end of the last choice has the final notices too.
                    if ended[answer.position] < len(answer.choices):
                        yield self.chunk(answer, event.index, self._empty, event.reason)
                elif isinstance(event, Finished):
                    last, more = answer.last, notices(event.notices)
                    yield self.chunk(answer, last.index, self._empty, last.reason, **more)
        if self._include_usage:
            whole = [answers[position] for position in sorted(answers)]
            yield sse.event({**self._first, "choices": [], **ending(whole)})
        yield sse.DONE

    def chunk(
        self,
        answer: Answer,
        index: int,
        content: Json,
        reason: str | None = None,
        logprobs: Json | None = None,
        ids: Sequence[int] = (),
        **more: Any,
    ) -> bytes:
        """A chunk with one choice."""
        number = answer.position * len(answer.choices) + index
        choice = {"index": number, **content, "logprobs": logprobs, "finish_reason": reason}
        if self._ids:
            choice["token_ids"] = list(ids)
        return sse.event({**self._first, "choices": [choice], **self._rest(answer), **more})

    def _rest(self, answer: Answer) -> Json:
        """The fields of every chunk except its choice."""
        if self._running_usage:
            return {"usage": _usage(answer.usage)}
        return {"usage": None} if self._include_usage else {}

    def _token(self, answer: Answer, event: Token) -> bytes:
        if event.logprobs or not self._is_plain:
            content = self.content(event.text, event.channel)
            logprobs = self.logprobs(answer, event)
            return self.chunk(answer, event.index, content, None, logprobs, event.ids)
        key = (answer.position, event.index, event.channel)
        repeated = self._repeated.get(key)
        if repeated is None:
            content = self.content(sse.Repeated.HOLE, event.channel)
            repeated = sse.Repeated(self.chunk(answer, event.index, content))
            self._repeated[key] = repeated
        return repeated.event(event.text)

    def _prefill(self, answer: Answer, event: Progress) -> bytes:
        if not self._progress:
            return sse.comment(f"prefill {event.done}/{event.total}")
        progress = {"processed": event.done, "total": event.total}
        rest = self._rest(answer)
        return sse.event({**self._first, "choices": [], "prompt_progress": progress, **rest})


def _call_delta(part: ToolCallPart) -> Json:
    """The delta of a tool call: the first names it, further ones only add arguments."""
    if not part.name:
        return {"index": part.position, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"index": part.position, "id": part.id, "type": "function", "function": function}


async def prompt_fields(exchange: Exchange, requests: Sequence[Request]) -> list[Json]:
    """For each of `requests`, the properties of its prompt that the body asks for.

    The prompt is rendered for its token ids, and computed for its log probabilities.
    """
    given = exchange.given
    if "prompt_logprobs" not in given and not given.get("return_token_ids"):
        return [{} for _ in requests]
    read = partial(fields_of_prompt, await exchange.backend(), given)
    return await exchange.attend(all_of(read, requests, exchange.at_once))


async def fields_of_prompt(backend: Backend, given: Mapping[str, Any], request: Request) -> Json:
    """The fields of `prompt_fields` for one request."""
    ids = list((await backend.render(request)).ids)
    fields: Json = {"prompt_token_ids": ids} if given.get("return_token_ids") else {}
    if "prompt_logprobs" in given:
        top = given["prompt_logprobs"]
        fields["prompt_logprobs"] = [None]
        if len(ids) > 1:
            scores = await backend.score(tuple(ids), top=max(1, top), session=request.session)
            fields["prompt_logprobs"] += [_candidates(token, top) for token in scores.tokens]
    return fields


def _candidates(token: TokenLogprob, top: int) -> Json:
    """By token id, the `top` likeliest tokens and the token of the prompt.

    The rank of the prompt's token is known only if it is one of the likeliest.
    """
    ranked = {ident: rank for rank, (ident, _, _) in enumerate(token.top, 1)}
    candidates = {str(token.id): _candidate(token.text, token.logprob, ranked.get(token.id))}
    for ident, text, logprob in token.top[:top]:
        candidates[str(ident)] = _candidate(text, logprob, ranked[ident])
    return candidates


def _candidate(text: str, logprob: float, rank: int | None) -> Json:
    return {"logprob": max(logprob, LEAST_LOGPROB), "rank": rank, "decoded_token": text}
