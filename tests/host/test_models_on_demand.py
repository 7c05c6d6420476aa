"""More models than fit, for real: who is loaded, who makes way, who waits, and in which order."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from async_tests import in_loop
from gguf_builder import tiny_llama
from hearth.backends.contract.events import Finished, Started
from hearth.backends.contract.models import HostLimits, ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.host.client import HostClient
from hosts import QUICK, attached, collect, workers_when

SHORT = Request(text="the", sampling=SamplingParams(temperature=0.0), max_tokens=8, ignore_eos=True)
ENDLESS = replace(SHORT, max_tokens=30_000)
ONE = HostLimits(max_models=1)
TWO = HostLimits(max_models=2)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """By name. The context is large enough for a stream that surely still runs when it matters."""
    folder = tmp_path_factory.mktemp("models")
    return {
        name: ModelSpec(
            str(tiny_llama(folder / f"{name}.gguf", context=32768)), name, settings=QUICK
        )
        for name in "abc"
    }


@contextlib.asynccontextmanager
async def busy(host, spec):
    """`spec` streams inside the block, unless it is made to make way."""
    async with contextlib.aclosing(host.backend(spec).generate(ENDLESS)) as events:
        assert isinstance(await anext(events), Started)
        yield events


class Asked:
    """Requests under way, and their models in the order in which they were answered."""

    def __init__(self, host, models):
        self._host = host
        self._models = models
        self.answered = []

    def ask(self, name, request=SHORT):
        """Asked now: the frame is sent before the next one."""
        return asyncio.create_task(self._answer(name, request))

    async def _answer(self, name, request):
        _, ids, last = await collect(self._host.backend(self._models[name]).generate(request))
        assert isinstance(last, Finished), last
        assert len(ids) == request.max_tokens
        self.answered.append(name)


async def queued(host, **counts):
    """Wait until so many requests are queued for models by name."""
    return await workers_when(
        host,
        lambda workers: (
            counts == {name: worker.waiting for name, worker in workers.items() if worker.pid == 0}
        ),
    )


@pytest.mark.parametrize("limits", [ONE, HostLimits(models_memory_bytes=300 << 20)])
@in_loop
async def test_two_models_in_turn_where_one_fits(models, place, limits):
    async with attached(place, limits=limits) as host:
        asked = Asked(host, models)
        for name in "aba":
            await asked.ask(name)
            assert [worker.name for worker in (await host.stats()).workers] == [name]
        assert asked.answered == [*"aba"]


@in_loop
async def test_a_busy_model_finishes_undisturbed_and_order_is_kept(models, place):
    """b comes while a streams, then a again: that one waits behind b."""
    async with attached(place, limits=ONE) as host:
        asked = Asked(host, models)
        await host.backend(models["a"]).info()
        requests = [asked.ask("a", replace(SHORT, max_tokens=2000))]
        await asyncio.sleep(0)
        requests += [asked.ask(name) for name in "bac"]
        await asyncio.gather(*requests)
        assert asked.answered == [*"abac"]


@in_loop
async def test_who_waits_is_shown_and_goes_on_when_it_can(models, place):
    async with attached(place, limits=ONE) as host:
        asked = Asked(host, models)
        async with busy(host, models["a"]):
            requests = [asked.ask("b")]
            await queued(host, b=1)
            requests.append(asked.ask("a"))
            workers = await workers_when(host, lambda workers: workers["a"].waiting == 1)
            assert workers["a"].running == 1 and workers["b"].info is None
        await asyncio.gather(*requests)
        assert asked.answered == ["b", "a"]


@in_loop
async def test_who_leaves_the_queue_costs_no_model(models, place):
    async with attached(place, limits=ONE) as host:
        async with busy(host, models["a"]):
            before = (await workers_when(host, lambda workers: "a" in workers))["a"].pid
            leaving = Asked(host, models).ask("b")
            await queued(host, b=1)
            leaving.cancel()
            await queued(host)
        workers = await workers_when(host, lambda workers: workers["a"].running == 0)
        assert set(workers) == {"a"} and workers["a"].pid == before


@in_loop
async def test_a_front_end_that_is_gone_leaves_the_queue(models, place):
    async with attached(place, limits=ONE) as host, busy(host, models["a"]):
        async with HostClient.attach(place, start=False) as other:
            leaving = Asked(other, models).ask("b")
            await queued(host, b=1)
            leaving.cancel()
            await asyncio.wait({leaving})
        await queued(host)


@in_loop
async def test_no_request_is_sent_into_a_model_that_is_being_unloaded(models, place):
    """Whatever is asked while models come and go is answered, by a model that stays."""
    async with attached(place, limits=ONE) as host:
        asked = Asked(host, models)
        requests = []
        for name in "abacab":
            requests.append(asked.ask(name))
            if len(requests) % 2 == 0:
                await requests[-2]
        await asyncio.gather(*requests)
        assert sorted(asked.answered) == sorted("abacab")


@in_loop
async def test_a_model_that_is_to_stay_still_makes_way(models, place):
    stays = replace(models["a"], settings=replace(QUICK, keep_alive_s=-1.0))
    async with attached(place, limits=ONE) as host:
        await host.backend(stays).info()
        await host.backend(models["b"]).info()
        assert [worker.name for worker in (await host.stats()).workers] == ["b"]


@in_loop
async def test_a_full_queue_is_refused_at_the_door_while_it_waits_for_room(models, place):
    tight = replace(models["b"], settings=replace(QUICK, max_sessions=1, max_waiting=0))
    async with attached(place, limits=ONE) as host:
        async with busy(host, models["a"]):
            waiting = asyncio.create_task(collect(host.backend(tight).generate(SHORT)))
            await queued(host, b=1)
            _, _, last = await collect(host.backend(tight).generate(SHORT))
            assert last.error.code == "busy"
        assert isinstance((await waiting)[2], Finished)


@in_loop
async def test_the_newest_limits_hold_for_all(models, place):
    async with attached(place, limits=TWO) as host:
        for name in "ab":
            await host.backend(models[name]).info()
        async with HostClient.attach(place, start=False, limits=ONE):
            pass
        async with HostClient.attach(place, start=False):
            pass  # It says nothing of limits, so it changes none.
        await host.backend(models["c"]).info()
        assert [worker.name for worker in (await host.stats()).workers] == ["c"]


@in_loop
async def test_a_corrupt_file_costs_no_loaded_model(models, place, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(Path(models["b"].path).read_bytes()[:5000])
    async with attached(place, limits=ONE) as host:
        await host.backend(models["a"]).info()
        _, _, last = await collect(host.backend(ModelSpec(str(broken))).generate(SHORT))
        assert last.error.code == "corrupt_file"
        assert [worker.name for worker in (await host.stats()).workers] == ["a"]
