"""Services that every endpoint uses: models by name, the host, the server's state, timeouts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from starlette.requests import HTTPConnection

from hearth.app.host_connection import HostConnection
from hearth.app.library.local import FoundModel
from hearth.app.library.manager import ModelManager
from hearth.app.server.catalog import Catalog
from hearth.app.server.limits import HeldBodies
from hearth.app.server.logs import RequestLog
from hearth.app.server.metrics import Metrics
from hearth.backends.contract.loaded import HostStats, WorkerStats
from hearth.backends.errors import Busy, HostUnreachable
from hearth.backends.machine.fair_pool import FairPool

RETRY_S: Final = 5
"""Value of Retry-After while the server accepts no requests."""
_HOST_PATIENCE_S: Final = 5.0


class Draining(Busy):
    """The server is shutting down and accepts no new requests."""

    code = "draining"
    http_status = 503


@dataclass(slots=True)
class ServerState:
    """The state of the server: loading its model, serving, or finishing running requests.

    `/health` reports it. `Guard` counts running requests in it.

    Attributes:
        draining: whether new requests are refused while running ones finish.
        busy: number of running requests.
    """

    draining: bool = False
    busy: int = 0
    _loading: bool = False

    @property
    def status(self) -> Literal["loading", "ok", "draining"]:
        """The status that `/health` reports."""
        if self.draining:
            return "draining"
        return "loading" if self._loading else "ok"

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Report `loading` within the block."""
        self._loading = True
        try:
            yield
        finally:
            self._loading = False

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as running within the block. Raises `Draining` if none are accepted."""
        if self.draining:
            raise Draining(
                "hearth serve is shutting down and accepts no new requests.",
                "Retry when it is running again.",
                retry_after_s=RETRY_S,
            )
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1


@dataclass(frozen=True, slots=True)
class Services:
    """The services of one server; `services_of` returns those of a connection's application."""

    catalog: Catalog
    hosts: HostConnection
    metrics: Metrics = field(default_factory=Metrics)
    patience_s: float = 5.0
    """How long a streaming response waits for its first event before it sends status 200."""
    ping_s: float = 10.0
    """A ping is sent when a stream has been silent for longer than this."""
    state: ServerState = field(default_factory=ServerState)
    """Whether new requests are accepted."""
    log: RequestLog | None = None
    """The log of requests; None: requests are not logged."""
    strict: bool = False
    """Whether fields that have no effect are refused."""
    manager: ModelManager | None = None
    """Downloads, deletes and copies models; None if clients may not do this."""
    logged: set[tuple[str, str]] = field(default_factory=set)
    """(path, field) of ignored fields that were already logged."""
    bodies: FairPool = field(default_factory=lambda: FairPool(2, "body", rest=9.0))
    """Parses large bodies.

    Parsing holds the interpreter's lock, so a client may use only a tenth of a core.
    """
    held: HeldBodies = field(default_factory=HeldBodies)

    async def host_stats(self) -> HostStats:
        """The host and its workers.

        Raises:
            HostUnreachable: the host does not respond within a few seconds.
        """
        try:
            async with asyncio.timeout(_HOST_PATIENCE_S):
                return await (await self.hosts.host()).stats()
        except TimeoutError as error:
            raise HostUnreachable(
                f"The model host did not respond within {_HOST_PATIENCE_S:.0f} s.",
                "Try again; see host.log if it stays unreachable.",
            ) from error

    async def host_stats_if_any(self) -> HostStats | None:
        """`host_stats`; None if the host does not respond."""
        try:
            return await self.host_stats()
        except HostUnreachable:
            return None


def services_of(connection: HTTPConnection) -> Services:
    """The services of the application that answers `connection`."""
    return cast(Services, connection.app.state.services)


async def worker_of(stats: HostStats | None, model: FoundModel) -> WorkerStats | None:
    """The worker that runs `model`, or is loading it; None if there is none."""
    [worker] = await asyncio.to_thread(workers_of, stats, [model])
    return worker


def workers_of(stats: HostStats | None, models: Sequence[FoundModel]) -> list[WorkerStats | None]:
    """The `worker_of` each of `models`, which are compared by their real path.

    Call this in a thread, because it reads the disk.
    """
    workers = stats.workers if stats is not None else ()
    by_path = {os.path.realpath(worker.path): worker for worker in reversed(workers)}
    return [by_path.get(os.path.realpath(model.path)) for model in models]
