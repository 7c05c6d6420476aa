"""Converts the body of `/v1/responses` to a `contract.Request`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from hearth.app.server.exchange import Exchange
from hearth.app.server.messages import Toolbox, read_tools, texts_of
from hearth.app.server.requests import build, known_effort
from hearth.backends.contract import Constraint, Message, Request, Role, ToolCall
from hearth.backends.errors import ConflictingParameters

Json = Mapping[str, Any]

NAMES: Final = {
    "messages": "input",
    "constraint": "text.format.schema",
    "template_values.reasoning_effort": "reasoning.effort",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "forced_tool": "tool_choice.name",
}
"""From the contract's names to those of `/v1/responses`."""


@dataclass(frozen=True, slots=True)
class Names:
    """Maps the names of functions in namespaces to the names that the model sees: the function's
    own name if it is unambiguous, else that with the namespace as prefix.

    Attributes:
        given: (namespace, name) by the model's name, for functions in namespaces.
    """

    given: Mapping[str, tuple[str, str]]

    def of_model(self, namespace: str, name: str) -> str:
        """The model's name of a function that the client calls `name` in `namespace`."""
        for ours, theirs in self.given.items():
            if theirs == (namespace, name):
                return ours
        return name

    def of_client(self, name: str) -> Json:
        """The `name` and, if it has one, the `namespace` of a call."""
        if name not in self.given:
            return {"name": name}
        namespace, theirs = self.given[name]
        return {"name": theirs, "namespace": namespace}


def read_request(exchange: Exchange) -> tuple[Request, Names]:
    """The request that the body describes, and the names of its functions.

    Raises:
        InvalidParameter: with the contract's name of the parameter.
        ConflictingParameters: two fields cannot be combined.
    """
    given = exchange.given
    use = exchange.chosen.use
    fields = dict(given)
    if "max_output_tokens" in given:
        fields["max_tokens"] = given["max_output_tokens"]
    tools, names = _unpacked(given.get("tools", ()))
    toolbox = _toolbox(given, tools)
    effort = given.get("reasoning", {}).get("effort")
    request = build(
        fields,
        use,
        exchange.session,
        _logprobs(given),
        messages=_messages(given, use.system, names),
        tools=toolbox.tools,
        tool_choice=toolbox.tool_choice,
        forced_tool=toolbox.forced_tool,
        parallel_tool_calls=given.get("parallel_tool_calls", True),
        constraint=_constraint(given.get("text", {}).get("format")),
        template_values={} if effort is None else {"reasoning_effort": known_effort(effort)},
    )
    return request, names


def _logprobs(given: Json) -> int | None:
    if "message.output_text.logprobs" in given.get("include", ()):
        return int(given.get("top_logprobs", 0))
    if given.get("top_logprobs"):
        raise ConflictingParameters(
            "top_logprobs",
            'top_logprobs requires "message.output_text.logprobs" in include.',
            "Add it to include, or leave out top_logprobs.",
        )
    return None


def _constraint(wanted: Json | None) -> Constraint | None:
    match (wanted or {"type": "text"})["type"]:
        case "json_object":
            return Constraint("json")
        case "json_schema":
            return Constraint("json_schema", json.dumps((wanted or {})["schema"]))
        case _:
            return None


def _unpacked(tools: Sequence[Json]) -> tuple[list[Json], Names]:
    """Every function, including those of namespaces, under the names that the model sees."""
    of_namespaces = [
        (space["name"], tool)
        for space in tools
        if space["type"] == "namespace"
        for tool in space["tools"]
    ]
    functions = [tool for tool in tools if tool["type"] == "function"]
    uses = Counter(tool["name"] for tool in (*functions, *(tool for _, tool in of_namespaces)))
    given = {}
    for space, tool in of_namespaces:
        name = tool["name"] if uses[tool["name"]] == 1 else f"{space}__{tool['name']}"
        given[name] = (space, tool["name"])
        functions.append({**tool, "name": name})
    return functions, Names(given)


def _toolbox(given: Json, tools: Sequence[Json]) -> Toolbox:
    """The tools and their choice, converted to the nested form of `/v1/chat/completions`."""
    fields: dict[str, Any] = {"tools": [_nested(tool) for tool in tools]}
    choice = given.get("tool_choice", "auto")
    if isinstance(choice, dict):
        if choice["type"] == "function":
            choice = _nested(choice)
        else:
            allowed = {"mode": choice["mode"], "tools": [_nested(one) for one in choice["tools"]]}
            choice = {"type": "allowed_tools", "allowed_tools": allowed}
    return read_tools({**fields, "tool_choice": choice})


def _nested(flat: Json) -> dict[str, Any]:
    rest = {key: value for key, value in flat.items() if key != "type"}
    return {"type": "function", "function": rest}


def _messages(given: Json, default_system: str, names: Names) -> tuple[Message, ...]:
    items = given["input"]
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    messages = _turns(items, names)
    instructions = given.get("instructions")
    if instructions is None and all(message.role != "system" for message in messages):
        instructions = default_system
    if instructions:
        messages.insert(0, Message("system", instructions))
    return tuple(messages)


def _turns(items: Sequence[Json], names: Names) -> list[Message]:
    """One message per turn: consecutive reasoning, text and tool calls of the assistant are one;
    reasoning that no text or call follows is a turn of its own.
    """
    messages: list[Message] = []
    thoughts = ""
    open_turn = False
    for item in items:
        kind = item.get("type", "message")
        if thoughts and (
            kind == "function_call_output" or item.get("role", "assistant") != "assistant"
        ):
            messages.append(Message("assistant", reasoning=thoughts))
            thoughts = ""
        if kind == "reasoning":
            thoughts += "\n".join(texts_of(item.get("content", ())))
            open_turn = False
        elif kind == "function_call":
            name = names.of_model(item.get("namespace", ""), item["name"])
            call = ToolCall(item["call_id"], name, item["arguments"])
            if open_turn:
                before = messages[-1]
                messages[-1] = replace(before, tool_calls=(*before.tool_calls, call))
            else:
                messages.append(Message("assistant", reasoning=thoughts, tool_calls=(call,)))
            thoughts, open_turn = "", True
        elif kind == "function_call_output":
            output = texts_of(item["output"])
            messages.append(Message.of_parts("tool", output, tool_call_id=item["call_id"]))
            open_turn = False
        else:
            role: Role = "system" if item["role"] == "developer" else item["role"]
            texts = texts_of(item["content"])
            messages.append(Message.of_parts(role, texts, reasoning=thoughts))
            thoughts, open_turn = "", role == "assistant"
    if thoughts or not messages:
        messages.append(Message("assistant", reasoning=thoughts))
    return messages
