"""Generation events of one or several requests, and their collection into complete answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, cast

from hearth.app.server.errors import Interrupted
from hearth.backends.contract import (
    ChoiceFinished,
    Event,
    Failed,
    Finished,
    FinishReason,
    Progress,
    Request,
    Started,
    Timings,
    Token,
    TokenLogprob,
    ToolCall,
    ToolCallPart,
    Usage,
)
from hearth.backends.errors import HearthError, InternalError, from_info

GenerationEvent = Started | Progress | Token | ToolCallPart | ChoiceFinished | Finished
"""An event of a generation that has not failed."""
GenerationEvents = AsyncGenerator[tuple[int, GenerationEvent], None]

_MOST_WAITING_EVENTS: Final = 256


class Generates(Protocol):
    """Generates the events of requests, such as a `Backend`."""

    def generate(self, request: Request) -> AsyncIterator[Event]:
        """The events of one request; closing the iterator cancels it."""
        ...


class Recorder(Protocol):
    """Measures one request (`app.server.metrics`)."""

    def event(self, event: Event, part: int = 0) -> None:
        """Record `event` of part number `part` of the request."""
        ...

    def used(self, usage: Usage, part: int = 0) -> None:
        """Record the total usage of a part so far."""
        ...

    def end(self, status: int) -> None:
        """Record the end of the request; only the first call counts."""
        ...


@contextmanager
def counted(recorder: Recorder) -> Iterator[None]:
    """End the request of `recorder` with the block: status 499 if the block is left early, unless
    its end was recorded before.
    """
    status = 499
    try:
        yield
        status = 200
    except Exception as error:
        status = error.http_status if isinstance(error, HearthError) else 500
        raise
    finally:
        recorder.end(status)


async def generate(
    backend: Generates, request: Request, recorder: Recorder, part: int = 0
) -> GenerationEvents:
    """(`part`, event) of `request`; every choice ends with a `ChoiceFinished`, even if it is the
    only one.

    Raises:
        HearthError: the error of a `Failed` event.
        Interrupted: the generation was cancelled by another program.
    """
    generated = cast(AsyncGenerator[Event, None], backend.generate(request))
    async with aclosing(generated) as events:
        async for event in events:
            recorder.event(event, part)
            if isinstance(event, Failed):
                raise from_info(event.error)
            if isinstance(event, ChoiceFinished | Finished) and event.reason == "cancelled":
                raise Interrupted("The generation was interrupted.", "Send the request again.")
            if isinstance(event, Finished) and request.n == 1:
                yield part, ChoiceFinished(0, event.reason, event.stop)
            yield part, event
            if isinstance(event, Finished):
                return
    raise InternalError("The event stream ended without a final event.")


async def generation_events(
    backend: Generates,
    requests: Sequence[Request],
    at_once: int,
    begin: Callable[[], Recorder],
    notices: tuple[str, ...] = (),
) -> GenerationEvents:
    """(position of the request, event) of all `requests`, `at_once` of them at the same time.

    Args:
        begin: starts measuring them as one request.
        notices: placed before those of each `Started`.

    Raises:
        HearthError: the error of the first request that fails; the others are cancelled.
    """
    recorder = begin()
    with counted(recorder):
        if len(requests) == 1:
            source = generate(backend, requests[0], recorder)
        else:
            source = _several(backend, requests, at_once, recorder)
        left = len(requests)
        async with aclosing(source) as events:
            async for position, event in events:
                if isinstance(event, Finished):
                    left -= 1
                    if not left:
                        recorder.end(200)
                elif notices and isinstance(event, Started):
                    event = replace(event, notices=(*notices, *event.notices))
                yield position, event


async def _several(
    backend: Generates, requests: Sequence[Request], at_once: int, recorder: Recorder
) -> GenerationEvents:
    arrived: asyncio.Queue[tuple[int, GenerationEvent | Exception | None]]
    arrived = asyncio.Queue(_MOST_WAITING_EVENTS)
    slots = asyncio.Semaphore(at_once)

    async def pump(position: int, request: Request) -> None:
        try:
            async with slots, aclosing(generate(backend, request, recorder, position)) as events:
                async for numbered in events:
                    await arrived.put(numbered)
        except Exception as error:  # noqa: BLE001 - raised again where the events are read
            await arrived.put((position, error))
        else:
            await arrived.put((position, None))

    pumps = [asyncio.create_task(pump(*numbered)) for numbered in enumerate(requests)]
    left = len(pumps)
    try:
        while left:
            position, arrival = await arrived.get()
            if isinstance(arrival, Exception):
                raise arrival
            if arrival is None:
                left -= 1
            else:
                yield position, arrival
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


@dataclass(slots=True)
class Choice:
    """One answer, complete."""

    pieces: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    """Ids of all its tokens."""
    reason: FinishReason = "stop"
    stop: str | None = None

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.pieces)

    @property
    def reasoning(self) -> str:
        """The reasoning that precedes it."""
        return "".join(self.thoughts)

    def add(self, event: Token | ToolCallPart | ChoiceFinished) -> None:
        """Add `event`, which belongs to this choice."""
        if isinstance(event, ChoiceFinished):
            self.reason, self.stop = event.reason, event.stop
            return
        self.ids += event.ids
        if isinstance(event, ToolCallPart):
            if event.position == len(self.calls):
                self.calls.append(ToolCall(event.id, event.name, event.arguments))
            else:
                call = self.calls[event.position]
                arguments = call.arguments + event.arguments
                self.calls[event.position] = ToolCall(call.id, call.name, arguments)
        elif event.channel == "reasoning":
            self.thoughts.append(event.text)
        else:
            self.pieces.append(event.text)
            self.logprobs += event.logprobs or ()


@dataclass(slots=True)
class Tally:
    """Total usage and notices of several requests, and the timings of each."""

    usage: Usage = Usage()
    timings: list[Timings] = field(default_factory=list)
    notices: dict[str, None] = field(default_factory=dict)

    def add(self, event: GenerationEvent) -> None:
        """Add the usage and notices of `event`."""
        if isinstance(event, Started):
            self.notices.update(dict.fromkeys(event.notices))
        elif isinstance(event, Finished):
            ours, theirs = self.usage, event.usage
            self.usage = Usage(
                ours.prompt_tokens + theirs.prompt_tokens,
                ours.cached_tokens + theirs.cached_tokens,
                ours.completion_tokens + theirs.completion_tokens,
                ours.reasoning_tokens + theirs.reasoning_tokens,
                ours.kept_tokens + theirs.kept_tokens,
            )
            self.timings.append(event.timings)
            self.notices.update(dict.fromkeys(event.notices))


async def collect(events: GenerationEvents, choices: Sequence[Choice], each: int) -> Tally:
    """Consume `events` and fill `choices`, of which every request has `each`."""
    tally = Tally()
    async with aclosing(events):
        async for position, event in events:
            tally.add(event)
            if isinstance(event, Token | ToolCallPart | ChoiceFinished):
                choices[position * each + event.index].add(event)
    return tally
