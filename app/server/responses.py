"""`POST /v1/responses`, stateless: every request contains the whole conversation."""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.answer import Answer, Part
from hearth.app.server import answers, sse
from hearth.app.server.errors import error_body
from hearth.app.server.exchange import Exchange, GenerationEvents
from hearth.app.server.messages import read_tools, texts_of
from hearth.app.server.requests import build, json_constraint, known_effort
from hearth.app.server.tables.responses import CREATE_RESPONSE
from hearth.backends.contract.events import (
    Event,
    Finished,
    Progress,
    Started,
    Token,
    ToolCallPart,
    Usage,
)
from hearth.backends.contract.messages import Message, Role, ToolCall
from hearth.backends.contract.requests import Constraint, Request
from hearth.backends.errors import ConflictingParameters, HearthError

Json = dict[str, Any]
Named = Iterator[tuple[str, Json]]
"""Events: (name, fields)."""
FunctionNames = Mapping[str, tuple[str, str]]
"""(namespace, name) of each function in a namespace, by the name that the model sees."""

_NAMES: Final = {
    "messages": "input",
    "constraint": "text.format.schema",
    "template_values.reasoning_effort": "reasoning.effort",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "forced_tool": "tool_choice.name",
    "tool_choice.function.name": "tool_choice.name",
    "tool_choice.allowed_tools.tools": "tool_choice.tools",
}
"""The name in `/v1/responses` for each parameter of the contract."""
_INCOMPLETE: Final = {"reason": "max_output_tokens"}
_FAILURES: Final = ("context_length_exceeded", "rate_limit_exceeded")
"""Codes of failed responses that clients act on; all others become `server_error`."""


async def create_response(http: HttpRequest) -> Response:
    """Answer one request, whole or as a stream of events.

    Raises:
        HearthError: the request is refused, or fails before its first event.
    """
    exchange = await Exchange.open(http, CREATE_RESPONSE, _NAMES)
    request, names = _read_request(exchange)
    reply = _Reply(_frame(exchange, request, names), names)
    events = await exchange.events([request])
    if exchange.given.get("stream", False):
        dialect = sse.Dialect(reply.failure)
        return await exchange.stream(reply.parts(events), dialect)
    await exchange.collect(events, reply.add)
    return JSONResponse(reply.response())


