"""What is loaded now, as the host says."""

from __future__ import annotations

import asyncio
import os
from typing import Final

from hearth.app.host_connection import HostConnection
from hearth.app.library.local import FoundModel
from hearth.backends.contract import HostStats, WorkerStats
from hearth.backends.errors import HostUnreachable

_PATIENCE_S: Final = 5.0


async def host_stats(hosts: HostConnection) -> HostStats:
    """The host and its workers.

    Raises:
        HostUnreachable: it does not answer, within a few seconds.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await (await hosts.host()).stats()
    except TimeoutError as error:
        raise HostUnreachable(f"The host has not answered for {_PATIENCE_S:.0f} s.") from error


async def host_stats_if_any(hosts: HostConnection) -> HostStats | None:
    """`host_stats`; None where it does not answer."""
    try:
        return await host_stats(hosts)
    except HostUnreachable:
        return None


def worker_of(stats: HostStats, model: FoundModel) -> WorkerStats | None:
    """Who runs `model`, or is loading it; None where nobody does. One file is one model, whatever
    it is called.
    """
    path = os.path.realpath(model.path)
    for worker in stats.workers:
        if os.path.realpath(worker.path) == path:
            return worker
    return None
