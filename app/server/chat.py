"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.answer import Answer, Choice
from hearth.app.server import answers
from hearth.app.server.chunks import (
    Chunks,
    ending,
    fields_of_prompt,
    head,
    is_streamed,
    prompt_fields,
)
from hearth.app.server.exchange import Exchange
from hearth.app.server.messages import (
    client_names,
    continues_last,
    read_messages,
    read_tools,
)
from hearth.app.server.requests import build, constraint_of, known_effort, logprobs_of
from hearth.app.server.tables.chat import CHAT
from hearth.backends.contract.backend import Backend
from hearth.backends.contract.events import Channel, Token
from hearth.backends.contract.requests import Request
from hearth.backends.errors import ConflictingParameters

Json = dict[str, Any]

_NAMES: Final = {
    "continue_last": "continue_final_message",
    "forced_tool": "tool_choice.function.name",
    "template_values": "chat_template_kwargs",
    "token_ids": "prompt_logprobs",
}


async def create_chat_completion(http: HttpRequest) -> Response:
    """Answer one request, whole or as a stream of chunks.

    Raises:
        HearthError: the request is refused, or fails before the first chunk.
    """
    exchange = await Exchange.open(http, CHAT)
    given = exchange.given
    exchange.names.update(_names(given))
    stream = is_streamed(given)
    request = read_request(exchange)
    backend = await exchange.backend()
    events = await exchange.events([request], source=backend)
    if stream:
        first = head("chat.completion.chunk", "chatcmpl", exchange.model)
        return await exchange.stream(_Chunks(first, given, backend).parts(events))
    first = head("chat.completion", "chatcmpl", exchange.model)
    [answer] = await exchange.collect(events)
    assert answer.request is not None
    [prompt] = await prompt_fields(exchange, [answer.request])
    choices = [_choice(choice, given) for choice in answer.choices]
    return JSONResponse({**first, "choices": choices, **ending([answer]), **prompt})


def _names(given: Mapping[str, Any]) -> dict[str, str]:
    """The client's names for parameters of the contract."""
    names = dict(_NAMES)
    if given.get("logprobs"):
        names["logprobs"] = "top_logprobs"
    if "reasoning_effort" in given:
        names["template_values.reasoning_effort"] = "reasoning_effort"
    return names


def read_request(exchange: Exchange) -> Request:
    """The request that a body with `messages` describes.

    Raises:
        InvalidParameter: a value is out of range.
        ConflictingParameters: two fields cannot be combined.
    """
    given = exchange.given
    logprobs = logprobs_of(given)
    messages = read_messages(given["messages"], exchange.chosen.use.system)
    tools = read_tools(given)
    constraint, exchange.names["constraint"] = constraint_of(given)
    exchange.names.update(client_names(given, messages, tools["tools"], exchange.place))
    return build(
        given,
        exchange.chosen.use,
        exchange.session,
        logprobs,
        messages=messages,
        constraint=constraint,
        parallel_tool_calls=given.get("parallel_tool_calls", True),
        template_values=_template_values(given),
        continue_last=continues_last(given, messages),
        **tools,
    )


def _template_values(given: Mapping[str, Any]) -> Json:
    """The variables of the chat template in a body, including `reasoning_effort`.

    Raises:
        ConflictingParameters: `reasoning_effort` is given twice, with different values.
    """
    values = dict(given.get("chat_template_kwargs", {}))
    if "reasoning_effort" not in given:
        return values
    effort = known_effort(given["reasoning_effort"])
    if values.get("reasoning_effort", effort) != effort:
        raise ConflictingParameters(
            "reasoning_effort",
            f"reasoning_effort is {effort}, and in chat_template_kwargs it is"
            f" {values['reasoning_effort']}.",
            "Send one of them.",
        )
    return {**values, "reasoning_effort": effort}


def _choice(choice: Choice, given: Mapping[str, Any]) -> Json:
    text, calls = choice.content, [answers.tool_call(call) for call in choice.calls]
    return {
        "index": choice.index,
        "message": {
            "role": "assistant",
            "content": (text or None) if calls else text,
            "refusal": None,
            **(answers.reasoning(choice.reasoning) if choice.reasoning else {}),
            **({"tool_calls": calls} if calls else {}),
        },
        "logprobs": answers.chat_logprobs(choice.logprobs) if given.get("logprobs") else None,
        "finish_reason": choice.reason,
        **({"token_ids": choice.ids} if given.get("return_token_ids") else {}),
    }


class _Chunks(Chunks):
    """The chunks of a chat completion; a choice begins with the role."""

    def __init__(self, first: Json, given: Mapping[str, Any], backend: Backend) -> None:
        super().__init__(first, given, {"delta": {}})
        self._given = given
        self._backend = backend
        self._prompt: Json = {}

    async def begin(self, answer: Answer, index: int) -> bytes:
        if self._ids and not self._prompt and answer.request is not None:
            self._prompt = await fields_of_prompt(self._backend, self._given, answer.request)
        first = {"delta": {"role": "assistant", "content": ""}}
        return self.chunk(answer, index, first, **answers.notices(answer.notices), **self._prompt)

    def content(self, text: str, channel: Channel) -> Json:
        return {"delta": answers.reasoning(text) if channel == "reasoning" else {"content": text}}

    def logprobs(self, answer: Answer, event: Token) -> Json | None:
        shown = event.logprobs if event.channel == "content" else None
        return answers.chat_logprobs(shown) if shown else None
