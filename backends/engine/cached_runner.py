"""A runner and the KV cache over its store: what has to be done around each step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from hearth.backends.engine.kv.manager import KvManager
from hearth.backends.engine.plan_check import check_rows
from hearth.backends.engine.runner import Interrupted, Runner, StepPlan, StepResult
from hearth.backends.errors import HearthError


class CachedRunner:
    """Computes steps on memory that the KV manager has for them.

    Attributes:
        kv: what the slots hold.

    Args:
        clock: seconds, for what is kept until a deadline and for copies.
    """

    def __init__(self, runner: Runner, clock: Callable[[], float] = time.monotonic) -> None:
        self.runner = runner
        self.kv = KvManager(runner.store, runner.limits, clock=clock)

    def step(self, plan: StepPlan) -> StepResult:
        """Have room for `plan` and compute it; `KvManager.commit` records what is accepted of it.
        After an error nothing of it is held, and slots that lost what they held are empty.

        Raises:
            Busy: there was no memory for it.
            HearthError, RunnerLost, Interrupted: see `Runner.step`.
        """
        kv = self.kv
        check_rows(plan.rows, self.runner.info, kv.length)
        cells = kv.cells
        try:
            kv.prepare({row.slot: len(row.tokens) for row in plan.rows})
            for row in plan.rows:
                row.handle = kv.handle(row.slot)
            return self.runner.step(replace(plan, cells=cells))
        except Exception as error:
            lost = lost_slots(error)
            for row in plan.rows:
                if row.slot in lost:
                    kv.release(row.slot, keep=False)
                else:
                    kv.undo(row.slot, 0)
            raise

    def advance(self, plan: StepPlan) -> StepResult:
        """`step`, and record all of it."""
        result = self.step(plan)
        for row in plan.rows:
            self.kv.commit(row.slot, row.tokens)
        return result


def lost_slots(error: Exception) -> frozenset[int]:
    """Slots whose keys and values are lost since the step that failed with `error`."""
    if isinstance(error, Interrupted):
        return error.lost_slots
    lost = error.data.get("lost_slots") if isinstance(error, HearthError) else None
    return frozenset(lost) if isinstance(lost, list) else frozenset()
