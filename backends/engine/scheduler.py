"""Decides which sequences compute which tokens in the next step. There are no separate prefill and
decode phases: every sequence computes tokens until `computed` reaches `total`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from hearth.backends.contract.loaded import RequestState, RequestStats
from hearth.backends.engine.background import BackgroundPrompts
from hearth.backends.engine.drafts import Draft
from hearth.backends.engine.kv.manager import KvManager
from hearth.backends.engine.prefill_budget import PrefillBudget
from hearth.backends.engine.runner import Row, RunnerInfo, StepPlan
from hearth.backends.engine.sequence import Sequence
from hearth.backends.engine.speculation import Speculation
from hearth.backends.engine.streaming import Streaming
from hearth.backends.engine.waiting import Waiting
from hearth.backends.errors import InternalError

HEADROOM_TOKENS: Final = 32
"""Room to grow, in tokens, that is left for each running sequence when another is admitted, so that
the new one is not preempted again immediately."""
WORTH_HOLDING: Final = 2
"""Streams wait for a step of prompts only if it takes at least this many times the prefill tokens
of a mixed step."""
SEVERAL: Final = 2
"""Streams begin to wait only if at least this many sequences wait for their first token."""
WORTH_SAVING: Final = 64
"""With fewer tokens than this, a preempted sequence is recomputed rather than copied."""
COPY_AHEAD_TOKENS: Final = 64
"""While fewer tokens than this are free for each running sequence, the one that would be preempted
next is copied in advance, a few parts per step, so that little is left to copy when it happens."""

_GROWING_LOOK_S: Final = 0.001


class Scheduler:
    """Admits sequences, plans steps over those that run, and preempts some when memory runs out.

    The sequence of lowest rank, by priority and then by arrival, is preempted first. The one of
    highest rank is never preempted for another, so there is always progress and none starves. What
    a preempted sequence holds is offloaded if the runner supports that, and it continues later with
    the same output.
    """

    def __init__(
        self,
        info: RunnerInfo,
        kv: KvManager,
        budget: PrefillBudget,
        background: BackgroundPrompts,
        speculation: Speculation,
    ) -> None:
        self._info = info
        self._speculation = speculation
        self._unverified: dict[int, Row] = {}
        """By slot: rows that were computed with drafts and are not recorded yet."""
        self._kv = kv
        self._budget = budget
        self._background = background
        self._waiting = Waiting(kv, background.left, keeps_past=info.keeps_past)
        self._running: dict[int, Sequence] = {}
        self._free_slots = list(reversed(range(info.max_sequences)))
        self._arrivals: dict[Sequence, int] = {}
        self._arrived = 0
        self._arriving: dict[Sequence, int] = {}
        """Sequences whose prefixes are being copied into their slots, and the number of tokens
        counted as cached for that; 0 for those that were admitted before.
        """
        self._refused: tuple[Sequence, int] | None = None
        """The last sequence that did not fit, and the number of free tokens at that time."""
        self._is_short = False
        """The last step found no memory: until one does, no sequence is admitted next to others."""
        self._is_holding = False
        """The last step had only prompts, and streams waited for it."""
        self._burst: frozenset[Sequence] = frozenset()
        """Sequences with short prompts that waited for their first token when streams began to wait
        for such steps.
        """
        self.preemptions = 0
        self.found_tokens = 0
        """Prompt tokens of new sequences that were found in the cache."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[Sequence]:
        """Every sequence that runs or waits."""
        return iter([*self._running.values(), *self._waiting])

    def requests(self, most: int) -> list[RequestStats]:
        """Progress of running, then of waiting sequences: one row per request, at most `most`."""
        now_s = time.monotonic()
        rows: dict[int, RequestStats] = {}
        for sequence in itertools.chain(self._running.values(), self._waiting):
            row = sequence.stats(self._background.computed(sequence), now_s)
            other = rows.get(row.id)
            if other is None and len(rows) == most:
                continue
            rows[row.id] = row if other is None else _together(other, row)
        return list(rows.values())

    def add(self, sequence: Sequence) -> None:
        """Add `sequence` to those that wait."""
        self._arrived += 1
        self._arrivals[sequence] = self._arrived
        self._waiting.add(sequence, self._arrived)

    def remove(self, sequence: Sequence, *, keep: bool) -> None:
        """Remove `sequence` and release what it holds, whatever its state.

        Args:
            keep: keep what it computed as a prefix that can be found again.
        """
        if self._arrivals.pop(sequence, None) is None:
            return
        if sequence.slot is None:
            self._waiting.remove(sequence)
        else:
            self._vacate(sequence, keep=keep)
        self._refused = None

    def begin_again(self, sequence: Sequence) -> None:
        """The tokens of `sequence` were replaced by tokens that another sequence has computed, all
        but the last: it finds them in the cache when it is admitted next.
        """
        if sequence not in self._arrivals:
            self.add(sequence)
        elif sequence.slot is not None:
            self.forget_computed(sequence.slot)

    def plan(self) -> StepPlan | None:
        """The next step: sequences that decode first, then as much prefill as the budget allows.
        None: nothing to do.
        """
        # A sequence that was alone and had to make way may be admitted again immediately, and so
        # may one that waits for memory that a beam released.
        for _ in range(2 + self._info.max_sequences):
            self._background.collect()
            self._admit()
            self._make_room()
            while True:
                self._tend()
                if rows := self._rows():
                    return StepPlan(tuple(rows))
                is_arriving = any(map(self._is_arriving, self._running.values()))
                if not is_arriving or self._kv.is_waiting:
                    break  # Otherwise no sequence waits for a step: finish the copies.
                if self._kv.is_growing:  # Copies wait for the growth, which needs the processor.
                    time.sleep(_GROWING_LOOK_S)
            if not self._set_idle_aside():
                return None
        return None

    def _set_idle_aside(self) -> bool:
        """No running sequence can continue before a waiting one does: preempt a beam that waits for
        the other beams of its round. Returns whether it is worth planning again.
        """
        idle = [sequence for sequence in self._running.values() if not sequence.pending]
        if not idle or not self._waiting:
            return not self._running and len(self._waiting) > 0
        sequence = min(idle, key=self._rank)
        self.remove(sequence, keep=True)
        sequence.stop()
        return True

    def stuck(self) -> Sequence | None:
        """The sequence that can never be admitted, because it does not fit although none runs."""
        return None if self._running else self._waiting.first(self._running.values())

    def commit(self, plan: StepPlan) -> list[tuple[Row, Sequence]]:
        """Record what was computed of `plan`; returns its rows with their sequences. Rows with
        drafts are recorded by `verified`.
        """
        self._is_short = False
        done = []
        for row in plan.rows:
            sequence = self._running[row.slot]
            done.append((row, sequence))
            if row.drafts:
                sequence.computed += len(row.tokens) - row.drafts
                self._unverified[row.slot] = row
                continue
            self._kv.commit(row.slot, row.tokens)
            sequence.computed += len(row.tokens)
            if sequence.pins:
                self._pin(sequence)
            if not self._info.keeps_past and sequence.computed == sequence.prompt_tokens - 1:
                # Later tokens cannot be undone, and the next request probably begins with these.
                self._kv.checkpoint(row.slot)
        return done

    def verified(self, row: Row, sequence: Sequence) -> None:
        """Record which drafts of `row` the sequence has accepted."""
        if self._unverified.pop(row.slot, None) is None:
            return
        known = len(row.tokens) - row.drafts
        start = row.start + sequence.dropped
        path = row.path(sequence.tokens[start + known :])
        count = known + len(path)
        taken = sequence.tokens[start : start + count]
        self._speculation.verified(sequence, row, len(path))
        if row.parents:
            self._kv.keep(row.slot, [*range(known), *(known - 1 + place for place in path)])
        if not self._kv.commit(row.slot, taken, computed=len(row.tokens)):
            self.forget_computed(row.slot)
            return
        sequence.computed = start + count
        self._pin(sequence)

    def members(self, plan: StepPlan) -> list[Sequence]:
        """The sequences that `plan` computes tokens for."""
        return [self._running[row.slot] for row in plan.rows]

    def make_way(self) -> bool:
        """A step found no memory: preempt the sequence of lowest rank, or if only one runs, drop
        what is kept; False if there is nothing left to free.
        """
        if len(self._running) > 1:
            self._preempt(self._least())
        elif self._is_short and not self._kv.stats().kept_prefixes:
            return False
        else:
            self._kv.clear()
        self._is_short = True
        return True

    def forget_computed(self, slot: int) -> None:
        """What `slot` held is lost or no longer valid: queue its sequence again, to compute it
        again.
        """
        if (sequence := self._running.get(slot)) is not None:
            self._vacate(sequence, keep=False)
            sequence.computed = 0
            sequence.stop()
            self._waiting.add(sequence, self._arrivals[sequence])

    # ---- admission and preemption

    def _admit(self) -> None:
        while (sequence := self._waiting.first(self._running.values())) is not None:
            if self._is_short and self._running:
                return
            if not self._free_slots and not self._displace(sequence):
                return
            while not self._start(sequence):
                if not self._displace(sequence):
                    return

    def _start(self, sequence: Sequence) -> bool:
        """Give `sequence` a slot and room for all its known tokens; False if it does not fit."""
        free = self._kv.free_tokens()
        if self._refused is not None and self._refused[0] is sequence and free <= self._refused[1]:
            return False
        headroom = HEADROOM_TOKENS * len(self._running)
        slot = self._free_slots[-1]
        computed = self._open(slot, sequence)
        fits = self._kv.reserve(slot, sequence.room)
        if not fits or self._kv.free_tokens() < headroom:
            self._kv.release(slot, keep=True)
            sequence.dropped = 0
            self._refused = (sequence, free)
            return False
        self._free_slots.pop()
        self._waiting.admit(sequence, self._arrived)
        self._running[slot] = sequence
        self._refused = None
        arriving = self._kv.arriving(slot)
        is_new = not sequence.clock.admitted
        if arriving:
            self._arriving[sequence] = computed + arriving if is_new else 0
        if is_new:
            self.found_tokens += computed + arriving
        sequence.start(slot, computed, arriving)
        self._pin(sequence)
        return True

    def _open(self, slot: int, sequence: Sequence) -> int:
        """Open `slot` for `sequence` with what the cache holds of it; returns how many of its
        tokens are already computed.
        """
        tokens, namespace = sequence.reusable(), sequence.namespace
        streaming = sequence.streaming
        if streaming is None:
            return self._kv.open(slot, tokens, namespace, sequence.session_on_disk)
        # A state needs at least the tokens that were left when it began: they were computed with
        # the forgotten tokens in view, so missing ones cannot be recomputed from the state.
        least = streaming.most - streaming.step
        for dropped, name in streaming.states(tokens, namespace):
            kept = streaming.kept(tokens, dropped)[: streaming.most]
            if self._kv.match(kept, name) >= least:
                held = self._kv.open(slot, kept, name)
                if held + self._kv.arriving(slot) >= least:
                    sequence.dropped = dropped
                    return held + dropped
                self._kv.release(slot, keep=True)
        tokens = tokens[: streaming.most]
        return self._kv.open(slot, tokens, namespace, sequence.session_on_disk)

    def _forget(self, sequence: Sequence, streaming: Streaming) -> None:
        """Let `sequence` forget tokens if its memory is full and it has more to compute. Others are
        preempted if blocks that it shares have to be copied and there is no room.
        """
        if sequence.computable or not sequence.pending:
            return
        dropped = streaming.dropped(sequence.computed)
        states = streaming.states(sequence.tokens[: sequence.computed + 1], sequence.namespace)
        name = next(name for at, name in states if at == dropped)
        while (slot := sequence.slot) is not None:
            if self._kv.forget(slot, streaming.sinks, dropped - sequence.dropped, name):
                sequence.dropped = dropped
                return
            if not self.make_way():
                raise InternalError(f"Slot {slot} cannot forget tokens, though it is alone.")

    def _tend(self) -> None:
        """Let the cache continue its copies, and record which tokens arrived."""
        arrived = self._kv.tend()
        for slot, count in arrived.items():
            sequence = self._running[slot]
            sequence.computed += count
            sequence.report_progress(sequence.computed)
            self._pin(sequence)
        for sequence in [one for one in self._arriving if not self._is_arriving(one)]:
            self._end_arrival(sequence)
            streaming, place = sequence.streaming, sequence.slot
            if streaming is None or place is None or not sequence.dropped:
                continue
            if sequence.held < streaming.most - streaming.step:  # See `_open`.
                self.forget_computed(place)
        if len(self._running) > 1 and not self._arriving:
            self._copy_ahead()

    def _copy_ahead(self) -> None:
        """While memory is short, copy what the sequence that would be preempted next holds."""
        if self._kv.free_tokens() >= COPY_AHEAD_TOKENS * len(self._running):
            return
        sequence = self._least()
        assert sequence.slot is not None
        if sequence.computed >= WORTH_SAVING:
            self._kv.copy_out(sequence.slot, grows=True)

    def _is_arriving(self, sequence: Sequence) -> bool:
        """Whether tokens are being copied into its slot, so that steps proceed without it."""
        return sequence.slot is not None and self._kv.arriving(sequence.slot) > 0

    def _end_arrival(self, sequence: Sequence) -> None:
        """End the copies for `sequence`; tokens that did not arrive do not count as cached."""
        missing = self._arriving.pop(sequence, 0) - sequence.computed
        if missing > 0:
            sequence.cached -= missing
            self.found_tokens -= missing
        sequence.on_arrived()

    def _pin(self, sequence: Sequence) -> None:
        """Pin the computed tokens that `sequence` asked to keep. What cannot be pinned is kept like
        any other prefix; `CacheStats.pinned_tokens` shows how much is pinned.
        """
        for tokens, seconds in sequence.due_pins():
            assert sequence.slot is not None
            if not sequence.dropped:
                self._kv.pin(sequence.slot, tokens, seconds)

    def _displace(self, sequence: Sequence) -> bool:
        """Preempt a sequence of lower priority for `sequence`; False if there is none."""
        if not self._running:
            return False
        victim = self._least()
        if victim.priority >= sequence.priority:
            return False
        self._preempt(victim)
        self._refused = None
        return True

    def _least(self) -> Sequence:
        return min(self._running.values(), key=self._rank)

    def _rank(self, sequence: Sequence) -> tuple[int, int]:
        return sequence.priority, -self._arrivals[sequence]

    def _preempt(self, sequence: Sequence) -> None:
        if sequence.computed >= WORTH_SAVING:
            assert sequence.slot is not None
            self._kv.copy_out(sequence.slot, grows=False)
        self._vacate(sequence, keep=True)
        sequence.stop()
        self._waiting.add(sequence, self._arrivals[sequence])
        self.preemptions += 1

    def _vacate(self, sequence: Sequence, *, keep: bool) -> None:
        self._background.drop(sequence)
        self._end_arrival(sequence)
        self._speculation.forget(sequence)
        slot, sequence.slot = sequence.slot, None
        assert slot is not None
        if (row := self._unverified.pop(slot, None)) is not None:
            self._kv.undo(slot, len(row.tokens))
        del self._running[slot]
        self._kv.release(slot, keep=keep)
        self._free_slots.append(slot)

    # ---- rows of a step

    def _make_room(self) -> None:
        """Reserve room for all known tokens of the running sequences, preempting some if they do
        not fit. Prefill was reserved on admission, but the pool may have turned out smaller since.
        """
        for sequence in list(self._running.values()):
            streaming = sequence.streaming
            if streaming is not None:
                self._forget(sequence, streaming)
            tokens = sequence.total if streaming is None else sequence.room
            while sequence.slot is not None and not self._kv.reserve(sequence.slot, tokens):
                self._preempt(self._least())

    def _rows(self) -> list[Row]:
        """The rows of a step."""
        decoding, streamed = self._decode_rows()
        self._background.hurry(alone=not decoding)
        behind = self._behind(streamed)
        if not behind:
            self._is_holding = False
            return decoding
        allowed = self._allowed(streamed)
        # Every other step includes all streams, so that they wait for at most one step of prompts.
        self._is_holding = not self._is_holding and self._should_hold(decoding, behind, allowed)
        if self._is_holding:
            decoding, streamed, allowed = [], 0, self._budget.together()
        return decoding + self._prefill_rows(behind, streamed, allowed)

    def _allowed(self, decoding: int) -> int:
        """Prefill tokens allowed in a step with `decoding` tokens of streams."""
        allowed = self._budget.allowance(decoding)
        mixed = self._info.mixed_tokens
        if mixed is not None and 0 < decoding < mixed:
            allowed = min(allowed, mixed - decoding)
        return allowed

    def _decode_rows(self) -> tuple[list[Row], int]:
        """Rows of the sequences with one token to compute, and the number of tokens in them. Drafts
        take up to half of a step's tokens. If a step has no room for all sequences, they alternate.
        """
        most = min(self._info.max_batch_tokens, self._info.max_outputs)
        decoding = [sequence for sequence in self._running.values() if sequence.pending == 1]
        if len(decoding) >= most:
            decoding = decoding[:most]
            for sequence in decoding:
                self._to_the_end(sequence)
        drafts = self._speculation.draft(
            decoding, min(self._info.max_batch_tokens // 2, most - len(decoding)), self._has_room
        )
        rows = [self._row(sequence, 1, drafts.get(sequence)) for sequence in decoding]
        return rows, len(rows) + sum(len(draft.tokens) for draft in drafts.values())

    def _has_room(self, sequence: Sequence, more: int) -> bool:
        assert sequence.slot is not None
        return self._kv.reserve(sequence.slot, sequence.room + more)

    def _behind(self, decoding: int) -> list[Sequence]:
        """Sequences with prefill for this step, highest rank first."""
        behind = [
            sequence
            for sequence in self._running.values()
            if sequence.pending > 1 and not self._is_arriving(sequence)
        ]
        behind.sort(key=self._rank, reverse=True)
        if decoding:
            headroom = HEADROOM_TOKENS * len(self._running)
            allowance = partial(self._budget.allowance, decoding)
            self._background.offer(behind, allowance, headroom)
        return [sequence for sequence in behind if not self._background.holds(sequence)]

    def _should_hold(self, decoding: list[Row], behind: list[Sequence], allowed: int) -> bool:
        """Whether streams wait for one step of prompts alone. They do if several sequences with
        short prompts, and at least as many as stream, wait for their first token, as after arriving
        together; it continues until the sequences of that burst are done. Cut into the small pieces
        of mixed steps, prompts cost more in total, and those done first would decode alone.
        """
        if not decoding or self._budget.together() < WORTH_HOLDING * allowed:
            return False
        # Prompts that fit into a mixed step have too few rows for tiled attention in any case.
        if sum(map(self._wanted, behind)) <= max(allowed, self._info.mixed_tokens or 0):
            return False
        highest = max(self._running[row.slot].priority for row in decoding)
        waiting = [sequence for sequence in behind if sequence.priority >= highest]
        short = frozenset(
            one
            for one in waiting
            if self._budget.is_short(one.prompt_tokens - one.cached, one.cached)
        )
        begins = len(short) >= max(len(decoding), SEVERAL)
        self._burst = short if begins else short & self._burst
        return bool(self._burst)

    def _prefill_rows(self, behind: list[Sequence], decoding: int, allowed: int) -> list[Row]:
        """Prefill slices of the sequences in `behind`, about `allowed` tokens in total."""
        outputs = self._info.max_outputs - decoding
        rows = []
        shares = self._shares(behind, decoding, allowed)
        shares = {who: count for who, count in shares.items() if count}
        for left, (sequence, share) in zip(range(len(shares), 0, -1), shares.items(), strict=True):
            count = self._within(-(-outputs // left), sequence, share)
            if count > 0:
                rows.append(self._row(sequence, count))
                outputs -= rows[-1].outputs
        return rows

    def _shares(self, behind: list[Sequence], decoding: int, allowed: int) -> dict[Sequence, int]:
        """How many prefill tokens each sequence of `behind` (highest rank first) gets. The one of
        highest rank gets half of them, so that none starves; the rest goes to those that need the
        least, so that as few as possible wait. Higher priorities are served first. Tokens with many
        others before them count as more than one, but the first sequence gets at least one token.
        """
        tokens: float = self._info.max_batch_tokens - decoding
        is_cut = decoding > 0 or allowed < tokens
        if is_cut:
            tokens = min(self._whole_tiles(allowed, decoding), tokens)
        shares: dict[Sequence, int] = {}

        def give(sequence: Sequence, room: float, least: int) -> None:
            nonlocal tokens
            held = shares.get(sequence, 0)
            weight = self._budget.weight(decoding, sequence.held) if is_cut else 1.0
            more = min(self._wanted(sequence) - held, max(int(room / weight), least))
            shares[sequence] = held + more
            tokens = max(tokens - more * weight, 0)

        for priority in sorted({sequence.priority for sequence in behind}, reverse=True):
            group = [sequence for sequence in behind if sequence.priority == priority]
            give(group[0], -(-tokens // 2), 0 if shares or tokens < 1 else 1)
            for sequence in sorted(group, key=self._wanted):
                give(sequence, tokens, 0)
        return shares

    def _whole_tiles(self, tokens: int, decoding: int) -> int:
        """`tokens` rounded so that they fill whole tiles of the runner together with `decoding`
        others.
        """
        tile = self._info.tile
        whole = (tokens + decoding + tile // 2) // tile * tile - decoding
        return whole if whole > 0 else whole + tile

    def _wanted(self, sequence: Sequence) -> int:
        """How many tokens of `sequence` the next step may compute. Memories without `keeps_past`
        stop before the last prompt token, for a checkpoint, and at the end of each pin.
        """
        if self._info.keeps_past:
            return sequence.computable
        stops = [sequence.prompt_tokens - 1, *(tokens for tokens, _ in sequence.pins)]
        ahead = [stop - sequence.computed for stop in stops if stop > sequence.computed]
        return min(ahead, default=sequence.pending)

    @staticmethod
    def _within(outputs: int, sequence: Sequence, count: int) -> int:
        """The largest part of `count` tokens that needs at most `outputs` logits rows."""
        excess = sequence.outputs(count) - outputs
        return count - excess if excess > 0 else count

    def _row(self, sequence: Sequence, count: int, draft: Draft | None = None) -> Row:
        assert sequence.slot is not None
        start = sequence.computed
        tokens = sequence.tokens[start : start + count]
        row = Row(sequence.slot, start - sequence.dropped, tokens, sequence.outputs(count))
        if draft is not None:
            row.tokens = [*tokens, *draft.tokens]
            row.drafts, row.parents = len(draft.tokens), draft.parents
            row.outputs += row.drafts
        elif row.outputs and self._info.has_shortlists:
            row.shortlist = sequence.shortlist()
        return row

    def _to_the_end(self, sequence: Sequence) -> None:
        """Move `sequence` behind the others, for the next step if it has no room for all."""
        assert sequence.slot is not None
        self._running[sequence.slot] = self._running.pop(sequence.slot)


def _together(first: RequestStats, other: RequestStats) -> RequestStats:
    """Merged stats of two choices of one request."""
    states: tuple[RequestState, ...] = ("decoding", "prefill", "queued")
    return replace(
        first,
        state=next(state for state in states if state in (first.state, other.state)),
        computed_tokens=max(first.computed_tokens, other.computed_tokens),
        generated_tokens=first.generated_tokens + other.generated_tokens,
        tok_per_s=first.tok_per_s + other.tok_per_s,
    )
