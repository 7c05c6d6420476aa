"""Who waits for a load, who leaves it, and who ends it: one load for all, and nobody harmed.

A child process of a few lines stands for the worker.
"""

import asyncio
import os
import sys
from dataclasses import replace

import pytest

from async_tests import in_loop
from hearth.backends.contract.events import Finished, Started
from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.wire import Generate, Load, Tokenize, unsealed
from hearth.backends.errors import Busy, ModelNotFound, WorkerDied
from hearth.backends.host.worker_process import Stream, WorkerProcess
from hosts import Heard, last_of
from stand_ins import IS_MUTE, answering

SPEC = ModelSpec("x")
STARTS = """
    def answer(frame):
        if isinstance(frame.body, Generate):
            say(frame.id, Started(1))
"""
REFUSES = """
import sys
from hearth.backends.contract.events import Failed
from hearth.backends.errors import ModelNotFound, to_info
from hearth.backends.contract.wire import Frame, encode, read_frame
frame = read_frame(sys.stdin.buffer)
sys.stdout.buffer.write(encode(Frame(frame.id, Failed(to_info(ModelNotFound("gone"))))))
sys.stdout.buffer.flush()
"""


def asking(supervisor, call=None, stream=None, spec=SPEC):
    return asyncio.create_task(last_of(supervisor, spec, call or Load(), stream))


@pytest.fixture
def gate(tmp_path, workers):
    """Workers load when it is opened."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    workers.code = f"open({str(path)!r}).read()\n" + answering(IS_MUTE)
    return lambda: path.write_text("")


@pytest.mark.skipif(sys.platform == "win32", reason="named pipes are another matter there")
@in_loop
async def test_who_leaves_a_load_harms_nobody_who_waits_for_it(supervisor, workers, gate) -> None:
    first = asking(supervisor)
    await workers.started.wait()
    second = asking(supervisor)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.to_thread(gate)
    assert isinstance(await asyncio.wait_for(second, 30), ModelInfo)
    assert len(workers.children) == 1, "what was loaded by then was not thrown away"
    await supervisor.unload(None)


@in_loop
async def test_the_last_who_leaves_a_load_ends_it(supervisor, workers) -> None:
    both = [asking(supervisor)]
    await workers.started.wait()
    both.append(asking(supervisor))
    await asyncio.sleep(0)
    for task in both:
        task.cancel()
    await asyncio.gather(*both, return_exceptions=True)
    assert await asyncio.wait_for(workers.children[0].wait(), 30) != 0
    assert len(workers.children) == 1 and not supervisor.loaded and not supervisor.busy


@in_loop
async def test_unloading_ends_a_load_for_all_who_wait_for_it(supervisor, workers) -> None:
    waiting = [asking(supervisor)]
    await workers.started.wait()
    waiting += [asking(supervisor, Tokenize("x", False)) for _ in range(3)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(supervisor.unload("x"), 30) == 1
    for said in await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 30):
        assert isinstance(said, WorkerDied) and said.data["unloaded"]
    assert len(workers.children) == 1, "it was not loaded again at once"


@in_loop
async def test_a_load_that_fails_fails_once_for_all_who_wait_for_it(supervisor, workers) -> None:
    workers.code = REFUSES
    said = await asyncio.gather(*(asking(supervisor) for _ in range(4)), return_exceptions=True)
    assert all(isinstance(error, ModelNotFound) for error in said), said
    assert len(workers.children) == 1


@in_loop
async def test_a_call_that_is_cancelled_while_its_model_loads_is_over_at_once(
    supervisor, workers
) -> None:
    """So that it holds no room: here there is only room for one."""
    one = replace(SPEC, settings=ModelSettings(max_sessions=1, max_waiting=0))
    loading = asking(supervisor, spec=one)
    await workers.started.wait()
    for _ in range(2):
        stream = Heard()
        call = asking(supervisor, Tokenize("x", False), stream, one)
        await asyncio.sleep(0)
        stream.cancel()
        assert await asyncio.wait_for(call, 30) == Finished("cancelled")
    assert not loading.done() and len(workers.children) == 1
    await supervisor.unload(None)
    await asyncio.gather(loading, return_exceptions=True)


@pytest.mark.skipif(sys.platform == "win32", reason="named pipes are another matter there")
@in_loop
async def test_other_settings_wait_for_a_load_and_then_for_who_uses_it(
    supervisor, workers, gate
) -> None:
    other = replace(SPEC, settings=ModelSettings(context=9))
    using = asking(supervisor, Tokenize("x", False))
    await workers.started.wait()
    different = asking(supervisor, spec=other)
    await asyncio.sleep(0)
    assert not different.done()
    await asyncio.to_thread(gate)
    with pytest.raises(Busy, match="other settings"):
        await asyncio.wait_for(different, 30)
    await supervisor.unload(None)
    await asyncio.gather(using, return_exceptions=True)


@in_loop
async def test_a_model_is_unloaded_by_any_path_to_its_file(supervisor, workers, tmp_path) -> None:
    """`hearth stop` says the path that the worker was started with."""
    workers.code = answering(IS_MUTE)
    file = tmp_path / "model.gguf"
    file.touch()
    specs = [ModelSpec(str(tmp_path / name), "m") for name in ("one.gguf", "other.gguf")]
    for spec in specs:
        os.symlink(file, spec.path)
    for spec in specs:
        assert isinstance(await asking(supervisor, spec=spec), ModelInfo)
    (worker,) = await supervisor.stats()
    assert await supervisor.unload(worker.path) == 1


@in_loop
async def test_all_models_are_unloaded_at_once(supervisor, workers, monkeypatch) -> None:
    workers.code = answering(IS_MUTE)
    for name in ("one", "other"):
        await asking(supervisor, spec=ModelSpec(name))
    steps = []
    stop = WorkerProcess.stop

    async def recorded(worker):
        steps.append("begin")
        await stop(worker)
        steps.append("end")

    monkeypatch.setattr(WorkerProcess, "stop", recorded)
    assert await supervisor.unload(None) == 2 and not supervisor.loaded
    assert steps == ["begin", "begin", "end", "end"]


@in_loop
async def test_nobody_waits_less_than_not_at_all(supervisor, workers) -> None:
    """A worker that hangs still runs what nobody waits for any more."""
    workers.code = answering(STARTS)
    said = asyncio.Queue()
    stream = Stream(lambda answer: said.put_nowait(unsealed(answer)))
    call = Generate(Request(text="x"))
    calling = asyncio.create_task(supervisor.call(SPEC, call, stream))
    assert isinstance(await asyncio.wait_for(said.get(), 30), Started)
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    (worker,) = await supervisor.stats()
    assert (worker.running, worker.waiting) == (1, 0)
    await supervisor.unload(None)


@in_loop
async def test_paths_that_nobody_uses_are_forgotten(supervisor, workers) -> None:
    workers.code = REFUSES
    for number in range(5):
        with pytest.raises(ModelNotFound):
            await asking(supervisor, spec=ModelSpec(f"x{number}"))
    await asyncio.gather(*(model.worker.died.wait() for model in supervisor._models.values()))
    await supervisor.unload_idle()
    assert supervisor._models == {}
    assert supervisor._room._residents == {}


@in_loop
async def test_a_path_that_was_forgotten_and_asked_for_again_is_not_forgotten_twice(
    supervisor,
) -> None:
    before = supervisor._model(SPEC)
    supervisor._forget(before)  # As `unload_idle` does while an `unload` waits for the worker.
    again = supervisor._model(SPEC)
    assert again is not before
    again.users = 1
    supervisor._forget(before)
    assert supervisor._model(SPEC) is again
