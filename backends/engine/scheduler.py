"""Who gets which tokens in the next step. There is no prefill phase and no decode phase:
`computed` chases `total`.
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
"""Room to grow that is left to each running sequence when another is admitted, so that the new one
is not put aside again at once."""
WORTH_HOLDING: Final = 2
"""Those who stream wait for a step of prompts if it takes this many times more of them,"""
SEVERAL: Final = 2
"""and if at least so many wait for their first token."""
WORTH_SAVING: Final = 64
"""Fewer tokens are computed again rather than copied."""
COPY_AHEAD_TOKENS: Final = 64
"""While fewer tokens are free for each running sequence, the one that would be put aside next is
copied, some parts in each step, so that little is left to copy when that happens."""

_GROWING_LOOK_S: Final = 0.001


class Scheduler:
    """Admits sequences, plans steps over those that run, and puts some aside when memory runs out.

    Who has the least rank, by priority and then by arrival, makes way; the first of all is never
    put aside for another, so there is always progress and nobody starves. What a sequence holds is
    copied where the runner can, and it comes back without anybody noticing.
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
        """By slot: computed with drafts, of which nothing is recorded yet."""
        self._kv = kv
        self._budget = budget
        self._background = background
        self._waiting = Waiting(kv, background.left, keeps_past=info.keeps_past)
        self._running: dict[int, Sequence] = {}
        self._free_slots = list(reversed(range(info.max_sequences)))
        self._arrivals: dict[Sequence, int] = {}
        self._arrived = 0
        self._arriving: dict[Sequence, int] = {}
        """Whose prefixes are being copied into their slots, and how many tokens were counted as
        cached for that; 0 for those that had been admitted before.
        """
        self._refused: tuple[Sequence, int] | None = None
        """Who did not fit last, and how many tokens were free then."""
        self._is_short = False
        """The last step found no memory: until one does, nobody joins those who run."""
        self._is_holding = False
        """The last step had only prompts, and those who stream waited for it."""
        self._burst: frozenset[Sequence] = frozenset()
        """Those of them who waited when that began."""
        self.preemptions = 0
        self.found_tokens = 0
        """Prompt tokens of new sequences that did not have to be computed."""

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
        """How far those are that run, then those that wait: a row a request, so many at most."""
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
        """Let `sequence` wait for its turn."""
        self._arrived += 1
        self._arrivals[sequence] = self._arrived
        self._waiting.add(sequence, self._arrived)

    def remove(self, sequence: Sequence, *, keep: bool) -> None:
        """Forget `sequence` and free what it holds, whatever its state.

        Args:
            keep: what it computed may be found again as a prefix.
        """
        if self._arrivals.pop(sequence, None) is None:
            return
        if sequence.slot is None:
            self._waiting.remove(sequence)
        else:
            self._vacate(sequence, keep=keep)
        self._refused = None

    def begin_again(self, sequence: Sequence) -> None:
        """The tokens of `sequence` became others, which another one has computed but for the last:
        it finds them when it is admitted next.
        """
        if sequence not in self._arrivals:
            self.add(sequence)
        elif sequence.slot is not None:
            self.forget_computed(sequence.slot)

    def plan(self) -> StepPlan | None:
        """The next step: sequences that decode first, prefill with what the pace allows.
        None: nothing to do.
        """
        # Who was alone and had to make way may come back at once, and so may who waits for memory
        # that a beam gave up.
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
                    break  # Else nobody waits for a step: copy all of it.
                if self._kv.is_growing:  # Copies wait for that, and it needs the processor.
                    time.sleep(_GROWING_LOOK_S)
            if not self._set_idle_aside():
                return None
        return None

    def _set_idle_aside(self) -> bool:
        """None of those that run can go on before one that waits does: a beam that waits for the
        others of its round makes way. False if there is none, or nothing waits.
        """
        idle = [sequence for sequence in self._running.values() if not sequence.pending]
        if not idle or not self._waiting:
            return not self._running and len(self._waiting) > 0
        sequence = min(idle, key=self._rank)
        self.remove(sequence, keep=True)
        sequence.stop()
        return True

    def stuck(self) -> Sequence | None:
        """The sequence that can never be admitted: nobody runs, and still it does not fit."""
        return None if self._running else self._waiting.first(self._running.values())

    def commit(self, plan: StepPlan) -> list[tuple[Row, Sequence]]:
        """Record what was computed of `plan`; returns its rows with their sequences. Those with
        drafts wait for `verified`.
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
                # What follows cannot be undone, and the next question will begin like this.
                self._kv.checkpoint(row.slot)
        return done

    def verified(self, row: Row, sequence: Sequence) -> None:
        """`sequence` has taken what it draws as well of the drafts of `row`: record that."""
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
        """A step found no memory: put the sequence of least rank aside, or if there is only one,
        forget what is kept; False if all that was done before.
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
        """The runner lost what `slot` held: its sequence computes everything again."""
        if (sequence := self._running.get(slot)) is not None:
            self._vacate(sequence, keep=False)
            sequence.computed = 0
            sequence.stop()
            self._waiting.add(sequence, self._arrivals[sequence])

    # ---- who runs

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
        """Give `sequence` a slot and room for all that is known of it; False if it does not fit."""
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
        """Begin `sequence` in `slot` with what is held of it; returns how many of its tokens are
        computed.
        """
        tokens, namespace = sequence.reusable(), sequence.namespace
        streaming = sequence.streaming
        if streaming is None:
            return self._kv.open(slot, tokens, namespace, sequence.session_on_disk)
        # A first part of what was left when tokens were forgotten had seen more of them.
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
        """Let `sequence` forget tokens where its memory is full and it goes on. Others make way
        where what it shares with them has to be copied.
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
        """Let the cache go on with its copies, and note what arrived."""
        arrived = self._kv.tend()
        for slot, count in arrived.items():
            sequence = self._running[slot]
            sequence.computed += count
            sequence.tell(sequence.computed)
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
        """While memory is short, copy what the sequence that would make way next holds."""
        if self._kv.free_tokens() >= COPY_AHEAD_TOKENS * len(self._running):
            return
        sequence = self._least()
        assert sequence.slot is not None
        if sequence.computed >= WORTH_SAVING:
            self._kv.copy_out(sequence.slot, grows=True)

    def _is_arriving(self, sequence: Sequence) -> bool:
        """Whether more is copied into its slot, so that steps go on without it."""
        return sequence.slot is not None and self._kv.arriving(sequence.slot) > 0

    def _end_arrival(self, sequence: Sequence) -> None:
        """No more is copied for `sequence`; what did not come is not cached."""
        missing = self._arriving.pop(sequence, 0) - sequence.computed
        if missing > 0:
            sequence.cached -= missing
            self.found_tokens -= missing
        sequence.on_arrived()

    def _pin(self, sequence: Sequence) -> None:
        """Keep what `sequence` asks to be kept of what it has computed. What cannot be pinned is
        kept as any prefix; `CacheStats.pinned_tokens` tells.
        """
        for tokens, seconds in sequence.due_pins():
            assert sequence.slot is not None
            if not sequence.dropped:
                self._kv.pin(sequence.slot, tokens, seconds)

    def _displace(self, sequence: Sequence) -> bool:
        """Put somebody of lower priority aside for `sequence`; False if there is nobody."""
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

    # ---- what they compute

    def _make_room(self) -> None:
        """Reserve all that is known of those who run, which puts some aside where it does not fit.
        Prefill was reserved when it was admitted, but the pool may have turned out smaller since.
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
        # Every other step has all who stream, so that they wait for one of the others at most.
        self._is_holding = not self._is_holding and self._should_hold(decoding, behind, allowed)
        if self._is_holding:
            decoding, streamed, allowed = [], 0, self._budget.together()
        return decoding + self._prefill_rows(behind, streamed, allowed)

    def _allowed(self, decoding: int) -> int:
        """Prefill tokens of a step with `decoding` tokens of those who stream."""
        allowed = self._budget.allowance(decoding)
        mixed = self._info.mixed_tokens
        if mixed is not None and 0 < decoding < mixed:
            allowed = min(allowed, mixed - decoding)
        return allowed

    def _decode_rows(self) -> tuple[list[Row], int]:
        """A token for each sequence that needs just one, and drafts in up to half of a step's
        tokens; where a step has no room for all, they take turns. And how many tokens these are.
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
        """Sequences with prefill for this step, the first in rank first."""
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
        """Whether those who stream wait for one step of prompts alone: where several and no fewer
        wait for their first token, because they arrived together, and their prompts are short, or
        did so when the first of them were done. Cut into pieces as small as those of mixed steps,
        prompts cost more in all, and who is done first decodes without the others.
        """
        if not decoding or self._budget.together() < WORTH_HOLDING * allowed:
            return False
        # What would fit into a mixed step has too few rows for attention in tiles apart, too.
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
        """Slices of what is missing of those `behind`, about `allowed` tokens in all."""
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
        """Who of `behind`, the first in rank first, gets how many tokens of prefill: half of them
        who is first of all, so that nobody starves, and the rest who needs least, so that as few as
        possible wait. A higher priority comes before both. Tokens with many others before them
        count as more than one; but who is first of all gets one.
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
        """About `tokens`: as many as fill tiles of the runner together with `decoding` others."""
        tile = self._info.tile
        whole = (tokens + decoding + tile // 2) // tile * tile - decoding
        return whole if whole > 0 else whole + tile

    def _wanted(self, sequence: Sequence) -> int:
        """How far the next step may bring `sequence`: memories that keep no past stop before the
        last token of the prompt, so that a checkpoint can be made there, and where a pin ends.
        """
        if self._info.keeps_past:
            return sequence.computable
        stops = [sequence.prompt_tokens - 1, *(tokens for tokens, _ in sequence.pins)]
        ahead = [stop - sequence.computed for stop in stops if stop > sequence.computed]
        return min(ahead, default=sequence.pending)

    @staticmethod
    def _within(outputs: int, sequence: Sequence, count: int) -> int:
        """The most of `count` tokens that need at most so many `outputs`."""
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
        """Others come before `sequence` in the next step, where not all have room."""
        assert sequence.slot is not None
        self._running[sequence.slot] = self._running.pop(sequence.slot)


def _together(first: RequestStats, other: RequestStats) -> RequestStats:
    """Two choices of one request."""
    states: tuple[RequestState, ...] = ("decoding", "prefill", "queued")
    return replace(
        first,
        state=next(state for state in states if state in (first.state, other.state)),
        computed_tokens=max(first.computed_tokens, other.computed_tokens),
        generated_tokens=first.generated_tokens + other.generated_tokens,
        tok_per_s=first.tok_per_s + other.tok_per_s,
    )