def _read_request(exchange: Exchange) -> tuple[Request, FunctionNames]:
    """The request that the body describes, and the names of its functions.

    Raises:
        InvalidParameter: with the contract's name of the parameter.
        ConflictingParameters: two fields cannot be combined.
    """
    given = exchange.given
    use = exchange.chosen.use
    most = {"max_tokens": given["max_output_tokens"]} if "max_output_tokens" in given else {}
    functions, names = _unpacked(given.get("tools", ()), exchange.place)
    tools = _tool_fields(given, functions.values())
    chosen = {tool.name for tool in tools["tools"]}
    sent = [place for place, function in functions.items() if function["name"] in chosen]
    exchange.names.update({f"tools[{at}]": place for at, place in enumerate(sent)})
    messages, places = _messages(given, use.system, names)
    exchange.names.update(places)
    effort = given.get("reasoning", {}).get("effort")
    request = build(
        {**given, **most},
        use,
        exchange.session,
        _logprobs(given),
        messages=messages,
        parallel_tool_calls=given.get("parallel_tool_calls", True),
        constraint=_constraint(given.get("text", {}).get("format")),
        template_values={} if effort is None else {"reasoning_effort": known_effort(effort)},
        **tools,
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
    if wanted is None or wanted["type"] == "text":
        return None
    return json_constraint(wanted.get("schema"))


def _unpacked(
    tools: Sequence[Json], place: Callable[[str, int], str]
) -> tuple[dict[str, Json], FunctionNames]:
    """Every function by its place in the body, including those of namespaces.

    The functions have the names that the model sees: a function's own name if it is unambiguous,
    else the name with the namespace as a prefix.
    """
    functions: dict[str, Json] = {}
    of_namespaces: list[tuple[str, str, Json]] = []
    for at, tool in enumerate(tools):
        where = place("tools", at)
        if tool["type"] == "function":
            functions[where] = tool
        else:
            inner = enumerate(tool["tools"])
            of_namespaces += [(place(f"{where}.tools", i), tool["name"], one) for i, one in inner]
    all_functions = (*functions.values(), *(function for *_, function in of_namespaces))
    uses = Counter(function["name"] for function in all_functions)
    given = {}
    for where, space, function in of_namespaces:
        name = function["name"]
        ours = name if uses[name] == 1 else f"{space}__{name}"
        given[ours] = (space, name)
        functions[where] = {**function, "name": ours}
    return functions, given


def _tool_fields(given: Json, tools: Iterable[Json]) -> Json:
    """The fields of `Request` for the tools and the tool choice.

    Both are first converted to the nested form of `/v1/chat/completions`.
    """
    choice = given.get("tool_choice", "auto")
    if isinstance(choice, dict):
        if choice["type"] == "function":
            choice = _nested(choice)
        else:
            allowed = {"mode": choice["mode"], "tools": [_nested(one) for one in choice["tools"]]}
            choice = {"type": "allowed_tools", "allowed_tools": allowed}
    return read_tools({"tools": [_nested(tool) for tool in tools], "tool_choice": choice})


def _nested(flat: Json) -> dict[str, Any]:
    rest = {key: value for key, value in flat.items() if key != "type"}
    return {"type": "function", "function": rest}


def _messages(
    given: Json, default_system: str, names: FunctionNames
) -> tuple[tuple[Message, ...], dict[str, str]]:
    """The conversation, and the client's names of its messages and their tool calls."""
    items = given["input"]
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    messages, places = _turns(items, names)
    instructions = given.get("instructions")
    if instructions is None and all(message.role != "system" for message in messages):
        instructions = default_system
    if instructions:
        messages.insert(0, Message("system", instructions))
    first = 1 if instructions else 0
    return tuple(messages), {
        f"messages[{message + first}]{rest}": f"input[{at}]" for message, rest, at in places
    }


def _turns(
    items: Sequence[Json], names: FunctionNames
) -> tuple[list[Message], list[tuple[int, str, int]]]:
    """One message per turn.

    Consecutive reasoning, text and tool calls of the assistant are one turn; reasoning that no text
    or call follows is a turn of its own.

    Returns:
        The messages; and for each message and each tool call, the index of the message, the path of
        the call in it (empty for the message itself), and the index of the item.
    """
    of_model = {theirs: ours for ours, theirs in names.items()}
    messages: list[Message] = []
    places: list[tuple[int, str, int]] = []
    thoughts, thoughts_at = "", 0
    open_turn = False
    for at, item in enumerate(items):
        kind = item.get("type", "message")
        if thoughts and (
            kind == "function_call_output" or item.get("role", "assistant") != "assistant"
        ):
            places.append((len(messages), "", thoughts_at))
            messages.append(Message("assistant", reasoning=thoughts))
            thoughts = ""
        before_item = len(messages)
        if kind == "reasoning":
            thoughts_at = thoughts_at if thoughts else at
            thoughts = "\n".join(filter(None, (thoughts, *texts_of(item.get("content", ())))))
            open_turn = False
        elif kind == "function_call":
            name: str = item["name"]
            name = of_model.get((item.get("namespace", ""), name), name)
            call = ToolCall(item["call_id"], name, item["arguments"])
            if open_turn:
                before = messages[-1]
                messages[-1] = replace(before, tool_calls=(*before.tool_calls, call))
            else:
                messages.append(Message("assistant", reasoning=thoughts, tool_calls=(call,)))
            number = len(messages) - 1
            places.append((number, f".tool_calls[{len(messages[-1].tool_calls) - 1}]", at))
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
        places += [(number, "", at) for number in range(before_item, len(messages))]
    if thoughts or not messages:
        places.append((len(messages), "", thoughts_at))
        messages.append(Message("assistant", reasoning=thoughts))
    return messages, places


def _client_name(name: str, names: FunctionNames) -> Json:
    """The `name`, and the `namespace` if any, of the function that the model calls `name`."""
    if name not in names:
        return {"name": name}
    namespace, theirs = names[name]
    return {"name": theirs, "namespace": namespace}


def _frame(exchange: Exchange, request: Request, names: FunctionNames) -> Json:
    """The fields of a response that repeat its request."""
    given = exchange.given
    wanted = given.get("text", {}).get("format", {"type": "text"})
    return {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response",
        "created_at": float(int(time.time())),
        "model": exchange.model,
        "background": False,
        "instructions": given.get("instructions"),
        "max_output_tokens": request.max_tokens,
        "metadata": given.get("metadata", {}),
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": given.get("reasoning", {}).get("effort"), "summary": None},
        "store": False,
        "temperature": request.sampling.temperature,
        "text": {"format": wanted},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": [
            {
                "type": "function",
                **_client_name(tool.name, names),
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": tool.strict,
            }
            for tool in request.tools
        ],
        "top_logprobs": request.sampling.logprobs or 0,
        "top_p": given.get("top_p", request.sampling.top_p),
        "truncation": "auto" if exchange.overflow == "drop-turns" else "disabled",
        "user": given.get("user"),
    }


