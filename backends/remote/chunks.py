"""Turns the chunks of a stream, of either of OpenAI's APIs, into events of the contract."""

from __future__ import annotations

import asyncio
import json
import math
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Final, cast

from hearth.backends.contract.events import (
    Channel,
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    Progress,
    Started,
    Timings,
    Token,
    TokenLogprob,
    ToolCallPart,
    Usage,
)
from hearth.backends.contract.requests import Request
from hearth.backends.errors import HearthError
from hearth.backends.remote.errors import RemoteCut, RemoteFailed, RemoteMalformed
from hearth.backends.remote.refusals import ASK_AGAIN, error_in, quoted, reported
from hearth.backends.remote.server import RemoteServer
from hearth.backends.remote.sse import EventReader, ServerEvent, TooLong

UNKNOWN_ID: Final = -1
"""Id of a token of which only the text is known."""
_REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",  # text-generation-inference
    "stop_sequence": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "stop",
}
_UNFINISHED: Final = (None, "", "null")
"""Values of the finish reason while the answer is unfinished: OpenAI, SGLang, KoboldCpp."""
_IMPOSSIBLE: Final = -9999.0
"""The log probability of impossible tokens, as OpenAI writes it."""
_DONE: Final = "[DONE]"
"""Data of the last event of a stream."""
_REST_S: Final = 0.1
"""Seconds to wait for the end of a body after its last event, so that the connection can be reused.
"""
_PREFILL: Final = re.compile(r"\s*prefill\s+([0-9]{1,20})/([0-9]{1,20})\s*")
_FILTERED: Final = "The other end's content filter ended the answer."
_UNCOUNTED: Final = "The other end does not say how many tokens it used."


@dataclass(slots=True)
class _Choice:
    """State of one of several choices."""

    reason: FinishReason | None = None
    stop: str | None = None
    calls: dict[int, str] = field(default_factory=dict)
    """Ids of the tool calls by their positions."""
    numbers: dict[int, int] = field(default_factory=dict)
    """Indexes that the server gave to calls, if any, by their positions."""

    def position(self, number: Any, ident: str, name: str) -> int:
        """Position of the call that a piece belongs to. Some servers give all calls of an answer
        the same index (Ollama, gateways to Gemini): a new id with a name begins a new call.
        """
        if not isinstance(number, int) or number < 0:
            number = None
        same = [place for place in self.calls if number in (None, self.numbers.get(place))]
        for place in same:
            if self.calls[place] == ident:
                return place
        if same and not (ident and name):
            return same[-1]
        place = number
        if place is None or place in self.calls:
            place = max(self.calls, default=-1) + 1
        if number is not None:
            self.numbers[place] = number
        return place


