"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.server import answers, sse
from hearth.app.server.exchange import Exchange
from hearth.app.server.generation import Choice, Happenings, Tally
from hearth.app.server.messages import read_messages, read_tools
from hearth.app.server.requests import build, constraint_of, known_effort, stream_options
from hearth.app.server.tables.chat import CHAT
from hearth.backends.contract import (
    ChoiceFinished,
    Finished,
    Progress,
    Request,
    Started,
    Token,
    ToolCallPart,
)
from hearth.backends.errors import ConflictingParameters

_KIND: Final = "chat.completion"
_NAMES: Final = {
    "constraint": "response_format",
    "continue_last": "continue_final_message",
    "forced_tool": "tool_choice.function.name",
    "template_values": "chat_template_kwargs",
}


async def create_chat_completion(http: HttpRequest) -> Response:
    """Answer one request, whole or as a stream of chunks.

    Raises:
        HearthError: the request is refused, or fails before the first chunk.
    """
    exchange = await Exchange.open(http, CHAT)
    given = exchange.given
    exchange.names.update(_names(given))
    options = stream_options(given)
    with exchange.in_their_words():
        request = _request(exchange)
    events = await exchange.events([request])
    if options.stream:
        head = answers.Head(f"{_KIND}.chunk", "chatcmpl", exchange.model)
        chunks = _Chunks(head, request, options.include_usage, given.get("return_progress", False))
        return await exchange.stream(chunks.parts(events))
    head = answers.Head(_KIND, "chatcmpl", exchange.model)
    choices = [Choice() for _ in range(request.n)]
    tally = await exchange.collect(events, choices, request.n)
    return JSONResponse(_whole(head, request, choices, tally))


def _names(given: Mapping[str, Any]) -> dict[str, str]:
    """From the names of our fields to those of whoever asked."""
    names = dict(_NAMES)
    if given.get("logprobs"):
        names["logprobs"] = "top_logprobs"
    if "max_completion_tokens" in given:
        names["max_tokens"] = "max_completion_tokens"
    if "reasoning_effort" in given:
        names["template_values.reasoning_effort"] = "reasoning_effort"
    for index in range(len(given.get("tools", ()))):
        for field in ("name", "description", "parameters", "strict"):
            names[f"tools[{index}].{field}"] = f"tools[{index}].function.{field}"
    return names


def _request(exchange: Exchange) -> Request:
    given = exchange.given
    if "max_completion_tokens" in given:
        most = given["max_completion_tokens"]
        if given.get("max_tokens", most) != most:
            raise ConflictingParameters(
                "max_completion_tokens",
                f"max_completion_tokens is {most}, max_tokens is {given['max_tokens']}.",
                "Send one of them.",
            )
        given = {**given, "max_tokens": most}
    logprobs = given.get("top_logprobs", 0) if given.get("logprobs") else None
    if logprobs is None and "top_logprobs" in given:
        raise ConflictingParameters(
            "top_logprobs", "top_logprobs without logprobs.", "Set logprobs to true as well."
        )
    if given.get("return_progress") and not given.get("stream"):
        raise ConflictingParameters(
            "return_progress", "return_progress without stream.", "Set stream to true as well."
        )
    messages = read_messages(given["messages"], exchange.chosen.use.system)
    toolbox = read_tools(given)
    last = messages[-1]
    ends_begun = last.role == "assistant" and not last.tool_calls
    continue_last = given.get("continue_final_message", ends_begun)
    if continue_last and not ends_begun:
        raise ConflictingParameters(
            "continue_final_message",
            "continue_final_message, and the last message is not the assistant's.",
            "End with the beginning of an answer, or leave it out.",
        )
    return build(
        given,
        exchange.chosen.use,
        exchange.session,
        logprobs,
        messages=messages,
        constraint=constraint_of(given.get("response_format")),
        tools=toolbox.tools,
        tool_choice=toolbox.tool_choice,
        forced_tool=toolbox.forced_tool,
        parallel_tool_calls=given.get("parallel_tool_calls", True),
        template_values=template_values(given),
        continue_last=continue_last,
    )


