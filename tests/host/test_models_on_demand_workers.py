"""Making way as the supervisor does it: a load that fails all the same, keep-alive, death.

A child process of a few lines stands for each worker.
"""

import asyncio
import functools
from dataclasses import replace

import pytest

from async_tests import in_loop
from gguf_builder import tiny_llama
from hearth.backends.contract.events import Failed, Finished
from hearth.backends.contract.loaded import ModelInfo
from hearth.backends.contract.models import HostLimits, ModelSettings, ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.wire import Generate, Load, Tokenize
from hearth.backends.errors import DoesNotFit, WorkerDied, from_info
from hearth.backends.host import worker_process
from hearth.backends.host.supervisor import Supervisor
from hearth.backends.host.worker_process import WorkerProcess
from hosts import last_of, place_in
from stand_ins import IS_MUTE, answering, child_of

ANSWERS = """
    from hearth.backends.contract.events import Finished
    from hearth.backends.contract.wire import Ids, Tokenize

    def answer(frame):
        if isinstance(frame.body, Generate):
            say(frame.id, Started(1))
            say(frame.id, Finished("stop"))
        elif isinstance(frame.body, Tokenize):
            say(frame.id, Ids((1,)))
"""
DOES_NOT_FIT = """
import sys
from hearth.backends.contract.events import Failed
from hearth.backends.errors import DoesNotFit, to_info
from hearth.backends.contract.wire import Frame, encode, read_frame
frame = read_frame(sys.stdin.buffer)
error = DoesNotFit("needs 3, has 2", needed_bytes=3, available_bytes=2)
sys.stdout.buffer.write(encode(Frame(frame.id, Failed(to_info(error)))))
sys.stdout.buffer.flush()
"""
GENERATE = Generate(Request(text="x"))


class ScriptedWorkers:
    """A supervisor whose workers run what `codes` says for their model, one text a load; the last
    one for all further loads.
    """

    def __init__(self, place, monkeypatch):
        self.supervisor = Supervisor(place)
        self.codes = {}
        self.loads = []
        self.children = {}
        monkeypatch.setattr(WorkerProcess, "_spawn", lambda worker: self.spawn(worker))

    async def spawn(self, worker):
        codes = self.codes.get(worker.name, [answering(ANSWERS)])
        code = codes.pop(0) if len(codes) > 1 else codes[0]
        child = await child_of(code)
        self.loads.append(worker.name)
        self.children[worker.name] = child
        return child

    async def ask(self, spec, call=None):
        """The last answer to `call`."""
        return await last_of(self.supervisor, spec, call or Load())

    async def loaded(self):
        return [worker.name for worker in await self.supervisor.stats()]


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    """Files that can be read, so that it is known what they need."""
    folder = tmp_path_factory.mktemp("models")
    return {name: ModelSpec(str(tiny_llama(folder / f"{name}.gguf")), name) for name in "abc"}


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    place = place_in(tmp_path)
    place.prepare()
    return ScriptedWorkers(place, monkeypatch)


def stopping_workers(test):
    """`test`, a coroutine, as a test that stops the workers of its `scripted` at the end."""

    @in_loop
    @functools.wraps(test)
    async def run(scripted, **fixtures):
        try:
            await asyncio.wait_for(test(scripted, **fixtures), 60)
        finally:
            await scripted.supervisor.unload(None)

    return run


@stopping_workers
async def test_a_load_that_does_not_fit_after_all_is_tried_again_when_others_made_way(
    scripted, specs
):
    scripted.codes["b"] = [DOES_NOT_FIT, answering(IS_MUTE)]
    await scripted.ask(specs["a"])
    assert isinstance(await scripted.ask(specs["b"]), ModelInfo)
    assert scripted.loads == ["a", "b", "b"]
    assert await scripted.loaded() == ["b"]


@stopping_workers
async def test_it_is_tried_again_once(scripted, specs):
    scripted.codes["b"] = [DOES_NOT_FIT]
    await scripted.ask(specs["a"])
    with pytest.raises(DoesNotFit, match="needs 3, has 2"):
        await scripted.ask(specs["b"])
    assert scripted.loads == ["a", "b", "b"] and await scripted.loaded() == []


