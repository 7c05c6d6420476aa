"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.answer import Answer, Choice, Part
from hearth.app.server import answers, sse
from hearth.app.server.errors import ANTHROPIC, error_body
from hearth.app.server.exchange import Exchange, GenerationEvents
from hearth.app.server.messages import check_tools, continues_last, read_tool, texts_of
from hearth.app.server.requests import build, json_constraint, known_effort, session_of_user
from hearth.app.server.tables.anthropic import COUNT_TOKENS, CREATE_MESSAGE
from hearth.backends.contract.events import Finished, Progress, Started, Token, ToolCallPart, Usage
from hearth.backends.contract.messages import Message, ToolCall
from hearth.backends.contract.requests import Request, ToolChoice
from hearth.backends.errors import ConflictingParameters

Json = dict[str, Any]

DIALECT: Final = sse.Dialect(
    lambda error: sse.named("error", error_body(error, ANTHROPIC)),
    sse.named("ping", {"type": "ping"}),
)
_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_NAMES: Final = {
    "session": "metadata.user_id",
    "constraint": "output_config.format.schema",
    "template_values.reasoning_effort": "output_config.effort",
    "template_values": "thinking",
    "stop": "stop_sequences",
    "forced_tool": "tool_choice.name",
}
"""Anthropic's name for each parameter of the contract."""
_TTL_S: Final = {"5m": 300.0, "1h": 3600.0}
_CHOICES: Final[dict[str, ToolChoice]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}


async def create_message(http: HttpRequest) -> Response:
    """Answer one request, whole or as a stream of events.

    Raises:
        HearthError: the request is refused, or fails before its first event.
    """
    exchange = await Exchange.open(http, CREATE_MESSAGE, _NAMES)
    request = _read_request(exchange)
    events = await exchange.events([request])
    if exchange.given.get("stream", False):
        return await exchange.stream(_parts(exchange.model, events), DIALECT)
    [answer] = await exchange.collect(events)
    return JSONResponse(_whole(exchange.model, answer))


async def count_tokens(http: HttpRequest) -> Response:
    """Respond with the number of tokens in the prompt of a request."""
    exchange = await Exchange.open(http, COUNT_TOKENS, _NAMES)
    request = _read_request(exchange)
    prompt = await exchange.attend((await exchange.backend()).render(request))
    return exchange.answer({"input_tokens": len(prompt.ids)}, prompt.notices)


def _read_request(exchange: Exchange) -> Request:
    """The request that the body describes.

    Raises:
        InvalidParameter: with the contract's name of the parameter.
        ConflictingParameters: `tool_choice` requires a missing tool, or blocks are in the wrong
            order.
    """
    given = exchange.given
    for index in range(len(given.get("tools", ()))):
        place = exchange.place("tools", index)
        exchange.names[f"tools[{index}]"] = place
        exchange.names[f"tools[{index}].parameters"] = f"{place}.input_schema"
    messages, places = _messages(given, exchange.chosen.use.system)
    for index, place in enumerate(places):
        exchange.names[f"messages[{index}]"] = place
        exchange.names[f"messages[{index}].keep_s"] = f"{place}.cache_control"
    tools = tuple(read_tool(item, "input_schema") for item in given.get("tools", ()))
    choice = given.get("tool_choice", {"type": "auto"})
    if choice["type"] in ("any", "tool"):
        named = [choice["name"]] if "name" in choice else []
        check_tools(tools, named, "tool_choice.name")
    stop = {"stop": given["stop_sequences"]} if "stop_sequences" in given else {}
    user = given.get("metadata", {}).get("user_id")
    schema = _schema(given)
    if "output_format" in given:
        exchange.names["constraint"] = "output_format.schema"
    return build(
        {**given, **stop},
        exchange.chosen.use,
        session_of_user(user) if user else exchange.session,
        None,
        messages=messages,
        tools=tools,
        tool_choice=_CHOICES[choice["type"]],
        forced_tool=choice.get("name", ""),
        parallel_tool_calls=not choice.get("disable_parallel_tool_use", False),
        constraint=None if schema is None else json_constraint(schema),
        template_values=_template_values(given),
        continue_last=continues_last(given, messages),
    )


def _schema(given: Json) -> Json | None:
    """The schema of the answer. Raises `ConflictingParameters` if two different ones are given."""
    newer, older = given.get("output_config", {}).get("format"), given.get("output_format")
    if newer and older and newer != older:
        raise ConflictingParameters(
            "output_format",
            "output_format and output_config.format differ.",
            "Send only output_config.format.",
        )
    wanted = newer or older
    return wanted["schema"] if wanted else None


def _template_values(given: Json) -> Json:
    values: Json = {}
    kind = given.get("thinking", {}).get("type")
    if kind in ("enabled", "disabled"):
        values["enable_thinking"] = kind == "enabled"
    effort = given.get("output_config", {}).get("effort")
    if effort is not None:
        values["reasoning_effort"] = known_effort(effort)
    return values


