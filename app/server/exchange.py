"""One request of a generation endpoint, from its body to its events; shared by all APIs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.answer import Answer, Generates
from hearth.app.chosen import Chosen
from hearth.app.overflow import Overflow
from hearth.app.server import sse
from hearth.app.server.answers import all_notices, notices
from hearth.app.server.body import read_object
from hearth.app.server.leaving import until_gone
from hearth.app.server.metrics import Recorder
from hearth.app.server.parameters import Table
from hearth.app.server.requests import renamed, session_of, with_keep_alive
from hearth.app.server.schema import Reading
from hearth.app.server.services import Services, services_of
from hearth.app.tasks import all_of, cancel
from hearth.backends.contract.backend import Backend
from hearth.backends.contract.events import (
    ChoiceFinished,
    Embeddings,
    Event,
    Finished,
    Ranks,
    Started,
    Token,
)
from hearth.backends.contract.requests import Request
from hearth.backends.errors import HearthError, Interrupted

log = logging.getLogger(__name__)

_MOST_LOGGED: Final = 1024
"""Maximum number of fields without effect that are logged; each is logged once."""

GenerationEvents = AsyncGenerator[tuple[Answer, Event], None]
"""Each event after it was added to its answer; none is a `Failed`."""
_MOST_WAITING_EVENTS: Final = 256

T = TypeVar("T")
P = TypeVar("P", Embeddings, Ranks)


async def read_body(http: HttpRequest, table: Table) -> tuple[dict[str, Any], Reading]:
    """The honoured fields of the body of `http`, and what was noted while reading it.

    Notices about fields without effect are sent in a header of the answer, and the names of these
    fields are logged once each.

    Raises:
        InvalidParameter: the body does not fit `table`.
    """
    services = services_of(http)
    reading = Reading(services.strict)
    given = await read_object(http, lambda value: table.read(value, "", reading), reading)
    http.state.notices = list(reading.notices)
    for name in reading.ignored:
        place = http.state.route, name
        if place not in services.logged and len(services.logged) < _MOST_LOGGED:
            services.logged.add(place)
            log.warning("%s: the field %a has no effect", *place)  # The log's lowest level.
    return given, reading


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and the model that it is for.

    Attributes:
        given: the honoured fields of the body, as the table read them.
        names: the client's names of the contract's parameters, for error responses.
        notices: about fields of the body that have no effect.
        kept: as in `Reading`.
    """

    http: HttpRequest
    services: Services
    given: dict[str, Any]
    chosen: Chosen
    names: dict[str, str]
    notices: tuple[str, ...]
    kept: dict[str, list[int]]

    @classmethod
    async def open(
        cls,
        http: HttpRequest,
        table: Table,
        names: Mapping[str, str] | None = None,
    ) -> Exchange:
        """Read the body of `http` and find its model.

        Raises:
            InvalidParameter: the body does not fit `table`.
            ModelNotFound: there is no model of that name.
        """
        services = services_of(http)
        given, reading = await read_body(http, table)
        name = given.get("model") or services.catalog.default.name
        chosen = with_keep_alive(await services.catalog.find(name), given)
        translated = {"session": "user", **(names or {}), **reading.sent_as}
        http.state.names = translated
        return cls(http, services, given, chosen, translated, reading.notices, reading.kept)

    @property
    def model(self) -> str:
        """The model's name in the library."""
        return self.chosen.found.name

    @property
    def session(self) -> str:
        """The identity of the user or client; see `requests.session_of`."""
        return session_of(self.given, self.http)

    def place(self, array: str, index: int) -> str:
        """The client's name of the item at `index` of `array` as it was read."""
        kept = self.kept.get(array)
        return f"{array}[{index if kept is None else kept[index]}]"

    async def backend(self) -> Backend:
        """The backend that runs the model."""
        return await self.services.hosts.backend(self.chosen.spec, self.session)

    @property
    def overflow(self) -> Overflow:
        """What to do with a conversation that exceeds the context.

        The request decides; the settings do if it has no such field.
        """
        asked = self.given.get("truncation", self.given.get("truncate"))  # OpenAI's, Ollama's.
        if asked is None:
            return self.chosen.use.context_overflow or "refuse"
        return "drop-turns" if asked in ("auto", True) else "refuse"

    @property
    def at_once(self) -> int:
        """Number of sequences that the model runs at the same time."""
        return self.chosen.use.load.max_sessions

    async def events(
        self, requests: Sequence[Request], at_once: int = 0, source: Generates | None = None
    ) -> GenerationEvents:
        """The events of `requests`, measured as one request.

        `Answer.position` is the index of the request. The first request that fails cancels the
        others.

        Args:
            at_once: number of requests that run at the same time; 0: as many as the model can run
                with all their choices.
            source: generates the events; None: the model.
        """
        at_once = at_once or max(1, self.at_once // requests[0].n)
        source = source or await self.backend()
        clock = self.services.metrics.clock
        pairs = [
            (request, Answer(request.n, position, self.notices, clock))
            for position, request in enumerate(requests)
        ]
        measuring = self._measuring(len(pairs))
        if len(pairs) == 1:
            return _generate(source, *pairs[0], self.overflow, measuring)
        return _several(source, pairs, at_once, self.overflow, measuring)

    async def prompts_alone(self, requests: Sequence[Request]) -> list[Answer]:
        """Answers without tokens to `requests`, which are rendered but not run."""
        backend = await self.backend()
        answers = []
        prompts = await self.attend(all_of(backend.render, requests, self.at_once))
        for position, prompt in enumerate(prompts):
            answer = Answer(requests[position].n, position, self.notices)
            answer.add(Started(len(prompt.ids), notices=prompt.notices))
            for choice in answer.choices:
                answer.add(ChoiceFinished(choice.index, "length"))
            answers.append(answer)
        self.http.state.notices = all_notices(answers)
        return answers

    def answer(self, body: dict[str, Any], more: Sequence[str] = ()) -> Response:
        """The response `body` with the notices and those in `more`."""
        combined = self.http.state.notices = [*self.notices, *more]
        return JSONResponse({**body, **notices(combined)})

    @contextmanager
    def _measuring(self, requests: int = 1) -> Iterator[Recorder]:
        """Measure the block as one request; errors name the client's parameters.

        If the block is left before all `requests` have finished, the status is 499.
        """
        recorder = self.services.metrics.begin(self.http.state.route, self.model, requests)
        self.http.state.recorder = recorder
        status = 499
        try:
            yield recorder
            status = 200
        except HearthError as error:
            status = error.http_status
            self.http.state.names = {}  # Indices would be mapped again.
            raise renamed(error, self.names) from error
        except Exception:
            status = 500
            raise
        finally:
            recorder.end(status)

    async def measured(self, work: Coroutine[Any, Any, P]) -> P:
        """The result of `work`, which has no events, measured as a request."""
        with self._measuring() as recorder:
            result = await work
            recorder.prompt(result.prompt_tokens)
            return result

    async def collect(
        self, events: GenerationEvents, each: Callable[[Answer, Event], None] | None = None
    ) -> list[Answer]:
        """The complete answers, in the order of their requests. Raises `ClientGone`.

        Args:
            each: called with each event after it was added to its answer.
        """
        answers = await self.attend(_collect(events, each))
        self.http.state.notices = all_notices(answers)
        return answers

    async def attend(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. If the client disconnects, cancel it and raise `ClientGone`."""
        return await until_gone(self.http.receive, work)

    async def stream(self, parts: sse.Parts, dialect: sse.Dialect = sse.OPENAI) -> Response:
        """The response that streams `parts`; see `sse.respond`."""
        return await sse.respond(self.http, parts, dialect)


async def _generate(
    backend: Generates,
    request: Request,
    answer: Answer,
    overflow: Overflow,
    measuring: AbstractContextManager[Recorder],
) -> GenerationEvents:
    """The events of `request`.

    Raises:
        HearthError: the error of a `Failed` event.
        Interrupted: the generation was cancelled by another program.
    """
    with measuring as recorder:
        async with aclosing(answer.follow(backend, request, overflow)) as events:
            async for event in events:
                recorder.event(answer, event)
                if not isinstance(event, Token) and isinstance(event, (ChoiceFinished, Finished)):
                    if event.reason == "cancelled":
                        raise Interrupted(
                            "The generation was interrupted.", "Send the request again."
                        )
                    if isinstance(event, Finished):
                        recorder.finish_one()
                yield answer, event


async def _several(
    backend: Generates,
    requests: Sequence[tuple[Request, Answer]],
    at_once: int,
    overflow: Overflow,
    measuring: AbstractContextManager[Recorder],
) -> GenerationEvents:
    arrived: asyncio.Queue[tuple[Answer, Event] | Exception | None]
    arrived = asyncio.Queue(_MOST_WAITING_EVENTS)
    slots = asyncio.Semaphore(at_once)

    async def pump(request: Request, answer: Answer, recorder: Recorder) -> None:
        generated = _generate(backend, request, answer, overflow, nullcontext(recorder))
        try:
            async with slots, aclosing(generated) as events:
                async for arrival in events:
                    await arrived.put(arrival)
        except HearthError as error:
            own = {name: f"{name}[{answer.position}]" for name in ("text", "token_ids")}
            await arrived.put(renamed(error, own))
        except Exception as error:  # noqa: BLE001 - raised again where the events are read
            await arrived.put(error)
        else:
            await arrived.put(None)

    with measuring as recorder:
        pumps = [asyncio.create_task(pump(*asked, recorder)) for asked in requests]
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


async def _collect(
    events: GenerationEvents, each: Callable[[Answer, Event], None] | None
) -> list[Answer]:
    answers: dict[int, Answer] = {}
    async with aclosing(events):
        async for answer, event in events:
            answers[answer.position] = answer
            if each is not None:
                each(answer, event)
    return [answers[position] for position in sorted(answers)]
