"""An error or lack of memory in one request does not harm any other."""

import pytest

from fake_runner import FakeRunner
from hearth.backends.contract.events import Failed, Finished
from hearth.backends.engine.choices import ChoiceGroup
from hearth.backends.engine.engine import Engine
from hearth.backends.errors import Busy, InternalError
from speakers import Listener, ask, at_rest, drain, generation


class Small(FakeRunner):
    """The library finds memory for `most` cells only, which is unknown before it tries."""

    most = 100

    def __init__(self, **how):
        super().__init__(allocated=1, **how)
        grow = self.store.make_room

        def make_room(cells):
            if cells > self.most:
                raise Busy("The pool cannot grow.", retry_after_s=1.0)
            grow(cells)

        self.store.make_room = make_room


class Lonely(FakeRunner):
    """Finds no memory for two rows, whatever the engine's accounts show."""

    def step(self, plan):
        if len(plan.rows) > 1:
            raise Busy("No room for two.", retry_after_s=1.0)
        return super().step(plan)


class Picky(FakeRunner):
    """Fails at a certain token, and then loses what it cannot roll back."""

    bad = 500

    def step(self, plan):
        if any(self.bad in row.tokens for row in plan.rows):
            raise InternalError("a bad token", lost_slots=self._lose(plan))
        return super().step(plan)


def test_a_step_that_fails_for_one_choice_ends_its_request_and_no_other():
    class Broken(FakeRunner):
        def step(self, plan):
            if any(row.tokens[0] == 7 and row.start == 0 for row in plan.rows):
                raise RuntimeError("seven")
            return super().step(plan)

    runner = Broken(chunk=32)
    engine = Engine(runner)
    heard = Listener()
    group = ChoiceGroup(heard, 3)
    choices = [
        generation(9, [7, 8, 9], runner, emit=group.emitter(index), index=index)[0]
        for index in range(3)
    ]
    engine.submit(*choices)
    [other] = ask(engine, runner, [[1, 2, 3]])
    drain(engine)
    assert [type(event) for event in heard.events].count(Failed) == 1
    assert other.ids == runner.greedy([1, 2, 3], 10)
    assert at_rest(engine, runner)


class TakenApart(Lonely):
    """Its first step of one row finds no memory; steps of several rows fail."""

    def step(self, plan):
        if len(plan.rows) > 1:
            raise RuntimeError("too many")
        if plan.rows[0].slot == 0 and len(self.tape) < 1:
            self.tape.append(plan)
            raise Busy("No room.", retry_after_s=1.0)
        return super().step(plan)


@pytest.mark.parametrize("kind", [Lonely, TakenApart])
def test_want_of_memory_that_stays_is_no_endless_loop(kind):
    runner = kind(slots=3, chunk=64)
    engine = Engine(runner)
    prompts = [[n + 1] * 9 for n in range(3)]
    heard = ask(engine, runner, prompts)
    drain(engine, 1000)
    assert [listener.ids for listener in heard] == [runner.greedy(p, 10) for p in prompts]
    assert at_rest(engine, runner)


def test_kept_prefixes_make_way_before_the_only_one_that_runs_fails():
    runner = Small(context=200, pool=200, kept_tokens=100)
    engine = Engine(runner)
    [first] = ask(engine, runner, [[k % 97 for k in range(60)]])
    drain(engine)
    [second] = ask(engine, runner, [[(k * 5 + 1) % 97 for k in range(70)]])
    drain(engine)
    assert first.ids == runner.greedy([k % 97 for k in range(60)], 10)
    assert isinstance(second.last, Finished)
    assert second.ids == runner.greedy([(k * 5 + 1) % 97 for k in range(70)], 10)


@pytest.mark.parametrize("can_save", [True, False])
def test_prefill_goes_on_when_the_pool_turns_out_smaller_than_planned(can_save):
    runner = Small(context=200, pool=200, kept_tokens=100, slots=3, can_save=can_save)
    engine = Engine(runner)
    prompts = [[(k * (n + 2) + n) % 97 for k in range(80 - 10 * n)] for n in range(3)]
    heard = ask(engine, runner, prompts)
    drain(engine)
    assert [type(listener.last) for listener in heard] == [Finished] * 3
    assert [listener.ids for listener in heard] == [runner.greedy(p, 10) for p in prompts]
    assert at_rest(engine, runner)


