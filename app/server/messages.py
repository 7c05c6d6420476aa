"""Converts `messages` and `tools` of OpenAI's chat API to the contract's types.

Their form has already been checked by the table (`app.server.tables.chat`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hearth.backends.contract.messages import Message, Role, ToolCall
from hearth.backends.contract.requests import Tool
from hearth.backends.errors import ConflictingParameters

Json = Mapping[str, Any]


def read_messages(items: Sequence[Json], system: str) -> tuple[Message, ...]:
    """The messages of a request.

    Args:
        system: the system message to add if there is none; empty: add none.

    Raises:
        ConflictingParameters: a message has two different texts of reasoning.
    """
    return with_system([_message(item, index) for index, item in enumerate(items)], system)


def with_system(messages: Sequence[Message], system: str) -> tuple[Message, ...]:
    """`messages`, preceded by the system message `system` if it is not empty and there is none."""
    if system and all(message.role != "system" for message in messages):
        return (Message("system", system), *messages)
    return tuple(messages)


def client_names(
    given: Json,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    place: Callable[[str, int], str],
) -> dict[str, str]:
    """The client's names of `messages` and `tools`, which were read from `given`.

    Indices differ from the client's if a default system message was added or tools were left out.

    Args:
        place: as `Exchange.place`.
    """
    names = {}
    if len(messages) > len(given["messages"]):
        names = {f"messages[{at + 1}]": f"messages[{at}]" for at in range(len(given["messages"]))}
    chosen = {tool.name for tool in tools}
    sent = enumerate(item["function"]["name"] for item in given.get("tools", ()))
    places = [place("tools", at) for at, name in sent if name in chosen]
    return names | {f"tools[{at}]": f"{theirs}.function" for at, theirs in enumerate(places)}


def continues_last(given: Json, messages: Sequence[Message]) -> bool:
    """Whether the answer continues the last message.

    By default it does if that message is the assistant's and has no tool calls.

    Raises:
        ConflictingParameters: the last message cannot be continued, or `add_generation_prompt` is
            set too.
    """
    last = messages[-1]
    possible = last.role == "assistant" and not last.tool_calls
    begins = given.get("add_generation_prompt", False)
    wanted = bool(given.get("continue_final_message", possible and not begins))
    if wanted and begins:
        raise ConflictingParameters(
            "add_generation_prompt",
            "continue_final_message and add_generation_prompt cannot be combined.",
            "Send one of them.",
        )
    if wanted and not possible:
        raise ConflictingParameters(
            "continue_final_message",
            "continue_final_message requires that the last message has the role assistant and no"
            " tool calls.",
            "Append an assistant message with the beginning of the answer, or leave out"
            " continue_final_message.",
        )
    return wanted


def _message(item: Json, index: int) -> Message:
    place = f"messages[{index}]"
    role: Role = "system" if item["role"] == "developer" else item["role"]
    thoughts = {item[key] for key in ("reasoning_content", "reasoning") if item.get(key)}
    if len(thoughts) > 1:
        raise ConflictingParameters(
            f"{place}.reasoning",
            f"{place} has reasoning_content and reasoning with different texts.",
            "Send reasoning_content only.",
        )
    return Message.of_parts(
        role,
        (*texts_of(item.get("content")), item.get("refusal", "")),
        reasoning="".join(thoughts),
        tool_calls=read_calls(item, index),
        tool_call_id=item.get("tool_call_id", ""),
        name=item.get("name", ""),
    )


def read_calls(item: Json, index: int) -> tuple[ToolCall, ...]:
    """The tool calls of `item`, the message at `index`.

    Their arguments are JSON text, or the value that such text encodes.
    """
    return tuple(
        ToolCall(
            call.get("id") or f"call_{index}_{position}",
            call["function"]["name"],
            _json_text(call["function"]["arguments"]),
        )
        for position, call in enumerate(item.get("tool_calls", ()))
    )


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def texts_of(content: str | Sequence[Json] | None) -> list[str]:
    """The texts of `content`, which is a string or an array of parts."""
    if content is None or isinstance(content, str):
        return [content or ""]
    return [part.get("text") or part.get("refusal") or "" for part in content]


def read_tools(given: Json) -> dict[str, Any]:
    """The fields of `Request` for the `tools` and `tool_choice` of a body.

    Raises:
        ConflictingParameters: `tool_choice` requires a tool that is not in `tools`.
    """
    tools = tuple(read_tool(item["function"], "parameters") for item in given.get("tools", ()))
    choice = given.get("tool_choice", "auto")
    if isinstance(choice, str):
        if choice == "required":
            check_tools(tools)
        return {"tools": tools, "tool_choice": choice}
    if choice["type"] == "function":
        name = choice["function"]["name"]
        check_tools(tools, [name], "tool_choice.function.name")
        return {"tools": tools, "tool_choice": "required", "forced_tool": name}
    allowed = choice["allowed_tools"]
    names = {item["function"]["name"] for item in allowed["tools"]}
    check_tools(tools, names, "tool_choice.allowed_tools.tools")
    return {
        "tools": tuple(tool for tool in tools if tool.name in names),
        "tool_choice": allowed["mode"],
    }


def read_tool(item: Json, schema: str) -> Tool:
    """The tool that `item` describes; the schema of its arguments is in the field `schema`."""
    description, strict = item.get("description", ""), item.get("strict", False)
    return Tool(item["name"], description, item.get(schema, {}), strict)


def check_tools(tools: Sequence[Tool], chosen: Iterable[str] = (), place: str = "") -> None:
    """Check that there are tools, including those `chosen` in the parameter `place`.

    Raises:
        ConflictingParameters: a tool is missing.
    """
    if not tools:
        raise ConflictingParameters(
            "tool_choice", "tool_choice requires a tool, and tools is empty.", "Send tools too."
        )
    for name in chosen:
        if all(tool.name != name for tool in tools):
            raise ConflictingParameters(
                place, f'{place} is "{name}", which is not in tools.', "Name one of tools."
            )
