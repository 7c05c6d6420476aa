"""Ending what somebody else asked, and looking for a host without starting one."""

import asyncio
import contextlib
from dataclasses import replace

import pytest

from async_tests import in_loop
from gguf_builder import tiny_llama
from hearth.app.host_connection import HostConnection
from hearth.backends.contract.events import Finished
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.errors import Interrupted, NoHost
from hearth.backends.host import client
from hearth.backends.host.client import HostClient
from hosts import QUICK, attached, collect, worker_when

ENDLESS = Request(
    text="the",
    sampling=SamplingParams(temperature=0.0),
    max_tokens=30_000,
    ignore_eos=True,
    session="somebody",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tiny_llama(tmp_path_factory.mktemp("model") / "endless.gguf", context=32768)
    return ModelSpec(str(path), "endless", settings=QUICK)


def decodes(worker):
    requests = worker.engine.requests if worker.engine is not None else ()
    return any(request.state == "decoding" for request in requests)


def scores(worker):
    """The ids of the calls of the session "scores"."""
    requests = worker.engine.requests if worker.engine is not None else ()
    return [request.id for request in requests if request.session == "scores"]


@in_loop
async def test_a_request_is_ended_for_its_client(model, place):
    async with attached(place) as one, HostClient.attach(place, start=False) as other:
        await one.backend(model).info()
        asking = asyncio.create_task(collect(one.backend(model).generate(ENDLESS)))
        worker = await worker_when(other, decodes)
        [request] = worker.engine.requests
        assert (request.session, request.prompt_tokens > 0) == ("somebody", True)
        assert not await other.end_request(worker.pid + 1, request.id)
        assert await other.end_request(worker.pid, request.id)
        _, ids, last = await asking
        assert isinstance(last, Finished) and last.reason == "cancelled"
        assert last.usage.completion_tokens == len(ids) > 0
        assert not await other.end_request(worker.pid, request.id)


@in_loop
async def test_a_call_with_one_answer_that_is_ended_raises(model, place):
    spec = replace(model, settings=replace(QUICK, max_sessions=1))  # So that the score waits.
    async with (
        attached(place) as host,
        contextlib.aclosing(host.backend(spec).generate(ENDLESS)) as events,
    ):
        await anext(events)
        scoring = asyncio.create_task(host.backend(spec, "scores").score([1, 2]))
        worker = await worker_when(host, scores)
        assert await host.end_request(worker.pid, scores(worker)[0])
        with pytest.raises(Interrupted):
            await scoring


@in_loop
async def test_looking_for_a_host_starts_none(place):
    hosts = HostConnection(place, 0.2)
    assert await hosts.stats() is None
    assert await hosts.unload("endless") == 0
    assert not await hosts.end_request(1, 1)
    with pytest.raises(NoHost):
        await hosts.host(start=False)
    await hosts.close()


@in_loop
async def test_a_host_of_another_version_that_leaves_is_not_replaced(place, monkeypatch):
    async def leaves(place, limits):
        return None

    monkeypatch.setattr(client, "_greet", leaves)
    monkeypatch.setattr(client, "_start_host", lambda *_: pytest.fail("it started one"))
    with pytest.raises(NoHost):
        async with HostClient.attach(place, start=False):
            pass


@in_loop
async def test_a_host_that_runs_is_found_and_asked(model, place):
    hosts = HostConnection(place, 0.2)
    async with attached(place) as host:
        await host.backend(model).info()
        [worker] = (await hosts.stats()).workers
        assert worker.name == "endless"
        assert await hosts.unload("endless") == 1
        assert (await hosts.stats()).workers == ()
        await hosts.close()