class ChunkReader:
    """Turns the chunks of one stream into events, and checks at its end whether the answer is
    complete.

    Args:
        server: the server that answers, for error messages.
        request: the request that is answered.
        notices: notices to send at the start of the answer.
    """

    def __init__(
        self, server: RemoteServer, request: Request, notices: tuple[str, ...] = ()
    ) -> None:
        self._server = server
        self._chat = request.messages is not None
        self._wants_logprobs = request.sampling.logprobs is not None
        self._several = request.n > 1
        self._choices = [_Choice() for _ in range(request.n)]
        self._notices = notices
        self._last_notices: dict[str, None] = {}
        self._usage: Usage | None = None
        self._timings: Timings | None = None
        self._begun = False
        self._done = False
        self._sent_s = time.perf_counter()
        self._first_s: float | None = None

    async def events(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[Event, None]:
        """The events of the stream in `pieces`, up to `Finished`.

        Raises:
            RemoteCut: the stream is incomplete.
            HearthError: the stream reports an error; `RemoteMalformed`, `RemoteFailed`.
        """
        reader = EventReader()
        try:
            async for piece in pieces:
                for arrival in reader.feed(piece):
                    for event in self._take(arrival):
                        yield event
                if self._done:
                    break
        except TooLong as error:
            raise self._server.error(RemoteMalformed, "sends an event without an end.") from error
        for arrival in reader.end():
            for event in self._take(arrival):
                yield event
        with suppress(TimeoutError, HearthError):
            async with asyncio.timeout(_REST_S):
                async for _ in pieces:
                    pass
        yield self._end()

    def _take(self, arrival: ServerEvent) -> Iterator[Event]:
        """The events for one server-sent event of the stream; none after the last one."""
        if self._done:
            return
        if arrival.name == ":":
            yield from self._comment(arrival.data)
        elif arrival.data == _DONE:
            self._done = True
        else:
            try:
                chunk = json.loads(arrival.data)
            except (ValueError, RecursionError) as error:
                raise self._malformed("a chunk is not JSON") from error
            said = chunk if arrival.name == "error" else error_in(chunk)
            if said is not None:
                raise reported(self._server, error_in(chunk) or said)
            if not isinstance(chunk, dict):
                raise self._malformed("it is no object")
            yield from self._chunk(chunk)

    def _comment(self, text: str) -> Iterator[Event]:
        """The events for a comment: Hearth reports the progress of prefill in comments."""
        if (match := _PREFILL.fullmatch(text)) is not None:
            yield from self._start({})
            yield Progress(int(match[1]), int(match[2]))

    def _chunk(self, chunk: dict[str, Any]) -> Iterator[Event]:
        self._count(chunk)
        yield from self._start(chunk)
        progress = chunk.get("prompt_progress")  # llama-server, and Hearth on request
        if isinstance(progress, dict):
            yield Progress(_count(progress.get("processed")), _count(progress.get("total")))
        choices = chunk.get("choices") or []
        if not isinstance(choices, list):
            raise self._malformed("choices is no list")
        for choice in choices:
            if not isinstance(choice, dict):
                raise self._malformed("a choice is no object")
            yield from self._choice(choice)

    def _end(self) -> Finished:
        unfinished = [n for n, choice in enumerate(self._choices) if choice.reason is None]
        if unfinished or not self._done:
            what = "a finish_reason" if unfinished else "[DONE]"
            raise self._server.error(
                RemoteCut, f"ended its stream before {what}: the answer is not whole.", ASK_AGAIN
            )
        if self._usage is None:
            self._last_notices[_UNCOUNTED] = None
        first = self._choices[0]
        return Finished(
            cast(FinishReason, first.reason),
            self._usage or Usage(),
            self._timings or self._measured(),
            first.stop,
            tuple(self._last_notices),
        )

    def _start(self, chunk: dict[str, Any]) -> Iterator[Event]:
        said = chunk.get("notices")
        theirs = [text(item) for item in said] if isinstance(said, list) else []
        if self._begun:
            self._last_notices.update(dict.fromkeys(theirs))
            return
        self._begun = True
        usage = self._usage or Usage()
        yield Started(usage.prompt_tokens, usage.cached_tokens, (*self._notices, *theirs))

    def _choice(self, choice: dict[str, Any]) -> Iterator[Event]:
        index = choice.get("index", 0)
        if not isinstance(index, int) or not 0 <= index < len(self._choices):
            raise self._malformed(f"there is a choice {quoted(index)[:20]}")
        known = self._choices[index]
        delta = choice.get("delta") if self._chat else {"content": choice.get("text")}
        if delta is not None and not isinstance(delta, dict):
            raise self._malformed("a delta is no object")
        yield from self._delta(index, known, delta or {}, choice.get("logprobs"))
        reason = choice.get("finish_reason")
        if reason in _UNFINISHED or known.reason is not None:
            return
        known.reason = self._reason(reason)
        if known.calls and known.reason == "stop":  # as some servers write after a forced call
            known.reason = "tool_calls"
        stop = choice.get("stop_reason", choice.get("matched_stop"))  # vLLM, SGLang
        known.stop = text(stop) if isinstance(stop, str) else None
        if self._several:
            yield ChoiceFinished(index, known.reason, known.stop)

    def _delta(
        self, index: int, known: _Choice, delta: dict[str, Any], logprobs: Any
    ) -> Iterator[Event]:
        thought = text(delta.get("reasoning_content") or delta.get("reasoning"))
        content = text(delta.get("content")) or text(delta.get("refusal"))
        calls = delta.get("tool_calls") or []
        if not isinstance(calls, list):
            raise self._malformed("tool_calls is no list")
        if (thought or content or calls) and self._first_s is None:
            self._first_s = time.perf_counter()
        drawn = self._logprobs(logprobs) if self._wants_logprobs else None
        for channel, piece in (("reasoning", thought), ("content", content)):
            if piece:
                yield Token(piece, (), drawn, index, cast(Channel, channel))
                drawn = None
        if drawn and not calls:  # a token whose text comes later
            yield Token("", (), drawn, index)
        for call in calls:
            yield self._call(index, known, call)

    def _call(self, index: int, known: _Choice, call: Any) -> ToolCallPart:
        """A piece of a tool call in the contract's form.

        Servers differ: some do not number calls or give all the same number, some repeat id and
        name in each piece, some give no id.
        """
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise self._malformed("a tool call has no function")
        ident, name = text(call.get("id")), text(function.get("name"))
        position = known.position(call.get("index"), ident, name)
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str):
            raise self._malformed("the arguments of a tool call are no text")
        if position in known.calls:
            return ToolCallPart(position, arguments=text(arguments), index=index)
        known.calls[position] = ident or f"call_{secrets.token_hex(8)}"
        if not name:
            raise self._malformed("a tool call has no name")
        return ToolCallPart(position, known.calls[position], name, text(arguments), (), index)

    def _logprobs(self, value: Any) -> tuple[TokenLogprob, ...] | None:
        if not isinstance(value, dict):
            return None
        try:
            if isinstance(value.get("content"), list):
                return tuple(_chat_logprob(item) for item in value["content"])
            return text_logprobs(value)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._malformed("its log probabilities have another form") from error

    def _reason(self, reason: object) -> FinishReason:
        if reason == "content_filter":
            self._last_notices[_FILTERED] = None
        if isinstance(reason, str) and reason in _REASONS:
            return _REASONS[reason]
        what = f"ended the answer for a reason of its own: {quoted(reason)}."
        raise self._server.error(RemoteFailed, what, ASK_AGAIN)

    def _count(self, chunk: dict[str, Any]) -> None:
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            prompt, answer = _details(usage, "prompt"), _details(usage, "completion")
            self._usage = Usage(
                prompt_tokens=_count(usage.get("prompt_tokens")),
                cached_tokens=_count(prompt.get("cached_tokens")),
                completion_tokens=_count(usage.get("completion_tokens")),
                reasoning_tokens=_count(
                    answer.get("reasoning_tokens", usage.get("reasoning_tokens"))
                ),
            )
        timings = chunk.get("timings")
        if isinstance(timings, dict) and "ttft_s" in timings:  # another Hearth measured them
            known: dict[str, Any] = {
                item.name: (_counts if item.name.endswith("_tokens") else _number)(
                    timings.get(item.name)
                )
                for item in fields(Timings)
            }
            self._timings = Timings(**known)

    def _measured(self) -> Timings:
        """Times measured on this side of the network."""
        now_s = time.perf_counter()
        if self._first_s is None:
            return Timings()
        tokens = self._usage.completion_tokens if self._usage else 0
        decode_s = now_s - self._first_s
        return Timings(
            ttft_s=self._first_s - self._sent_s,
            decode_s=decode_s,
            decode_tok_per_s=(tokens - 1) / decode_s if tokens > 1 and decode_s > 0 else 0.0,
        )

    def _malformed(self, what: str) -> RemoteMalformed:
        what = f"streams what is no chunk of an OpenAI-style API: {what}."
        return self._server.error(RemoteMalformed, what)