def template_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of the chat template that a body gives, `reasoning_effort` among them.

    Raises:
        ConflictingParameters: it stands there twice, with different values.
    """
    values = dict(given.get("chat_template_kwargs", {}))
    effort = given.get("reasoning_effort")
    if effort is None:
        return values
    effort = known_effort(effort)
    if values.get("reasoning_effort", effort) != effort:
        raise ConflictingParameters(
            "reasoning_effort", "reasoning_effort differs from that of chat_template_kwargs."
        )
    return {**values, "reasoning_effort": effort}


def _whole(
    head: answers.Head, request: Request, choices: list[Choice], tally: Tally
) -> dict[str, Any]:
    wanted = request.sampling.logprobs is not None
    return head.body(
        choices=[
            {
                "index": index,
                "message": _message(choice),
                "logprobs": answers.chat_logprobs(choice.logprobs) if wanted else None,
                "finish_reason": choice.reason,
            }
            for index, choice in enumerate(choices)
        ],
        **answers.usage_and_timings(tally),
        **answers.notices(tally.notices),
    )


def _message(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.reasoning:
        message |= answers.reasoning(choice.reasoning)
    if choice.calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [answers.tool_call(call) for call in choice.calls]
    return message


class _Chunks:
    """Makes the chunks of a stream: the role of every choice, what it says as it comes, its end;
    then the usage, if it is wanted.
    """

    def __init__(
        self, head: answers.Head, request: Request, include_usage: bool, progress: bool
    ) -> None:
        self._head = head
        self._choices = request.n
        self._include_usage = include_usage
        self._progress = progress
        self._rest: dict[str, Any] = {"usage": None} if include_usage else {}
        self._repeated: dict[tuple[int, str], sse.Repeated] = {}

    async def parts(self, events: Happenings) -> sse.Parts:
        """The bytes of the stream."""
        tally = Tally()
        ended: list[ChoiceFinished] = []
        async with aclosing(events):
            async for _, event in events:
                tally.add(event)
                if isinstance(event, Token):
                    if event.text or event.logprobs:
                        yield self._token(event)
                elif isinstance(event, ToolCallPart):
                    yield self._chunk(event.index, {"tool_calls": [_call_delta(event)]})
                elif isinstance(event, Started):
                    first = {"role": "assistant", "content": ""}
                    for index in range(self._choices):
                        yield self._chunk(index, first, **answers.notices(event.notices))
                elif isinstance(event, Progress):
                    yield self._prefill(event)
                elif isinstance(event, ChoiceFinished):
                    ended.append(event)
                    if len(ended) < self._choices:
                        yield self._end(event)
                elif isinstance(event, Finished):
                    yield self._end(ended[-1], **answers.notices(event.notices))
                    if self._include_usage:
                        usage = answers.usage_and_timings(tally) | answers.notices(tally.notices)
                        yield sse.event(self._head.body(choices=[], **usage))
        yield sse.DONE

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        reason: str | None = None,
        logprobs: Any = None,
        **more: Any,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return sse.event(self._head.body(choices=[choice], **self._rest, **more))

    def _end(self, event: ChoiceFinished, **more: Any) -> bytes:
        """The last chunk of a choice; that of the last one says what was noticed meanwhile."""
        return self._chunk(event.index, {}, event.reason, **more)

    def _text_chunk(self, index: int, channel: str) -> dict[str, Any]:
        """The chunk of a piece of text, without the text."""
        hole = sse.Repeated.HOLE
        delta = answers.reasoning(hole) if channel == "reasoning" else {"content": hole}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._head.body(choices=[choice], **self._rest)

    def _token(self, event: Token) -> bytes:
        if event.logprobs and event.channel == "content":
            logprobs = answers.chat_logprobs(event.logprobs)
            return self._chunk(event.index, {"content": event.text}, logprobs=logprobs)
        key = (event.index, event.channel)
        if key not in self._repeated:
            self._repeated[key] = sse.Repeated(self._text_chunk(*key))
        return self._repeated[key].event(event.text)

    def _prefill(self, event: Progress) -> bytes:
        if not self._progress:
            return sse.comment(f"prefill {event.done}/{event.total}")
        progress = {"processed": event.done, "total": event.total}
        return sse.event(self._head.body(choices=[], prompt_progress=progress, **self._rest))


def _call_delta(part: ToolCallPart) -> dict[str, Any]:
    """The first piece of a call names it, the others only add to its arguments."""
    if not part.name:
        return {"index": part.position, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"index": part.position, "id": part.id, "type": "function", "function": function}
