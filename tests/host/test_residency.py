"""Whose turn it is, and who makes way: the rules of `residency`, without any process."""

import asyncio

import pytest

from async_tests import in_loop
from fake_models import GB, Caller, FakeModels, FakeSupervisor, calm, one_at_a_time
from hearth.backends.contract.models import HostLimits

pytestmark = pytest.mark.timeout(20)


@in_loop
async def test_the_least_recently_used_makes_way_and_no_more_than_need_be():
    supervisor = FakeSupervisor(
        FakeModels(a=1 * GB, b=5 * GB, c=4 * GB, d=5 * GB), HostLimits(10 * GB)
    )
    for key in "abc":
        await supervisor.used(key)
    caller = await supervisor.call("d")
    assert supervisor.models.unloaded == ["b"], "a is older, but its room is not enough"
    assert not caller.has_room, "what is being unloaded still takes memory"
    await supervisor.unload("b")
    assert caller.has_room


@in_loop
async def test_being_used_again_is_what_counts():
    supervisor = FakeSupervisor(FakeModels(a=1, b=1, c=1), HostLimits(max_models=2))
    for key in "aba":
        await supervisor.used(key)
    await supervisor.call("c")
    assert supervisor.models.unloaded == ["b"]


@in_loop
async def test_a_busy_model_is_waited_for():
    supervisor = one_at_a_time()
    busy = await supervisor.call("a")
    queued = await supervisor.call("b")
    assert not queued.has_room and supervisor.models.unloaded == []
    assert supervisor.residency.waiting == {"b": 1}
    await busy.done()
    await calm()
    assert supervisor.models.unloaded == ["a"]
    await supervisor.unload("a")
    assert queued.has_room and supervisor.residency.waiting == {}


@in_loop
async def test_the_first_idle_model_makes_way_even_if_a_busy_one_is_older():
    supervisor = FakeSupervisor(FakeModels(a=1, b=1, c=1), HostLimits(max_models=2))
    older, newer = await supervisor.call("a"), await supervisor.call("b")
    queued = await supervisor.call("c")
    waits = await supervisor.call("a")
    assert not waits.has_room, "a is the one to make way as long as both are busy"
    await newer.done()
    await calm()
    assert supervisor.models.unloaded == ["b"] and waits.has_room
    await supervisor.unload("b")
    assert queued.has_room and not older.task.done()


@in_loop
async def test_all_who_wait_for_one_model_cost_one_model():
    supervisor = FakeSupervisor(FakeModels(a=1, b=1, c=1), HostLimits(max_models=2))
    await supervisor.call("a")
    await supervisor.used("b")
    waiters = [await supervisor.call("c") for _ in range(3)]
    await supervisor.unload("b")
    assert [waiter.has_room for waiter in waiters] == [True] * 3
    assert supervisor.entered[-3:] == waiters, "in the order in which they came"
    assert supervisor.models.unloaded == ["b"]


@in_loop
async def test_who_leaves_the_queue_costs_nobody_anything():
    supervisor = one_at_a_time()
    busy = await supervisor.call("a")
    queued = await supervisor.call("b")
    await queued.left()
    await busy.done()
    await calm()
    assert supervisor.models.unloaded == [] and supervisor.models.loaded == {"a"}
    assert supervisor.residency.waiting == {}


@in_loop
async def test_a_call_that_ends_in_the_queue_gets_no_room():
    supervisor = one_at_a_time()
    await supervisor.call("a")
    queued = await supervisor.call("b")
    queued.ended.set_result(None)
    await queued.task
    assert not queued.has_room and supervisor.residency.waiting == {}


@in_loop
async def test_who_leaves_just_when_the_turn_comes_keeps_no_room():
    supervisor = one_at_a_time()
    await supervisor.call("a")
    for leave in (lambda one: one.task.cancel(), lambda one: one.ended.set_result(None)):
        queued = await supervisor.call("b")
        supervisor.residency.limit(HostLimits(max_models=2))
        leave(queued)
        await asyncio.wait({queued.task})
        assert not queued.has_room and supervisor.residency.users("b") == 0
        supervisor.residency.limit(HostLimits(max_models=1))


