"""Calls that come, go, give up and die in any order: nothing is lost, and nobody is harmed."""

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fake_models import FakeModels, FakeSupervisor, calm
from hearth.backends.contract.models import HostLimits

NEEDS = {"a": 1, "b": 2, "c": 3, "d": 5, "e": 40, "remote": None}
BUDGET = 6
keys = st.sampled_from(sorted(NEEDS))


class Visits(RuleBasedStateMachine):
    """Every step ends when everything that can happen by itself has happened."""

    most = None

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.models = FakeModels(**NEEDS)
        self.supervisor = self.do(self._house())
        self.callers = []
        """In the order of arrival, until they are gone."""

    async def _house(self):
        return FakeSupervisor(self.models, HostLimits(BUDGET, self.most))

    def do(self, step):
        async def steps():
            result = await step
            await calm()
            return result

        return self.loop.run_until_complete(steps())

    def acting(self, step):
        """Do `step`; which models get room by it is in the order of turns."""
        had_room = self.models.loaded | {caller.key for caller in self.inside()}
        waited = [caller for caller in self.callers if not caller.has_room]
        result = self.do(step)
        for caller in waited:
            if caller.has_room and caller.key not in had_room and NEEDS[caller.key] is not None:
                mates = [mate for mate in waited if mate.key == caller.key]
                earlier = waited[: waited.index(mates[0])]
                assert all(one.has_room or one.task.done() for one in earlier if self.counts(one))
        return result

    @staticmethod
    def counts(caller):
        return NEEDS[caller.key] is not None

    def inside(self):
        return [caller for caller in self.callers if caller.has_room]

    @rule(key=keys)
    def arrives(self, key):
        self.callers.append(self.acting(self.supervisor.call(key)))

    @precondition(lambda self: self.callers)
    @rule(data=st.data())
    def leaves(self, data):
        """One that has its answer, or one that waits no longer."""
        caller = data.draw(st.sampled_from(self.callers))
        self.callers.remove(caller)
        self.acting(caller.done() if caller.has_room else caller.left())

    @precondition(lambda self: self.callers)
    @rule(data=st.data())
    def is_cancelled(self, data):
        caller = data.draw(st.sampled_from(self.callers))
        self.callers.remove(caller)
        if caller.has_room:
            self.acting(caller.left())
        else:
            caller.ended.set_result(None)
            self.acting(caller.task)

    @precondition(lambda self: self.models.unloading)
    @rule(data=st.data())
    def is_unloaded(self, data):
        key = data.draw(st.sampled_from(sorted(self.models.unloading)))
        self.acting(self.supervisor.unload(key))

    @precondition(lambda self: self.models.loaded - set(self.models.unloading))
    @rule(data=st.data())
    def dies(self, data):
        idle = sorted(self.models.loaded - set(self.models.unloading))
        key = data.draw(st.sampled_from(idle))

        async def death():
            self.models.loaded.discard(key)
            self.supervisor.residency.settle()

        self.acting(death())

    @precondition(lambda self: self.models.loaded)
    @rule(key=keys)
    def was_idle_for_long(self, key):
        async def dismissal():
            self.supervisor.residency.dismiss(key)

        self.acting(dismissal())

    @invariant()
    def what_is_loaded_fits_or_is_alone(self):
        taking = {key for key in self.models.loaded if NEEDS[key] is not None}
        taking |= {caller.key for caller in self.inside() if self.counts(caller)}
        assert len(taking) <= 1 or sum(NEEDS[key] for key in taking) <= BUDGET
        assert self.most is None or len(taking) <= self.most

    @invariant()
    def nobody_who_is_used_is_unloaded(self):
        assert not {caller.key for caller in self.inside()} & set(self.models.unloading)

    @invariant()
    def who_waits_has_a_reason(self):
        waiting = [caller for caller in self.callers if not caller.has_room]
        assert sum(self.supervisor.residency.waiting.values()) == len(waiting)
        if any(self.counts(caller) for caller in waiting):
            assert self.models.unloading or any(map(self.counts, self.inside()))

    def teardown(self):
        """Whoever is left gets room in the end, and then nobody uses anything."""
        while self.callers or self.models.unloading:
            if self.models.unloading:
                self.acting(self.supervisor.unload(*self.models.unloading))
            inside = self.inside()
            assert inside or self.models.unloading or not self.callers
            for caller in inside:
                self.callers.remove(caller)
                self.acting(caller.done())
        assert self.supervisor.residency.waiting == {}
        assert not any(self.supervisor.residency.users(key) for key in NEEDS)
        self.loop.close()


class VisitsOfTwo(Visits):
    """The same with two models at most."""

    most = 2


@pytest.mark.parametrize("visits", [Visits, VisitsOfTwo])
def test_any_order_of_events(visits):
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        visits, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
