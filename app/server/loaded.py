"""The models that are loaded now, according to the host."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Final

from hearth.app.host_connection import HostConnection
from hearth.app.library.local import FoundModel
from hearth.backends.contract import HostStats, WorkerStats
from hearth.backends.errors import HostUnreachable

_PATIENCE_S: Final = 5.0


async def host_stats(hosts: HostConnection) -> HostStats:
    """The host and its workers.

    Raises:
        HostUnreachable: the host does not respond within a few seconds.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await (await hosts.host()).stats()
    except TimeoutError as error:
        raise HostUnreachable(
            f"The model host did not respond within {_PATIENCE_S:.0f} s.",
            "Try again; see host.log if it stays unreachable.",
        ) from error


async def host_stats_if_any(hosts: HostConnection) -> HostStats | None:
    """`host_stats`; None if the host does not respond."""
    try:
        return await host_stats(hosts)
    except HostUnreachable:
        return None


async def worker_of(stats: HostStats, model: FoundModel) -> WorkerStats | None:
    """The worker that runs `model`, or is loading it; None if there is none."""
    [worker] = await asyncio.to_thread(workers_of, stats, [model])
    return worker


def workers_of(stats: HostStats, models: Sequence[FoundModel]) -> list[WorkerStats | None]:
    """The same for each of `models`. Models with several names are compared by their real path;
    call it in a thread, as it reads the disk.
    """
    by_path = {os.path.realpath(worker.path): worker for worker in reversed(stats.workers)}
    return [by_path.get(os.path.realpath(model.path)) for model in models]
