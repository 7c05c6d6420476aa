"""`/api/chat`, `/api/generate`, `/api/embed` and `/api/embeddings` of Ollama's API."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, cast

from msgspec import structs
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.answer import Answer, Choice
from hearth.app.server import answers, sse
from hearth.app.server.errors import OLLAMA, error_body
from hearth.app.server.exchange import Exchange, GenerationEvents
from hearth.app.server.messages import (
    client_names,
    continues_last,
    read_calls,
    read_tools,
    with_system,
)
from hearth.app.server.requests import build, json_constraint, known_effort, logprobs_of
from hearth.app.server.services import worker_of
from hearth.app.server.tables.ollama import CHAT, EMBED, EMBEDDINGS, GENERATE, OPTIONS
from hearth.app.server.text import shortened
from hearth.backends.contract.backend import Backend
from hearth.backends.contract.events import Embeddings, Event, Finished, Started, Token
from hearth.backends.contract.messages import Message, ToolCall
from hearth.backends.contract.requests import Request
from hearth.backends.errors import ConflictingParameters, prompt_too_long

Json = dict[str, Any]
Shape = Callable[[Choice], Json]
"""Puts an answer into the fields of one endpoint."""

NDJSON: Final = "application/x-ndjson"
_NAMES: Final = {
    **{row.name: f"options.{row.name}" for row in OPTIONS if row.treatment == "honoured"},
    "repetition_penalty": "options.repeat_penalty",
    "repetition_window": "options.repeat_last_n",
    "max_tokens": "options.num_predict",
    "logprobs": "top_logprobs",
    "constraint": "format",
    "template_values": "think",
    "text": "prompt",
}
"""Ollama's name for each parameter of the contract."""


async def chat(http: HttpRequest) -> Response:
    """Answer a conversation; streamed unless `stream` is false."""
    exchange = await Exchange.open(http, CHAT, {**_NAMES, "text": "messages"})
    if not exchange.given.get("messages"):
        return await _load(exchange, {"message": {"role": "assistant", "content": ""}})
    return await _answer(exchange, _read_chat, _message)


async def generate(http: HttpRequest) -> Response:
    """Answer a prompt; streamed unless `stream` is false."""
    exchange = await Exchange.open(http, GENERATE, _NAMES)
    if not exchange.given.get("prompt") and not exchange.given.get("suffix"):
        return await _load(exchange, {"response": ""})
    return await _answer(exchange, _read_generate, _response)


def _read_chat(exchange: Exchange) -> Request:
    """The request of `/api/chat`. Raises `InvalidParameter` with the contract's names."""
    given = exchange.given
    messages = _messages(given["messages"], exchange.chosen.use.system)
    tools = read_tools(given)["tools"]
    exchange.names.update(client_names(given, messages, tools, exchange.place))
    return build(
        _numbers(given),
        exchange.chosen.use,
        exchange.session,
        logprobs_of(given),
        messages=messages,
        tools=tools,
        continue_last=continues_last(given, messages),
        **_shape(given),
    )


def _read_generate(exchange: Exchange) -> Request:
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
    most = options.get("num_predict")
    if most is not None:
        options["max_tokens"] = None if most < 0 else max(1, most)  # A request with 0 is never run.
    return options


def _shape(given: Json) -> dict[str, Any]:
    """The fields of `Request` for `format` and `think`."""
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
    return {"constraint": json_constraint(None if wanted == "json" else wanted)}


def _messages(items: Sequence[Json], system: str) -> tuple[Message, ...]:
    """The conversation.

    Tool results without an id are matched to tool calls by the name of the tool, else by their
    order.
    """
    messages: list[Message] = []
    open_calls: list[ToolCall] = []
    for index, item in enumerate(items):
        calls = read_calls(item, index)
        open_calls += calls
        answered = ""
        if item["role"] == "tool":
            named = [call for call in open_calls if call.name == item.get("tool_name")]
            ids = [call.id for call in named or open_calls]
            answered = item.get("tool_call_id") or (ids[0] if ids else f"call_{index}")
            open_calls = [call for call in open_calls if call.id != answered]
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
    return with_system(messages, system)


