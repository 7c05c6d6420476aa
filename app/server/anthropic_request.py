"""Converts the body of `/v1/messages` to a `contract.Request`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hearth.app.server.exchange import Exchange
from hearth.app.server.messages import texts_of
from hearth.app.server.requests import build, known_effort, session_of_user
from hearth.backends.contract import Constraint, Message, Request, Tool, ToolCall, ToolChoice
from hearth.backends.errors import ConflictingParameters

Json = Mapping[str, Any]

NAMES: Final = {
    "session": "metadata.user_id",
    "constraint": "output_config.format.schema",
    "template_values.reasoning_effort": "output_config.effort",
    "template_values": "thinking",
    "stop": "stop_sequences",
    "forced_tool": "tool_choice.name",
}
"""From the contract's names to Anthropic's."""
_TTL_S: Final = {"5m": 300.0, "1h": 3600.0}
_CHOICES: Final[dict[str, ToolChoice]] = {
    "auto": "auto",
    "any": "required",
    "tool": "required",
    "none": "none",
}


def read_request(exchange: Exchange) -> Request:
    """The request that the body describes.

    Raises:
        InvalidParameter: with the contract's name of the parameter.
        ConflictingParameters: `tool_choice` without that tool, or blocks in a wrong order.
    """
    given = exchange.given
    for index in range(len(given.get("tools", ()))):
        exchange.names[f"tools[{index}].parameters"] = f"tools[{index}].input_schema"
    messages = _messages(given, exchange.chosen.use.system)
    tools = tuple(_tool(item) for item in given.get("tools", ()))
    choice = given.get("tool_choice", {"type": "auto"})
    forced = choice.get("name", "")
    if choice["type"] in ("any", "tool") and not tools:
        raise ConflictingParameters(
            "tool_choice", "tool_choice requires a tool, and tools is empty.", "Send tools too."
        )
    if forced and all(tool.name != forced for tool in tools):
        raise ConflictingParameters(
            "tool_choice.name",
            f'tool_choice.name is "{forced}", which is not in tools.',
            "Name one of tools.",
        )
    last = messages[-1]
    fields = {key: value for key, value in given.items() if key != "stop_sequences"}
    if "stop_sequences" in given:
        fields["stop"] = given["stop_sequences"]
    output = given.get("output_config", {})
    schema = output.get("format", {}).get("schema")
    return build(
        fields,
        exchange.chosen.use,
        _session(exchange),
        None,
        messages=messages,
        tools=tools,
        tool_choice=_CHOICES[choice["type"]],
        forced_tool=forced,
        parallel_tool_calls=not choice.get("disable_parallel_tool_use", False),
        constraint=None if schema is None else Constraint("json_schema", json.dumps(schema)),
        template_values=_template_values(given),
        continue_last=last.role == "assistant" and not last.tool_calls,
    )


def _session(exchange: Exchange) -> str:
    user = exchange.given.get("metadata", {}).get("user_id")
    return session_of_user(user) if user else exchange.session


def _template_values(given: Json) -> dict[str, Any]:
    values: dict[str, Any] = {}
    kind = given.get("thinking", {}).get("type")
    if kind in ("enabled", "disabled"):
        values["enable_thinking"] = kind == "enabled"
    effort = given.get("output_config", {}).get("effort")
    if effort is not None:
        values["reasoning_effort"] = known_effort(effort)
    return values


def _tool(item: Json) -> Tool:
    return Tool(
        item["name"], item.get("description", ""), item["input_schema"], item.get("strict", False)
    )


def _messages(given: Json, default_system: str) -> tuple[Message, ...]:
    """The conversation. A `cache_control` applies to the whole message that contains it; those of
    tools apply to the first message.
    """
    system = given.get("system")
    messages = []
    texts = texts_of(default_system if system is None else system)
    if any(texts):
        messages.append(Message.of_parts("system", texts, keep_s=_keep_s(system)))
    for index, item in enumerate(given["messages"]):
        messages += _message(item, f"messages[{index}]")
    in_tools = max((_ttl_s(tool) for tool in given.get("tools", ())), default=0.0)
    messages[0] = replace(messages[0], keep_s=max(messages[0].keep_s, in_tools))
    messages[-1] = replace(messages[-1], keep_s=max(messages[-1].keep_s, _ttl_s(given)))
    return tuple(messages)


def _message(item: Json, place: str) -> Iterator[Message]:
    """The messages for one of Anthropic's: each tool result becomes a message of its own, before
    the text of the user.
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
