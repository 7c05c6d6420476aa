"""A separate host for a test, and checks that its processes have ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from hearth.backends.contract.events import Failed, Finished, Token
from hearth.backends.contract.models import HostLimits, ModelSettings, ModelSpec
from hearth.backends.contract.wire import Answer, Call, Sealed, unsealed
from hearth.backends.host.client import HostClient, HostPlace
from hearth.backends.host.supervisor import Supervisor
from hearth.backends.host.worker_process import Stream

QUICK = ModelSettings(kv_type="f32", flash_attention=False, threads=1, batch_threads=1)
"""Exact mode on one thread."""


def place_in(folder: Path) -> HostPlace:
    return HostPlace(folder / "run", folder / "log", folder / "cache")


@asynccontextmanager
async def attached(
    place: HostPlace, idle_s: float = 0.2, limits: HostLimits | None = None
) -> AsyncIterator[HostClient]:
    """A front end of a host that ends soon after it; waits until all processes of the host have
    ended.
    """
    async with HostClient.attach(place, host_idle_s=idle_s, limits=limits) as client:
        stats = await client.stats()
        host = psutil.Process(stats.pid)
        try:
            yield client
        finally:
            await client.unload()
    gone([host])


def gone(processes: Iterable[psutil.Process], timeout_s: float = 20.0) -> None:
    """Wait for `processes` to end; fail if one does not."""
    _, alive = psutil.wait_procs(list(processes), timeout=timeout_s)
    alive = [process for process in alive if not _zombie(process)]
    assert not alive, f"still running: {alive}"


def _zombie(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return True


def family(pid: int) -> list[psutil.Process]:
    """The process and all its descendants."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def processes_in(home: Path, module: str | None = None) -> list[psutil.Process]:
    """The processes that run `module`, or any, with files in `home`."""
    processes = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if module in (None, *words) and any(word.startswith(str(home)) for word in words):
            processes.append(process)
    return processes


class Heard(Stream):
    """A stream that remembers its answers, and passes each to `also`."""

    def __init__(self, also: Callable[[Answer], object] = lambda answer: None) -> None:
        self.answers: list[Answer] = []

        def hear(answer: Answer | Sealed) -> None:
            self.answers.append(unsealed(answer))  # type: ignore[arg-type]
            also(self.answers[-1])

        super().__init__(hear)


async def last_of(
    supervisor: Supervisor, spec: ModelSpec, call: Call, stream: Heard | None = None
) -> Answer:
    """The last answer to `call`."""
    stream = stream or Heard()
    await supervisor.call(spec, call, stream)
    return stream.answers[-1]


async def workers_when(host, condition, timeout_s: float = 20.0):
    """The host's state of its models by name, once `condition` holds for it."""
    async with asyncio.timeout(timeout_s):
        while True:
            workers = {worker.name: worker for worker in (await host.stats()).workers}
            if condition(workers):
                return workers


async def worker_when(host, condition, timeout_s: float = 20.0):
    """The host's state of its only worker, once `condition` holds for it, because an engine's
    counts may be slightly outdated.
    """
    async with asyncio.timeout(timeout_s):
        while True:
            [worker] = (await host.stats()).workers
            if condition(worker):
                return worker


async def collect(events):
    """(text, ids, last event) of a stream; fails unless it ends with exactly one last event."""
    text, ids, last = "", [], None
    async for event in events:
        assert last is None, f"{event} came after {last}"
        if isinstance(event, Token):
            text += event.text
            ids += event.ids
        elif isinstance(event, (Finished, Failed)):
            last = event
    assert last is not None, "the stream ended without a last event"
    return text, ids, last


def wait_until(condition, timeout_s: float = 20.0) -> None:
    """Poll `condition` until it holds."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.01)