def text(value: Any) -> str:
    """`value` if it is text, else empty; lone surrogates, which UTF-8 lacks, are replaced."""
    if not isinstance(value, str):
        return ""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def text_logprobs(value: dict[str, Any]) -> tuple[TokenLogprob, ...]:
    """Log probabilities in the form of `/v1/completions`. A null log probability, as for the first
    token of a prompt, is left out. Raises KeyError, TypeError or ValueError for any other form.
    """
    tokens, logprobs = value["tokens"], value["token_logprobs"]
    tops = value.get("top_logprobs") or [None] * len(tokens)
    return tuple(
        TokenLogprob(UNKNOWN_ID, text(token), _logprob(logprob), _top((top or {}).items()))
        for token, logprob, top in zip(tokens, logprobs, tops, strict=True)
        if logprob is not None
    )


def _chat_logprob(item: dict[str, Any]) -> TokenLogprob:
    others = item.get("top_logprobs") or ()
    return TokenLogprob(
        UNKNOWN_ID,
        text(item["token"]),
        _logprob(item["logprob"]),
        _top((other["token"], other["logprob"]) for other in others),
    )


def _top(pairs: Any) -> tuple[tuple[int, str, float], ...]:
    alternatives = [(UNKNOWN_ID, text(token), _logprob(logprob)) for token, logprob in pairs]
    return tuple(sorted(alternatives, key=lambda one: -one[2]))


def _details(usage: dict[str, Any], of: str) -> dict[str, Any]:
    details = usage.get(f"{of}_tokens_details")
    return details if isinstance(details, dict) else {}


def _counts(value: Any) -> tuple[int, ...]:
    return tuple(map(_count, value)) if isinstance(value, list) else ()


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _logprob(value: Any) -> float:
    """A log probability; minus infinity, which some servers write, becomes `_IMPOSSIBLE`."""
    return _IMPOSSIBLE if value == -math.inf else finite(value)


def finite(value: Any) -> float:
    """`value` as a finite number. Raises ValueError if it is not a finite number or is too large,
    TypeError if its type cannot be converted.
    """
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError("a number beyond all bounds") from error
    if not math.isfinite(number):
        raise ValueError(f"the number {number}")
    return number


def _number(value: object) -> float:
    try:
        return 0.0 if isinstance(value, bool | str) else finite(value)
    except (TypeError, ValueError):
        return 0.0
