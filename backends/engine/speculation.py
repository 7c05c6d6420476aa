"""Decides how many tokens are drafted for each sequence before a step. The step computes all of
them and keeps those that the sampler also draws (rule "match") or accepts (rule "rejection").

The distribution of the text does not depend on the drafts, and with the rule "match" the text
itself does not either: a draft only determines how many tokens one step yields.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Any, Final, Protocol

from hearth.backends.contract.sampling import Speculate
from hearth.backends.engine.drafts import (
    CHATS,
    WORKER_WINDOW,
    Chances,
    Draft,
    Offer,
    Speculating,
    kind_of,
)
from hearth.backends.engine.past_texts import PastTexts
from hearth.backends.engine.runner import Row, RunnerLost, StepPlan
from hearth.backends.engine.sequence import Sequence

log = logging.getLogger(__name__)

LEAST_GAIN: Final = 1.05
"""Steps with drafts must yield at least this many times the tokens per second of plain steps."""
PLAIN_EVERY: Final = 32
"""One step in this many runs without drafts, so that its cost is measured again."""
EXPLORING: Final = 0.01
"""Share of step time that may be spent on finding out what n-grams and drafters gain, split equally
between them."""
TRYING: Final = 0.75
"""Part of its share that a drafter gets, because a trial may cost many times the estimate."""
SLOWED: Final = 0.005
"""Share of a sequence's time by which n-grams of others may slow it."""
LEARN_EVERY: Final = 8
"""While nothing may be tried, one step in this many is learned from, because learning costs time.
"""
MOST_EXPLORING: Final = 4
"""Upper limit of each balance for exploring, in steps without drafts."""
MOST_OWED: Final = 0.5
"""Maximum total debt from earlier trials, in steps without drafts, at which another drafter may be
tried."""
MOST_LOST: Final = 1.0
"""Loss of a trial, in steps without drafts, up to which its drafts may go on growing."""
FIRST_ENTRY: Final = 1.0
"""Time that a draft model is assumed to take to catch up with a sequence, in steps without drafts,
until it was measured."""
MOST_ENTRY: Final = 2.0
"""Upper limit of the time to catch up that a balance must have, in steps without drafts."""
PROBE_TOKENS: Final = 2
"""Minimum number of tokens of a trial that would not pay off; one per sequence if that is more."""
MOST_GROWTH: Final = 2
"""Steps with drafts may have this many times the tokens of the largest steps that were observed."""
LEAST_GROWTH: Final = 1
"""Number of drafted tokens that is allowed even if no larger steps were observed."""
STEPS_WINDOW: Final = 128
"""Window of the moving average of what a drafter gains, in steps with that drafter."""
PLAIN_WINDOW: Final = 8
"""Window of the moving average of the cost of steps without drafts, in steps."""
OUTLIER: Final = 2.0
"""A step counts as at most this many times the fastest one of its size, because other programs slow
some steps down."""

PLAIN: Final = 0
NGRAM: Final = 1
"""`PLAIN` and `NGRAM` are the sources of drafts of a step other than drafters, whose kinds are
negative."""

LAST_STEPS: Final = 8
"""The cost of a step is the fastest of this many, because other programs only make steps slower."""
LEAST_STEPS: Final = 3
"""Below this many steps the cost counts as unknown."""

_LENGTHS: Final = (1, 2, 4, 8)
_AUTO_ALONE: Final = frozenset({"auto"})

Offers = list[tuple[Sequence, Speculating, Offer]]


class Drafter(Protocol):
    """A source of drafts: a draft model, or heads of the model itself."""

    @property
    def mode(self) -> Speculate:
        """The mode that selects it by name, besides "auto"."""
        ...

    @property
    def token_s(self) -> float:
        """Seconds that drafting one more token for all sequences takes; 0 while not measured."""
        ...

    @property
    def call_s(self) -> float:
        """Seconds per call, independent of the length of the drafts; 0 while not measured."""
        return 0.0

    @property
    def nbytes(self) -> int:
        """Memory in use now, without model weights."""
        ...

    @property
    def most(self) -> int | None:
        """Maximum number of tokens of a draft; None: no limit."""
        return None

    @property
    def catches_up(self) -> bool:
        """Whether the first draft of a sequence takes longer than others."""
        return False

    def can_draft(self, sequence: Sequence) -> bool:
        """Whether it can draft for `sequence` now."""
        return True

    def holds(self, sequence: Sequence) -> bool:
        """Whether it has caught up with `sequence`."""
        return True

    def observe(self, plan: StepPlan, hidden: Any) -> None:
        """Receive the hidden states of the last step, valid until the next step."""
        return

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, Draft]:
        """Drafts for the sequences, each with at most the given number of tokens."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Release what is held for `sequence`, which may be scheduled again."""
        ...

    def clear(self) -> None:
        """Drop what is kept of sequences that it no longer holds."""
        return


