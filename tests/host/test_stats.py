"""What the host says of its workers, and whom it says that a call is for.

A child process of a few lines stands for the worker, and a recorder for the supervisor.
"""

import asyncio
import io

import pytest

from async_tests import in_loop
from hearth.backends.contract.events import Finished
from hearth.backends.contract.loaded import EngineStats, HostStats, ModelInfo
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.wire import (
    ClearCache,
    Frame,
    Generate,
    GetStats,
    Load,
    Sealed,
    Tokenize,
    encode,
    read_frame,
)
from hearth.backends.host import worker_process
from hearth.backends.host.client import HostClient
from hearth.backends.host.host import Client
from hearth.backends.machine.local_socket import listen
from hosts import last_of
from stand_ins import HANGS, IS_MUTE, answering

SPEC = ModelSpec("x")
STATS = EngineStats(running=3, waiting=2, pool_tokens=64, live_tokens=10)

SAYS_STATS = """
    def answer(frame):
        if isinstance(frame.body, GetEngineStats):
            say(frame.id, EngineStats(running=3, waiting=2, pool_tokens=64, live_tokens=10))
"""
DIES_WHEN_ASKED = """
    def answer(frame):
        sys.exit(1)
"""


async def loaded(supervisor):
    assert isinstance(await last_of(supervisor, SPEC, Load()), ModelInfo)


@in_loop
async def test_a_loaded_worker_says_what_its_engine_does(supervisor, workers):
    async with workers.running(answering(SAYS_STATS), supervisor):
        await loaded(supervisor)
        [worker] = await supervisor.stats()
        assert worker.engine == STATS
        assert (worker.running, worker.waiting) == (3, 2)


@in_loop
async def test_looking_keeps_no_model_from_being_idle(supervisor, workers):
    async with workers.running(answering(SAYS_STATS), supervisor):
        await loaded(supervisor)
        [before] = await supervisor.stats()
        [after] = await supervisor.stats()
        assert after.idle_s > before.idle_s > 0.0
        assert not supervisor.busy


@in_loop
async def test_a_worker_that_does_not_answer_is_told_of_all_the_same(
    supervisor, workers, monkeypatch
):
    monkeypatch.setattr(worker_process, "_STATS_TIMEOUT_S", 0.01)
    async with workers.running(answering(IS_MUTE), supervisor):
        await loaded(supervisor)
        [worker] = await supervisor.stats()
        assert worker.engine is None and worker.info is not None
        assert (worker.running, worker.waiting) == (0, 0)


@in_loop
async def test_a_worker_that_dies_when_it_is_asked_keeps_nobody_waiting(
    supervisor, workers, monkeypatch
):
    monkeypatch.setattr(worker_process, "_STATS_TIMEOUT_S", 3600.0)
    async with workers.running(answering(DIES_WHEN_ASKED), supervisor):
        await loaded(supervisor)
        assert await asyncio.wait_for(supervisor.stats(), 30) == ()


@in_loop
async def test_a_worker_that_loads_is_not_asked(supervisor, workers, monkeypatch):
    monkeypatch.setattr(worker_process, "_STATS_TIMEOUT_S", 3600.0)
    async with workers.running(HANGS, supervisor):
        loading = asyncio.create_task(loaded(supervisor))
        await workers.started.wait()
        [worker] = await asyncio.wait_for(supervisor.stats(), 30)
        assert worker.info is None and worker.engine is None
        assert (worker.running, worker.waiting) == (0, 1)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading


class Recorder:
    """Stands for the host, and for its supervisor: what was called, and nothing is done."""

    def __init__(self):
        self.supervisor = self
        self.calls = []

    async def call(self, spec, call, stream, session, cost):
        self.calls.append((call.open() if isinstance(call, Sealed) else call, session))
        stream.put(Finished("stop"))

    async def stats(self):
        return HostStats(1, "0", 0.0, 1)


class Notes:
    """Stands for the writer to a front end; `both` is set with the second frame."""

    def __init__(self):
        self.frames = []
        self.both = asyncio.Event()

    def write(self, data):
        while data:
            end = 12 + int.from_bytes(data[:4], "big")
            self.frames.append(read_frame(io.BytesIO(data[:end])))
            data = data[end:]
        if len(self.frames) == 2:
            self.both.set()

    async def drain(self):
        pass

    @property
    def transport(self):
        return self

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return False

    def close(self):
        pass


@pytest.mark.parametrize(
    "call",
    [Generate(Request(text="a")), Tokenize("a", False), ClearCache()],
    ids=lambda part: type(part).__name__,
)
@in_loop
async def test_a_call_is_relayed_with_its_session(call):
    host, notes, reader = Recorder(), Notes(), asyncio.StreamReader()
    serving = asyncio.create_task(Client(host, reader, notes).serve())
    reader.feed_data(encode(Frame(1, call, SPEC, "me")) + encode(Frame(2, GetStats())))
    await notes.both.wait()
    reader.feed_eof()
    await serving
    assert host.calls == [(call, "me")]
    assert {frame.id for frame in notes.frames} == {1, 2}


@in_loop
async def test_calls_that_name_no_session_are_for_the_front_end_that_sends_them(place):
    host = Recorder()

    async def on_client(reader, writer):
        await Client(host, reader, writer).serve()

    async with await listen(place, on_client):
        for _ in range(2):
            async with HostClient.attach(place) as client:
                await client.backend(SPEC).restore(Request(text="a"))
                await client.backend(SPEC).restore(Request(text="a"))
    names = [session for _, session in host.calls]
    assert names[0] == names[1] and names[2] == names[3]
    assert all(names) and names[0] != names[2]
