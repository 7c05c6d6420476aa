"""Pinned prefixes: in the memory manager, and requested by requests."""

from __future__ import annotations

import pytest

from fake_runner import FakeRunner
from hearth.backends.engine import background
from hearth.backends.engine.engine import Engine
from hearth.backends.errors import InternalError
from sequence_memory import Memory
from speakers import ask, at_rest, drain, generation

KINDS = ["full", "recurrent", "sliding"]
SYSTEM = [(k * 7) % 97 for k in range(40)]


def fill(memory, *tokens, count=20):
    """Run and keep a sequence of each of `tokens`, one after the other."""
    for token in tokens:
        memory.keep([token] * count)


def test_a_pinned_prefix_outlives_those_that_were_used_after_it(kind):
    memory = kind(kept_tokens=60)
    memory.run(0, SYSTEM)
    assert memory.cache.pin(0, 30, 60.0)
    memory.cache.release(0, keep=False)
    assert memory.stats.pinned_tokens == memory.stats.kept_tokens == 30
    fill(memory, *range(1, 7))
    assert memory.cache.match([*SYSTEM[:30], 99]) == 30
    memory.now = 60.0
    assert memory.stats.pinned_tokens == 0
    assert memory.cache.match([*SYSTEM[:30], 99]) == 30, "kept as any other now"
    fill(memory, *range(1, 7))
    assert memory.cache.match([*SYSTEM[:30], 99]) == 0


def test_a_hit_renews_a_pin_and_less_than_a_hit_does_not(kind):
    memory = kind()
    memory.run(0, SYSTEM)
    memory.cache.pin(0, 30, 10.0)
    memory.cache.release(0, keep=False)
    for memory.now in (9.0, 18.0):
        memory.keep([*SYSTEM[:30], 1])
    memory.now = 27.0
    memory.keep([*SYSTEM[:29], 1])
    assert memory.stats.pinned_tokens == 30
    memory.now = 28.0
    assert memory.stats.pinned_tokens == 0


def test_pinning_again_keeps_the_longer_time():
    memory = Memory()
    memory.run(0, SYSTEM)
    assert memory.cache.pin(0, 30, 100.0) and memory.cache.pin(0, 30, 10.0)
    assert memory.stats.kept_prefixes == 1
    memory.now = 99.0
    assert memory.stats.pinned_tokens == 30
    memory.now = 100.0
    assert memory.stats.pinned_tokens == 0


def test_what_is_kept_already_is_pinned_where_it_is():
    memory = Memory(kind="recurrent")
    memory.run(0, SYSTEM)
    memory.cache.checkpoint(0)
    assert memory.cache.pin(0, len(SYSTEM), 5.0)
    assert (memory.stats.kept_prefixes, memory.stats.pinned_tokens) == (1, len(SYSTEM))


def test_nested_pins_hold_their_cells_once():
    memory = Memory()
    memory.run(0, SYSTEM)
    assert memory.cache.pin(0, 10, 5.0) and memory.cache.pin(0, 40, 5.0)
    assert memory.stats.pinned_tokens == 40
    memory.run(1, [*SYSTEM[:20], 1, 2])
    assert memory.cache.pin(1, 22, 5.0)
    assert memory.stats.pinned_tokens == 42


def test_pins_hold_half_of_the_pool_at_most(kind):
    memory = kind(pool=64, kept_tokens=64)
    memory.run(0, SYSTEM)
    assert memory.cache.pin(0, 32, 5.0) and not memory.cache.pin(0, 33, 5.0)
    memory.cache.release(0, keep=True)
    assert (memory.stats.pinned_tokens, memory.stats.kept_tokens) == (32, 40)
    assert memory.cache.match([*SYSTEM, 1]) == 40, "what is not pinned is kept as any other"
    few = kind(pool=64, kept_tokens=8)
    few.run(0, SYSTEM)
    assert not few.cache.pin(0, 9, 5.0) and few.cache.pin(0, 8, 5.0)


def test_slots_find_an_id_whatever_is_pinned():
    memory = Memory(slots=2, kept=2, pool=400, kept_tokens=400)
    for token in range(2):
        memory.run(0, [token] * 9)
        assert memory.cache.pin(0, 9, 5.0)
        memory.cache.release(0, keep=True)
    memory.run(0, [7] * 9)
    assert not memory.cache.pin(0, 9, 5.0)
    memory.run(1, [8] * 9)
    assert [memory.cache.match([token] * 10) for token in range(2)] == [9, 9]
    none = Memory(slots=2, kept=0)
    none.run(0, SYSTEM)
    assert not none.cache.pin(0, 9, 5.0)