@dataclass(slots=True)
class LimitedContext:
    """Wraps `backend` with a limit of `num_ctx` tokens on prompt and answer together.

    Attributes:
        num_ctx: None: the context of the loaded model.
        load_s: seconds until the model was ready; close to 0 if it was already loaded.
    """

    backend: Backend
    num_ctx: int | None
    load_s: float = 0.0

    async def generate(self, request: Request) -> AsyncGenerator[Event, None]:
        """The events of one request; closing the iterator cancels it.

        Raises:
            PromptTooLong: the prompt has `num_ctx` tokens or more.
        """
        began_s = time.perf_counter()
        context = (await self.backend.info()).context
        self.load_s = time.perf_counter() - began_s
        request, notices = await self._limited(request, context)
        generated = cast(AsyncGenerator[Event, None], self.backend.generate(request))
        async with aclosing(generated) as events:
            async for event in events:
                if notices and isinstance(event, Started):
                    event = structs.replace(event, notices=(*notices, *event.notices))
                yield event

    async def _limited(self, request: Request, context: int) -> tuple[Request, tuple[str, ...]]:
        """`request` with `max_tokens` limited by `num_ctx`, and notices.

        Args:
            context: context of the loaded model in tokens; 0 if the model is remote, so that its
                context is unknown.
        """
        num_ctx = self.num_ctx
        if num_ctx is None or num_ctx == context:
            return request, ()
        if context == 0:
            return request, ("options.num_ctx has no effect on a remote model.",)
        if num_ctx > context:
            notice = f"options.num_ctx {num_ctx} exceeds the model's context: {context} is used."
            return request, (notice,)
        prompt_tokens = len((await self.backend.render(request)).ids)
        free = num_ctx - prompt_tokens
        if free < 1:
            raise prompt_too_long(
                request.prompt_field,
                prompt_tokens,
                num_ctx,
                answers=True,
                hint=f"Shorten it, or raise options.num_ctx: up to {context} fit.",
            )
        return replace(request, max_tokens=min(request.max_tokens or free, free)), ()


def _message(choice: Choice) -> Json:
    message: Json = {"role": "assistant", "content": choice.content}
    if choice.reasoning:
        message["thinking"] = choice.reasoning
    if calls := choice.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "function": {"name": call.name, "arguments": answers.arguments(call.arguments)},
            }
            for call in calls
        ]
    return {"message": message} | _logprobs(choice)


def _response(choice: Choice) -> Json:
    fields: Json = {"response": choice.content}
    if choice.reasoning:
        fields["thinking"] = choice.reasoning
    return fields | _logprobs(choice)


def _logprobs(choice: Choice) -> Json:
    logprobs = choice.logprobs
    return {"logprobs": answers.chat_logprobs(logprobs)["content"]} if logprobs else {}


async def _answer(
    exchange: Exchange, read: Callable[[Exchange], Request], shape: Shape
) -> Response:
    answer = _Answer(exchange, shape, time.perf_counter())
    request = read(exchange)
    options = exchange.given.get("options", {})
    if options.get("num_predict") == 0:
        return await answer.of_prompt_alone(request)
    source = LimitedContext(await exchange.backend(), options.get("num_ctx"))
    events = await exchange.events([request], source=source)
    if exchange.given.get("stream", True):
        return await exchange.stream(answer.lines(events, source), dialect(answer.piece(Choice())))
    [finished] = await exchange.collect(events)
    return JSONResponse(answer.ended(finished.last, finished, source.load_s))