def _messages(given: Json, default_system: str) -> tuple[tuple[Message, ...], list[str]]:
    """The conversation, and the places of its messages in the body.

    A `cache_control` applies to the whole message that contains it; one in `tools` applies to the
    first message.
    """
    system = given.get("system")
    if system is None and all(item["role"] != "system" for item in given["messages"]):
        system = default_system
    messages, places = [], []
    texts = texts_of(system)
    if any(texts):
        messages.append(Message.of_parts("system", texts, keep_s=_keep_s(system)))
        places.append("system")
    for index, item in enumerate(given["messages"]):
        messages += _message(item, f"messages[{index}]")
        places += [f"messages[{index}]"] * (len(messages) - len(places))
    in_tools = max((_ttl_s(tool) for tool in given.get("tools", ())), default=0.0)
    messages[0] = replace(messages[0], keep_s=max(messages[0].keep_s, in_tools))
    messages[-1] = replace(messages[-1], keep_s=max(messages[-1].keep_s, _ttl_s(given)))
    return tuple(messages), places


def _message(item: Json, place: str) -> Iterator[Message]:
    """The messages for one message of Anthropic's API.

    Each tool result becomes a message of its own, before the text of the user.
    """
    content, role = item["content"], item["role"]
    if isinstance(content, str):
        yield Message(role, content)
        return
    if role == "assistant":
        thoughts = (block["thinking"] for block in content if block["type"] == "thinking")
        yield Message.of_parts(
            "assistant",
            (block["text"] for block in content if block["type"] == "text"),
            reasoning="\n".join(thoughts),
            tool_calls=tuple(
                ToolCall(block["id"], block["name"], json.dumps(block["input"]))
                for block in content
                if block["type"] == "tool_use"
            ),
            keep_s=_keep_s(content),
        )
        return
    results = [block for block in content if block["type"] == "tool_result"]
    if results and content[: len(results)] != results:
        raise ConflictingParameters(
            f"{place}.content",
            f"{place}.content has a tool_result after another block.",
            "Put tool_result blocks first.",
        )
    for block in results:
        texts = texts_of(block.get("content"))
        if block.get("is_error"):
            texts = [f"Error: {texts[0] if texts else ''}", *texts[1:]]
        keep_s = max(_ttl_s(block), _keep_s(block.get("content")))
        ident = block["tool_use_id"]
        yield Message.of_parts("tool", texts, tool_call_id=ident, keep_s=keep_s)
    if len(content) > len(results) or not content:
        rest = content[len(results) :]
        yield Message.of_parts(role, texts_of(rest), keep_s=_keep_s(rest))


def _keep_s(content: str | Sequence[Json] | None) -> float:
    """The longest time of the `cache_control` fields in `content`, in seconds."""
    if content is None or isinstance(content, str):
        return 0.0
    return max((_ttl_s(block) for block in content), default=0.0)


def _ttl_s(marked: Json) -> float:
    mark = marked.get("cache_control")
    return 0.0 if mark is None else _TTL_S[mark.get("ttl", "5m")]


def _usage(usage: Usage) -> Json:
    """Each prompt token is counted once: read from the cache, written to it, or neither."""
    written = min(usage.kept_tokens, usage.prompt_tokens - usage.cached_tokens)
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _ending(choice: Choice) -> Json:
    if choice.reason == "stop" and choice.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop}
    return {"stop_reason": _REASONS.get(choice.reason), "stop_sequence": None}


def _block(part: Part, text: str) -> Json:
    if part.kind == "call":
        arguments = answers.arguments(text)
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": ""}
    return {"type": "text", "text": text}


def _whole(model: str, answer: Answer) -> Json:
    """The message of `answer`; without content blocks until the answer is complete."""
    choice = answer.choices[0]
    blocks = [_block(part, part.text) for part in choice.parts] or [_block(Part("content"), "")]
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks if choice.reason else [],
        **_ending(choice),
        "usage": _usage(answer.usage),
        **answers.notices(answer.notices),
    }


async def _parts(model: str, events: GenerationEvents) -> sse.Parts:
    begun = 0
    async with aclosing(events):
        async for answer, event in events:
            if isinstance(event, Progress):
                yield DIALECT.ping
            parts = answer.choices[0].parts
            if isinstance(event, Finished) and not parts:
                parts.append(Part("content"))
            if len(parts) > begun:
                if begun:
                    yield _event("content_block_stop", index=begun - 1)
                block = _block(parts[begun], "")
                yield _event("content_block_start", index=begun, content_block=block)
                begun += 1
            if isinstance(event, Token):
                if event.text:
                    kind = "thinking" if event.channel == "reasoning" else "text"
                    delta = {"type": f"{kind}_delta", kind: event.text}
                    yield _event("content_block_delta", index=begun - 1, delta=delta)
            elif isinstance(event, ToolCallPart):
                if event.arguments:
                    delta = {"type": "input_json_delta", "partial_json": event.arguments}
                    yield _event("content_block_delta", index=begun - 1, delta=delta)
            elif isinstance(event, Started):
                yield _event("message_start", message=_whole(model, answer))
            elif isinstance(event, Finished):
                yield _event("content_block_stop", index=begun - 1)
                ending = {"delta": _ending(answer.choices[0]), "usage": _usage(event.usage)}
                yield _event("message_delta", **ending, **answers.notices(event.notices))
                yield _event("message_stop")


def _event(name: str, **fields: Any) -> bytes:
    return sse.named(name, {"type": name, **fields})
