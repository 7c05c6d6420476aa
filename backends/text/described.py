"""Tools for models whose chat template does not support them: described in the system prompt, with
calls and results written as text, in the generic JSON form that `backends.text.output` reads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hearth.backends.contract.messages import Message, ToolCall
from hearth.backends.contract.requests import Tool
from hearth.backends.text.conversation import arguments_of, tool_values


def describe(tools: Sequence[Tool], *, parallel: bool) -> str:
    """The description of `tools` for the system prompt."""
    listed = "\n".join(_json(value["function"]) for value in tool_values(tools))
    several = (
        "\nTo call several tools at once, answer with a JSON list of such objects."
        if parallel
        else ""
    )
    return (
        "You can call tools. Each line describes one, its parameters as a JSON schema:\n"
        f"{listed}\n\n"
        "To call a tool, answer with nothing but a JSON object of this form:\n"
        '{"name": "NAME OF THE TOOL", "arguments": {"PARAMETER": "VALUE"}}'
        f"{several}\n"
        "You are then told the result. Where no tool is needed, answer in plain text."
    )


def with_description(messages: Sequence[Message], description: str) -> list[Message]:
    """`messages` with `description` at the end of the system prompt, which is added if
    `messages` do not begin with one.
    """
    first = messages[0] if messages else None
    if first is not None and first.role == "system":
        content = "\n\n".join(filter(None, (first.content, description)))
        return [first.with_content(content), *messages[1:]]
    return [Message("system", description), *messages]


def without_calls(messages: Sequence[Message], *, keep_results: bool) -> list[Message]:
    """`messages` with calls as assistant text and, unless `keep_results`, results as user text."""
    told: list[Message] = []
    after_result = False
    for message in messages:
        is_result = message.role == "tool" and not keep_results
        if is_result:
            content = f"Result of {message.name or message.tool_call_id or 'the tool'}:\n"
            message = Message("user", content + message.content)
        elif message.tool_calls:
            content = "\n\n".join(filter(None, (message.content, _written(message.tool_calls))))
            message = replace(message.with_content(content), tool_calls=())
        if is_result and after_result:
            told[-1] = told[-1].with_content(f"{told[-1].content}\n\n{message.content}")
        else:
            told.append(message)
        after_result = is_result
    return told


def _written(calls: Sequence[ToolCall]) -> str:
    """The calls in the form that the model is asked for."""
    values = [{"name": call.name, "arguments": arguments_of(call)} for call in calls]
    return _json(values[0] if len(values) == 1 else values)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
