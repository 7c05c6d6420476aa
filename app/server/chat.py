"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.server import answers, sse
from hearth.app.server.body import read_object
from hearth.app.server.generation import Choice, Happenings, Tally, collect, happenings
from hearth.app.server.leaving import until_gone
from hearth.app.server.messages import read_messages
from hearth.app.server.parameters import CHAT, accept
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
from hearth.backends.contract import ChoiceFinished, Finished, Progress, Request, Started, Token
from hearth.backends.errors import InvalidParameter

_KIND: Final = "chat.completion"


async def create_chat_completion(http: HttpRequest) -> Response:
    """Answer one request, whole or as a stream of chunks.

    Raises:
        HearthError: the request is refused, or fails before the first chunk.
    """
    services = services_of(http)
    given = accept(CHAT, await read_object(http))
    chosen = services.catalog.find(given.get("model"))
    options = stream_options(given)
    names = _names(given)
    try:
        request = _request(given, chosen.use, session_of(given, http))
        backend = await services.hosts.backend(chosen.spec)
        events = renaming(happenings(backend, [request], 1), names)
        name = chosen.found.name
        if options.stream:
            head = answers.Head(f"{_KIND}.chunk", "chatcmpl", name)
            parts = _chunks(head, request, events, include_usage=options.include_usage)
            return await sse.respond(http, parts, services)
        choices = [Choice() for _ in range(request.n)]
        tally = await until_gone(http.receive, collect(events, choices, request.n))
    except InvalidParameter as error:
        raise renamed(error, names) from error
    return JSONResponse(_whole(answers.Head(_KIND, "chatcmpl", name), request, choices, tally))


def _names(given: Mapping[str, Any]) -> dict[str, str]:
    """From the names of our fields to those of whoever asked."""
    names = {"session": "user"}
    if given.get("logprobs") is True:
        names["logprobs"] = "top_logprobs"
    if "max_completion_tokens" in given:
        names["max_tokens"] = "max_completion_tokens"
    return names


def _request(given: dict[str, Any], use: ModelUse, session: str) -> Request:
    if "max_completion_tokens" in given:
        given = {**given, "max_tokens": given["max_completion_tokens"]}
    logprobs = given.get("top_logprobs", 0) if flag(given, "logprobs") else None
    if logprobs is None and "top_logprobs" in given:
        raise InvalidParameter(
            "top_logprobs", "top_logprobs without logprobs.", "Set logprobs to true as well."
        )
    messages = read_messages(given.get("messages"), use.system)
    return build(given, use, session, logprobs, messages=messages)


def _whole(
    head: answers.Head, request: Request, choices: list[Choice], tally: Tally
) -> dict[str, Any]:
    wanted = request.sampling.logprobs is not None
    return head.body(
        choices=[
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": answers.chat_logprobs(choice.logprobs) if wanted else None,
                "finish_reason": choice.reason,
            }
            for index, choice in enumerate(choices)
        ],
        **answers.usage_and_timings(tally),
        **answers.notices(tally),
    )


async def _chunks(
    head: answers.Head, request: Request, events: Happenings, *, include_usage: bool
) -> sse.Parts:
    """The role of every choice, its text as it comes, its end; then the usage, if it is wanted."""
    tally = Tally()
    rest: dict[str, Any] = {"usage": None} if include_usage else {}

    def chunk(
        index: int,
        delta: dict[str, Any],
        reason: str | None = None,
        logprobs: Any = None,
        **more: Any,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return sse.event(head.body(choices=[choice], **rest, **more))

    async with aclosing(events):
        async for _, event in events:
            tally.add(event)
            if isinstance(event, Started):
                for index in range(request.n):
                    first = {"role": "assistant", "content": ""}
                    yield chunk(index, first, **answers.notices(tally))
            elif isinstance(event, Progress):
                yield sse.comment(f"prefill {event.done}/{event.total}")
            elif isinstance(event, Token):
                logprobs = answers.chat_logprobs(event.logprobs) if event.logprobs else None
                if event.text or logprobs:
                    yield chunk(event.index, {"content": event.text}, logprobs=logprobs)
            elif isinstance(event, ChoiceFinished):
                yield chunk(event.index, {}, event.reason)
            elif isinstance(event, Finished) and include_usage:
                yield sse.event(head.body(choices=[], **answers.usage_and_timings(tally)))
    yield sse.DONE
