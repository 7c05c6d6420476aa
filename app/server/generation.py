"""The generation events of one or several requests, each with the answer that it belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Final

from hearth.app.answer import Answer, Generates
from hearth.app.server.errors import Interrupted
from hearth.app.server.leaving import cancel
from hearth.app.server.metrics import Recorder
from hearth.app.server.requests import renamed
from hearth.backends.contract import ChoiceFinished, Event, Finished, Request
from hearth.backends.errors import HearthError

GenerationEvents = AsyncGenerator[tuple[Answer, Event], None]
"""Each event after it was added to its answer; none is a `Failed`."""

_MOST_WAITING_EVENTS: Final = 256


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
    backend: Generates, request: Request, answer: Answer, recorder: Recorder
) -> GenerationEvents:
    """The events of `request`.

    Raises:
        HearthError: the error of a `Failed` event.
        Interrupted: the generation was cancelled by another program.
    """
    async with aclosing(answer.follow(backend, request)) as events:
        async for event in events:
            recorder.event(answer, event)
            if isinstance(event, (ChoiceFinished, Finished)) and event.reason == "cancelled":
                raise Interrupted("The generation was interrupted.", "Send the request again.")
            yield answer, event


async def generation_events(
    backend: Generates,
    requests: Sequence[Request],
    at_once: int,
    begin: Callable[[], Recorder],
    names: Mapping[str, str],
    notices: tuple[str, ...] = (),
) -> GenerationEvents:
    """The events of all `requests`, `at_once` of them at the same time; `Answer.position` is that
    of the request.

    Args:
        begin: starts measuring them as one request.
        names: the client's names of parameters, for errors.
        notices: placed before those of each answer.

    Raises:
        HearthError: the error of the first request that fails; the others are cancelled.
    """
    recorder = begin()
    made = [
        Answer(request.n, position, notices, recorder.clock)
        for position, request in enumerate(requests)
    ]
    if len(requests) == 1:
        source = generate(backend, requests[0], made[0], recorder)
    else:
        source = _several(backend, list(zip(requests, made, strict=True)), at_once, recorder)
    left = len(requests)
    try:
        with counted(recorder):
            async with aclosing(source) as events:
                async for answer, event in events:
                    if isinstance(event, Finished):
                        left -= 1
                        if not left:
                            recorder.end(200)
                    yield answer, event
    except HearthError as error:
        raise renamed(error, names) from error


async def _several(
    backend: Generates,
    requests: Sequence[tuple[Request, Answer]],
    at_once: int,
    recorder: Recorder,
) -> GenerationEvents:
    arrived: asyncio.Queue[tuple[Answer, Event] | Exception | None]
    arrived = asyncio.Queue(_MOST_WAITING_EVENTS)
    slots = asyncio.Semaphore(at_once)

    async def pump(request: Request, answer: Answer) -> None:
        try:
            async with slots, aclosing(generate(backend, request, answer, recorder)) as events:
                async for arrival in events:
                    await arrived.put(arrival)
        except Exception as error:  # noqa: BLE001 - raised again where the events are read
            await arrived.put(error)
        else:
            await arrived.put(None)

    pumps = [asyncio.create_task(pump(*asked)) for asked in requests]
    left = len(pumps)
    try:
        while left:
            arrival = await arrived.get()
            if isinstance(arrival, Exception):
                raise arrival
            if arrival is None:
                left -= 1
            else:
                yield arrival
    finally:
        await cancel(*pumps)


async def collect(events: GenerationEvents) -> list[Answer]:
    """The complete answers, in the order of their requests."""
    made: dict[int, Answer] = {}
    async with aclosing(events):
        async for answer, _ in events:
            made[answer.position] = answer
    return [made[position] for position in sorted(made)]
