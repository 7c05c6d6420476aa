"""Every parameter that OpenAI's and Anthropic's clients can send is honoured, refused by name, or
reported to have no effect.

The parameters are those of the clients' own types, and so are the values: one of every alternative.
Answers validate strictly against the clients' models; a parameter that is honoured changes the
request that reaches the host or the response, and no other parameter does.
"""

from __future__ import annotations

import base64
import functools
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from anthropic.types import (
    Message,
    MessageTokensCount,
    RawMessageStreamEvent,
    message_count_tokens_params,
    message_create_params,
)
from openai.types import (
    Completion,
    CreateEmbeddingResponse,
    completion_create_params,
    embedding_create_params,
)
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import Response, ResponseStreamEvent, response_create_params
from pydantic import TypeAdapter

from hearth.app.server.parameters import Table
from hearth.app.server.tables.anthropic import COUNT_TOKENS, CREATE_MESSAGE
from hearth.app.server.tables.chat import CHAT
from hearth.app.server.tables.responses import CREATE_RESPONSE
from hearth.app.server.tables.text import COMPLETIONS, EMBEDDINGS
from plausible import parameters
from suiting_host import SuitingHost

FUNCTION = {"name": "x", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
FLAT = {"type": "function", **FUNCTION}
CUSTOM = {"name": "x", "input_schema": {"type": "object"}}
CHANGES_ALWAYS = {"id", "item_id", "created", "created_at", "completed_at", "notices"}


@dataclass(frozen=True)
class Call:
    """One method of a client.

    Attributes:
        kind: the client's type of its parameters.
        base: a body that is answered.
        beside: other parameters that a parameter requires.
        answer, event: the client's types of an answer and of one event of a stream.
    """

    path: str
    table: Table
    kind: Any
    base: dict[str, Any]
    answer: Any
    event: Any = None
    beside: dict[str, dict[str, Any]] = field(default_factory=dict)


SPOKEN = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
CALLS = [
    Call(
        "/v1/chat/completions",
        CHAT,
        chat_create_params.CompletionCreateParamsNonStreaming,
        SPOKEN,
        ChatCompletion,
        ChatCompletionChunk,
        {
            "tool_choice": {"tools": [TOOL]},
            "parallel_tool_calls": {"tools": [TOOL]},
            "top_logprobs": {"logprobs": True},
            "stream_options": {"stream": True},
        },
    ),
    Call(
        "/v1/completions",
        COMPLETIONS,
        completion_create_params.CompletionCreateParamsNonStreaming,
        {"model": "tiny", "prompt": "Once"},
        Completion,
        Completion,
        {"stream_options": {"stream": True}, "best_of": {"logprobs": 1}},
    ),
    Call(
        "/v1/responses",
        CREATE_RESPONSE,
        response_create_params.ResponseCreateParamsNonStreaming,
        {"model": "tiny", "input": "hello"},
        Response,
        ResponseStreamEvent,
        {
            "tool_choice": {"tools": [FLAT]},
            "top_logprobs": {"include": ["message.output_text.logprobs"]},
            "stream_options": {"stream": True},
        },
    ),
    Call(
        "/v1/embeddings",
        EMBEDDINGS,
        embedding_create_params.EmbeddingCreateParams,
        {"model": "tiny", "input": "hello"},
        CreateEmbeddingResponse,
    ),
    Call(
        "/v1/messages",
        CREATE_MESSAGE,
        message_create_params.MessageCreateParamsNonStreaming,
        {**SPOKEN, "max_tokens": 64},
        Message,
        RawMessageStreamEvent,
        {"tool_choice": {"tools": [CUSTOM]}},
    ),
    Call(
        "/v1/messages/count_tokens",
        COUNT_TOKENS,
        message_count_tokens_params.MessageCountTokensParams,
        SPOKEN,
        MessageTokensCount,
        beside={"tool_choice": {"tools": [CUSTOM]}},
    ),
]
NAMES = [
    pytest.param(call, name, id=f"{call.path} {name}")
    for call in CALLS
    for name in parameters(call.kind)
    if name != "model"
]
"""`model` is tested elsewhere: another name gives 404."""


def without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: without(item, names) for key, item in value.items() if key not in names}
    return [without(item, names) for item in value] if isinstance(value, list) else value


def validate(call: Call, body: dict[str, Any], reply: Any) -> Any:
    """The response, if it conforms to the client's types."""
    if body.get("stream"):
        lines = reply.body.decode().splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert events
        for event in events:
            if event.get("type") != "ping":  # The client skips it.
                adapter(call.event).validate_python(_finished(call, event), strict=True)
        return events
    found = reply.json
    if body.get("encoding_format") == "base64":
        for item in found["data"]:  # As the client does.
            coded = base64.b64decode(item["embedding"])
            item["embedding"] = list(struct.unpack(f"<{len(coded) // 4}f", coded))
    adapter(call.answer).validate_python(found, strict=True)
    return reply.json


adapter = functools.cache(TypeAdapter)


def _finished(call: Call, event: Any) -> Any:
    """The type of completions does not allow null as the reason, but OpenAI sends it."""
    if call.event is not Completion:
        return event
    ended = [{**choice, "finish_reason": "stop"} for choice in event["choices"]]
    return {**event, "choices": ended}


@pytest.fixture
def send(endpoint) -> Callable[[Call, dict[str, Any]], tuple[Any, Any]]:
    """Sends a body; returns (the error if it is refused, the host's requests and the response)."""
    made = endpoint(host_kind=SuitingHost)

    def send(call: Call, body: dict[str, Any]) -> tuple[Any, Any]:
        made.host.requests.clear()
        made.host.calls.clear()
        reply = made.post(call.path, body)
        if reply.status != 200:
            assert reply.status == 400, reply.body
            return reply.error, None
        answer = without(validate(call, body, reply), CHANGES_ALWAYS)
        return None, (made.host.requests[:], repr(made.host.calls), made.host.specs[-1], answer)

    return send


@pytest.mark.parametrize(("call", "name"), NAMES)
def test_it_is_honoured_or_refused_by_name(send, call, name) -> None:
    names = {name: one for one in call.table for name in (one.name, *one.aliases)}
    treatment = names[name].treatment if name in names else "without effect"
    base = {**call.base, **call.beside.get(name, {})}
    refused, before = send(call, base)
    assert refused is None
    changed = []
    for value in [*parameters(call.kind)[name], *([True] if name == "stream" else [])]:
        body = {**base, name: value}
        refused, after = send(call, body)
        if refused is not None:
            assert refused["param"].startswith(name), (value, refused)
            assert value is not None or name in call.base
            continue
        changed.append(after != before)
        if call.event is not None:
            refused, _ = send(call, {**body, "stream": True})
            assert refused is None or refused["param"] == name == "best_of"
    if treatment == "honoured":
        assert any(changed)
    else:
        assert not any(changed)