@dataclass(slots=True)
class _Reply:
    """One response while it is generated.

    It has one item for each part of the answer, and creates the events that report the items.
    Streams and complete responses are built by the same steps.
    """

    frame: Json
    names: FunctionNames
    status: str = "in_progress"
    answer: Answer = field(default_factory=Answer)
    error: Json | None = None
    _done: list[Json] = field(default_factory=list)
    """The items that are complete."""
    _open: Json | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _begun: bool = False
    """Whether an event was sent."""

    def response(self) -> Json:
        """The response so far."""
        done = self.status != "in_progress"
        return {
            **self.frame,
            "status": self.status,
            "completed_at": float(int(time.time())) if self.status == "completed" else None,
            "error": self.error,
            "incomplete_details": _INCOMPLETE if self.status == "incomplete" else None,
            "output": self._done if done else [],
            "usage": _usage(self.answer.usage) if self.answer.finished else None,
            **answers.notices(self.answer.notices),
        }

    def add(self, answer: Answer, event: Event) -> None:
        """Take the next event of a complete response."""
        self.answer = answer
        for _ in self._take(event):
            pass

    async def parts(self, events: GenerationEvents) -> sse.Parts:
        async with aclosing(events):
            async for self.answer, event in events:
                if isinstance(event, Progress):
                    yield sse.comment(f"prefill {event.done}/{event.total}")
                for name, fields in self._take(event):
                    yield self._event(name, fields)

    def failure(self, error: HearthError) -> bytes:
        """The last events of a failed stream; clients require `response.created` before them."""
        created = {"response": self.response()}
        first = b"" if self._begun else self._event("response.created", created)
        details = error_body(error)["error"]
        code = "rate_limit_exceeded" if error.http_status == 429 else details["code"]
        self.status = "failed"
        code = code if code in _FAILURES else "server_error"
        self.error = {"code": code, "message": details["message"]}
        failed = self._event("response.failed", {"response": self.response()})
        fields = {key: details[key] for key in ("message", "code", "param")}
        return first + failed + self._event("error", fields)

    def _event(self, name: str, fields: Json) -> bytes:
        self._begun = True
        return sse.named(name, {"type": name, "sequence_number": next(self._numbers), **fields})

    def _take(self, event: Event) -> Named:
        if isinstance(event, (Token, ToolCallPart)):
            yield from self._add(event)
        elif isinstance(event, Started):
            yield "response.created", {"response": self.response()}
            yield "response.in_progress", {"response": self.response()}
        elif isinstance(event, Finished):
            self.status = "incomplete" if event.reason == "length" else "completed"
            yield from self._close(self.status)
            yield f"response.{self.status}", {"response": self.response()}

    def _add(self, event: Token | ToolCallPart) -> Named:
        """Report `event`, the last that was added to the answer."""
        parts = self.answer.choices[0].parts
        if len(parts) > len(self._done) + (self._open is not None):
            yield from self._close("completed")
            yield from self._begin(parts[-1])
        if isinstance(event, ToolCallPart):
            if event.arguments:
                yield self._item("response.function_call_arguments.delta", delta=event.arguments)
        elif event.channel == "reasoning":
            if event.text or event.logprobs:
                yield self._part("response.reasoning_text.delta", delta=event.text)
        elif event.text or event.logprobs:
            logprobs = answers.chat_logprobs(event.logprobs or ())["content"]
            yield self._part("response.output_text.delta", delta=event.text, logprobs=logprobs)

    def _close(self, status: str) -> Named:
        """Close the open item, if any, as completed or incomplete."""
        item = self._open
        if item is None:
            return
        part = self.answer.choices[0].parts[len(self._done)]
        item["status"] = status
        if part.kind == "call":
            item["arguments"] = part.text
            yield self._item("response.function_call_arguments.done", arguments=part.text)
        elif part.kind == "reasoning":
            item["content"] = [{"type": "reasoning_text", "text": part.text}]
            yield self._part("response.reasoning_text.done", text=part.text)
        else:
            text = _text(part)
            item["content"] = [text]
            fields = {"text": text["text"], "logprobs": text["logprobs"]}
            yield self._part("response.output_text.done", **fields)
            yield self._part("response.content_part.done", part=text)
        yield "response.output_item.done", {"output_index": len(self._done), "item": item}
        self._done.append(item)
        self._open = None

    def _begin(self, part: Part) -> Named:
        if part.kind == "call":
            named = _client_name(part.name, self.names)
            kind, prefix = "function_call", "fc"
            fields: Json = {"call_id": part.id, **named, "arguments": ""}
        elif part.kind == "reasoning":
            kind, prefix, fields = "reasoning", "rs", {"summary": [], "content": []}
        else:
            kind, prefix, fields = "message", "msg", {"role": "assistant", "content": []}
        ident = f"{prefix}_{secrets.token_hex(12)}"
        self._open = {"id": ident, "type": kind, "status": "in_progress", **fields}
        fields = {"output_index": len(self._done), "item": dict(self._open)}
        yield "response.output_item.added", fields
        if part.kind == "content":
            yield self._part("response.content_part.added", part=_text(Part("content")))

    def _item(self, name: str, **fields: Any) -> tuple[str, Json]:
        assert self._open is not None
        where = {"item_id": self._open["id"], "output_index": len(self._done)}
        return name, {**where, **fields}

    def _part(self, name: str, **fields: Any) -> tuple[str, Json]:
        return self._item(name, content_index=0, **fields)


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.kept_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _text(part: Part) -> Json:
    logprobs = answers.chat_logprobs(part.logprobs)["content"]
    return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": logprobs}
