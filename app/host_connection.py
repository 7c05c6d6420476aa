"""A front end's connection to the host, renewed after it is lost, and to remote models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Self

from hearth.backends.errors import NoHost

if TYPE_CHECKING:
    from hearth.backends.contract.backend import Backend
    from hearth.backends.contract.loaded import HostStats
    from hearth.backends.contract.models import HostLimits, ModelSpec
    from hearth.backends.host.client import HostClient
    from hearth.backends.machine.local_socket import HostPlace
    from hearth.backends.remote.backend import RemoteBackends
    from hearth.backends.remote.server import RemoteServer


class HostConnection:
    """A connection to the host that lasts for an `async with` block.

    Args:
        place: where the host lives; a host is started there if none is running.
        host_idle_s: how long a host started here stays when it is idle and no front end is
            attached.
        limits: new limits of what the host may have loaded; None: unchanged.
        remotes: the models of other machines, by lower-case name.

    Raises:
        HostUnreachable: on entering, and by `host`, when no host is running and none can be
            started.
    """

    def __init__(
        self,
        place: HostPlace,
        host_idle_s: float,
        limits: HostLimits | None = None,
        remotes: Mapping[str, RemoteServer] | None = None,
    ) -> None:
        self._place = place
        self._host_idle_s = host_idle_s
        self._limits = limits
        self._attached = AsyncExitStack()
        self._attaching = asyncio.Lock()
        self._host: HostClient | None = None
        self._servers = remotes or {}
        self._remotes: RemoteBackends | None = None

    async def __aenter__(self) -> Self:
        await self.host()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect from the host and the remote models; both are connected again on next use."""
        self._host = None
        await self._attached.aclose()
        if self._remotes is not None:
            await self._remotes.close()

    async def host(self, *, start: bool = True) -> HostClient:
        """The host, reattached if the connection was lost. The client code is imported on first
        use.

        Args:
            start: start a host if none is running; otherwise `NoHost` is raised.
        """
        from hearth.backends.host.client import HostClient

        async with self._attaching:
            if self._host is None or self._host.lost:
                self._host = None
                await self._attached.aclose()
                self._host = await self._attached.enter_async_context(
                    HostClient.attach(
                        self._place,
                        start=start,
                        host_idle_s=self._host_idle_s,
                        limits=self._limits,
                    )
                )
            return self._host

    async def stats(self) -> HostStats | None:
        """Statistics of the running host; None if none is running. Does not start one."""
        host = await self._running()
        return None if host is None else await host.stats()

    async def unload(self, model: str) -> int:
        """Unload the model with this path or name; returns how many models were unloaded."""
        host = await self._running()
        return 0 if host is None else await host.unload(model)

    async def end_request(self, pid: int, request: int) -> bool:
        """End a call (`EndRequest`) of the worker with this process id, even one of another front
        end. Returns False if it has already ended.
        """
        host = await self._running()
        return False if host is None else await host.end_request(pid, request)

    async def _running(self) -> HostClient | None:
        with suppress(NoHost):
            return await self.host(start=False)
        return None

    async def backend(self, spec: ModelSpec, session: str = "") -> Backend:
        """The model of `spec`, loaded on first use. Raises `HostUnreachable`; a remote model needs
        no host.

        Args:
            session: the session of calls that do not name one.
        """
        if spec.backend == "remote":
            return self._remote().backend(spec)
        return (await self.host()).backend(spec, session)

    def _remote(self) -> RemoteBackends:
        if self._remotes is None:
            from hearth.backends.remote.backend import RemoteBackends

            self._remotes = RemoteBackends(self._servers)
        return self._remotes
