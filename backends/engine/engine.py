"""The one loop of a worker: plan, step, draw, say. Other threads only post to its inbox."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable

from hearth.backends.contract import Failed, Progress
from hearth.backends.engine.runner import Row, Runner, RunnerLost, StepResult
from hearth.backends.engine.scheduler import Scheduler
from hearth.backends.engine.sequence import Sequence
from hearth.backends.errors import Busy, to_info

log = logging.getLogger(__name__)


class Engine:
    """Runs sequences over one runner.

    `submit` and `cancel` may be called from any thread; `run` (or `turn`, step by step) belongs to
    one thread, the only one that touches the runner. What goes wrong in one sequence ends that
    sequence alone.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._scheduler = Scheduler(runner)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._closing = False

    @property
    def running(self) -> int:
        return self._scheduler.running

    @property
    def waiting(self) -> int:
        return self._scheduler.waiting

    def submit(self, sequence: Sequence) -> None:
        """Let `sequence` run when there is room."""
        self._inbox.put(lambda: self._scheduler.add(sequence))

    def cancel(self, ident: int) -> None:
        """End the sequence with this id before the next step; unknown ids are already over."""
        self._inbox.put(lambda: self._cancel(ident))

    def close(self) -> None:
        """Let `run` return before its next step."""
        self._inbox.put(self._close)

    def run(self) -> None:
        """Turn until `close`; sleeps where there is nothing to do."""
        while not self._closing:
            if not self.turn() and not self._closing:
                self._inbox.get()()

    def turn(self) -> bool:
        """Take in what was posted and make one step; False if there was nothing to compute.

        Raises `RunnerLost` if the process must end.
        """
        while not self._inbox.empty():
            self._inbox.get()()
        if self._closing:
            return False
        plan = self._scheduler.plan()
        if plan is None:
            return False
        try:
            result = self._runner.step(plan)
        except Busy as error:
            # Nothing was computed for want of memory: the largest leaves, so that others can go on.
            self._fail(max(self._scheduler.members(plan), key=lambda member: member.total), error)
            return True
        except RunnerLost:
            raise
        except Exception as error:
            log.exception("a step failed")
            for sequence in self._scheduler.members(plan):
                self._fail(sequence, error)
            return True
        for row, sequence in self._scheduler.advance(plan):
            try:
                self._commit(row, sequence, result)
            except Exception as error:
                log.exception("sequence %d failed", sequence.id)
                self._fail(sequence, error)
        return True

    def _commit(self, row: Row, sequence: Sequence, result: StepResult) -> None:
        if sequence.new_tokens == 0:
            sequence.emit(Progress(sequence.computed, sequence.prompt_tokens))
        if not row.wants_logits:
            return
        banned = sequence.limits.banned(sequence.new_tokens)
        drawn = sequence.sampler.draw(result.logits[row.slot], sequence.total, banned=banned)
        reason = sequence.accept(drawn)
        if reason is not None:
            self._scheduler.remove(sequence)
            sequence.finish(reason)

    def _cancel(self, ident: int) -> None:
        for sequence in self._scheduler:
            if sequence.id == ident:
                self._scheduler.remove(sequence)
                sequence.finish("cancelled")

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        self._scheduler.remove(sequence)
        sequence.end(Failed(to_info(error)))

    def _close(self) -> None:
        self._closing = True
        for sequence in self._scheduler:
            self._scheduler.remove(sequence)
            sequence.finish("cancelled")
