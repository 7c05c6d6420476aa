"""What fits beside what: the sums of `residency`, without any process."""

import asyncio

import pytest

from fake_models import FakeModels, House, calm
from hearth.backends.contract.models import HostLimits
from hearth.backends.host.residency import Residency

GB = 10**9


def one_at_a_time(**needs):
    return House(FakeModels(**(needs or {"a": 1, "b": 1, "c": 1})), HostLimits(max_models=1))


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_models_are_loaded_side_by_side_while_they_fit():
    async def scenario():
        house = House(FakeModels(a=4 * GB, b=5 * GB, c=1 * GB), HostLimits(10 * GB))
        for key in "abc":
            assert (await house.call(key)).has_room
        assert house.models.unloaded == []

    run(scenario)


def test_a_model_that_comes_alone_does_not_wait_until_its_file_is_read():
    async def scenario():
        house = House(FakeModels(b=6 * GB), HostLimits(10 * GB))
        read = house.models.needs["a"] = asyncio.get_running_loop().create_future()
        assert (await house.call("a")).has_room
        other = await house.call("b")
        assert not other.has_room
        read.set_result(4 * GB)
        await calm()
        assert other.has_room

    run(scenario)


def test_where_it_cannot_be_said_what_a_model_needs_it_is_tried():
    async def scenario():
        house = one_at_a_time()
        await house.call("a")
        house.models.needs["b"] = asyncio.get_running_loop().create_future()
        house.models.needs["b"].set_exception(RuntimeError("a defect"))
        assert (await house.call("b")).has_room

    run(scenario)


def test_a_model_larger_than_everything_is_tried_alone():
    async def scenario():
        house = House(FakeModels(a=1 * GB, b=99 * GB), HostLimits(10 * GB))
        await house.used("a")
        large = await house.call("b")
        assert house.models.unloaded == ["a"]
        await house.unload("a")
        assert large.has_room

    run(scenario)


def test_what_takes_no_memory_here_waits_for_nobody():
    async def scenario():
        house = one_at_a_time(a=1, b=1, remote=None)
        await house.call("a")
        await house.call("b")
        assert (await house.call("remote")).has_room
        assert house.models.unloaded == []

    run(scenario)


def test_memory_is_looked_up_when_nothing_is_loaded():
    async def scenario():
        free = [10 * GB]
        house = House(FakeModels(a=4 * GB, b=4 * GB, c=2 * GB))
        house.room = Residency(house.models.is_loaded, house.models.free, lambda: free[0])
        await house.used("a")
        free[0] = 1 * GB  # What a took is not free, and no less may be loaded for that.
        assert (await house.call("b")).has_room
        assert not (await house.call("c")).has_room, "nine tenths of 10 GB"

    run(scenario)


def test_what_a_model_is_seen_to_take_counts():
    async def scenario():
        house = House(FakeModels(a=1 * GB, b=1 * GB), HostLimits(10 * GB))
        await house.used("a")
        house.room.measured("a", 9 * GB + 1)
        await house.call("b")
        assert house.models.unloaded == ["a"]

    run(scenario)


def test_a_model_that_died_leaves_its_room():
    async def scenario():
        house = one_at_a_time()
        await house.used("a")
        house.models.loaded.clear()
        house.room.settle()
        assert (await house.call("b")).has_room and house.models.unloaded == []

    run(scenario)


def test_a_smaller_limit_holds_from_the_next_model_on():
    async def scenario():
        house = House(FakeModels(a=1, b=1, c=1), HostLimits(max_models=3))
        await house.used("a")
        await house.used("b")
        house.room.limit(HostLimits(max_models=1))
        assert house.models.unloaded == []
        caller = await house.call("c")
        await house.unload("a", "b")
        assert caller.has_room

    run(scenario)


@pytest.mark.parametrize(("missing", "unloaded"), [(0, ["a"]), (1, ["a"]), (2 * GB, ["a", "b"])])
def test_where_the_numbers_were_wrong_idle_ones_make_way(missing, unloaded):
    async def scenario():
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

    run(scenario)


def test_where_everybody_is_busy_nobody_makes_way():
    async def scenario():
        house = House(FakeModels(a=GB, b=GB), HostLimits(10 * GB))
        await house.call("a")
        await house.call("b")
        assert not await house.room.make_way("b", GB)

    run(scenario)