def test_a_chat_that_grows_pins_its_last_state_and_the_first_ones():
    memory = Memory(slots=2, kept=3, pool=400, kept_tokens=400)
    memory.run(0, SYSTEM)
    assert all(memory.cache.pin(0, tokens, 5.0) for tokens in (5, 10, 20, 30, 40))
    memory.cache.release(0, keep=False)
    assert memory.stats.pinned_tokens == 40
    memory.now = 4.0
    memory.keep([*SYSTEM[:10], 1])
    memory.now = 5.0
    assert memory.stats.pinned_tokens == 10


def test_a_pin_that_asks_for_longer_is_not_given_up():
    memory = Memory(slots=1, kept=1)
    memory.run(0, SYSTEM)
    assert memory.cache.pin(0, 20, 50.0)
    assert not memory.cache.pin(0, 40, 5.0)
    assert memory.cache.pin(0, 40, 50.0)
    assert memory.stats.pinned_tokens == 40


def test_others_find_no_room_beside_pins_but_one_alone_does(kind):
    memory = kind(pool=100, kept_tokens=100)
    memory.run(0, SYSTEM)
    memory.cache.pin(0, 40, 5.0)
    memory.cache.release(0, keep=True)
    assert memory.cache.free_tokens() == 100
    memory.run(0, [1] * 20)
    assert memory.cache.free_tokens() == 40
    assert not memory.cache.reserve(1, 41) and memory.cache.reserve(1, 40)
    assert not memory.cache.reserve(0, 21)
    memory.cache.release(1, keep=False)
    assert memory.cache.reserve(0, 60) and memory.stats.pinned_tokens == 40
    assert memory.cache.reserve(0, 61) and memory.stats.pinned_tokens == 0
    memory.check()


def test_pins_go_last_and_the_least_recently_used_first():
    memory = Memory(slots=1, pool=100, kept_tokens=100)
    for token in (1, 2):
        memory.run(0, [token] * 20)
        memory.cache.pin(0, 20, 5.0)
        memory.cache.release(0, keep=True)
    fill(memory, 3)
    memory.keep([1] * 21)
    assert memory.cache.reserve(0, 65)
    found = [memory.cache.match([token] * 21) for token in (1, 2, 3)]
    assert found == [20, 0, 0]


@pytest.mark.parametrize("kind", ["recurrent", "sliding"])
def test_a_memory_without_a_past_is_pinned_as_a_whole(kind):
    memory = Memory(kind=kind)
    memory.run(0, SYSTEM)
    assert not memory.cache.pin(0, 30, 5.0)
    assert memory.cache.pin(0, 40, 5.0)
    memory.compute(0, [1, 2])
    memory.cache.release(0, keep=False)
    assert memory.run(1, [*SYSTEM, 9]) == 40


def test_forgetting_everything_forgets_pins_and_a_smaller_pool_some():
    memory = Memory(pool=100, kept_tokens=100)
    for token in (1, 2):
        memory.run(0, [token] * 20)
        memory.cache.pin(0, 20, 5.0)
        memory.cache.release(0, keep=True)
    memory.cache.limit(60)
    assert memory.stats.pinned_tokens == 20 and memory.cache.match([2] * 21) == 20
    memory.cache.clear()
    assert memory.stats.pinned_tokens == memory.cache.cells == 0


def test_only_what_is_held_can_be_pinned():
    memory = Memory()
    memory.run(0, SYSTEM)
    for tokens in (0, 41):
        with pytest.raises(InternalError, match="40 tokens"):
            memory.cache.pin(0, tokens, 5.0)


# ---- asked for by requests


