"""Forgetting kept prefixes only where a model is loaded: whatever its settings, and never by
loading it. A child process of a few lines stands for the worker.
"""

import asyncio
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from async_tests import in_loop
from hearth.backends.contract.loaded import EngineStats
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.wire import ClearCache, Load
from hearth.backends.errors import ModelNotFound
from hearth.backends.host.supervisor import Supervisor
from hearth.backends.host.worker_process import WorkerProcess
from hosts import Heard, place_in
from stand_ins import answering

SPEC = ModelSpec("x")
LEFT = EngineStats(pool_tokens=64, kv_bytes_per_token=4)
CLEARS = """
    def answer(frame):
        say(frame.id, EngineStats(pool_tokens=64, kv_bytes_per_token=4))
"""


@asynccontextmanager
async def supervising(tmp_path, monkeypatch):
    """A supervisor whose workers only forget, and those it has started."""
    code = answering(CLEARS)
    place = place_in(tmp_path)
    place.prepare()
    supervisor, children = Supervisor(place), []

    async def spawn(worker):
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdin=pipe, stdout=pipe
        )
        children.append(child)
        return child

    monkeypatch.setattr(WorkerProcess, "_spawn", spawn)
    try:
        yield supervisor, children
    finally:
        await supervisor.unload(None)
        for child in children:
            await child.wait()


async def ask(supervisor, call, spec=SPEC):
    heard = Heard()
    await supervisor.call(spec, call, heard)
    return heard.answers


@pytest.mark.parametrize("settings", [ModelSettings(), ModelSettings(context=99)])
@in_loop
async def test_a_loaded_model_forgets_whatever_settings_it_has(tmp_path, monkeypatch, settings):
    async with supervising(tmp_path, monkeypatch) as (supervisor, children):
        await ask(supervisor, Load())
        other = replace(SPEC, settings=settings)
        assert await ask(supervisor, ClearCache(load=False), other) == [LEFT]
        assert len(children) == 1


@in_loop
async def test_one_that_is_not_loaded_stays_so(tmp_path, monkeypatch):
    async with supervising(tmp_path, monkeypatch) as (supervisor, children):
        with pytest.raises(ModelNotFound, match="not loaded"):
            await ask(supervisor, ClearCache(load=False))
        assert (children, supervisor.loaded) == ([], 0)
        await ask(supervisor, Load())
        await supervisor.unload(None)
        with pytest.raises(ModelNotFound):
            await ask(supervisor, ClearCache(load=False))
        assert len(children) == 1


@in_loop
async def test_otherwise_it_is_loaded_for_it(tmp_path, monkeypatch):
    async with supervising(tmp_path, monkeypatch) as (supervisor, children):
        assert await ask(supervisor, ClearCache()) == [LEFT]
        assert len(children) == 1