@stopping_workers
async def test_it_is_not_tried_again_where_nothing_can_make_way(scripted, specs):
    scripted.codes["b"] = [DOES_NOT_FIT]
    scripted.codes["a"] = [answering(IS_MUTE)]
    await scripted.ask(specs["a"])
    busy = asyncio.create_task(scripted.ask(specs["a"], GENERATE))
    await asyncio.sleep(0)
    with pytest.raises(DoesNotFit):
        await scripted.ask(specs["b"])
    assert scripted.loads == ["a", "b"] and not busy.done()
    await scripted.supervisor.unload(None)
    await busy


@stopping_workers
async def test_a_failed_load_leaves_its_room_to_others(scripted, specs):
    scripted.codes["a"] = [DOES_NOT_FIT]
    scripted.supervisor.limit(HostLimits(max_models=1))
    asked = [asyncio.create_task(scripted.ask(specs[name])) for name in "ab"]
    failed, loaded = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(failed, DoesNotFit) and isinstance(loaded, ModelInfo)


@stopping_workers
async def test_without_keep_alive_a_model_goes_with_its_last_request(scripted, specs):
    """But not with what only prepares one."""
    brief = replace(specs["a"], settings=ModelSettings(keep_alive_s=0.0))
    await scripted.ask(brief)
    await scripted.ask(brief, Tokenize("x", False))
    assert scripted.supervisor.loaded == 1
    assert isinstance(await scripted.ask(brief, GENERATE), Finished)
    await scripted.children["a"].wait()
    assert scripted.supervisor.loaded == 0


@stopping_workers
async def test_the_keep_alive_of_the_newest_request_holds(scripted, specs):
    brief = replace(specs["a"], settings=ModelSettings(keep_alive_s=0.0))
    await scripted.ask(brief)
    await scripted.ask(specs["a"], GENERATE)
    await scripted.supervisor.unload_idle()
    assert await scripted.loaded() == ["a"]
    await scripted.ask(brief, Tokenize("x", False))
    await scripted.supervisor.unload_idle()
    assert await scripted.loaded() == []


@stopping_workers
async def test_a_call_that_comes_while_its_model_is_unloaded_is_answered_by_the_next(
    scripted, specs
):
    brief = replace(specs["a"], settings=ModelSettings(keep_alive_s=0.0))
    await scripted.ask(brief)
    unloading = asyncio.create_task(scripted.supervisor.unload_idle())
    await asyncio.sleep(0)
    assert isinstance(await scripted.ask(specs["a"], GENERATE), Finished)
    await unloading
    assert scripted.loads == ["a", "a"]


@stopping_workers
async def test_other_settings_make_the_model_wait_for_room_again(scripted, specs):
    larger = replace(specs["b"], settings=ModelSettings(context=1_000_000))
    scripted.supervisor.limit(HostLimits(models_memory_bytes=700 << 20))
    await scripted.ask(specs["a"])
    await scripted.ask(specs["b"])
    assert await scripted.loaded() == ["a", "b"]
    await scripted.ask(larger)
    assert await scripted.loaded() == ["b"]


@stopping_workers
async def test_a_killed_worker_is_seen_dead_and_replaced_without_any_grace(
    scripted, specs, monkeypatch
):
    """Restarting waits for its exit alone: here a time of grace would never be over."""
    monkeypatch.setattr(worker_process, "_STOP_GRACE_S", 1e6)
    scripted.codes["a"] = [answering(IS_MUTE), answering(ANSWERS)]
    await scripted.ask(specs["a"])
    dying = asyncio.create_task(scripted.ask(specs["a"], GENERATE))
    await asyncio.sleep(0)
    scripted.children["a"].kill()
    last = await dying
    assert isinstance(last, Failed) and isinstance(from_info(last.error), WorkerDied)
    assert scripted.supervisor.loaded == 0
    assert isinstance(await scripted.ask(specs["a"], GENERATE), Finished)
    assert scripted.loads == ["a", "a"]
