"""What fits beside what: the sums of `residency`, without any process."""

import asyncio

import pytest

from async_tests import in_loop
from fake_models import GB, FakeModels, FakeSupervisor, calm, one_at_a_time
from hearth.backends.contract.models import HostLimits
from hearth.backends.host.residency import Residency

pytestmark = pytest.mark.timeout(20)


@in_loop
async def test_models_are_loaded_side_by_side_while_they_fit():
    supervisor = FakeSupervisor(FakeModels(a=4 * GB, b=5 * GB, c=1 * GB), HostLimits(10 * GB))
    for key in "abc":
        assert (await supervisor.call(key)).has_room
    assert supervisor.models.unloaded == []


@in_loop
async def test_a_model_that_comes_alone_does_not_wait_until_its_file_is_read():
    supervisor = FakeSupervisor(FakeModels(b=6 * GB), HostLimits(10 * GB))
    read = supervisor.models.needs["a"] = asyncio.get_running_loop().create_future()
    assert (await supervisor.call("a")).has_room
    other = await supervisor.call("b")
    assert not other.has_room
    read.set_result(4 * GB)
    await calm()
    assert other.has_room


@in_loop
async def test_where_it_cannot_be_said_what_a_model_needs_it_is_tried():
    supervisor = one_at_a_time()
    await supervisor.call("a")
    supervisor.models.needs["b"] = asyncio.get_running_loop().create_future()
    supervisor.models.needs["b"].set_exception(RuntimeError("a defect"))
    assert (await supervisor.call("b")).has_room


@in_loop
async def test_a_model_larger_than_everything_is_tried_alone():
    supervisor = FakeSupervisor(FakeModels(a=1 * GB, b=99 * GB), HostLimits(10 * GB))
    await supervisor.used("a")
    large = await supervisor.call("b")
    assert supervisor.models.unloaded == ["a"]
    await supervisor.unload("a")
    assert large.has_room


@in_loop
async def test_what_takes_no_memory_here_waits_for_nobody():
    supervisor = one_at_a_time(a=1, b=1, remote=None)
    await supervisor.call("a")
    await supervisor.call("b")
    assert (await supervisor.call("remote")).has_room
    assert supervisor.models.unloaded == []


@in_loop
async def test_memory_is_looked_up_when_nothing_is_loaded():
    free = [10 * GB]
    supervisor = FakeSupervisor(FakeModels(a=4 * GB, b=4 * GB, c=2 * GB))
    supervisor.residency = Residency(
        supervisor.models.is_loaded, supervisor.models.free, lambda: free[0]
    )
    await supervisor.used("a")
    free[0] = 1 * GB  # What a took is not free, and no less may be loaded for that.
    assert (await supervisor.call("b")).has_room
    assert not (await supervisor.call("c")).has_room, "nine tenths of 10 GB"


@in_loop
async def test_what_a_model_is_seen_to_take_counts():
    supervisor = FakeSupervisor(FakeModels(a=1 * GB, b=1 * GB), HostLimits(10 * GB))
    await supervisor.used("a")
    supervisor.residency.measured("a", 9 * GB + 1)
    await supervisor.call("b")
    assert supervisor.models.unloaded == ["a"]


@in_loop
async def test_a_model_that_died_leaves_its_room():
    supervisor = one_at_a_time()
    await supervisor.used("a")
    supervisor.models.loaded.clear()
    supervisor.residency.settle()
    assert (await supervisor.call("b")).has_room and supervisor.models.unloaded == []


@in_loop
async def test_a_smaller_limit_holds_from_the_next_model_on():
    supervisor = FakeSupervisor(FakeModels(a=1, b=1, c=1), HostLimits(max_models=3))
    await supervisor.used("a")
    await supervisor.used("b")
    supervisor.residency.limit(HostLimits(max_models=1))
    assert supervisor.models.unloaded == []
    caller = await supervisor.call("c")
    await supervisor.unload("a", "b")
    assert caller.has_room


@pytest.mark.parametrize(("missing", "unloaded"), [(0, ["a"]), (1, ["a"]), (2 * GB, ["a", "b"])])
@in_loop
async def test_where_the_numbers_were_wrong_idle_ones_make_way(missing, unloaded):
    supervisor = FakeSupervisor(FakeModels(a=GB, b=2 * GB, c=GB, d=GB), HostLimits(10 * GB))
    await supervisor.used("a")
    await supervisor.used("b")
    await supervisor.call("c")
    await supervisor.call("d")
    making = asyncio.create_task(supervisor.residency.make_way("d", missing))
    await calm()
    assert supervisor.models.unloaded == unloaded and not making.done()
    await supervisor.unload(*unloaded)
    assert await making


@in_loop
async def test_where_everybody_is_busy_nobody_makes_way():
    supervisor = FakeSupervisor(FakeModels(a=GB, b=GB), HostLimits(10 * GB))
    await supervisor.call("a")
    await supervisor.call("b")
    assert not await supervisor.residency.make_way("b", GB)
