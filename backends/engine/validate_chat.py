"""Checks of chat-only fields: messages, tools, template values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from hearth.backends.contract import checks
from hearth.backends.contract.fields import Field
from hearth.backends.contract.messages import Message, ToolCall
from hearth.backends.contract.requests import Request, Tool
from hearth.backends.errors import ConflictingParameters, InvalidParameter, LimitExceeded
from hearth.backends.text.cut_json import read_json
from hearth.backends.text.output.rules import check_schema, measure_schema

MOST_MESSAGES: Final = 4096 + 1
"""A default system message may precede those that a client sends."""
MOST_PARTS: Final = 4096
"""Parts of one message."""
MOST_CALLS: Final = 1024
"""Tool calls of one message."""
MOST_KEPT: Final = 8
"""Messages of one request that may have a `keep_s`."""
LONGEST_KEEP_S: Final = 86_400
LONGEST_NAME_BYTES: Final = 1024
"""Limit for speaker names, and for ids and names of calls."""
LARGEST_ARGUMENTS_BYTES: Final = 1 << 20
DEEPEST_ARGUMENTS: Final = 64
MOST_TOOLS: Final = 1024
LONGEST_TOOL_NAME: Final = 128
TOOL_NAME: Final = f"[A-Za-z0-9_-]{{1,{LONGEST_TOOL_NAME}}}"
"""A regular expression that must match the whole name of a tool."""
LARGEST_VALUES_BYTES: Final = 16 << 10
DEEPEST_VALUES: Final = 16
_ONLY_CHATS: Final = ("tools", "template_values", "continue_last")
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh")


TEMPLATE_VALUES: Final[Mapping[str, Literal["bool", "effort", "list"]]] = {
    "enable_thinking": "bool",
    "thinking": "bool",  # the same, under the name that some templates use
    "reasoning_effort": "effort",
    "preserve_thinking": "bool",  # whether the model sees its reasoning of earlier turns
    "documents": "list",  # texts to answer from, in the form the template expects
}
"""The keys that `Request.template_values` may have, and their types. A model refuses keys that its
template does not read.
"""


def validate_chat(request: Request) -> None:
    """Check the chat-only fields, and that requests other than chats do not set them.

    Raises:
        InvalidParameter: `param` names the first field that has a wrong value.
    """
    _check_tools(request)
    _check_template_values(request.template_values)
    if request.messages is not None:
        _check_messages(request, request.messages)
        return
    given = [name for name in _ONLY_CHATS if getattr(request, name)]
    given += [] if request.add_generation_prompt else ["add_generation_prompt"]
    for name in given:
        raise InvalidParameter(
            name, f"{name} is given without messages.", f"Send messages, or leave {name} out."
        )


def _check_messages(request: Request, messages: tuple[Message, ...]) -> None:
    checks.check_count("messages", messages, MOST_MESSAGES)
    checks.check_not_empty("messages", messages)
    for index, message in enumerate(messages):
        _check_message(f"messages[{index}]", message)
    kept = [index for index, message in enumerate(messages) if message.keep_s]
    if len(kept) > MOST_KEPT:
        param = f"messages[{kept[MOST_KEPT]}].keep_s"
        raise LimitExceeded(
            param,
            f"{len(kept)} messages are to be kept; at most {MOST_KEPT} are possible.",
            "Keep the last one of those that will come again.",
        )
    if request.continue_last:
        _check_continued(messages[-1])


def _check_tools(request: Request) -> None:
    checks.check_count("tools", request.tools, MOST_TOOLS)
    names: set[str] = set()
    for index, tool in enumerate(request.tools):
        binds = tool.strict or request.tool_choice == "required"
        _check_tool(f"tools[{index}]", tool, binds=binds)
        if tool.name in names:
            raise ConflictingParameters(
                f"tools[{index}].name",
                f"Two tools are called {tool.name}.",
                "Give each tool a name of its own.",
            )
        names.add(tool.name)
    if request.tool_choice == "required" and not names:
        raise ConflictingParameters(
            "tool_choice",
            "tool_choice is required, and there are no tools.",
            "Send tools, or leave tool_choice out.",
        )
    if not request.forced_tool:
        return
    if request.tool_choice != "required":
        raise ConflictingParameters(
            "forced_tool",
            f"forced_tool is given with the tool_choice {request.tool_choice!r}.",
            'Set tool_choice to "required".',
        )
    if request.forced_tool not in names:
        raise ConflictingParameters(
            "forced_tool",
            f"forced_tool is {request.forced_tool[:64]!r}, which is none of the tools.",
            f"Name one of {', '.join(sorted(names))}."[:300],
        )


def _check_template_values(values: dict[str, Any]) -> None:
    for name, value in values.items():
        param = f"template_values.{name[:64]}"
        if name not in TEMPLATE_VALUES:
            raise InvalidParameter(
                param,
                f"{param} is not among the values that a chat template may be given.",
                f"Use one of {', '.join(TEMPLATE_VALUES)}.",
            )
        if TEMPLATE_VALUES[name] == "effort":
            checks.check_one_of(param, value, EFFORTS)
        else:
            is_flag = TEMPLATE_VALUES[name] == "bool"
            _check_kind(param, value, *((bool, "true or false") if is_flag else (list, "a list")))
        _check_json(param, value)


def _check_json(param: str, value: Any) -> None:
    if checks.depth_of(value, DEEPEST_VALUES + 1) > DEEPEST_VALUES:
        raise LimitExceeded(
            param, f"{param} is nested more than {DEEPEST_VALUES} levels deep.", "Flatten it."
        )
    checks.check_text(param, checks.json_text(param, value), LARGEST_VALUES_BYTES)


def _check_message(param: str, message: Message) -> None:
    checks.check_text(f"{param}.content", message.content)
    checks.check_count(f"{param}.parts", message.parts, MOST_PARTS)
    for part in message.parts:
        checks.check_text(f"{param}.parts", part)
    if message.parts and "\n".join(message.parts) != message.content:
        raise ConflictingParameters(
            f"{param}.parts",
            f"{param}.parts and {param}.content differ.",
            "Make the message with Message.of_parts.",
        )
    checks.check_text(f"{param}.reasoning", message.reasoning)
    for name in ("tool_call_id", "name"):
        checks.check_text(f"{param}.{name}", getattr(message, name), LONGEST_NAME_BYTES)
    checks.check_number(Field(f"{param}.keep_s", "float", 0, LONGEST_KEEP_S, ""), message.keep_s)
    checks.check_count(f"{param}.tool_calls", message.tool_calls, MOST_CALLS)
    for index, call in enumerate(message.tool_calls):
        _check_call(f"{param}.tool_calls[{index}]", call)
    if message.role != "assistant":
        for name in ("reasoning", "tool_calls"):
            if getattr(message, name):
                raise _only_of("assistant", f"{param}.{name}", message.role)
    if message.role != "tool" and message.tool_call_id:
        raise _only_of("tool", f"{param}.tool_call_id", message.role)


def _check_call(param: str, call: ToolCall) -> None:
    for name in ("id", "name"):
        if not checks.check_text(f"{param}.{name}", getattr(call, name), LONGEST_NAME_BYTES):
            raise InvalidParameter(
                f"{param}.{name}", f"{param}.{name} is empty.", "Send the call as it was made."
            )
    param += ".arguments"
    checks.check_text(param, call.arguments, LARGEST_ARGUMENTS_BYTES)
    if not call.arguments.strip():
        return  # A call without arguments, as some servers write them.
    wrong = InvalidParameter(
        param,
        f"{param} must be a JSON object of at most {DEEPEST_ARGUMENTS} levels, written as text;"
        " only its end may be missing.",
        'Send for example "{}".',
    )
    try:
        value = read_json(call.arguments.strip())
    except (ValueError, RecursionError) as error:
        raise wrong from error
    if (
        not isinstance(value, dict)
        or checks.depth_of(value, DEEPEST_ARGUMENTS + 1) > DEEPEST_ARGUMENTS
    ):
        raise wrong
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError as error:  # 1e999, or half of a surrogate pair
        raise wrong from error


def _check_continued(last: Message) -> None:
    if last.role != "assistant":
        raise ConflictingParameters(
            "continue_last",
            f"continue_last goes on from an answer, and the last message is of the role"
            f" {last.role!r}.",
            "Let the last message be the assistant's, or leave continue_last out.",
        )
    if last.tool_calls:
        raise ConflictingParameters(
            "continue_last",
            "continue_last goes on from text, and the last message ends in tool calls.",
            "Send the results of the calls as further messages.",
        )


def _check_tool(param: str, tool: Tool, *, binds: bool) -> None:
    """`binds`: the schema may be compiled to a grammar; otherwise it is only shown to the model."""
    if not re.fullmatch(TOOL_NAME, tool.name):
        raise InvalidParameter(
            f"{param}.name",
            f"{param}.name is {tool.name[:80]!r}; a name has 1 to {LONGEST_TOOL_NAME} letters"
            " (a to z), digits, _ and -.",
            "Choose another name.",
        )
    checks.check_text(f"{param}.description", tool.description)
    (check_schema if binds else measure_schema)(tool.parameters, f"{param}.parameters")
    _check_is_of_object(f"{param}.parameters", tool.parameters)


def _check_is_of_object(param: str, schema: dict[str, Any]) -> None:
    """Raises `InvalidParameter` unless `schema`, which was already measured, describes an object:
    model families that write arguments one by one read the schema themselves.
    """
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, (list, tuple)) and "object" in kind):
        raise InvalidParameter(
            f"{param}.type",
            f"{param}.type is {str(kind)[:80]!r}; the arguments of a tool are an object.",
            'Set it to "object".',
        )
    properties, required = schema.get("properties"), schema.get("required")
    if properties is not None:  # Some libraries write null for an absent table.
        _check_kind(f"{param}.properties", properties, dict, "a table of names and schemas")
    if required is not None:
        _check_kind(f"{param}.required", required, list, "a list of names")
        for name in required:
            _check_kind(f"{param}.required", name, str, "a list of names")


def _check_kind(param: str, value: object, kind: type, wanted: str) -> None:
    """Raises `InvalidParameter` unless `value`, from JSON of any form, is a `kind`."""
    if not isinstance(value, kind):
        raise InvalidParameter(
            param, f"{param} must be {wanted}, not {type(value).__name__}.", f"Send {wanted}."
        )


def _only_of(role: str, param: str, found: str) -> InvalidParameter:
    return InvalidParameter(
        param,
        f"{param} is given for a message of the role {found!r}.",
        f'Only messages of the role "{role}" have it.',
    )
