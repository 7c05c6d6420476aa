"""Messages and tools as chat templates read them: JSON in the shape of OpenAI's interface."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from hearth.backends.contract.messages import Message, ToolCall
from hearth.backends.contract.requests import Tool
from hearth.backends.text.cut_json import read_json

_SHORT_ID: Final = re.compile("[A-Za-z0-9]{9}")
_ID_LETTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class CallStyle:
    """The form in which a template expects earlier tool calls."""

    arguments: Literal["object", "text"] = "object"
    """text: the arguments as JSON text, which the template prints unchanged."""
    absent_content: Literal["", "none"] = ""
    """The content of a message that has only calls: "" or None."""
    short_ids: bool = False
    """Ids of calls must be 9 letters and digits (Mistral)."""


OPENAI_CALLS: Final = CallStyle()


def message_values(messages: Sequence[Message], style: CallStyle) -> list[dict[str, Any]]:
    """`messages` for a template. Empty fields are left out."""
    return [_message(message, style) for message in _with_ids(messages)]


def in_parts(messages: Iterable[Message]) -> list[Message]:
    """`messages` with their content as parts; content without parts becomes one part."""
    return [
        replace(message, parts=(message.content,))
        if message.content and not message.parts
        else message
        for message in messages
    ]


def tool_values(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """`tools` for a template."""
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """The arguments of a checked call; empty if it has no text. If the text was cut off, the
    complete members, and an unfinished string as a string.
    """
    text = call.arguments.strip()
    if not text:
        return {}
    value = read_json(text)
    assert isinstance(value, dict)
    return value


def _function(tool: Tool) -> dict[str, Any]:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


def _message(message: Message, style: CallStyle) -> dict[str, Any]:
    value: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.parts:
        value["content"] = [{"type": "text", "text": text} for text in message.parts]
    if message.reasoning:
        value["reasoning_content"] = message.reasoning
    if message.tool_calls:
        value["tool_calls"] = [_call(call, style) for call in message.tool_calls]
        if not message.content and style.absent_content == "none":
            value["content"] = None
    if message.tool_call_id:
        value["tool_call_id"] = _id(message.tool_call_id, style)
    if message.name:
        value["name"] = message.name
    return value


def _call(call: ToolCall, style: CallStyle) -> dict[str, Any]:
    function: dict[str, Any] = {"name": call.name, "arguments": arguments_of(call)}
    if style.arguments == "text":
        function["arguments"] = call.arguments if call.arguments.strip() else "{}"
    return {"id": _id(call.id, style), "type": "function", "function": function}


def _id(ident: str, style: CallStyle) -> str:
    """`ident`, shortened if `style` requires it; equal ids give equal short ids."""
    if not style.short_ids or _SHORT_ID.fullmatch(ident):
        return ident
    digest = hashlib.sha256(ident.encode()).digest()
    return "".join(_ID_LETTERS[byte % len(_ID_LETTERS)] for byte in digest[:9])


def _with_ids(messages: Sequence[Message]) -> list[Message]:
    """`messages`, where tool results that lack their call's id or the tool's name get them from the
    calls before them, matched by id or else in order.
    """
    named: list[Message] = []
    open_calls: list[ToolCall] = []
    for message in messages:
        if message.tool_calls:
            open_calls = list(message.tool_calls)
        if message.role == "tool":
            wanted = message.tool_call_id
            call = next((one for one in open_calls if wanted in ("", one.id)), None)
            if call is not None:
                open_calls.remove(call)
                name = message.name or call.name
                message = replace(message, tool_call_id=call.id, name=name)
        named.append(message)
    return named
