"""What may happen at the same time: loading and leaving, asking and cancelling, dying and reading.

Where a worker must hang or die at a certain byte, a child process of a few lines stands for it.
"""

import asyncio
import os
from dataclasses import replace

import psutil
import pytest

from async_tests import in_loop
from gguf_builder import tiny_llama
from hearth.backends.contract.events import Failed, Finished
from hearth.backends.contract.loaded import HostStats, ModelInfo
from hearth.backends.contract.messages import Message
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.contract.wire import (
    Cancel,
    Frame,
    Generate,
    GetStats,
    Load,
    encode,
    opened,
    sealed_frames,
)
from hearth.backends.errors import HostUnreachable, InvalidParameter, ModelNotFound, WorkerDied
from hearth.backends.host import client as client_module
from hearth.backends.host.breaker import Breaker
from hearth.backends.host.client import HostClient
from hearth.backends.host.worker_process import WorkerProcess
from hosts import QUICK, attached, collect, last_of, place_in, wait_until

SHORT = Request(text="the", sampling=SamplingParams(temperature=0.0), max_tokens=5)

DIES_IN_A_FRAME = (
    r"import os; os.write(1, b'\0\0\0\x50\0\0\0\0\0\0\0\1abc'); os.kill(os.getpid(), 9)"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", context=8192)
    return ModelSpec(str(path), "tiny", settings=QUICK)


@pytest.mark.parametrize("seen_dead", [False, True])
@in_loop
async def test_a_worker_killed_inside_a_frame_ends_its_streams(place, workers, seen_dead):
    spawn = workers.spawn

    async def spawn_and_wait(worker):
        # The host's loop stops until the child is dead: its last bytes, the end of its pipes and
        # its exit are all seen in one turn.
        child = await spawn(worker)
        wait_until(lambda: not psutil.pid_exists(child.pid))
        return child

    workers.code = DIES_IN_A_FRAME
    if seen_dead:
        workers.spawn = spawn_and_wait
    worker = WorkerProcess(ModelSpec("x"), "x", place, Breaker("x"))
    with pytest.raises(WorkerDied, match="SIGKILL"):
        await asyncio.wait_for(worker.start(), 30)
    assert worker.died.is_set() and not worker.usable


@in_loop
async def test_a_front_end_that_leaves_while_its_model_loads_leaves_no_worker(supervisor, workers):
    loading = asyncio.create_task(last_of(supervisor, ModelSpec("x"), Load()))
    await workers.started.wait()
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert await asyncio.wait_for(workers.children[0].wait(), 30) != 0
    assert supervisor.loaded == 0 and not supervisor.busy


@in_loop
async def test_unloading_ends_a_load(supervisor, workers):
    loading = asyncio.create_task(last_of(supervisor, ModelSpec("x"), Load()))
    await workers.started.wait()
    assert await asyncio.wait_for(supervisor.unload("x"), 30) == 1
    with pytest.raises(WorkerDied, match="unloaded"):
        await loading


@in_loop
async def test_a_worker_that_cannot_be_started_is_said(supervisor, monkeypatch):
    async def spawn(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(WorkerProcess, "_spawn", spawn)
    for _ in range(2):
        with pytest.raises(WorkerDied, match="No space left"):
            await last_of(supervisor, ModelSpec("x"), Load())


@in_loop
async def test_a_model_that_comes_while_another_is_unloaded(model, supervisor):
    spec = replace(model, settings=replace(QUICK, keep_alive_s=0.0))
    assert isinstance(await last_of(supervisor, spec, Load()), ModelInfo)
    stranger = ModelSpec("/nowhere/else.gguf")
    unloading = asyncio.create_task(supervisor.unload_idle())
    await asyncio.sleep(0)  # It waits for the worker to leave from now on.
    with pytest.raises(ModelNotFound):
        await last_of(supervisor, stranger, Load())
    await unloading
    assert supervisor.loaded == 0


async def _raw(place, *frames):
    """A connection that sent `frames` in one go: the frames that answer, and the writer."""
    reader, writer = await asyncio.open_unix_connection(place.address)
    writer.write(b"".join(map(encode, frames)))
    return (opened(frame) async for frames in sealed_frames(reader) for frame in frames), writer


@in_loop
async def test_a_cancel_right_behind_its_request_is_heard(model, place):
    endless = replace(SHORT, max_tokens=8000, ignore_eos=True)
    async with attached(place) as host:
        await host.backend(model).info()
        answers, writer = await _raw(place, Frame(1, Generate(endless), model), Frame(1, Cancel()))
        while not isinstance((frame := await anext(answers)).body, (Finished, Failed)):
            pass
        assert frame.body.reason == "cancelled"
        writer.close()


@in_loop
async def test_a_request_that_cannot_be_read_fails_alone(model, place):
    bad = Request(messages=(Message("robot", "x"),))
    async with attached(place):
        answers, writer = await _raw(place, Frame(1, Generate(bad), model), Frame(2, GetStats()))
        first, second = await anext(answers), await anext(answers)
        assert first.id == 1 and first.body.error.code == InvalidParameter.code
        assert "robot" in first.body.error.message
        assert second.id == 2 and isinstance(second.body, HostStats)
        writer.close()


@in_loop
async def test_a_request_that_cannot_be_sent_is_refused_here(model, place):
    async with attached(place) as host:
        with pytest.raises(InvalidParameter, match="cannot be sent"):
            await collect(host.backend(model).generate(replace(SHORT, text="\udcff")))
        assert (await host.stats()).workers == ()


@in_loop
async def test_nothing_is_imported_from_the_folder_one_is_in(model, place, tmp_path, monkeypatch):
    folder = tmp_path / "downloads"
    folder.mkdir()
    for name in ("msgspec", "queue", "numpy"):
        (folder / f"{name}.py").write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(folder)
    async with attached(place) as host:
        assert isinstance((await collect(host.backend(model).generate(SHORT)))[2], Finished)


@in_loop
async def test_a_relative_path_is_meant_from_the_front_end(model, place, monkeypatch):
    folder, name = os.path.split(model.path)
    async with attached(place) as host:
        monkeypatch.chdir(folder)
        assert (await host.backend(replace(model, path=name)).info()).path == model.path


@in_loop
async def test_a_host_that_hangs_is_not_waited_for_for_ever(place, monkeypatch):
    monkeypatch.setattr(client_module, "_GREET_TIMEOUT_S", 0.05)
    gone = asyncio.Event()

    async def mute(reader, writer):
        await gone.wait()
        writer.close()

    async with await asyncio.start_unix_server(mute, path=place.address):
        with pytest.raises(HostUnreachable, match="does not answer"):
            async with HostClient.attach(place):
                pass
        gone.set()


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HostUnreachable, match="cannot be made") as refused:
        place_in(tmp_path / "file").prepare()
    assert "HEARTH_HOME" in refused.value.hint
