"""From the bodies of `/api/chat` and `/api/generate` to a `contract.Request`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hearth.app.server.exchange import Exchange
from hearth.app.server.messages import read_tools
from hearth.app.server.requests import build
from hearth.backends.contract import Constraint, Message, Request, ToolCall
from hearth.backends.errors import ConflictingParameters

Json = Mapping[str, Any]

NAMES: Final = {
    "constraint": "format",
    "template_values": "think",
    "token_ids": "prompt",
    "text": "prompt",
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "repetition_window": "options.repeat_last_n",
    "stop": "options.stop",
}
"""From the contract's names to Ollama's."""
_RENAMED: Final = {
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "repetition_window",
}


def read_chat(exchange: Exchange) -> Request:
    """What `/api/chat` asks. Raises `InvalidParameter` by the contract's names."""
    given = exchange.given
    messages = _messages(given["messages"], exchange.chosen.use.system)
    last = messages[-1]
    return build(
        _drawing(given),
        exchange.chosen.use,
        exchange.session,
        None,
        messages=messages,
        tools=read_tools(given).tools,
        continue_last=last.role == "assistant" and not last.tool_calls,
        **_shape(given),
    )


def read_generate(exchange: Exchange) -> Request:
    """What `/api/generate` asks. Raises `InvalidParameter` by the contract's names."""
    given = exchange.given
    raw = given.get("raw", False)
    if not raw and "suffix" in given:
        raise ConflictingParameters("suffix", "suffix goes with raw.", "Set raw to true as well.")
    for name in ("system", "think"):
        if raw and name in given:
            raise ConflictingParameters(name, f"{name} goes with a template.", "Leave raw out.")
    if raw:
        asked = {"text": given["prompt"], "suffix": given.get("suffix")}
    else:
        system = given.get("system", exchange.chosen.use.system)
        first = (Message("system", system),) if system else ()
        asked = {"messages": (*first, Message("user", given["prompt"]))}
    return build(
        _drawing(given), exchange.chosen.use, exchange.session, None, **asked, **_shape(given)
    )


def _drawing(given: Json) -> dict[str, Any]:
    """The options under the names of the other endpoints."""
    options = dict(given.get("options", {}))
    for theirs, ours in _RENAMED.items():
        if theirs in options:
            options[ours] = options.pop(theirs)
    most = options.pop("num_predict", None)
    if most is not None:
        options["max_tokens"] = None if most < 0 else max(1, most)  # 0 is never run.
    options.pop("num_ctx", None)
    return options


def _shape(given: Json) -> dict[str, Any]:
    """The constraint and the thinking."""
    shape: dict[str, Any] = {}
    wanted = given.get("format", "")
    if wanted == "json":
        shape["constraint"] = Constraint("json")
    elif wanted != "":
        shape["constraint"] = Constraint("json_schema", json.dumps(wanted))
    think = given.get("think")
    if isinstance(think, bool):
        shape["template_values"] = {"enable_thinking": think}
    elif think is not None:
        shape["template_values"] = {"reasoning_effort": think}
    return shape


def _messages(items: Sequence[Json], system: str) -> tuple[Message, ...]:
    """The conversation; calls without an id are tied to the answers of tools by their order."""
    messages: list[Message] = []
    open_calls: list[str] = []
    for index, item in enumerate(items):
        calls = tuple(
            ToolCall(
                call.get("id") or f"call_{index}_{position}",
                call["function"]["name"],
                json.dumps(call["function"]["arguments"]),
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
                name=item.get("tool_name", item.get("name", "")),
            )
        )
    if system and all(message.role != "system" for message in messages):
        messages.insert(0, Message("system", system))
    return tuple(messages)
