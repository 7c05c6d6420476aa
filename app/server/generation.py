"""The events of requests, in one form for all answers, and collected where there is no stream."""

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
        """One came, of one of the parts that are generated for the request."""
        ...

    def used(self, usage: Usage, part: int = 0) -> None:
        """What a part has used by now."""
        ...

    def end(self, status: int) -> None:
        """It is over; only the first call counts."""
        ...


@contextmanager
def counted(recorder: Recorder) -> Iterator[None]:
    """The request is over with the block: 499 where it is left, unless its end was told before."""
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
    """(`part`, event) of `request`; every choice gets its `ChoiceFinished`, also where there is
    one.

    Raises:
        HearthError: what a `Failed` says.
        Interrupted: somebody else ended the generation.
    """
    generated = cast(AsyncGenerator[Event, None], backend.generate(request))
    async with aclosing(generated) as events:
        async for event in events:
            recorder.event(event, part)
            if isinstance(event, Failed):
                raise from_info(event.error)
            if isinstance(event, ChoiceFinished | Finished) and event.reason == "cancelled":
                raise Interrupted("The generation was interrupted.", "Ask again.")
            if isinstance(event, Finished) and request.n == 1:
                yield part, ChoiceFinished(0, event.reason, event.stop)
            yield part, event
            if isinstance(event, Finished):
                return
    raise InternalError("A stream ended without a last event.")


async def generation_events(
    backend: Generates,
    requests: Sequence[Request],
    at_once: int,
    begin: Callable[[], Recorder],
    notices: tuple[str, ...] = (),
) -> GenerationEvents:
    """(position of the request, event) of all `requests`, `at_once` of them at the same time.

    Args:
        begin: begins to measure them, as one.
        notices: go before those of each `Started`.

    Raises:
        HearthError: what the first one that fails raises; the others are cancelled.
    """
    recorder = begin()
    with counted(recorder):
        if len(requests) == 1:
            found = generate(backend, requests[0], recorder)
        else:
            found = _several(backend, requests, at_once, recorder)
        left = len(requests)
        async with aclosing(found) as events:
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
    turn = asyncio.Semaphore(at_once)

    async def pump(position: int, request: Request) -> None:
        try:
            async with turn, aclosing(generate(backend, request, recorder, position)) as events:
                async for happening in events:
                    await arrived.put(happening)
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
    """Of all its tokens."""
    reason: FinishReason = "stop"
    stop: str | None = None

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.pieces)

    @property
    def reasoning(self) -> str:
        """What was thought before it."""
        return "".join(self.thoughts)

    def add(self, event: Token | ToolCallPart | ChoiceFinished) -> None:
        """Take in what `event` says of this choice."""
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
    """What several requests used together, and the timings of one that was alone."""

    usage: Usage = Usage()
    timings: list[Timings] = field(default_factory=list)
    notices: dict[str, None] = field(default_factory=dict)

    def add(self, event: GenerationEvent) -> None:
        """Count what `event` says."""
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
    """Fill `choices`, of which every request has `each`, to the end."""
    tally = Tally()
    async with aclosing(events):
        async for position, event in events:
            tally.add(event)
            if isinstance(event, Token | ToolCallPart | ChoiceFinished):
                choices[position * each + event.index].add(event)
    return tally
