"""Forgetting kept prefixes only where a model is loaded: whatever its settings, and never by
loading it. A child process of a few lines stands for the worker.
"""

from dataclasses import replace

import pytest

from async_tests import in_loop
from hearth.backends.contract.loaded import EngineStats
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.wire import ClearCache, Load
from hearth.backends.errors import ModelNotFound
from hosts import Heard
from stand_ins import answering

SPEC = ModelSpec("x")
LEFT = EngineStats(pool_tokens=64, kv_bytes_per_token=4)
CLEARS = answering("""
    def answer(frame):
        say(frame.id, EngineStats(pool_tokens=64, kv_bytes_per_token=4))
""")


async def ask(supervisor, call, spec=SPEC):
    heard = Heard()
    await supervisor.call(spec, call, heard)
    return heard.answers


@pytest.mark.parametrize("settings", [ModelSettings(), ModelSettings(context=99)])
@in_loop
async def test_a_loaded_model_forgets_whatever_settings_it_has(supervisor, workers, settings):
    async with workers.running(CLEARS, supervisor):
        await ask(supervisor, Load())
        other = replace(SPEC, settings=settings)
        assert await ask(supervisor, ClearCache(load=False), other) == [LEFT]
        assert len(workers.children) == 1


@in_loop
async def test_one_that_is_not_loaded_stays_so(supervisor, workers):
    async with workers.running(CLEARS, supervisor):
        with pytest.raises(ModelNotFound, match="not loaded"):
            await ask(supervisor, ClearCache(load=False))
        assert (workers.children, supervisor.loaded) == ([], 0)
        await ask(supervisor, Load())
        await supervisor.unload(None)
        with pytest.raises(ModelNotFound):
            await ask(supervisor, ClearCache(load=False))
        assert len(workers.children) == 1


@in_loop
async def test_otherwise_it_is_loaded_for_it(supervisor, workers):
    async with workers.running(CLEARS, supervisor):
        assert await ask(supervisor, ClearCache()) == [LEFT]
        assert len(workers.children) == 1
