"""Whose turn it is, and who makes way: the rules of `residency`, without any process."""

import asyncio

import pytest

from async_tests import in_loop
from fake_models import GB, Caller, FakeModels, House, calm, one_at_a_time
from hearth.backends.contract.models import HostLimits

pytestmark = pytest.mark.timeout(20)


@in_loop
async def test_the_least_recently_used_makes_way_and_no_more_than_need_be():
    house = House(FakeModels(a=1 * GB, b=5 * GB, c=4 * GB, d=5 * GB), HostLimits(10 * GB))
    for key in "abc":
        await house.used(key)
    caller = await house.call("d")
    assert house.models.unloaded == ["b"], "a is older, but its room is not enough"
    assert not caller.has_room, "what is being unloaded still takes memory"
    await house.unload("b")
    assert caller.has_room


@in_loop
async def test_being_used_again_is_what_counts():
    house = House(FakeModels(a=1, b=1, c=1), HostLimits(max_models=2))
    for key in "aba":
        await house.used(key)
    await house.call("c")
    assert house.models.unloaded == ["b"]


@in_loop
async def test_a_busy_model_is_waited_for():
    house = one_at_a_time()
    busy = await house.call("a")
    queued = await house.call("b")
    assert not queued.has_room and house.models.unloaded == []
    assert house.room.waiting == {"b": 1}
    await busy.done()
    await calm()
    assert house.models.unloaded == ["a"]
    await house.unload("a")
    assert queued.has_room and house.room.waiting == {}


@in_loop
async def test_the_first_idle_model_makes_way_even_if_a_busy_one_is_older():
    house = House(FakeModels(a=1, b=1, c=1), HostLimits(max_models=2))
    older, newer = await house.call("a"), await house.call("b")
    queued = await house.call("c")
    waits = await house.call("a")
    assert not waits.has_room, "a is the one to make way as long as both are busy"
    await newer.done()
    await calm()
    assert house.models.unloaded == ["b"] and waits.has_room
    await house.unload("b")
    assert queued.has_room and not older.task.done()


@in_loop
async def test_all_who_wait_for_one_model_cost_one_model():
    house = House(FakeModels(a=1, b=1, c=1), HostLimits(max_models=2))
    await house.call("a")
    await house.used("b")
    waiters = [await house.call("c") for _ in range(3)]
    await house.unload("b")
    assert [waiter.has_room for waiter in waiters] == [True] * 3
    assert house.entered[-3:] == waiters, "in the order in which they came"
    assert house.models.unloaded == ["b"]


@in_loop
async def test_who_leaves_the_queue_costs_nobody_anything():
    house = one_at_a_time()
    busy = await house.call("a")
    queued = await house.call("b")
    await queued.left()
    await busy.done()
    await calm()
    assert house.models.unloaded == [] and house.models.loaded == {"a"}
    assert house.room.waiting == {}


@in_loop
async def test_a_call_that_ends_in_the_queue_gets_no_room():
    house = one_at_a_time()
    await house.call("a")
    queued = await house.call("b")
    queued.ended.set_result(None)
    await queued.task
    assert not queued.has_room and house.room.waiting == {}


@in_loop
async def test_who_leaves_just_when_the_turn_comes_keeps_no_room():
    house = one_at_a_time()
    await house.call("a")
    for leave in (lambda one: one.task.cancel(), lambda one: one.ended.set_result(None)):
        queued = await house.call("b")
        house.room.limit(HostLimits(max_models=2))
        leave(queued)
        await asyncio.wait({queued.task})
        assert not queued.has_room and house.room.users("b") == 0
        house.room.limit(HostLimits(max_models=1))


@in_loop
async def test_turns_come_in_the_order_of_arrival():
    house = one_at_a_time()
    busy = await house.call("a")
    queued = [await house.call(key) for key in "bca"]
    assert house.room.waiting == {"b": 1, "c": 1, "a": 1}
    last = busy
    for caller in queued:
        await last.done()
        await calm()
        await house.unload(last.key)
        assert caller.has_room
        last = caller
    assert house.models.unloaded == ["a", "b", "c"]


@in_loop
async def test_a_stream_of_calls_for_one_model_keeps_no_other_out():
    house = one_at_a_time()
    first = await house.call("a")
    other = await house.call("b")
    later = [await house.call("a") for _ in range(3)]
    assert not any(caller.has_room for caller in later)
    await first.done()
    await calm()
    await house.unload("a")
    assert other.has_room and not any(caller.has_room for caller in later)
    await other.done()
    await calm()
    await house.unload("b")
    assert all(caller.has_room for caller in later)


@in_loop
async def test_two_busy_models_do_not_take_turns_to_keep_a_third_out():
    house = House(FakeModels(a=1, b=1, c=1), HostLimits(max_models=2))
    older = [await house.call("a") for _ in range(2)]
    await house.call("b")
    other = await house.call("c")
    later = await house.call("a")
    await older[0].done()
    await calm()
    assert not later.has_room, "a is still the one to make way"
    await older[1].done()
    await calm()
    await house.unload("a")
    assert other.has_room and not later.has_room


@in_loop
async def test_when_who_waited_is_gone_everybody_goes_on():
    house = one_at_a_time()
    await house.call("a")
    other = await house.call("b")
    later = await house.call("a")
    assert not later.has_room
    await other.left()
    await calm()
    assert later.has_room and house.models.unloaded == []


@in_loop
async def test_calls_for_models_that_need_not_make_way_go_on():
    house = House(FakeModels(a=4 * GB, b=4 * GB, c=4 * GB), HostLimits(10 * GB))
    await house.call("a")
    await house.call("b")
    queued = await house.call("c")
    assert not queued.has_room
    assert (await house.call("b")).has_room
    assert not (await house.call("a")).has_room


@in_loop
async def test_nobody_goes_ahead_before_it_is_known_who_must_make_way():
    house = House(FakeModels(a=6 * GB, b=6 * GB), HostLimits(10 * GB))
    first = await house.call("a")
    read = asyncio.get_running_loop().create_future()
    house.models.needs["b"] = read
    other, later = await house.call("b"), await house.call("a")
    assert not other.has_room and not later.has_room
    read.set_result(6 * GB)
    await calm()
    assert not later.has_room, "a must make way"
    await first.done()
    await calm()
    await house.unload("a")
    assert other.has_room and not later.has_room


@in_loop
async def test_a_small_model_does_not_overtake_a_large_one():
    house = House(FakeModels(a=6 * GB, b=8 * GB, c=1 * GB), HostLimits(10 * GB))
    busy = await house.call("a")
    large, small = await house.call("b"), await house.call("c")
    assert not large.has_room and not small.has_room
    await busy.done()
    await calm()
    await house.unload("a")
    assert large.has_room and small.has_room


@in_loop
async def test_two_that_find_the_same_idle_model_are_both_served():
    house = one_at_a_time()
    await house.used("a")
    first, second = Caller(house, "b"), Caller(house, "c")
    await calm()
    await house.unload("a")
    assert first.has_room and not second.has_room
    await first.done()
    await calm()
    await house.unload("b")
    assert second.has_room
    assert house.models.unloaded == ["a", "b"]


@in_loop
async def test_a_call_for_a_model_that_is_being_unloaded_waits_for_the_next_load():
    house = one_at_a_time()
    await house.used("a")
    other = await house.call("b")
    again = await house.call("a")
    assert house.models.unloading and not again.has_room
    await house.unload("a")
    assert other.has_room and not again.has_room
    await other.done()
    await calm()
    await house.unload("b")
    assert again.has_room
