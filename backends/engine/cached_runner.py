"""A runner together with the KV cache over its store: the bookkeeping around each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hearth.backends.engine.kv.disk import DiskTier
from hearth.backends.engine.kv.manager import KvManager
from hearth.backends.engine.runner import (
    Interrupted,
    Row,
    Runner,
    RunnerInfo,
    StepPlan,
    StepResult,
)
from hearth.backends.errors import HearthError, InternalError


class CachedRunner:
    """Computes steps on memory that the KV manager provides.

    Attributes:
        kv: tracks what the slots hold.

    Args:
        clock: seconds, for pins that expire and for copies.
        disk: see `KvManager`.
    """

    def __init__(
        self,
        runner: Runner,
        clock: Callable[[], float] = time.monotonic,
        disk: DiskTier | None = None,
    ) -> None:
        self.runner = runner
        self.kv = KvManager(runner.store, runner.limits, clock=clock, disk=disk)

    def step(self, plan: StepPlan) -> StepResult:
        """Make room for `plan` and compute it; `KvManager.commit` records what is accepted of it.
        After an error none of it is held, and slots that lost what they held are empty.

        Raises:
            Busy: there was no memory for the plan.
            HearthError, RunnerLost, Interrupted: see `Runner.step`.
        """
        kv = self.kv
        _check_rows(plan.rows, self.runner.info, kv.length)
        cells = kv.cells
        try:
            kv.prepare({row.slot: len(row.tokens) for row in plan.rows})
            for row in plan.rows:
                row.handle = kv.handle(row.slot)
            return self.runner.step(StepPlan(plan.rows, cells))
        except Exception as error:
            lost = lost_slots(error)
            for row in plan.rows:
                if row.slot in lost:
                    kv.release(row.slot, keep=False)
                else:
                    kv.undo(row.slot, 0)
            raise

    def advance(self, plan: StepPlan) -> StepResult:
        """Run `step` and commit all of its tokens."""
        result = self.step(plan)
        for row in plan.rows:
            self.kv.commit(row.slot, row.tokens)
        return result


def lost_slots(error: Exception) -> frozenset[int]:
    """Slots whose keys and values were lost in the step that failed with `error`."""
    if isinstance(error, Interrupted):
        return error.lost_slots
    lost = error.data.get("lost_slots") if isinstance(error, HearthError) else None
    return frozenset(lost) if isinstance(lost, list) else frozenset()


def _check_rows(rows: Sequence[Row], info: RunnerInfo, length: Callable[[int], int]) -> None:
    """Refuse rows that do not continue what the slots hold, or that exceed the limits of a step: a
    library might respond to them with an assertion or a corrupt sequence.

    Args:
        length: number of tokens that a slot holds.

    Raises:
        InternalError: with the offending numbers.
    """
    slots, tokens, outputs = set(), 0, 0
    for row in rows:
        count = len(row.tokens)
        if not 0 <= row.slot < info.max_sequences:
            raise InternalError(f"Slot {row.slot} does not exist; there are {info.max_sequences}.")
        held = length(row.slot)
        if count == 0 or row.start != held or not 0 <= row.outputs <= count:
            raise InternalError(
                f"A row of {count} tokens with {row.outputs} outputs starts at {row.start}; "
                f"slot {row.slot} holds {held}."
            )
        if held + count > info.context:
            raise InternalError(
                f"Slot {row.slot} would hold {held + count} tokens; the context is {info.context}."
            )
        slots.add(row.slot)
        tokens += count
        outputs += row.outputs
    if len(slots) != len(rows):
        raise InternalError("A plan names a slot twice.")
    if tokens > info.max_batch_tokens or outputs > info.max_outputs:
        raise InternalError(
            f"A plan has {tokens} tokens and {outputs} outputs; {info.max_batch_tokens} and "
            f"{info.max_outputs} are the most."
        )
