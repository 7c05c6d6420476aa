"""The main loop of a worker: plan, step, sample, emit. Other threads only post to its inbox."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Final
from weakref import WeakKeyDictionary, WeakSet

from hearth.backends.contract.loaded import EngineStats, RequestStats
from hearth.backends.engine.background import BackgroundPrompts
from hearth.backends.engine.cached_runner import CachedRunner, lost_slots
from hearth.backends.engine.embedding import TextJob
from hearth.backends.engine.kv.disk import DiskTier
from hearth.backends.engine.prefill_budget import PrefillBudget
from hearth.backends.engine.runner import (
    Interrupted,
    Row,
    Runner,
    RunnerLost,
    StepPlan,
    StepResult,
)
from hearth.backends.engine.scheduler import Scheduler
from hearth.backends.engine.sequence import Sequence
from hearth.backends.engine.speculation import Drafter, Speculation
from hearth.backends.errors import Busy, DoesNotFit

log = logging.getLogger(__name__)

Work = Sequence | TextJob

MOST_REQUESTS: Final = 256
"""Maximum number of rows in `EngineStats.requests`."""
_STATS_EVERY_S: Final = 0.1
_LOOK_EVERY_S: Final = 1.0
"""While idle, the engine checks for expired pins and memory shortage this often."""


class Engine:
    """Runs sequences over one runner.

    `submit`, `cancel`, `clear_cache`, `close` and `stats` may be called from any thread; `run` (or
    `run_once`, one iteration at a time) belongs to one thread, the only one that touches the
    runner. An error in one sequence ends that sequence alone.

    Args:
        target_itl_s: target inter-token latency in seconds; limits prefill while others stream.
        clock: seconds, for the prefill budget.
        kv_clock, disk: see `CachedRunner`.
        drafters: models or heads that draft for sequences that speculate.
    """

    def __init__(
        self,
        runner: Runner,
        target_itl_s: float = 0.05,
        clock: Callable[[], float] = time.perf_counter,
        kv_clock: Callable[[], float] = time.monotonic,
        disk: DiskTier | None = None,
        drafters: Seq[Drafter] = (),
    ) -> None:
        self._runner = runner
        self._budget = PrefillBudget(target_itl_s, runner.info.max_batch_tokens)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        if disk is not None:
            disk.start(self._wake)
        self._cached = CachedRunner(runner, kv_clock, disk)
        self.kv = self._cached.kv
        self._background = BackgroundPrompts(runner, self.kv, self._wake)
        self._speculation = Speculation(drafters, possible=runner.info.can_roll_back, clock=clock)
        self._scheduler = Scheduler(
            runner.info, self.kv, self._budget, self._background, self._speculation
        )
        self._clock = clock
        self._text_jobs: list[TextJob] = []
        self._last_turn: dict[str, int] = {}
        """The last turn, by count, of each session that has texts in progress."""
        self._turns = 0
        self._closing = False
        self.ended = threading.Event()
        """`run` has returned."""
        self._lock = threading.Lock()
        """Guards `_cancelling`, `_computing`, `_is_leaving` and `Runner.interrupt`."""
        self._cancelling: Counter[int] = Counter()
        """Requests whose cancellation is posted and not processed yet."""
        self._computing: frozenset[int] = frozenset()
        """Requests in the current runner call that are not cancelled."""
        self._is_leaving = False
        """`close` was called: nothing more is computed."""
        self._suspects: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()
        """Number of first tokens of a sequence that are computed in steps of their own: a step with
        several sequences failed and emptied its slot, and one of them was at fault."""
        self._retried: WeakSet[Sequence] = WeakSet()
        """Sequences that did not fit and for which the planned memory was already tried again."""
        self._steps = 0
        self._rows = 0
        self._computed = 0
        self._generated = 0
        self._stats_at = 0.0
        self._stats = self._count()

    def submit(self, *work: Work) -> None:
        """Queue `work`, to run when there is room; if the engine is closing, none of it runs."""
        self._inbox.put(lambda: self._add(work))

    def cancel(self, ident: int) -> None:
        """End the work with this id before the next step; ids that are unknown have already ended.
        The current step ends early if no other request is in it.
        """
        with self._lock:
            self._cancelling[ident] += 1
            if ident in self._computing:
                self._computing -= {ident}
                if not self._computing:
                    self._runner.interrupt(True)
        self._inbox.put(lambda: self._take_cancel(ident))

    def clear_cache(self, done: Callable[[EngineStats], None]) -> None:
        """Drop every kept prefix, also on disk, then call `done` from the engine's thread."""
        self._inbox.put(lambda: self._clear(done))

    def close(self) -> None:
        """Let `run` return before its next step; work in progress ends as cancelled, and the
        current step ends early.
        """
        with self._lock:
            self._is_leaving = True
            if self._computing:
                self._runner.interrupt(True)
        self._inbox.put(self._close)

    def stats(self) -> EngineStats:
        """Current state and totals; token counts are at most a tenth of a second old while the
        engine is busy.
        """
        return replace(self._stats, running=self._scheduler.running, waiting=self._waiting)

    def run(self) -> None:
        """Loop until `close`, and sleep while there is nothing to do. On return, the computed
        tokens of sequences with a session are on disk.
        """
        try:
            while not self._closing:
                if not self.run_once() and not self._closing:
                    self._rest()
            self.kv.write_out()
        finally:
            self.ended.set()

    def run_once(self) -> bool:
        """One iteration: process the inbox and run one step; False if there was nothing to compute.

        Raises `RunnerLost` if the process must end.
        """
        while not self._inbox.empty():
            self._inbox.get()()
        if self._closing:
            return False
        plan = self._plan()
        if plan is not None:
            self._compute(plan)
        busy = self._compute_texts(plan) or plan is not None
        busy |= self.kv.is_writing
        now = time.monotonic()
        if not busy or now - self._stats_at > _STATS_EVERY_S:
            self._stats_at = now
            self._stats = self._count()
        return busy

    @property
    def _waiting(self) -> int:
        return self._scheduler.waiting + len(self._text_jobs)

    def _rest(self) -> None:
        """Sleep until something is posted. The wait is limited where pins may expire, offloaded
        prefixes may have to make way for other programs, or background prefill is running.
        """
        may_change = self._stats.pinned_tokens or self._stats.offloaded_tokens
        may_change = may_change or self._background.is_busy
        with suppress(queue.Empty):
            self._inbox.get(timeout=_LOOK_EVERY_S if may_change else None)()

    # ---- steps

    def _plan(self) -> StepPlan | None:
        """The next plan. Sequences that can never be admitted fail, so that they do not block
        others.
        """
        while (plan := self._scheduler.plan()) is None:
            stuck = self._scheduler.stuck()
            if stuck is None:
                return None
            if stuck not in self._retried and self.kv.lift_limits():
                self._retried.add(stuck)
                continue
            held = self._runner.info.pool_tokens
            self._fail(
                stuck,
                DoesNotFit(
                    f"{stuck.total:,} tokens do not fit into the key-value memory that could be"
                    f" had; {held:,} were planned.",
                    "Close other programs, set a smaller context (--ctx), or kv_type q8_0"
                    " (--kv-type).",
                    tokens=stuck.total,
                    pool_tokens=held,
                ),
            )
        return plan

    def _compute(self, plan: StepPlan) -> None:
        """Run one step, and one more for each suspect sequence."""
        if not self._suspects:
            self._step(plan)
            return
        members = self._scheduler.members(plan)
        suspects = {
            row.slot: sequence
            for row, sequence in zip(plan.rows, members, strict=True)
            if row.start < self._suspects.get(sequence, 0)
        }
        together = tuple(row for row in plan.rows if row.slot not in suspects)
        if together:
            self._step(StepPlan(together))
        apart = [row for row in plan.rows if row.slot in suspects]
        self._one_by_one(apart, list(suspects.values()))

    def _begin(self, idents: Iterable[int]) -> bool:
        """Record the requests of the next runner call. False if the call is not needed, because all
        of them are cancelled or the engine is closing.
        """
        with self._lock:
            if not self._is_leaving:
                self._computing = frozenset(idents) - self._cancelling.keys()
            return bool(self._computing)

    def _end(self) -> None:
        """The runner call has returned or failed."""
        with self._lock:
            self._computing = frozenset()
            self._runner.interrupt(False)

    def _step(self, plan: StepPlan) -> None:
        started = self._clock()
        if not self._begin(sequence.id for sequence in self._scheduler.members(plan)):
            return
        try:
            try:
                result = self._cached.step(plan)
            finally:
                self._end()
        except RunnerLost:
            raise
        except Interrupted as stopped:
            for slot in stopped.lost_slots:
                self._scheduler.forget_computed(slot)
            return
        except Busy as error:
            if not self._scheduler.make_way():
                self._fail(self._scheduler.members(plan)[0], error)
            return
        except Exception as error:
            log.exception("a step of %d rows failed", len(plan.rows))
            self._after_failure(plan, error)
            return
        if result.hidden is not None:
            self._speculation.see(plan, result.hidden)
        self._commit(plan, result)
        decoding, prefill, cells = _load(plan)
        seconds = self._clock() - started
        self._budget.observe(decoding, prefill, seconds, cells)
        if not prefill:
            self._speculation.observe(decoding, seconds)

    def _after_failure(self, plan: StepPlan, error: Exception) -> None:
        """A step failed: find the sequence at fault by computing the rows one by one."""
        members = self._scheduler.members(plan)
        if len(members) == 1:
            self._fail(members[0], error)
            return
        lost = lost_slots(error)
        for row, sequence in zip(plan.rows, members, strict=True):
            if row.slot in lost:  # The slot lost its keys and values, so the sequence starts over.
                self._suspects[sequence] = sequence.total
                self._scheduler.forget_computed(row.slot)
        self._one_by_one(plan.rows, members)

    def _one_by_one(self, rows: Seq[Row], members: Seq[Sequence]) -> None:
        for row, sequence in zip(rows, members, strict=True):
            if sequence.slot == row.slot:  # An earlier failure may have ended or moved it.
                self._step(StepPlan((row,)))

    def _commit(self, plan: StepPlan, result: StepResult) -> None:
        self._steps += 1
        self._rows += len(plan.rows)
        for row, sequence in self._scheduler.commit(plan):
            self._computed += len(row.tokens)
            if sequence.slot is None:
                continue  # Another choice of its request failed just now.
            try:
                self._take(row, sequence, result)
            except Exception as error:
                log.exception("sequence %d failed", sequence.id)
                self._fail(sequence, error)

    def _take(self, row: Row, sequence: Sequence, result: StepResult) -> None:
        before = sequence.total
        reason = sequence.take(row, result)
        self._generated += sequence.total - before
        if row.drafts:
            self._scheduler.verified(row, sequence)
        if reason is not None:
            self._scheduler.remove(sequence, keep=True)
            self._speculation.ended(sequence)
        for other in sequence.rearranged():
            if other.done:
                self._scheduler.remove(other, keep=False)
            else:
                self._scheduler.begin_again(other)
        if reason is not None:
            sequence.finish(reason)

    def _compute_texts(self, plan: StepPlan | None) -> bool:
        """Compute a few texts of the next job, or a slice of one, in the prefill time that `plan`
        leaves; False if no job can continue.
        """
        if not self._text_jobs:
            return False
        decoding, prefill, cells = (0, 0, 0) if plan is None else _load(plan)
        tokens = self._budget.allowance_of_texts(decoding, prefill, cells)
        job = self._next_text_job(tokens)
        if job is None:
            return False
        if not self._begin((job.id,)):
            return True
        start, is_concurrent = job.start, job.is_concurrent
        tokens = self._budget.allowance_of_texts(decoding, prefill, cells, start)
        started = self._clock()
        end = started + self._budget.most_s_of_texts(decoding, prefill, cells)
        computed = 0
        try:
            try:
                computed = job.compute(
                    self._runner, tokens, self._wake, lambda: end - self._clock()
                )
            finally:
                self._end()
        except RunnerLost:
            raise
        except Interrupted:
            return True
        except Exception as error:
            log.exception("the texts of %d failed", job.id)
            job.fail(error)
        self._computed += computed
        if computed and not is_concurrent:
            seconds = self._clock() - started
            self._budget.observe_texts(decoding, computed, seconds, computed * start)
        if job.done:
            self._drop(job)
        else:
            self._text_jobs.remove(job)
            self._text_jobs.append(job)
        return True

    def _next_text_job(self, tokens: int) -> TextJob | None:
        """The next job of the next session in turn; None if none can continue. Only one text is
        computed in slices at a time, and one more concurrently with steps: a job whose next text
        has more than `tokens` tokens waits for the job that is in the middle of such a text.
        """
        within = [job for job in self._text_jobs if job.is_within_text]
        jobs = [job for job in self._text_jobs if self._can_continue(job, tokens, within)]
        if not jobs:
            return None
        # Sessions take turns; within a session, jobs follow their order in the list.
        job = min(jobs, key=lambda job: self._last_turn[job.session])
        self._turns += 1
        self._last_turn[job.session] = self._turns
        return job

    def _can_continue(self, job: TextJob, tokens: int, within: list[TextJob]) -> bool:
        if job in within:
            return job.is_ready
        if not job.exceeds(tokens):
            return True
        most = self._runner.info.concurrent_text_tokens
        is_concurrent = most is not None and job.exceeds(most)
        return all(other.is_concurrent != is_concurrent for other in within)

    def _drop(self, job: TextJob) -> None:
        self._text_jobs.remove(job)
        if all(other.session != job.session for other in self._text_jobs):
            self._last_turn.pop(job.session, None)

    # ---- inbox

    def _add(self, work: tuple[Work, ...]) -> None:
        for item in work:
            if self._closing:
                self._end_early(item)
            elif isinstance(item, TextJob):
                self._text_jobs.append(item)
                # A new session queues behind waiting ones, or newcomers would starve them.
                self._last_turn.setdefault(item.session, self._turns)
            else:
                self._scheduler.add(item)

    def _take_cancel(self, ident: int) -> None:
        with self._lock:
            self._cancelling[ident] -= 1
            self._cancelling = +self._cancelling
        self._cancel(ident)

    def _cancel(self, ident: int) -> None:
        for sequence in self._scheduler:
            if sequence.id == ident:
                self._scheduler.remove(sequence, keep=True)
                self._speculation.ended(sequence)
                self._end_early(sequence)
        for job in [job for job in self._text_jobs if job.id == ident]:
            self._drop(job)
            self._end_early(job)

    @staticmethod
    def _end_early(work: Work) -> None:
        """End `work` as cancelled; an error in doing so fails this work alone."""
        try:
            work.finish("cancelled")
        except Exception as error:
            log.exception("%d could not be cancelled", work.id)
            work.fail(error)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """End `sequence` with `error`, and cancel the other choices of the same request."""
        self._scheduler.remove(sequence, keep=False)
        sequence.fail(error)
        self._cancel(sequence.id)

    def _wake(self) -> None:
        """Wake `run`; may be called from any thread."""
        self._inbox.put(lambda: None)

    def _clear(self, done: Callable[[EngineStats], None]) -> None:
        self.kv.clear()
        self.kv.clear_disk()
        self._speculation.clear()
        self._stats = self._count()
        done(self._stats)

    def _close(self) -> None:
        self._closing = True
        for sequence in self._scheduler:
            self._scheduler.remove(sequence, keep=True)
            self._end_early(sequence)
        for job in self._text_jobs:
            self._end_early(job)
        self._text_jobs.clear()

    def _count(self) -> EngineStats:
        info = self._runner.info
        return EngineStats(
            **asdict(self.kv.stats()),
            running=self._scheduler.running,
            waiting=self._waiting,
            pool_tokens=info.pool_tokens,
            kv_bytes_per_token=info.kv_bytes_per_token,
            computed_tokens=self._computed + self._background.computed_tokens,
            cached_tokens=self._scheduler.found_tokens,
            generated_tokens=self._generated,
            steps=self._steps,
            rows=self._rows,
            preemptions=self._scheduler.preemptions,
            drafted_tokens=tuple(self._speculation.drafted),
            accepted_tokens=tuple(self._speculation.accepted),
            declined_drafts=self._speculation.declined,
            drafts_by=dict(self._speculation.drafts_by),
            requests=self._requests(),
            window_pool_bytes=info.window_pool_bytes,
            beside_bytes=self._runner.beside_bytes + self._speculation.drafter_bytes,
        )

    def _requests(self) -> tuple[RequestStats, ...]:
        rows = self._scheduler.requests(MOST_REQUESTS)
        rows += (job.stats() for job in self._text_jobs[: MOST_REQUESTS - len(rows)])
        return tuple(rows)


def _load(plan: StepPlan) -> tuple[int, int, int]:
    """Load of a step: tokens of decode rows (one token plus its drafts, with logits after each),
    tokens of all other rows (prefill), and for the latter the sum of the tokens before each.
    """
    prefill = [row for row in plan.rows if not len(row.tokens) == row.outputs == row.drafts + 1]
    tokens = sum(len(row.tokens) for row in prefill)
    cells = sum(len(row.tokens) * row.start for row in prefill)
    return plan.tokens - tokens, tokens, cells
