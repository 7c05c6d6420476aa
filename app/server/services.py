"""What every endpoint needs: the models by name, the host, the server's state, and timeouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from starlette.requests import HTTPConnection

from hearth.app.host_connection import HostConnection
from hearth.app.library.manager import ModelManager
from hearth.app.server.catalog import Catalog
from hearth.app.server.facts import Facts
from hearth.app.server.limits import HeldBodies
from hearth.app.server.metrics import Metrics
from hearth.app.server.reading import IgnoredFields
from hearth.app.server.request_log import RequestLog
from hearth.app.server.server_state import ServerState
from hearth.backends.fair_pool import FairPool


@dataclass(frozen=True, slots=True)
class Services:
    """The services of one server; `services_of` returns those of a connection's application."""

    catalog: Catalog
    hosts: HostConnection
    metrics: Metrics = field(default_factory=Metrics)
    facts: Facts = field(default_factory=Facts)
    patience_s: float = 5.0
    """How long a streaming response waits for its first event before it sends status 200."""
    ping_s: float = 10.0
    """A stream that is silent for longer sends a ping."""
    stall_s: float = 60.0
    """How long a client may read nothing of its stream before its request is cancelled."""
    state: ServerState = field(default_factory=ServerState)
    """Whether new requests are accepted."""
    log: RequestLog | None = None
    """The log of requests; None: requests are not logged."""
    strict: bool = False
    """Refuse fields that have no effect."""
    manager: ModelManager | None = None
    """Downloads, deletes and copies models; None: clients may not."""
    ignored: IgnoredFields = field(default_factory=IgnoredFields)
    bodies: FairPool = field(default_factory=lambda: FairPool(2, "body", rest=9.0))
    """Parses large bodies, which holds the interpreter's lock: a client has a tenth of a core."""
    held: HeldBodies = field(default_factory=HeldBodies)


def services_of(connection: HTTPConnection) -> Services:
    """The services of the application that answers `connection`."""
    return cast(Services, connection.app.state.services)
