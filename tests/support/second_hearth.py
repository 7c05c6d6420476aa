"""A second Hearth behind the first: an application over a scripted host, served on a loopback port
by uvicorn, and the first one's endpoint, whose model "tiny" is the second Hearth.
"""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from hearth.app.host_connection import HostConnection
from hearth.app.server.running import Server
from hearth.backends.remote.backend import RemoteBackends
from hearth.backends.remote.server import RemoteServer
from hosts import wait_until


class Settled:
    """The scripted host of a second Hearth, used from another thread: its counts are returned when
    all its requests have ended, and waiting steps of the script are resumed in its own loop.
    """

    def __init__(self, host: Any, busy: Callable[[], bool]) -> None:
        object.__setattr__(self, "_host", host)
        object.__setattr__(self, "_busy", busy)

    def __getattr__(self, name: str) -> Any:
        if name == "cancelled":
            wait_until(lambda: not self._busy())
        if name == "requests":
            return [{**one, "session": self._session(one)} for one in self._host.requests]
        return getattr(self._host, name)

    def _session(self, request: dict[str, Any]) -> str:
        """The session in the first Hearth's request, which is a user to the second."""
        return str(request["session"]).removeprefix("http user ")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "on_wait":
            loop = asyncio.get_running_loop()

            def wake() -> None:
                loop.call_soon_threadsafe(value)

            setattr(self._host, name, wake)
        else:
            setattr(self._host, name, value)


class ForEachLoop(HostConnection):
    """Opens its remote models again for each call, because each request of a test has its own loop,
    which ends with the request.
    """

    async def backend(self, spec: Any, session: str = "") -> Any:
        return _OneCall(self._servers, spec) if spec.backend == "remote" else None


class _OneCall:
    def __init__(self, servers: Mapping[str, RemoteServer], spec: Any) -> None:
        self._servers = servers
        self._spec = spec

    async def generate(self, request: Any) -> AsyncIterator[Any]:
        remotes = RemoteBackends(self._servers)
        try:
            async with aclosing(remotes.backend(self._spec).generate(request)) as events:
                async for event in events:
                    yield event
        finally:
            await remotes.close()

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **more: Any) -> Any:
            remotes = RemoteBackends(self._servers)
            try:
                return await getattr(remotes.backend(self._spec), name)(*args, **more)
            finally:
                await remotes.close()

        return call


@contextmanager
def served(application: Any, state: Any) -> Iterator[str]:
    """Serve `application` on a loopback port, in a thread, until the block ends; yields its /v1
    URL.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    server = Server(application, state)
    loops: list[asyncio.AbstractEventLoop] = []
    started = threading.Event()

    async def serve() -> None:
        async def tell() -> None:
            loops.append(asyncio.get_running_loop())
            started.set()

        await server.serve_on([listener], startup=tell())

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="second hearth")
    thread.start()
    assert started.wait(20)
    try:
        yield url
    finally:
        loops[0].call_soon_threadsafe(lambda: server.end(at_once=True))
        thread.join()


def same_tests(path: Path, leave_out: Mapping[str, str]) -> dict[str, Any]:
    """The tests and helpers of the module at `path`, to be collected with the fixtures of another
    folder. `leave_out` gives the reason why each of its tests is not valid there.
    """
    spec = importlib.util.spec_from_file_location(f"again_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = ModuleType(spec.name)
    module.__file__ = str(path)
    spec.loader.exec_module(module)
    found = {name: value for name, value in vars(module).items() if name.startswith("test_")}
    assert set(leave_out) <= set(found), set(leave_out) - set(found)
    return {name: value for name, value in found.items() if name not in leave_out}
