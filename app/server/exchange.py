"""One request of a generation endpoint, from its body to its events; shared by all APIs."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from hearth.app.answer import Answer, Generates
from hearth.app.chosen import Chosen
from hearth.app.server import sse
from hearth.app.server.answers import all_notices, notices
from hearth.app.server.body import read_object
from hearth.app.server.generation import GenerationEvents, collect, counted, generation_events
from hearth.app.server.leaving import until_gone
from hearth.app.server.metrics import Recorder
from hearth.app.server.parameters import Table
from hearth.app.server.requests import renamed, session_of, with_keep_alive
from hearth.app.server.schema import Reading
from hearth.app.server.services import Services, services_of
from hearth.backends.contract import Backend, Embeddings, Ranks, Request
from hearth.backends.errors import HearthError

log = logging.getLogger(__name__)

_MOST_LOGGED: Final = 1024
"""Fields without an effect that are logged, once each."""

T = TypeVar("T")
P = TypeVar("P", Embeddings, Ranks)


async def read_body(http: HttpRequest, table: Table) -> tuple[dict[str, Any], Reading]:
    """The honoured fields of the body of `http`, and the fields that have no effect: their notices
    are sent in a header of the answer and logged once each.

    Raises:
        InvalidParameter: the body does not fit `table`.
    """
    services = services_of(http)
    reading = Reading(services.strict)
    given = await read_object(http, lambda value: table.read(value, "", reading))
    http.state.notices = list(reading.notices)
    for name in reading.ignored:
        place = http.state.route, name
        if place not in services.logged and len(services.logged) < _MOST_LOGGED:
            services.logged.add(place)
            log.warning("%s: the field %a has no effect", *place)  # The least that the log keeps.
    return given, reading


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and the model that it is for.

    Attributes:
        given: the honoured fields of the body, as the table read them.
        names: the client's names of the contract's parameters, for errors.
        notices: about fields of the body that have no effect.
    """

    http: HttpRequest
    services: Services
    given: dict[str, Any]
    chosen: Chosen
    names: dict[str, str]
    notices: tuple[str, ...]

    @classmethod
    async def open(
        cls,
        http: HttpRequest,
        table: Table,
        names: Mapping[str, str] | None = None,
        suffix: str = "",
    ) -> Exchange:
        """Read the body of `http` and find its model, whose name may end in `suffix`.

        Raises:
            InvalidParameter: the body does not fit `table`.
            ModelNotFound: there is no model of that name.
        """
        services = services_of(http)
        given, reading = await read_body(http, table)
        name = given.get("model", "").removesuffix(suffix) or services.catalog.default.name
        chosen = with_keep_alive(await services.catalog.find(name), given)
        translated = {"session": "user", **(names or {}), **reading.sent_as}
        return cls(http, services, given, chosen, translated, reading.notices)

    @property
    def model(self) -> str:
        """The model's name in the library."""
        return self.chosen.found.name

    @property
    def session(self) -> str:
        """The identity of the user or client; see `requests.session_of`."""
        return session_of(self.given, self.http)

    @contextmanager
    def translate_param_names(self) -> Iterator[None]:
        """Errors about a parameter of the contract name the client's parameter instead."""
        try:
            yield
        except HearthError as error:
            raise renamed(error, self.names) from error

    async def backend(self) -> Backend:
        """The backend that runs the model."""
        return await self.services.hosts.backend(self.chosen.spec, self.session)

    @property
    def at_once(self) -> int:
        """How many sequences the model runs at the same time."""
        return self.chosen.use.load.max_sessions

    async def events(
        self, requests: Sequence[Request], at_once: int = 0, source: Generates | None = None
    ) -> GenerationEvents:
        """The events of `requests`.

        Args:
            at_once: how many run at the same time; 0: as many as the model runs with all their
                choices.
            source: generates the events; None: the model.
        """
        at_once = at_once or max(1, self.at_once // requests[0].n)
        source = source or await self.backend()
        begin, names = self._begin, self.names
        return generation_events(source, requests, at_once, begin, names, self.notices)

    def answer(self, body: dict[str, Any]) -> Response:
        """The response `body` with the notices."""
        return JSONResponse({**body, **notices(self.notices)})

    def _begin(self) -> Recorder:
        recorder = self.services.metrics.begin(self.http.state.route, self.model)
        self.http.state.recorder = recorder
        return recorder

    async def measured(self, work: Coroutine[Any, Any, P]) -> P:
        """The result of `work`, which has no events, measured as a request."""
        recorder = self._begin()
        with counted(recorder):
            result = await work
            recorder.prompt(result.prompt_tokens)
            return result

    async def collect(self, events: GenerationEvents) -> list[Answer]:
        """`generation.collect`, cancelled if the client disconnects. Raises `ClientGone`."""
        made = await self.attend(collect(events))
        self.http.state.notices = all_notices(made)
        return made

    async def attend(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is cancelled if the client disconnects. Raises
        `ClientGone`.
        """
        with self.translate_param_names():
            return await until_gone(self.http.receive, work)

    async def stream(self, parts: sse.Parts, dialect: sse.Dialect = sse.OPENAI) -> Response:
        """The response that streams `parts`; see `sse.respond`."""
        with self.translate_param_names():
            return await sse.respond(self.http, parts, self.services, dialect)
