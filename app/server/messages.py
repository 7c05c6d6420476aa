"""Converts `messages` and `tools` of OpenAI's chat API to the contract's types. Their form has been
checked by the table (`app.server.tables.chat`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hearth.backends.contract import Message, Role, Tool, ToolCall, ToolChoice
from hearth.backends.errors import ConflictingParameters

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a request and how they may be used; the fields are those of `Request`."""

    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    forced_tool: str = ""


def read_messages(items: Sequence[Json], system: str) -> tuple[Message, ...]:
    """The messages of a request.

    Args:
        system: the default system message, placed first if there is none; empty: no default.

    Raises:
        ConflictingParameters: a message has two different texts of reasoning.
    """
    messages = tuple(_message(item, index) for index, item in enumerate(items))
    if system and all(message.role != "system" for message in messages):
        messages = (Message("system", system), *messages)
    return messages


def continues_last(given: Json, messages: Sequence[Message]) -> bool:
    """Whether the answer continues the last message; by default if that is the assistant's and has
    no tool calls.

    Raises:
        ConflictingParameters: the last message cannot be continued, or a new one is requested too.
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
        tool_calls=tuple(
            ToolCall(
                call.get("id") or f"call_{index}_{position}",
                call["function"]["name"],
                call["function"]["arguments"],
            )
            for position, call in enumerate(item.get("tool_calls", ()))
        ),
        tool_call_id=item.get("tool_call_id", ""),
        name=item.get("name", ""),
    )


def texts_of(content: str | Sequence[Json] | None) -> list[str]:
    """The texts of `content`, which is a string or an array of parts."""
    if content is None or isinstance(content, str):
        return [content or ""]
    return [part.get("text") or part.get("refusal") or "" for part in content]


def read_tools(given: Json) -> Toolbox:
    """The `tools` and `tool_choice` of a body.

    Raises:
        ConflictingParameters: `tool_choice` requires a tool that is not in `tools`.
    """
    tools = tuple(_tool(item["function"]) for item in given.get("tools", ()))
    choice = given.get("tool_choice", "auto")
    if isinstance(choice, str):
        if choice == "required" and not tools:
            raise _no_tools()
        return Toolbox(tools, choice)  # type: ignore[arg-type]
    if not tools:
        raise _no_tools()
    if choice["type"] == "function":
        name = choice["function"]["name"]
        _check_known(name, tools, "tool_choice.function.name")
        return Toolbox(tools, "required", name)
    allowed = choice["allowed_tools"]
    names = {item["function"]["name"] for item in allowed["tools"]}
    for name in names:
        _check_known(name, tools, "tool_choice.allowed_tools.tools")
    return Toolbox(tuple(tool for tool in tools if tool.name in names), allowed["mode"])


def _tool(item: Json) -> Tool:
    return Tool(
        item["name"],
        item.get("description", ""),
        item.get("parameters", {}),
        item.get("strict", False),
    )


def _check_known(name: str, tools: Sequence[Tool], place: str) -> None:
    if all(tool.name != name for tool in tools):
        raise ConflictingParameters(
            place, f'{place} is "{name}", which is not in tools.', "Name one of tools."
        )


def _no_tools() -> ConflictingParameters:
    return ConflictingParameters(
        "tool_choice", "tool_choice requires a tool, and tools is empty.", "Send tools too."
    )
