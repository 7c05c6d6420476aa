"""What every endpoint needs: the models by name, the host, the server's life, and how long silences
may last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from starlette.requests import HTTPConnection

from hearth.app.host_connection import HostConnection
from hearth.app.library.manager import ModelManager
from hearth.app.server.catalog import Catalog
from hearth.app.server.facts import Facts
from hearth.app.server.metrics import Metrics
from hearth.app.server.reading import IgnoredFields
from hearth.app.server.request_log import RequestLog
from hearth.app.server.server_state import ServerState
from hearth.backends.fair_pool import FairPool


@dataclass(frozen=True, slots=True)
class Services:
    """One server's. `application.build` keeps it, `services_of` finds it again."""

    catalog: Catalog
    hosts: HostConnection
    metrics: Metrics = field(default_factory=Metrics)
    facts: Facts = field(default_factory=Facts)
    patience_s: float = 5.0
    """How long a stream waits for its first event before it promises success with its status."""
    ping_s: float = 10.0
    """Silences of a stream that are longer are broken by comments."""
    stall_s: float = 60.0
    """How long a client may read nothing of its stream; then its request ends."""
    state: ServerState = field(default_factory=ServerState)
    """Whether new requests are taken."""
    log: RequestLog | None = None
    """Where each request is noted; None: nowhere."""
    strict: bool = False
    """Fields without an effect are refused."""
    manager: ModelManager | None = None
    """Downloads, deletes and copies models; None: clients may not."""
    ignored: IgnoredFields = field(default_factory=IgnoredFields)
    bodies: FairPool = field(default_factory=lambda: FairPool(2, "body"))
    """Parses large bodies."""


def services_of(connection: HTTPConnection) -> Services:
    """The services of the application that answers `connection`."""
    return cast(Services, connection.app.state.services)
