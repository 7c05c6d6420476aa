"""The endpoint's one attachment to the host, made anew when it was lost."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Protocol, Self

from hearth.backends.client import HostClient, HostPlace
from hearth.backends.contract import Backend, HostStats, ModelSpec


class Host(Protocol):
    """What the endpoint needs of `HostClient`."""

    @property
    def lost(self) -> bool:
        """The connection is gone."""
        ...

    def backend(self, spec: ModelSpec) -> Backend:
        """The model of `spec`, loaded when first used."""
        ...

    async def stats(self) -> HostStats:
        """The host and its workers."""
        ...


class HostConnection:
    """Attached to the host between `async with` and its end.

    Args:
        place: where the host lives; one is started there when none runs.
        host_idle_s: how long a host started here stays when it is idle and alone.

    Raises:
        HostUnreachable: on entering, and by `host`, when there is none and none can be started.
    """

    def __init__(self, place: HostPlace, host_idle_s: float) -> None:
        self._place = place
        self._host_idle_s = host_idle_s
        self._attached = AsyncExitStack()
        self._attaching = asyncio.Lock()
        self._host: Host | None = None

    async def __aenter__(self) -> Self:
        await self.host()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._attached.aclose()

    async def host(self) -> Host:
        """The host, attached to again if the connection was lost."""
        async with self._attaching:
            if self._host is None or self._host.lost:
                self._host = None
                await self._attached.aclose()
                self._host = await self._attached.enter_async_context(
                    HostClient.attach(self._place, host_idle_s=self._host_idle_s)
                )
            return self._host

    async def backend(self, spec: ModelSpec) -> Backend:
        """The model of `spec`, loaded when first used. Raises `HostUnreachable`."""
        return (await self.host()).backend(spec)