class StepCosts:
    """Time of steps without prefill, by token count; nearby counts are grouped."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._fastest: dict[int, float] = {}
        self._known: list[tuple[int, float]] = []
        """(tokens, seconds), ascending in both."""

    def observe(self, tokens: int, seconds: float) -> None:
        """Record that a step of `tokens` tokens took `seconds`."""
        group = _group(tokens)
        last = self._seconds.get(group)
        if last is None:
            last = self._seconds[group] = deque(maxlen=LAST_STEPS)
        last.append(seconds)
        if len(last) < LEAST_STEPS or self._fastest.get(group) == (fastest := min(last)):
            return
        self._fastest[group] = fastest
        self._known = []
        least = math.inf  # More tokens do not take less time.
        for count in sorted(self._fastest, reverse=True):
            least = min(least, self._fastest[count])
            self._known.append((count, least))
        self._known.reverse()

    def seconds(self, tokens: int) -> float | None:
        """Seconds of a step of `tokens` tokens: interpolated linearly between observed counts, and
        constant beyond the largest. None if no step of as many or fewer tokens was observed.
        """
        fewer, low_s = 0, None
        for more, high_s in self._known:
            if tokens < more:
                if low_s is None:
                    return None
                return low_s + (high_s - low_s) * (tokens - fewer) / (more - fewer)
            fewer, low_s = more, high_s
        return low_s

    @property
    def most_tokens(self) -> int:
        """Token count of the largest observed steps; 0 if none."""
        return self._known[-1][0] if self._known else 0

    @property
    def least_s(self) -> float:
        """Seconds of the smallest observed steps; 0 if none."""
        return self._known[0][1] if self._known else 0.0

    def is_measured(self, tokens: int) -> bool:
        """Whether enough steps of about `tokens` tokens were observed."""
        return _group(tokens) in self._fastest


class Ratio:
    """Ratio of two exponentially decaying sums over steps."""

    __slots__ = ("_keep", "_lower", "_upper", "steps")

    def __init__(self, window: int) -> None:
        self._keep = 1 - 1 / window
        self._upper = self._lower = 0.0
        self.steps = 0

    def add(self, upper: float, lower: float) -> None:
        """Add the values of one step to the sums."""
        self._upper = self._upper * self._keep + upper
        self._lower = self._lower * self._keep + lower
        self.steps += 1

    @property
    def so_far(self) -> float:
        """The ratio; 0 if nothing was added."""
        return self._upper / self._lower if self.steps else 0.0

    @property
    def value(self) -> float:
        """The ratio; 0 while fewer than `LEAST_STEPS` steps were added."""
        return self.so_far if self.steps >= LEAST_STEPS else 0.0


class Speculation:
    """Chooses which sequences get drafts in a step, from which source, and of how many tokens.

    On "auto", a step uses the drafter whose steps were measured to yield the most tokens per
    second, or none if steps without drafts yield more. N-grams are used where they are as often
    or more often right. Token j of a draft is worth the probability that it and all before it are
    right, and costs the time that one more token adds to a step. The likeliest tokens over all
    sequences are taken, as many as yield the most tokens per second.

    Finding out what another drafter gains, or whether n-grams match, costs time, so each of them
    has a balance in seconds. A small share of the time of all steps with sequences that speculate
    is credited to it. The time to look up, to catch up and to draft is debited, and so is the time
    a step took beyond what its tokens would have taken otherwise; if the step was faster, the
    difference is credited. With an exhausted balance, nothing is looked up or tried.

    What n-grams gain for one sequence slows the others. There are none in a step that would make a
    sequence without a draft slower than without speculation by more than a small share of its time.

    Args:
        drafters: draft models and heads.
        possible: False: the memory cannot forget tokens that turn out wrong.
        clock: seconds, for the time that drafters take.
    """

    def __init__(
        self,
        drafters: Seq[Drafter],
        *,
        possible: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.costs = StepCosts()
        self.chances = Chances(WORKER_WINDOW)
        self.drafted: list[int] = []
        self.accepted: list[int] = []
        self.drafts_by: dict[str, tuple[int, int]] = {}
        """(drafted, accepted) by source."""
        self.declined = 0
        """Drafts that sequences on "auto" could have had, but that would not have paid off."""
        self._past = PastTexts()
        self._drafters = {kind_of(index): drafter for index, drafter in enumerate(drafters)}
        self._kinds: dict[Speculate, tuple[int, ...]] = {"auto": tuple(self._drafters), "ngram": ()}
        for kind, drafter in self._drafters.items():
            self._kinds[drafter.mode] = (*self._kinds.get(drafter.mode, ()), kind)
        self._possible = possible
        self._clock = clock
        self._since_plain = 0
        self._plain: dict[int, Ratio] = {}
        """By number of sequences that decode: seconds per token in steps without drafts."""
        self._learned: set[int] = set()
        """Numbers of sequences for which enough of these steps were observed."""
        self._speed_ups: dict[tuple[int, int], Ratio] = {}
        """By drafter and, roughly, number of sequences: the time its tokens would take without
        drafts divided by the time they took.
        """
        self._balance_s = dict.fromkeys((NGRAM, *self._drafters), 0.0)
        self._entry_s: dict[int, float] = {}
        """Seconds that each drafter took to catch up with the last sequence that was new to it."""
        self._most_s = 0.0
        """Upper limit of a balance."""
        self._slowed_s = 0.0
        """Time that all steps took beyond steps without drafts, less the share that may be lost."""
        self._unpaid_s = 0.0
        """Step time that is not credited to the balances yet."""
        self._quiet_s = 0.0
        """Until `_unpaid_s` reaches this, nothing can be drafted, unless the number of sequences
        changes to one for which a drafter pays off.
        """
        self._usual_s = 0.0
        """Usual time of a step like the last one that was learned from."""
        self._unlearned = 0
        """Number of steps since the last one that was learned from."""
        self._trying = PLAIN
        """The drafter on trial in the last step, i.e. other than the best; else `PLAIN`."""
        self._is_growing = False
        """The drafts of the last step were cut, because the time of larger steps is unknown."""
        self._lost_s = 0.0
        """Time that the trial has lost, without what catching up with a text took."""
        # State of the current step:
        self._seen: tuple[StepPlan, Any] | None = None
        """The last step and its hidden states, if not passed on to the drafters yet."""
        self._is_wanted = False
        """The step has sequences that speculate."""
        self._decoding = 0
        self._way: int | None = None
        """The source of drafts; None if there is none or more than one."""
        self._way_s = 0.0
        """Time spent on drafts, without catching up."""
        self._late_s = 0.0
        """Time that drafters spent on catching up."""
        self._is_chosen = False
        """There was a choice of sources."""
        self._drafting = 0
        """Number of drafted tokens."""
        self._right = 0
        """How many of the drafted tokens were right."""

    def draft(
        self, decoding: Seq[Sequence], spare: int, has_room: Callable[[Sequence, int], bool]
    ) -> dict[Sequence, Draft]:
        """Drafts for the sequences in `decoding`, of at most `spare` tokens in total.

        Args:
            has_room: whether a sequence has room for this many tokens beyond its known ones.
        """
        before, self._decoding = self._decoding, len(decoding)
        self._way, self._drafting, self._right = None, 0, 0
        modes: set[Speculate] = set()
        if self._possible:
            modes = {one.speculating.mode for one in decoding if one.speculating is not None}
        self._is_wanted = bool(modes)
        if not modes or spare < 1:
            return {}
        if (
            self._unpaid_s < self._quiet_s
            and modes == _AUTO_ALONE
            and (before == len(decoding) or not self._pays())
        ):
            self._unlearned += 1
            return {}
        self._unlearned = 0
        began = self._clock()
        if self._seen is not None:
            for drafter in self._drafters.values():
                drafter.observe(*self._seen)
            self._seen = None
        self._pay_in()
        looks = "auto" in modes and self._balance_s[NGRAM] > 0
        ways = {mode: self._pick(mode) for mode in modes}
        picked = {way for way in ways.values() if way}
        if not looks and "ngram" not in modes and not picked:
            self._rest()
            return {}
        if len(picked) <= 1:
            self._way = next(iter(picked), NGRAM)
        self._quiet_s = self._late_s = 0.0
        self._is_chosen = any(mode == "auto" or len(self._kinds[mode]) > 1 for mode in modes)
        offers = self._offers(decoding, spare, ways, looks=looks)
        lengths = self._lengths(offers, spare)
        if looks and self._slows_others(decoding, offers, lengths):
            offers = self._offers(decoding, spare, ways, looks=False)
            lengths = self._lengths(offers, spare)
        drafts: dict[Sequence, Draft] = {}
        asked: dict[int, dict[Sequence, int]] = {}
        for (sequence, state, offer), length in zip(offers, lengths, strict=True):
            self.declined += not length
            length = min(length, spare)
            if not length or not has_room(sequence, length):
                continue
            spare -= length
            state.use(offer)
            if offer.tokens:
                drafts[sequence] = Draft(offer.tokens[:length])
            else:
                asked.setdefault(offer.kind, {})[sequence] = length
        for kind, by_model in asked.items():
            drafts |= self._ask(kind, by_model)
        for sequence, draft in drafts.items():
            if sequence.speculating is not None:
                sequence.speculating.laws = draft.laws
        self._drafting = sum(len(draft.tokens) for draft in drafts.values())
        took_s = self._clock() - began
        self._way_s = took_s - self._late_s
        if self._way == NGRAM:
            took_s = min(took_s, self._most_s)  # A longer time is not the look-up's fault.
        self._charge(took_s)
        if not drafts and (kind := self._trying):  # The drafter on trial cannot draft now.
            self._balance_s[kind] = min(self._balance_s[kind], -self._most_s)
            self._trying, self._way = PLAIN, None
        if not drafts and not picked and modes == _AUTO_ALONE:
            self._rest()
        return drafts

    def see(self, plan: StepPlan, hidden: Any) -> None:
        """Keep the hidden states of a step for the drafters."""
        self._seen = plan, hidden

    def verified(self, sequence: Sequence, row: Row, right: int) -> None:
        """Record that the first `right` drafts of `row` were right."""
        state = sequence.speculating
        assert state is not None
        state.verified(row.depth, right)
        if state.most_slowed_s is not None:
            state.most_slowed_s += right * self._token_s * self._decoding
        if state.kind > 0:
            by = "chats" if state.kind > CHATS else "ngram"
        else:
            by = self._drafters[state.kind].mode
        drafted, accepted = self.drafts_by.get(by, (0, 0))
        self.drafts_by[by] = drafted + row.depth, accepted + right
        self._right += right
        more = row.depth - len(self.drafted)
        self.drafted += [0] * more
        self.accepted += [0] * more
        for place in range(row.depth):
            self.drafted[place] += 1
            self.accepted[place] += place < right

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from the last step, which had `tokens` tokens including drafts, no prefill, and
        took `seconds`. Steps without sequences that speculate are ignored.
        """
        if not self._is_wanted:
            return
        decoding = self._decoding
        if self._unlearned % LEARN_EVERY and decoding in self._learned:
            self._unpaid_s += self._usual_s
            return
        self.costs.observe(tokens, seconds)
        usual_s = self.costs.seconds(tokens)
        if usual_s is None or tokens != decoding + self._drafting:
            return
        self._usual_s = usual_s
        self._unpaid_s += usual_s
        if self.costs.is_measured(tokens):
            seconds = min(seconds, OUTLIER * usual_s)
        if not self._drafting:
            if (plain := self._plain.get(_group(decoding))) is None:
                plain = self._plain[_group(decoding)] = Ratio(PLAIN_WINDOW)
            plain.add(seconds, decoding)
            if plain.steps >= PLAIN_WINDOW:
                self._learned.add(decoding)
            self._most_s = MOST_EXPLORING * seconds
        if (way := self._way) is None or (way == NGRAM and not self._drafting):
            return
        plain_s = self._token_s * decoding
        brought, best = 1 + self._right / decoding, 0.0
        cost = (seconds + self._way_s) / plain_s
        self._lost_s += (cost - brought) * plain_s
        self._slowed_s += (cost - 1) * plain_s + self._late_s
        if way != NGRAM and (brought > cost or way != self._trying or not self._is_growing):
            at = way, decoding.bit_length()
            self._speed_ups.setdefault(at, Ratio(STEPS_WINDOW)).add(brought, cost)
        if way == self._trying:
            best = max(map(self._speed_up, self._drafters))
        self._charge(seconds - brought * plain_s / max(1.0, best))

    def ended(self, sequence: Sequence) -> None:
        """Called when `sequence` has ended: n-grams of later sequences may match its text."""
        state = sequence.speculating
        if state is not None and state.shares and state.mode in ("auto", "ngram"):
            self._past.add(sequence.tokens, sequence.cached)

    def clear(self) -> None:
        """Drop the texts of all sequences that ended."""
        self._past = PastTexts()
        for drafter in self._drafters.values():
            drafter.clear()

    def forget(self, sequence: Sequence) -> None:
        """Called when `sequence` gave up its slot."""
        for drafter in self._drafters.values():
            drafter.forget(sequence)

    @property
    def drafter_bytes(self) -> int:
        """Memory of past texts, and of the drafters without model weights."""
        return self._past.nbytes + sum(drafter.nbytes for drafter in self._drafters.values())

    @property
    def _token_s(self) -> float:
        """Seconds per token in steps without drafts of `_decoding` sequences. If none were
        observed, estimated from steps of as many tokens, or from the smallest ones.
        """
        plain = self._plain.get(_group(self._decoding))
        if plain is not None and plain.value:
            return plain.value
        return (self.costs.seconds(self._decoding) or self.costs.least_s) / self._decoding

    @property
    def _unknown_steps(self) -> int:
        """How many more steps without drafts of `_decoding` sequences must be observed before a
        drafter is tried.
        """
        group = _group(self._decoding)
        plain = self._plain.get(group)
        steps = 0 if plain is None else plain.steps
        if steps < PLAIN_WINDOW and self._pays():
            known = [one for one, ratio in self._plain.items() if ratio.steps >= PLAIN_WINDOW]
            if known and min(known) < group < max(known):
                return 0  # The time is interpolated.
        return max(0, PLAIN_WINDOW - steps)

    def _speed_up(self, kind: int) -> float:
        """The speed-up of this drafter with about `_decoding` sequences; while that is unknown, the
        one with the next larger number for which it is known. 0 while none is.
        """
        least = self._decoding.bit_length()
        known = [size for one, size in self._speed_ups if one == kind and size >= least]
        for size in sorted(known):
            if value := self._speed_ups[kind, size].value:
                return value
        return 0.0

    def _goes_on(self, kind: int) -> bool:
        """Whether the drafter that was tried in the last step is tried again: while its drafts
        grow and are right often enough to pay, or until its speed-up is known.
        """
        if self._is_growing:
            return self._lost_s < MOST_LOST * self._step_s and self._is_promising(kind)
        ratio = self._speed_ups.get((kind, self._decoding.bit_length()))
        return ratio is not None and ratio.steps < LEAST_STEPS and ratio.so_far > 1

    def _pays(self) -> bool:
        """Whether a drafter is known to pay off with about `_decoding` sequences."""
        return any(self._speed_up(kind) >= 1 for kind in self._drafters)

    @property
    def _step_s(self) -> float:
        """Seconds of a step without drafts."""
        return self._most_s / MOST_EXPLORING

    def _overdue_s(self) -> float:
        """Step time until enough of the debt from earlier trials is paid off for another drafter to
        be tried.
        """
        owing = [kind for kind, balance_s in self._balance_s.items() if balance_s < 0]
        owed_s = -sum(self._balance_s[kind] for kind in owing)
        more_s = owed_s - MOST_OWED * self._step_s
        return more_s / sum(map(self._share, owing)) if more_s > 0 else 0.0

    def _pay_in(self) -> None:
        unpaid_s, self._unpaid_s = self._unpaid_s, 0.0
        self._slowed_s -= SLOWED * unpaid_s
        for kind, balance_s in self._balance_s.items():
            self._balance_s[kind] = min(balance_s + self._share(kind) * unpaid_s, self._most_s)

    def _rest(self) -> None:
        """Set `_quiet_s`: do nothing until one of the balances is sufficient again."""
        least_s = max(self._overdue_s(), self._unknown_steps * self._usual_s)
        self._quiet_s = -self._left(NGRAM) / self._share(NGRAM)
        for kind in filter(self._may_pay, self._drafters):
            wait_s = max(least_s, -self._left(kind) / self._share(kind))
            self._quiet_s = min(self._quiet_s, wait_s)

    def _share(self, kind: int) -> float:
        """Share of step time that is credited to the balance of `kind`."""
        return EXPLORING / len(self._balance_s) * (1.0 if kind == NGRAM else TRYING)

    def _left(self, kind: int) -> float:
        """The balance of `kind` that would be left after a short first draft of a sequence."""
        if kind == NGRAM:
            return self._balance_s[kind]
        probe_s = _seconds(self._drafters[kind], PROBE_TOKENS)
        return self._balance_s[kind] - probe_s - self._entering_s(kind)

    def _entering_s(self, kind: int) -> float:
        """Seconds that drafter `kind` is expected to take to catch up with a sequence; at most as
        long as a balance has to last for.
        """
        if not self._drafters[kind].catches_up:
            return 0.0
        entry_s = self._entry_s.get(kind, FIRST_ENTRY * self._step_s)
        return min(entry_s, MOST_ENTRY * self._step_s)

    def _charge(self, seconds: float) -> None:
        if self._is_chosen and self._way is not None:
            self._balance_s[self._way] -= seconds

    def _pick(self, mode: Speculate) -> int:
        """The drafter of a step for sequences in `mode`, or `PLAIN`."""
        kinds, is_auto = self._kinds[mode], mode == "auto"
        if not kinds or (len(kinds) == 1 and not is_auto):
            return kinds[0] if kinds else PLAIN
        if is_auto and self._unknown_steps:
            return PLAIN
        paying = kinds
        if is_auto:
            paying = tuple(one for one in kinds if self._speed_up(one) >= 1)
            paying = tuple(filter(self._is_promising, paying))
        best = max(paying, key=self._speed_up, default=PLAIN)
        last, self._trying = self._trying, PLAIN
        if last and last != best and self._goes_on(last):
            self._trying = last
        else:
            others = [kind for kind in kinds if kind != best and self._may_pay(kind)]
            other = max(others, key=self._left, default=PLAIN)
            if other and self._left(other) > 0 and not self._overdue_s():
                self._trying, self._lost_s = other, 0.0
        return self._trying or best

    def _is_promising(self, kind: int) -> bool:
        """Whether this drafter would pay off if its tokens were right as often as lately."""
        return self._may_pay(kind, self.chances.of(kind))

    def _may_pay(self, kind: int, chance: float = 1.0) -> bool:
        """Whether this drafter would pay off if each token of its drafts were right with `chance`;
        True while its cost is unknown.
        """
        drafter, plain_s = self._drafters[kind], self._token_s * self._decoding
        if not _seconds(drafter, 1):
            return True
        for length in _LENGTHS:
            step_s = max(plain_s, self.costs.seconds(self._decoding * (1 + length)) or 0.0)
            tokens = 1 + sum(chance**ahead for ahead in range(1, length + 1))
            if tokens * plain_s >= LEAST_GAIN * (step_s + _seconds(drafter, length)):
                return True
        return False

    def _slows_others(self, decoding: Seq[Sequence], offers: Offers, lengths: list[int]) -> bool:
        """Whether the step would slow a sequence on "auto" that gets no draft by more than it may
        be slowed.
        """
        drafted = {one for (one, _, _), length in zip(offers, lengths, strict=True) if length}
        slowed_s = self._slowed_s
        if drafted:
            plain_s = self._token_s * self._decoding
            step_s = self.costs.seconds(self._decoding + sum(lengths)) or plain_s
            slowed_s += max(0.0, step_s - plain_s)
        is_slower = False
        for sequence in decoding:
            if (state := sequence.speculating) is not None and state.mode == "auto":
                if state.most_slowed_s is None:
                    state.most_slowed_s = self._slowed_s
                is_slower |= sequence not in drafted and slowed_s > state.most_slowed_s
        return is_slower

    def _offers(
        self, decoding: Seq[Sequence], spare: int, ways: Mapping[Speculate, int], *, looks: bool
    ) -> Offers:
        """The drafts that the sequences could have."""
        offers: Offers = []
        entering = False
        for sequence in decoding:
            state = sequence.speculating
            if state is None or (most := min(state.most, sequence.most_drafts, spare)) < 1:
                continue
            is_auto = state.mode == "auto"
            if way := ways[state.mode]:
                drafter = self._drafters[way]
                if not drafter.can_draft(sequence):
                    way = PLAIN
                elif is_auto and not drafter.holds(sequence):  # Only one new sequence per step.
                    left_s = self._balance_s[way] - self._entering_s(way)
                    way = PLAIN if entering or left_s <= 0 else way
                    entering = True
            looking = looks if is_auto else state.mode == "ngram"
            past = self._past if looking and state.shares else None
            offer = state.offer(sequence.tokens, most, way, self.chances, looks=looking, past=past)
            if offer is not None:
                if not offer.tokens:
                    offer.most = min(most, self._drafters[offer.kind].most or most)
                offers.append((sequence, state, offer))
        return offers

    def _ask(self, kind: int, lengths: Mapping[Sequence, int]) -> dict[Sequence, Draft]:
        """The drafts of drafter `kind`; none if it fails."""
        drafter = self._drafters[kind]
        entering = sum(not drafter.holds(one) for one in lengths)
        began = self._clock()
        drafts: dict[Sequence, Draft] = {}
        try:
            drafts = drafter.draft(lengths)
        except RunnerLost:
            raise
        except Exception:
            log.exception("no drafts in this step")
            for sequence in lengths:
                drafter.forget(sequence)
        filled = {one: draft for one, draft in drafts.items() if draft.tokens}
        took_s = self._clock() - began
        # Without catching up, a call takes about as long as the fastest calls so far.
        expected_s = _seconds(drafter, max((len(one.tokens) for one in filled.values()), default=0))
        if entering:
            self._entry_s[kind] = max(0.0, took_s - expected_s) / entering
        if took_s > OUTLIER * expected_s:
            self._late_s += took_s - expected_s
        return filled

    def _lengths(self, offers: Offers, spare: int) -> list[int]:
        """How many tokens each of `offers` gets."""
        lengths = [0 if state.mode == "auto" else offer.most for _, state, offer in offers]
        forced = sum(lengths)
        before = self._decoding + forced
        self._is_growing = False
        if all(lengths) or not self.costs.is_measured(before):
            return lengths
        places = [
            (offer.chance**ahead, -ahead, index)
            for index, (_, _, offer) in enumerate(offers)
            if not lengths[index]
            for ahead in range(1, offer.most + 1)
        ]
        places.sort(reverse=True)
        most = max(LEAST_GROWTH, MOST_GROWTH * self.costs.most_tokens - before)
        is_cut = most < min(spare - forced, len(places))
        del places[max(0, min(most, spare - forced)) :]
        chosen = places[: self._worth(places, offers, before)]
        kind = self._trying
        if kind and not chosen:
            chosen = [place for place in places if offers[place[2]][2].kind == kind]
            if not is_cut or not self._is_promising(kind):
                del chosen[max(PROBE_TOKENS, self._decoding) :]
        is_first = bool(kind) and not self.chances.knows(kind)
        self._is_growing = is_first or (is_cut and len(chosen) == len(places))
        if is_first:  # Of its chance nothing is known, so the drafts are short.
            del chosen[max(PROBE_TOKENS, self._decoding) :]
        for _, _, index in chosen:
            lengths[index] += 1
        return lengths

    def _worth(self, places: list[tuple[float, int, int]], offers: Offers, before: int) -> int:
        """How many of `places`, likeliest first, to add to `before` other tokens for the most
        tokens per second. Each place is (chance, minus the place in the draft, index of the offer).
        """
        plain_s = self.costs.seconds(before)
        if not plain_s or self._since_plain >= PLAIN_EVERY:
            self._since_plain = 0
            return 0
        best, best_rate = 0, LEAST_GAIN * before / plain_s
        gain = float(before)
        depths: dict[int, int] = {}
        for count, (chance, ahead, index) in enumerate(places, 1):
            gain += chance
            seconds = self.costs.seconds(before + count) or plain_s
            if self._drafters:
                offer = offers[index][2]
                if not offer.tokens:
                    depths[offer.kind] = max(depths.get(offer.kind, 0), -ahead)
                for kind, depth in depths.items():
                    seconds += _seconds(self._drafters[kind], depth)
            if gain / seconds > best_rate:
                best, best_rate = count, gain / seconds
        self._since_plain += best > 0
        return best


def _seconds(drafter: Drafter, tokens: int) -> float:
    """Seconds to make drafts of `tokens` tokens."""
    return drafter.call_s + tokens * drafter.token_s


def _group(tokens: int) -> int:
    """The group of a token count, named by the largest count in it."""
    step = 1 if tokens <= 16 else 4 if tokens <= 32 else 16
    return -(-tokens // step) * step