class World:
    """An engine, its runner and the time."""

    def __init__(self, **how):
        self.now = 0.0
        self.runner = FakeRunner(**({"context": 100, "pool": 200, "slots": 2} | how))
        self.engine = Engine(self.runner, kv_clock=lambda: self.now)
        self.asked = 0

    def ask(self, prompt, **how):
        """The answer to `prompt`, generated alone."""
        self.asked += 1
        made, heard = generation(self.asked, prompt, self.runner, tokens=3, **how)
        self.engine.submit(made)
        drain(self.engine)
        assert heard.ids == self.runner.greedy(prompt, 3)
        return heard.last.usage

    def crowd(self):
        """Run many other requests, which need all the memory."""
        for seed in range(12):
            self.ask([(seed * k + seed) % 89 for k in range(50)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_pins_the_beginning_of_its_prompt(kind):
    world = World(kind=kind)
    usage = world.ask([*SYSTEM, 1, 2, 3], pins=((40, 300.0),), kept_tokens=40)
    assert (usage.cached_tokens, usage.kept_tokens) == (0, 40)
    assert world.engine.stats().pinned_tokens == 40
    world.crowd()
    usage = world.ask([*SYSTEM, 4, 5], pins=((40, 300.0),), kept_tokens=40)
    assert (usage.cached_tokens, usage.kept_tokens) == (40, 0)
    world.now = 299.0
    world.crowd()
    assert world.ask([*SYSTEM, 6]).cached_tokens == 40
    world.now = 299.0 + 300.0
    world.crowd()
    assert world.ask([*SYSTEM, 7]).cached_tokens == 0
    assert world.engine.stats().pinned_tokens == 0
    assert at_rest(world.engine, world.runner)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [7, 16, 64])
def test_several_pins_of_one_prompt_are_each_found(kind, chunk):
    world = World(kind=kind, chunk=chunk)
    prompt = [*SYSTEM, 1, 2, 3]
    world.ask(prompt, pins=((20, 300.0), (43, 300.0), (40, 300.0)))
    world.crowd()
    found = [world.ask([*prompt[:at], 96, 95]).cached_tokens for at in (20, 40, 43)]
    assert found == [20, 40, 43]


def test_a_prompt_that_is_computed_beside_the_steps_is_pinned_too(monkeypatch):
    monkeypatch.setattr(background, "WORTH_TOKENS", 6)
    monkeypatch.setattr(background, "WORTH_STEPS", 0)
    world = World(beside=1)
    other, _ = generation(90, [5, 6], world.runner, tokens=30)
    world.engine.submit(other)
    world.engine.run_once()
    world.ask([*SYSTEM, 1, 2, 3], pins=((40, 300.0),))
    assert world.runner.side is not None
    assert world.engine.stats().pinned_tokens == 40


def test_what_needs_the_whole_pool_gets_it_when_it_runs_alone():
    world = World(context=200, pool=200)
    world.ask([*SYSTEM, 1], pins=((40, 300.0),))
    other, heard = generation(90, [5, 6], world.runner, tokens=20)
    world.engine.submit(other)
    world.engine.run_once()
    long = [(k * 11) % 97 for k in range(190)]
    made, heard_long = generation(91, long, world.runner, tokens=10)
    world.engine.submit(made)
    world.engine.run_once()
    assert world.engine.stats().waiting == 1, "pins stay while somebody else runs"
    drain(world.engine)
    assert heard.ids == world.runner.greedy([5, 6], 20)
    assert heard_long.ids == world.runner.greedy(long, 10)
    assert world.engine.stats().pinned_tokens == 0
    assert at_rest(world.engine, world.runner)


def test_those_who_run_make_way_before_pins_do():
    world = World(context=120, pool=120)
    world.ask([*SYSTEM, 1], pins=((40, 300.0),))
    prompts = [[1] * 20, [2] * 20]
    heard = ask(world.engine, world.runner, prompts, tokens=50)
    drain(world.engine)
    for prompt, listener in zip(prompts, heard, strict=True):
        assert listener.ids == world.runner.greedy(prompt, 50)
    assert world.engine.stats().preemptions > 0
    assert world.engine.stats().pinned_tokens == 40


def test_a_pin_beyond_what_pins_may_hold_is_told_and_kept_as_any_other():
    world = World(pool=100)
    prompt = [(k * 3) % 97 for k in range(70)]
    world.ask(prompt, pins=((60, 300.0),))
    assert world.engine.stats().pinned_tokens == 0
    small = World(pool=160)
    small.ask(prompt, pins=((60, 300.0),))
    assert small.engine.stats().pinned_tokens == 60


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_that_reuses_nothing_computes_all_of_its_prompt(kind):
    world = World(kind=kind, chunk=16)
    prompt = [*SYSTEM, 1, 2, 3]
    world.ask(prompt, pins=((40, 300.0),))
    before = world.runner.computed_tokens
    usage = world.ask(prompt, reuse_prefix=False)
    assert usage.cached_tokens == 0
    assert world.runner.computed_tokens - before == len(prompt) + 2
    assert world.ask(prompt).cached_tokens >= 40
    assert at_rest(world.engine, world.runner)


def test_one_that_reuses_nothing_says_the_same_after_it_was_put_aside():
    world = World(context=120, pool=120, can_save=False)
    prompts = [[*SYSTEM[:30], last] for last in range(2)]
    heard = ask(world.engine, world.runner, prompts, tokens=60, reuse_prefix=False)
    drain(world.engine)
    assert world.engine.stats().preemptions > 0
    for prompt, listener in zip(prompts, heard, strict=True):
        assert listener.ids == world.runner.greedy(prompt, 60)
        assert listener.last.usage.cached_tokens == 0


def test_steps_and_their_rows_are_counted():
    world = World(chunk=64)
    ask(world.engine, world.runner, [[1] * 5, [2] * 5], tokens=10)
    drain(world.engine)
    stats = world.engine.stats()
    assert (stats.steps, stats.rows) == (10, 20)
    assert stats.rows == sum(len(plan.rows) for plan in world.runner.tape)
