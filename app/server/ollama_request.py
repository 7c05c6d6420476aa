"""Converts the bodies of `/api/chat` and `/api/generate` to a `contract.Request`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hearth.app.server.exchange import Exchange
from hearth.app.server.messages import read_tools
from hearth.app.server.requests import build, known_effort, logprobs_of
from hearth.app.server.tables.ollama import OPTIONS
from hearth.backends.contract import Constraint, Message, Request, ToolCall
from hearth.backends.errors import ConflictingParameters

Json = Mapping[str, Any]

NAMES: Final = {
    **{row.name: f"options.{row.name}" for row in OPTIONS if row.treatment == "honoured"},
    "repetition_penalty": "options.repeat_penalty",
    "repetition_window": "options.repeat_last_n",
    "max_tokens": "options.num_predict",
    "logprobs": "top_logprobs",
    "constraint": "format",
    "template_values": "think",
    "text": "prompt",
}
"""From the contract's names to Ollama's."""


def read_chat(exchange: Exchange) -> Request:
    """The request of `/api/chat`. Raises `InvalidParameter` with the contract's names."""
    given = exchange.given
    messages = _messages(given["messages"], exchange.chosen.use.system)
    last = messages[-1]
    return build(
        _numbers(given),
        exchange.chosen.use,
        exchange.session,
        logprobs_of(given),
        messages=messages,
        tools=read_tools(given).tools,
        continue_last=last.role == "assistant" and not last.tool_calls,
        **_shape(given),
    )


def read_generate(exchange: Exchange) -> Request:
    """The request of `/api/generate`. Raises `InvalidParameter` with the contract's names."""
    given = exchange.given
    suffix = given.get("suffix") or None
    if given.get("raw", False) or suffix is not None:
        for name in ("system", "think"):
            if given.get(name):
                raise ConflictingParameters(
                    name,
                    f"{name} requires the chat template, which raw and suffix do not use.",
                    f"Leave out {name}, or leave out raw and suffix.",
                )
        prompt = {"text": given.get("prompt", ""), "suffix": suffix}
        shape = _constraint(given)
    else:
        system = given.get("system", exchange.chosen.use.system)
        first = (Message("system", system),) if system else ()
        prompt = {"messages": (*first, Message("user", given["prompt"]))}
        shape = _shape(given)
    return build(
        _numbers(given),
        exchange.chosen.use,
        exchange.session,
        logprobs_of(given),
        **prompt,
        **shape,
    )


def _numbers(given: Json) -> dict[str, Any]:
    """The options under the names of the other APIs."""
    options = dict(given.get("options", {}))
    most = options.pop("num_predict", None)
    if most is not None:
        options["max_tokens"] = None if most < 0 else max(1, most)  # 0 is never generated.
    if options.get("seed", 0) is None:
        del options["seed"]
    options.pop("num_ctx", None)
    return options


def _shape(given: Json) -> dict[str, Any]:
    """The fields of `format` and `think`."""
    shape = _constraint(given)
    think = given.get("think")
    if isinstance(think, bool):
        shape["template_values"] = {"enable_thinking": think}
    elif think is not None:
        shape["template_values"] = {"reasoning_effort": known_effort(think)}
    return shape


def _constraint(given: Json) -> dict[str, Any]:
    wanted = given.get("format", "")
    if wanted == "":
        return {}
    if wanted == "json":
        return {"constraint": Constraint("json")}
    return {"constraint": Constraint("json_schema", json.dumps(wanted))}


def _messages(items: Sequence[Json], system: str) -> tuple[Message, ...]:
    """The conversation; tool calls without an id are matched to tool results by their order."""
    messages: list[Message] = []
    open_calls: list[str] = []
    for index, item in enumerate(items):
        calls = tuple(
            ToolCall(
                call.get("id") or f"call_{index}_{position}",
                call["function"]["name"],
                _arguments(call["function"]["arguments"]),
            )
            for position, call in enumerate(item.get("tool_calls", ()))
        )
        open_calls += [call.id for call in calls]
        answered = ""
        if item["role"] == "tool":
            answered = item.get("tool_call_id") or (
                open_calls[0] if open_calls else f"call_{index}"
            )
            open_calls = [ident for ident in open_calls if ident != answered]
        messages.append(
            Message(
                item["role"],
                item.get("content", ""),
                reasoning=item.get("thinking", ""),
                tool_calls=calls,
                tool_call_id=answered,
                name=item.get("tool_name", ""),
            )
        )
    if system and all(message.role != "system" for message in messages):
        messages.insert(0, Message("system", system))
    return tuple(messages)


def _arguments(value: Json | str) -> str:
    return value if isinstance(value, str) else json.dumps(value)