def test_want_of_memory_for_a_moment_is_not_for_good():
    runner = Small(context=200, pool=200, kept_tokens=100)
    now = [0.0]
    engine = Engine(runner, kv_clock=lambda: now[0])
    long = [k % 97 for k in range(150)]

    def answer():
        [heard] = ask(engine, runner, [long])
        drain(engine, 1000)
        assert at_rest(engine, runner)
        return heard

    assert answer().last.error.code == "does_not_fit"
    assert answer().last.error.code == "does_not_fit"
    assert engine.kv.pool_tokens < 150
    runner.most = 200
    assert answer().ids == runner.greedy(long, 10), "it is tried before it fails"
    assert engine.kv.pool_tokens == 200


def test_after_want_of_memory_more_is_tried_again_later_and_later():
    runner = Small(context=200, pool=200, kept_tokens=100, slots=3)
    now = [0.0]
    engine = Engine(runner, kv_clock=lambda: now[0])
    prompts = [[(k * (n + 2) + n) % 97 for k in range(80 - 10 * n)] for n in range(3)]
    for wait_s in (10, 10, 20, 40):  # The second time a few more tokens are known.
        heard = ask(engine, runner, prompts)
        drain(engine)
        assert [listener.ids for listener in heard] == [runner.greedy(p, 10) for p in prompts]
        now[0] += wait_s - 1
        engine.kv.free_tokens()
        assert engine.kv.pool_tokens <= 100
        now[0] += 1
        engine.kv.free_tokens()
        assert engine.kv.pool_tokens == 200


def test_what_never_finds_memory_fails_and_the_next_one_runs():
    class Full(FakeRunner):
        def step(self, plan):
            if any(5 in row.tokens for row in plan.rows):
                raise Busy("No room for five.", retry_after_s=1.0)
            return super().step(plan)

    runner = Full(slots=2)
    engine = Engine(runner)
    bad, good = ask(engine, runner, [[5, 5], [1, 2]], tokens=3)
    drain(engine, 1000)
    assert isinstance(bad.last, Failed) and bad.last.error.code == Busy.code
    assert good.ids == runner.greedy([1, 2], 3)


@pytest.mark.parametrize("kind", ["full", "recurrent", "sliding"])
def test_who_is_at_fault_fails_alone_whatever_the_memory(kind):
    runner = Picky(vocab=501, slots=4, kind=kind, context=128, pool=512, chunk=128)
    engine = Engine(runner)
    prompts = [[20] * 9]
    heard = ask(engine, runner, prompts, tokens=8)
    expected = [runner.greedy(prompt, 8) for prompt in prompts]
    assert not any(runner.bad in said for said in expected)
    for _ in range(3):
        engine.run_once()
    bad, heard_bad = generation(7, [1, 2, 2, 1, runner.bad], runner)
    engine.submit(bad)
    drain(engine, 1000)
    assert isinstance(heard_bad.last, Failed)
    assert [listener.ids for listener in heard] == expected
    assert at_rest(engine, runner)


class Fragile:
    """A parser that fails at the end of the text."""

    channel, calls, notices = "content", 0, ()

    def push(self, text):
        return []

    def finish(self):
        raise RuntimeError("no end")


@pytest.mark.parametrize("slots", [1, 4])
def test_an_answer_that_cannot_be_ended_well_fails_alone(slots):
    runner = FakeRunner(slots=slots)
    engine = Engine(runner)
    [good] = ask(engine, runner, [[1, 2, 3]])
    ended, heard = generation(1, [4, 5, 6], runner, tokens=3, parser=Fragile())
    cancelled, also_heard = generation(2, [7, 8], runner, parser=Fragile())
    engine.submit(ended, cancelled)
    engine.run_once()
    engine.cancel(2)
    drain(engine)
    assert isinstance(good.last, Finished) and good.ids == runner.greedy([1, 2, 3], 10)
    assert isinstance(heard.last, Failed) and isinstance(also_heard.last, Failed)
    assert at_rest(engine, runner)
