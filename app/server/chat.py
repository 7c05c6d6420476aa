"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.answer import Answer, Choice
from hearth.app.server import answers, prompt_tokens, sse
from hearth.app.server.exchange import Exchange
from hearth.app.server.generation import GenerationEvents
from hearth.app.server.messages import continues_last, read_messages, read_tools
from hearth.app.server.prompt_tokens import PromptTokens
from hearth.app.server.requests import (
    StreamOptions,
    build,
    constraint_of,
    known_effort,
    stream_options,
)
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
    with exchange.translate_param_names():
        prompt_tokens.check(given)
        request = _request(exchange)
    prompt = PromptTokens()
    if prompt_tokens.wanted(given):
        backend = await exchange.backend()
        prompt = await exchange.attend(prompt_tokens.read(backend, request, given))
    events = await exchange.events([request])
    if options.stream:
        head = answers.Head(f"{_KIND}.chunk", "chatcmpl", exchange.model)
        return await exchange.stream(_Chunks(head, options, given, prompt).parts(events))
    head = answers.Head(_KIND, "chatcmpl", exchange.model)
    [answer] = await exchange.collect(events)
    ids = given.get("return_token_ids", False)
    return JSONResponse(_whole(head, request, answer, ids=ids) | prompt.fields())


def _names(given: Mapping[str, Any]) -> dict[str, str]:
    """The client's names of the contract's parameters."""
    names = dict(_NAMES)
    if given.get("logprobs"):
        names["logprobs"] = "top_logprobs"
    if "reasoning_effort" in given:
        names["template_values.reasoning_effort"] = "reasoning_effort"
    for index in range(len(given.get("tools", ()))):
        for field in ("name", "description", "parameters", "strict"):
            names[f"tools[{index}].{field}"] = f"tools[{index}].function.{field}"
    return names


def _request(exchange: Exchange) -> Request:
    given = exchange.given
    logprobs = given.get("top_logprobs", 0) if given.get("logprobs") else None
    if logprobs is None and given.get("top_logprobs"):
        raise ConflictingParameters(
            "top_logprobs", "top_logprobs requires logprobs.", "Set logprobs to true too."
        )
    messages = read_messages(given["messages"], exchange.chosen.use.system)
    toolbox = read_tools(given)
    constraint, exchange.names["constraint"] = constraint_of(given)
    return build(
        given,
        exchange.chosen.use,
        exchange.session,
        logprobs,
        messages=messages,
        constraint=constraint,
        tools=toolbox.tools,
        tool_choice=toolbox.tool_choice,
        forced_tool=toolbox.forced_tool,
        parallel_tool_calls=given.get("parallel_tool_calls", True),
        template_values=template_values(given),
        continue_last=continues_last(given, messages),
    )


