"""A child process of a few lines that replaces a worker."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hearth.backends.host.supervisor import Supervisor
from hearth.backends.host.worker_process import WorkerProcess

_LOADS = """
    import sys
    from dataclasses import fields
    from hearth.backends.contract.events import Started
    from hearth.backends.contract.loaded import EngineStats, ModelInfo
    from hearth.backends.contract.wire import Frame, Generate, GetEngineStats, encode
    from hearth.backends.contract.wire import read_frame

    def info():
        values = {"int": 1, "str": "x", "float": 0.0, "bool": False}
        named = {f.name: values[f.type] for f in fields(ModelInfo) if f.type in values}
        return ModelInfo(**named)

    def say(ident, body):
        sys.stdout.buffer.write(encode(Frame(ident, body)))
        sys.stdout.buffer.flush()

    say(read_frame(sys.stdin.buffer).id, info())
    while (frame := read_frame(sys.stdin.buffer)) is not None:
        answer(frame)
"""
HANGS = "import sys; sys.stdin.read()"
"""Never loads; exits when its stdin ends."""
COMPUTES = """
    def answer(frame):
        if isinstance(frame.body, GetEngineStats):
            say(frame.id, EngineStats(running=1, live_tokens=10, steps=next(steps)))
    import itertools
    steps = itertools.count()
"""
"""Does a step whenever its statistics are requested, and answers nothing else."""
IS_MUTE = """
    def answer(frame):
        pass
"""


def answering(how: str) -> str:
    """The code of a worker that loads and then calls `answer(frame)`, which `how` defines."""
    return textwrap.dedent(how) + textwrap.dedent(_LOADS)


async def child_of(code: str) -> Process:
    """A child process that runs `code`, with pipes like those of a worker."""
    return await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=PIPE, stdout=PIPE)


class StandIns:
    """Children that run `code` in place of every worker; `started` is set with the first."""

    def __init__(self) -> None:
        self.code = HANGS
        self.children: list[Process] = []
        self.started = asyncio.Event()

    async def spawn(self, worker: WorkerProcess) -> Process:
        child = await child_of(self.code)
        self.children.append(child)
        self.started.set()
        return child

    @asynccontextmanager
    async def running(self, code: str, supervisor: Supervisor) -> AsyncIterator[None]:
        """The workers of `supervisor` run `code`; after the block, they have ended."""
        self.code = code
        try:
            yield
        finally:
            await supervisor.unload(None)
            for child in self.children:
                await child.wait()
