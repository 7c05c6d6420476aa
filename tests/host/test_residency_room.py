"""What fits beside what: the sums of `residency`, without any process."""

import asyncio

import pytest

from async_tests import in_loop
from fake_models import GB, FakeModels, House, calm, one_at_a_time
from hearth.backends.contract.models import HostLimits
from hearth.backends.host.residency import Residency

pytestmark = pytest.mark.timeout(20)


@in_loop
async def test_models_are_loaded_side_by_side_while_they_fit():
    house = House(FakeModels(a=4 * GB, b=5 * GB, c=1 * GB), HostLimits(10 * GB))
    for key in "abc":
        assert (await house.call(key)).has_room
    assert house.models.unloaded == []


@in_loop
async def test_a_model_that_comes_alone_does_not_wait_until_its_file_is_read():
    house = House(FakeModels(b=6 * GB), HostLimits(10 * GB))
    read = house.models.needs["a"] = asyncio.get_running_loop().create_future()
    assert (await house.call("a")).has_room
    other = await house.call("b")
    assert not other.has_room
    read.set_result(4 * GB)
    await calm()
    assert other.has_room


@in_loop
async def test_where_it_cannot_be_said_what_a_model_needs_it_is_tried():
    house = one_at_a_time()
    await house.call("a")
    house.models.needs["b"] = asyncio.get_running_loop().create_future()
    house.models.needs["b"].set_exception(RuntimeError("a defect"))
    assert (await house.call("b")).has_room


@in_loop
async def test_a_model_larger_than_everything_is_tried_alone():
    house = House(FakeModels(a=1 * GB, b=99 * GB), HostLimits(10 * GB))
    await house.used("a")
    large = await house.call("b")
    assert house.models.unloaded == ["a"]
    await house.unload("a")
    assert large.has_room


@in_loop
async def test_what_takes_no_memory_here_waits_for_nobody():
    house = one_at_a_time(a=1, b=1, remote=None)
    await house.call("a")
    await house.call("b")
    assert (await house.call("remote")).has_room
    assert house.models.unloaded == []


@in_loop
async def test_memory_is_looked_up_when_nothing_is_loaded():
    free = [10 * GB]
    house = House(FakeModels(a=4 * GB, b=4 * GB, c=2 * GB))
    house.room = Residency(house.models.is_loaded, house.models.free, lambda: free[0])
    await house.used("a")
    free[0] = 1 * GB  # What a took is not free, and no less may be loaded for that.
    assert (await house.call("b")).has_room
    assert not (await house.call("c")).has_room, "nine tenths of 10 GB"


@in_loop
async def test_what_a_model_is_seen_to_take_counts():
    house = House(FakeModels(a=1 * GB, b=1 * GB), HostLimits(10 * GB))
    await house.used("a")
    house.room.measured("a", 9 * GB + 1)
    await house.call("b")
    assert house.models.unloaded == ["a"]


@in_loop
async def test_a_model_that_died_leaves_its_room():
    house = one_at_a_time()
    await house.used("a")
    house.models.loaded.clear()
    house.room.settle()
    assert (await house.call("b")).has_room and house.models.unloaded == []


@in_loop
async def test_a_smaller_limit_holds_from_the_next_model_on():
    house = House(FakeModels(a=1, b=1, c=1), HostLimits(max_models=3))
    await house.used("a")
    await house.used("b")
    house.room.limit(HostLimits(max_models=1))
    assert house.models.unloaded == []
    caller = await house.call("c")
    await house.unload("a", "b")
    assert caller.has_room


@pytest.mark.parametrize(("missing", "unloaded"), [(0, ["a"]), (1, ["a"]), (2 * GB, ["a", "b"])])
@in_loop
async def test_where_the_numbers_were_wrong_idle_ones_make_way(missing, unloaded):
    house = House(FakeModels(a=GB, b=2 * GB, c=GB, d=GB), HostLimits(10 * GB))
    await house.used("a")
    await house.used("b")
    await house.call("c")
    await house.call("d")
    making = asyncio.create_task(house.room.make_way("d", missing))
    await calm()
    assert house.models.unloaded == unloaded and not making.done()
    await house.unload(*unloaded)
    assert await making


@in_loop
async def test_where_everybody_is_busy_nobody_makes_way():
    house = House(FakeModels(a=GB, b=GB), HostLimits(10 * GB))
    await house.call("a")
    await house.call("b")
    assert not await house.room.make_way("b", GB)