@dataclass(frozen=True, slots=True)
class _Answer:
    """Builds one answer, complete or as lines of a stream.

    Attributes:
        began_s: when the request arrived, by `time.perf_counter`.
    """

    exchange: Exchange
    shape: Shape
    began_s: float

    def ended(self, choice: Choice, made: Answer, load_s: float) -> Json:
        """The complete answer with the reason of its end, counts, and durations in nanoseconds."""
        usage, timings = made.usage, made.timings
        return {
            **_head(self.exchange),
            **self.shape(choice),
            "done": True,
            "done_reason": "length" if made.last.reason == "length" else "stop",
            "total_duration": _ns(time.perf_counter() - self.began_s),
            "load_duration": _ns(load_s),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _ns(timings.prefill_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": _ns(timings.decode_s),
            **answers.notices(made.notices),
        }

    async def lines(self, events: GenerationEvents, source: LimitedContext) -> sse.Parts:
        """The answer as it is generated, one JSON object per line.

        Tool calls are sent complete, in the last line but one.
        """
        async with aclosing(events):
            async for answer, event in events:
                if isinstance(event, Token) and (event.text or event.logprobs):
                    piece = Choice()
                    piece.add(event, answer.last_s)
                    yield self.piece(piece)
                elif isinstance(event, Finished):
                    calls = [part for part in answer.last.parts if part.kind == "call"]
                    if calls:
                        yield self.piece(Choice(parts=calls))
                    yield line(self.ended(Choice(), answer, source.load_s))

    async def of_prompt_alone(self, request: Request) -> Response:
        """The answer for `num_predict: 0`: one line, streamed or not."""
        [answer] = await self.exchange.prompts_alone([request])
        return Response(
            line(self.ended(answer.last, answer, 0.0)),
            media_type=NDJSON if self.exchange.given.get("stream", True) else "application/json",
        )

    def piece(self, choice: Choice) -> bytes:
        """A line of the stream that does not end the answer."""
        return line(_head(self.exchange) | self.shape(choice) | {"done": False})


def dialect(ping: bytes) -> sse.Dialect:
    """The dialect of a stream of lines, with the line `ping` sent while the stream is silent."""
    return sse.Dialect(lambda error: line(error_body(error, OLLAMA)), ping, NDJSON)


def line(value: Json) -> bytes:
    """One line of a stream."""
    return sse.one_line(value) + b"\n"


def _head(exchange: Exchange) -> Json:
    return {"model": exchange.model, "created_at": datetime.now(UTC).isoformat()}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


async def _load(exchange: Exchange, empty: Json) -> Response:
    """Load the model, or unload it if `keep_alive` is 0, for a request without a prompt."""
    reason = "load"
    if exchange.chosen.spec.settings.keep_alive_s == 0 and "keep_alive" in exchange.given:
        await exchange.attend(_unload(exchange))
        reason = "unload"
    else:
        await exchange.attend((await exchange.backend()).info())
    return exchange.answer(_head(exchange) | empty | {"done": True, "done_reason": reason})


async def _unload(exchange: Exchange) -> None:
    """Unload the model as soon as no request uses it."""
    services = exchange.services
    worker = await worker_of(await services.host_stats(), exchange.chosen.found)
    if worker is not None and worker.running + worker.waiting:
        await (await exchange.backend()).info()  # Passes keep_alive on to the host.
    else:
        await (await services.hosts.host()).unload(exchange.chosen.spec.path)


async def embed(http: HttpRequest) -> Response:
    """One vector for each text, in the order of `input`."""
    began_s = time.perf_counter()
    exchange = await Exchange.open(http, EMBED, {"texts": "input"})
    texts = exchange.given["input"]
    if isinstance(texts, str):
        exchange.names["texts[0]"] = "input"
        texts = [texts] if texts else []
    await exchange.attend((await exchange.backend()).info())
    load_s = time.perf_counter() - began_s
    result = await _embeddings(exchange, texts, truncate=exchange.given.get("truncate", True))
    dimensions = exchange.given.get("dimensions")
    vectors = [shortened(vector, dimensions) for vector in result.vectors]
    return exchange.answer(
        {
            "model": exchange.model,
            "embeddings": vectors,
            "total_duration": _ns(time.perf_counter() - began_s),
            "load_duration": _ns(load_s),
            "prompt_eval_count": result.prompt_tokens,
        }
    )


async def embeddings(http: HttpRequest) -> Response:
    """The vector of one text; superseded by `/api/embed`."""
    names = {"texts": "prompt", "texts[0]": "prompt"}
    exchange = await Exchange.open(http, EMBEDDINGS, names)
    prompt = exchange.given.get("prompt", "")
    result = await _embeddings(exchange, [prompt] if prompt else [], truncate=True)
    vector = result.vectors[0] if result.vectors else ()
    return exchange.answer({"embedding": list(vector)})


async def _embeddings(exchange: Exchange, texts: Sequence[str], *, truncate: bool) -> Embeddings:
    """The vectors of `texts`; if there are no texts, the model is only loaded."""
    backend = await exchange.backend()
    if not texts:
        await exchange.attend(backend.info())
        return Embeddings((), 0)
    embedding = backend.embed(texts, session=exchange.session, truncate=truncate)
    return await exchange.attend(exchange.measured(embedding))