@in_loop
async def test_turns_come_in_the_order_of_arrival():
    supervisor = one_at_a_time()
    busy = await supervisor.call("a")
    queued = [await supervisor.call(key) for key in "bca"]
    assert supervisor.residency.waiting == {"b": 1, "c": 1, "a": 1}
    last = busy
    for caller in queued:
        await last.done()
        await calm()
        await supervisor.unload(last.key)
        assert caller.has_room
        last = caller
    assert supervisor.models.unloaded == ["a", "b", "c"]


@in_loop
async def test_a_stream_of_calls_for_one_model_keeps_no_other_out():
    supervisor = one_at_a_time()
    first = await supervisor.call("a")
    other = await supervisor.call("b")
    later = [await supervisor.call("a") for _ in range(3)]
    assert not any(caller.has_room for caller in later)
    await first.done()
    await calm()
    await supervisor.unload("a")
    assert other.has_room and not any(caller.has_room for caller in later)
    await other.done()
    await calm()
    await supervisor.unload("b")
    assert all(caller.has_room for caller in later)


@in_loop
async def test_two_busy_models_do_not_take_turns_to_keep_a_third_out():
    supervisor = FakeSupervisor(FakeModels(a=1, b=1, c=1), HostLimits(max_models=2))
    older = [await supervisor.call("a") for _ in range(2)]
    await supervisor.call("b")
    other = await supervisor.call("c")
    later = await supervisor.call("a")
    await older[0].done()
    await calm()
    assert not later.has_room, "a is still the one to make way"
    await older[1].done()
    await calm()
    await supervisor.unload("a")
    assert other.has_room and not later.has_room


@in_loop
async def test_when_who_waited_is_gone_everybody_goes_on():
    supervisor = one_at_a_time()
    await supervisor.call("a")
    other = await supervisor.call("b")
    later = await supervisor.call("a")
    assert not later.has_room
    await other.left()
    await calm()
    assert later.has_room and supervisor.models.unloaded == []


@in_loop
async def test_calls_for_models_that_need_not_make_way_go_on():
    supervisor = FakeSupervisor(FakeModels(a=4 * GB, b=4 * GB, c=4 * GB), HostLimits(10 * GB))
    await supervisor.call("a")
    await supervisor.call("b")
    queued = await supervisor.call("c")
    assert not queued.has_room
    assert (await supervisor.call("b")).has_room
    assert not (await supervisor.call("a")).has_room


@in_loop
async def test_nobody_goes_ahead_before_it_is_known_who_must_make_way():
    supervisor = FakeSupervisor(FakeModels(a=6 * GB, b=6 * GB), HostLimits(10 * GB))
    first = await supervisor.call("a")
    read = asyncio.get_running_loop().create_future()
    supervisor.models.needs["b"] = read
    other, later = await supervisor.call("b"), await supervisor.call("a")
    assert not other.has_room and not later.has_room
    read.set_result(6 * GB)
    await calm()
    assert not later.has_room, "a must make way"
    await first.done()
    await calm()
    await supervisor.unload("a")
    assert other.has_room and not later.has_room


@in_loop
async def test_a_small_model_does_not_overtake_a_large_one():
    supervisor = FakeSupervisor(FakeModels(a=6 * GB, b=8 * GB, c=1 * GB), HostLimits(10 * GB))
    busy = await supervisor.call("a")
    large, small = await supervisor.call("b"), await supervisor.call("c")
    assert not large.has_room and not small.has_room
    await busy.done()
    await calm()
    await supervisor.unload("a")
    assert large.has_room and small.has_room


@in_loop
async def test_two_that_find_the_same_idle_model_are_both_served():
    supervisor = one_at_a_time()
    await supervisor.used("a")
    first, second = Caller(supervisor, "b"), Caller(supervisor, "c")
    await calm()
    await supervisor.unload("a")
    assert first.has_room and not second.has_room
    await first.done()
    await calm()
    await supervisor.unload("b")
    assert second.has_room
    assert supervisor.models.unloaded == ["a", "b"]


@in_loop
async def test_a_call_for_a_model_that_is_being_unloaded_waits_for_the_next_load():
    supervisor = one_at_a_time()
    await supervisor.used("a")
    other = await supervisor.call("b")
    again = await supervisor.call("a")
    assert supervisor.models.unloading and not again.has_room
    await supervisor.unload("a")
    assert other.has_room and not again.has_room
    await other.done()
    await calm()
    await supervisor.unload("b")
    assert again.has_room