def template_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of the chat template that a body gives, `reasoning_effort` among them.

    Raises:
        ConflictingParameters: `reasoning_effort` is given twice, with different values.
    """
    values = dict(given.get("chat_template_kwargs", {}))
    effort = given.get("reasoning_effort")
    if effort is None:
        return values
    effort = known_effort(effort)
    if values.get("reasoning_effort", effort) != effort:
        raise ConflictingParameters(
            "reasoning_effort",
            f"reasoning_effort is {effort}, and in chat_template_kwargs it is"
            f" {values['reasoning_effort']}.",
            "Send one of them.",
        )
    return {**values, "reasoning_effort": effort}


def _whole(head: answers.Head, request: Request, answer: Answer, *, ids: bool) -> dict[str, Any]:
    wanted = request.sampling.logprobs is not None
    return head.body(
        choices=[
            {
                "index": choice.index,
                "message": _message(choice),
                "logprobs": answers.chat_logprobs(choice.logprobs) if wanted else None,
                "finish_reason": choice.reason,
                **({"token_ids": choice.ids} if ids else {}),
            }
            for choice in answer.choices
        ],
        **answers.usage_and_timings([answer]),
        **answers.notices(answer.notices),
    )


def _message(choice: Choice) -> dict[str, Any]:
    text, reasoning, calls = choice.content, choice.reasoning, choice.calls
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if reasoning:
        message |= answers.reasoning(reasoning)
    if calls:
        message["content"] = text or None
        message["tool_calls"] = [answers.tool_call(call) for call in calls]
    return message


class _Chunks:
    """Builds the chunks of a stream: the role of every choice, its text as it is generated, its
    end; then the usage, if requested.
    """

    def __init__(
        self,
        head: answers.Head,
        options: StreamOptions,
        given: Mapping[str, Any],
        prompt: PromptTokens,
    ) -> None:
        self._head = head
        self._options = options
        self._ids = given.get("return_token_ids", False)
        self._prompt = prompt
        self._answer = Answer()
        self._repeated: dict[tuple[int, str], sse.Repeated] = {}

    async def parts(self, events: GenerationEvents) -> sse.Parts:
        """The bytes of the stream."""
        async with aclosing(events):
            async for answer, event in events:
                self._answer = answer
                if isinstance(event, Token):
                    if event.text or event.logprobs or (self._ids and event.ids):
                        yield self._token(event)
                elif isinstance(event, ToolCallPart):
                    delta = {"tool_calls": [_call_delta(event)]}
                    yield self._chunk(event.index, delta, ids=event.ids)
                elif isinstance(event, Started):
                    first = {"role": "assistant", "content": ""}
                    more = answers.notices(answer.notices) | self._prompt.fields()
                    for choice in answer.choices:
                        yield self._chunk(choice.index, first, **more)
                elif isinstance(event, Progress):
                    yield self._prefill(event)
                elif isinstance(event, ChoiceFinished):
                    if answer.unfinished:  # The end of the last choice has the final notices too.
                        yield self._chunk(event.index, {}, event.reason)
                elif isinstance(event, Finished):
                    last, more = answer.last, answers.notices(event.notices)
                    yield self._chunk(last.index, {}, last.reason, **more)
                    if self._options.include_usage:
                        usage = answers.usage_and_timings([answer])
                        usage |= answers.notices(answer.notices)
                        yield sse.event(self._head.body(choices=[], **usage))
        yield sse.DONE

    def _rest(self) -> dict[str, Any]:
        """The fields of every chunk except its choice."""
        if self._options.running_usage:
            return {"usage": answers.openai_usage(self._answer.usage)}
        return {"usage": None} if self._options.include_usage else {}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        reason: str | None = None,
        logprobs: Any = None,
        ids: Sequence[int] = (),
        **more: Any,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        if self._ids:
            choice["token_ids"] = list(ids)
        return sse.event(self._head.body(choices=[choice], **self._rest(), **more))

    def _text_chunk(self, index: int, channel: str) -> dict[str, Any]:
        """The chunk of a piece of text, with a placeholder for the text."""
        delta = _text_delta(sse.Repeated.HOLE, channel)
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._head.body(choices=[choice], **self._rest())

    def _token(self, event: Token) -> bytes:
        logprobs = None
        if event.logprobs and event.channel == "content":
            logprobs = answers.chat_logprobs(event.logprobs)
        if logprobs or self._ids or self._options.running_usage:
            delta = _text_delta(event.text, event.channel)
            return self._chunk(event.index, delta, logprobs=logprobs, ids=event.ids)
        key = (event.index, event.channel)
        if key not in self._repeated:
            self._repeated[key] = sse.Repeated(self._text_chunk(*key))
        return self._repeated[key].event(event.text)

    def _prefill(self, event: Progress) -> bytes:
        if not self._options.progress:
            return sse.comment(f"prefill {event.done}/{event.total}")
        progress = {"processed": event.done, "total": event.total}
        return sse.event(self._head.body(choices=[], prompt_progress=progress, **self._rest()))


def _text_delta(text: str, channel: str) -> dict[str, Any]:
    return answers.reasoning(text) if channel == "reasoning" else {"content": text}


def _call_delta(part: ToolCallPart) -> dict[str, Any]:
    """The delta of a tool call: the first names it, further ones only add arguments."""
    if not part.name:
        return {"index": part.position, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"index": part.position, "id": part.id, "type": "function", "function": function}
