"""How many tokens are guessed for each sequence before a step, which then computes all of them and
keeps those that the sampler draws as well, or accepts.

The law of the text does not depend on it, nor the text itself with the rule "match": a draft only
decides how many tokens one step brings.
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
from hearth.backends.engine.past_texts import TextsByNamespace
from hearth.backends.engine.runner import Row, RunnerLost, StepPlan, StepResult
from hearth.backends.engine.sequence import Sequence

log = logging.getLogger(__name__)

LEAST_GAIN: Final = 1.05
"""Steps with drafts must bring this many times the tokens per second."""
PLAIN_EVERY: Final = 32
"""Of so many steps with drafts one has none, which is measured again."""
EXPLORING: Final = 0.01
"""Part of the time of steps that may be lost to find out what n-grams and drafters bring, by equal
shares;"""
TRYING: Final = 0.75
"""of its share a drafter has this part: a try may cost many times what it was thought to."""
LEARN_EVERY: Final = 8
"""Of so many steps while nothing may be tried one is learned from: that costs time, too."""
MOST_EXPLORING: Final = 4
"""Steps without drafts that each of them may save up for that,"""
MOST_OWED: Final = 0.5
"""and that all of them may owe for what was tried, when another drafter is tried."""
PROBE_TOKENS: Final = 2
LEAST_GROWTH: Final = 1
"""Tokens that drafts may have where larger steps were not seen yet."""
STEPS_WINDOW: Final = 128
"""Steps with a drafter back to which is known what they brought,"""
PLAIN_WINDOW: Final = 8
"""and steps without drafts what they took."""
OUTLIER: Final = 2.0
"""A step counts at most this many times the fastest of its size: other programs slow some down."""

PLAIN: Final = 0
NGRAM: Final = 1
"""What drafts in a step, besides drafters, whose kinds are negative."""

LAST_STEPS: Final = 8
"""The fastest of so many steps tells what one costs: other programs only make them longer,"""
LEAST_STEPS: Final = 3
"""and of fewer nothing is known."""

_LENGTHS: Final = (1, 2, 4, 8)
_AUTO_ALONE: Final = frozenset({"auto"})

Offers = list[tuple[Sequence, Speculating, Offer]]


class Drafter(Protocol):
    """What guesses how sequences go on: a model, or heads of the model itself."""

    @property
    def mode(self) -> Speculate:
        """What asks for it by name, besides "auto"."""
        ...

    @property
    def token_s(self) -> float:
        """Seconds that one token more for all sequences takes; 0 while not measured."""
        ...

    @property
    def call_s(self) -> float:
        """Seconds that guessing takes however long drafts are; 0 while not measured."""
        return 0.0

    @property
    def nbytes(self) -> int:
        """What it takes of memory now, weights of models left out."""
        ...

    @property
    def most(self) -> int | None:
        """Tokens of a draft at most; None: as many as may be."""
        return None

    def can_draft(self, sequence: Sequence) -> bool:
        """Whether it can guess for `sequence` now."""
        return True

    def holds(self, sequence: Sequence) -> bool:
        """Whether it has followed `sequence`; else its first draft takes longer."""
        return True

    def observe(self, plan: StepPlan, hidden: Any) -> None:
        """The last step gave hidden states."""
        return

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, Draft]:
        """What may follow each sequence: as many tokens as given for it, or fewer."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Free what is held of `sequence`; it may come back."""
        ...

    def clear(self) -> None:
        """Forget what is kept of sequences that it does not hold any more."""
        return


class StepCosts:
    """What a step without prefill takes, by its tokens: nearby numbers count together."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._fastest: dict[int, float] = {}
        self._known: list[tuple[int, float]] = []
        """(tokens, seconds), ascending in both."""

    def observe(self, tokens: int, seconds: float) -> None:
        """A step of `tokens` tokens took `seconds`."""
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
        """Between numbers that were seen, on the straight line; beyond the largest, as there. None
        where no step of as many or fewer was seen.
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
        """Of the largest steps that were seen; 0 where none were."""
        return self._known[-1][0] if self._known else 0

    @property
    def least_s(self) -> float:
        """Of the fewest tokens that were seen; 0 where none were."""
        return self._known[0][1] if self._known else 0.0

    def is_measured(self, tokens: int) -> bool:
        """Whether enough steps of about `tokens` tokens were seen."""
        return _group(tokens) in self._fastest


class Ratio:
    """Of two sums, in which each step back counts less."""

    __slots__ = ("_keep", "_lower", "_upper", "steps")

    def __init__(self, window: int) -> None:
        self._keep = 1 - 1 / window
        self._upper = self._lower = 0.0
        self.steps = 0

    def add(self, upper: float, lower: float) -> None:
        """What a step adds to the sums."""
        self._upper = self._upper * self._keep + upper
        self._lower = self._lower * self._keep + lower
        self.steps += 1

    @property
    def so_far(self) -> float:
        """0 where nothing was added."""
        return self._upper / self._lower if self.steps else 0.0

    @property
    def value(self) -> float:
        """0 while too little is known."""
        return self.so_far if self.steps >= LEAST_STEPS else 0.0


class Speculation:
    """Chooses who gets drafts in a step, by what, and of how many tokens.

    On "auto" a step takes the drafter whose steps were measured to bring the most tokens per
    second, or none if those without drafts do, and n-grams where these are as often right. Token j
    of a draft is worth the chance that it and all before it are right, and costs what a step of one
    more token takes: the likeliest of all sequences are taken, as many as bring the most tokens per
    second.

    To find out what another drafter brings, or whether n-grams match, costs time. Each of them has
    an account of seconds. A small part of the time of all steps of sequences that speculate is paid
    in. What it takes to look, to catch up and to draft is paid out, and what a step took longer
    than its tokens would have taken otherwise, or paid in if it was faster. Without a balance
    nothing is looked up or tried.

    Args:
        drafters: models that guess.
        possible: False: the memory cannot forget tokens that turn out wrong.
        clock: seconds, for what drafters take.
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
        """(drafted, accepted) by what made them."""
        self.declined = 0
        """Drafts that a sequence on "auto" could have had, and that would not have paid."""
        self._past = TextsByNamespace()
        self._drafters = {kind_of(index): drafter for index, drafter in enumerate(drafters)}
        self._kinds: dict[Speculate, tuple[int, ...]] = {"auto": tuple(self._drafters), "ngram": ()}
        for kind, drafter in self._drafters.items():
            self._kinds[drafter.mode] = (*self._kinds.get(drafter.mode, ()), kind)
        self._possible = possible
        self._clock = clock
        self._since_plain = 0
        self._plain: dict[int, Ratio] = {}
        """By sequences that decode: seconds of a token in steps without drafts."""
        self._speed_ups: dict[tuple[int, int], Ratio] = {}
        """By drafter and, roughly, sequences: what its tokens take without drafts by what they
        took.
        """
        self._balance_s = dict.fromkeys((NGRAM, *self._drafters), 0.0)
        self._most_s = 0.0
        """A balance at most."""
        self._unpaid_s = 0.0
        """Time of steps of which nothing was paid in yet;"""
        self._quiet_s = 0.0
        """before it is as much nothing can be drafted, unless others decode for whom it pays."""
        self._usual_s = 0.0
        """What the last step that was learned from usually takes;"""
        self._unlearned = 0
        """steps since then."""
        self._trying = PLAIN
        """The drafter of the last step, if it was another than the best."""
        # Of the step that is computed:
        self._seen: tuple[StepPlan, Any] | None = None
        """The last step, and its hidden states, of which drafters do not know yet."""
        self._is_wanted = False
        """Sequences that speculate are in it."""
        self._decoding = 0
        self._way: int | None = None
        """What may draft; None: nothing, or several do."""
        self._way_s = 0.0
        """How long that took, catching up left out,"""
        self._late_s = 0.0
        """and what that took."""
        self._is_chosen = False
        """It could have been something else."""
        self._drafting = 0
        """Tokens that are drafted,"""
        self._right = 0
        """and how many of them were right."""

    def draft(
        self, decoding: Seq[Sequence], spare: int, has_room: Callable[[Sequence, int], bool]
    ) -> dict[Sequence, Draft]:
        """Drafts for those who decode, of at most `spare` tokens in all.

        Args:
            has_room: whether a sequence can have this many tokens more than are known.
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
        made: dict[Sequence, Draft] = {}
        asked: dict[int, dict[Sequence, int]] = {}
        for (sequence, state, offer), length in zip(offers, lengths, strict=True):
            self.declined += not length
            length = min(length, spare)
            if not length or not has_room(sequence, length):
                continue
            spare -= length
            state.use(offer)
            if offer.tokens:
                made[sequence] = Draft(offer.tokens[:length])
            else:
                asked.setdefault(offer.kind, {})[sequence] = length
        for kind, by_model in asked.items():
            made |= self._ask(kind, by_model)
        for sequence, draft in made.items():
            if sequence.speculating is not None:
                sequence.speculating.laws = draft.laws
        self._drafting = sum(len(draft.tokens) for draft in made.values())
        took_s = self._clock() - began
        self._way_s = took_s - self._late_s
        if self._way == NGRAM:
            took_s = min(took_s, self._most_s)  # What is longer is not its fault.
        self._charge(took_s)
        if not made and (kind := self._trying):  # It cannot draft now.
            self._balance_s[kind] = min(self._balance_s[kind], -self._most_s)
            self._trying, self._way = PLAIN, None
        if not made and not picked and modes == _AUTO_ALONE:
            self._rest()
        return made

    def see(self, plan: StepPlan, result: StepResult) -> None:
        """`plan` was computed, and `result` has hidden states."""
        self._seen = plan, result.hidden

    def verified(self, sequence: Sequence, row: Row, right: int) -> None:
        """The first `right` of the drafts of `row` were right."""
        state = sequence.speculating
        assert state is not None
        state.verified(row.depth, right)
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
        """The last step had `tokens` tokens with drafts, no prefill, and took `seconds`. Nothing is
        learned from steps without sequences that speculate.
        """
        if not self._is_wanted:
            return
        decoding = self._decoding
        if self._unlearned % LEARN_EVERY and not self._unknown_steps:
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
            self._most_s = MOST_EXPLORING * seconds
        if (way := self._way) is None or (way == NGRAM and not self._drafting):
            return
        plain_s = self._token_s * decoding
        brought, best = 1 + self._right / decoding, 0.0
        if way != NGRAM:
            at = way, decoding.bit_length()
            ratio = self._speed_ups.setdefault(at, Ratio(STEPS_WINDOW))
            ratio.add(brought, (seconds + self._way_s) / plain_s)
        if way == self._trying:
            best = max(map(self._speed_up, self._drafters))
        self._charge(seconds - brought * plain_s / max(1.0, best))

    def ended(self, sequence: Sequence) -> None:
        """`sequence` has all of its tokens: others may be like it."""
        state = sequence.speculating
        if state is not None and state.shares and state.mode in ("auto", "ngram"):
            self._past.add(sequence.namespace, sequence.tokens, sequence.cached)

    def clear(self) -> None:
        """Forget the texts of all that ended."""
        self._past.clear()
        for drafter in self._drafters.values():
            drafter.clear()

    def forget(self, sequence: Sequence) -> None:
        """`sequence` gave up its slot."""
        for drafter in self._drafters.values():
            drafter.forget(sequence)

    @property
    def drafter_bytes(self) -> int:
        """What keys and values of drafters take of memory, and texts."""
        return self._past.nbytes + sum(drafter.nbytes for drafter in self._drafters.values())

    @property
    def _token_s(self) -> float:
        """Seconds of a token in steps without drafts of so many sequences; where none were seen, of
        steps of as many tokens, or the fewest that were.
        """
        plain = self._plain.get(_group(self._decoding))
        if plain is not None and plain.value:
            return plain.value
        return (self.costs.seconds(self._decoding) or self.costs.least_s) / self._decoding

    @property
    def _unknown_steps(self) -> int:
        """Steps without drafts of so many sequences to be seen before a drafter is tried."""
        plain = self._plain.get(_group(self._decoding))
        return PLAIN_WINDOW if plain is None else max(0, PLAIN_WINDOW - plain.steps)

    def _speed_up(self, kind: int) -> float:
        """What this drafter brings with so many sequences; 0 while that is not known."""
        ratio = self._speed_ups.get((kind, self._decoding.bit_length()))
        return 0.0 if ratio is None else ratio.value

    def _pays(self) -> bool:
        """Whether a drafter is known to bring more with so many sequences than it costs."""
        return any(self._speed_up(kind) >= 1 for kind in self._drafters)

    def _overdue_s(self) -> float:
        """Time of steps until what was tried is paid for as far as it has to be before another
        drafter is tried.
        """
        owing = [kind for kind, balance_s in self._balance_s.items() if balance_s < 0]
        owed_s = -sum(self._balance_s[kind] for kind in owing)
        more_s = owed_s - MOST_OWED * self._most_s / MOST_EXPLORING
        return more_s / sum(map(self._share, owing)) if more_s > 0 else 0.0

    def _pay_in(self) -> None:
        unpaid_s, self._unpaid_s = self._unpaid_s, 0.0
        for kind, balance_s in self._balance_s.items():
            self._balance_s[kind] = min(balance_s + self._share(kind) * unpaid_s, self._most_s)

    def _rest(self) -> None:
        """Do nothing before one of the balances is enough again."""
        least_s = max(self._overdue_s(), self._unknown_steps * self._usual_s)
        self._quiet_s = -self._left(NGRAM) / self._share(NGRAM)
        for kind in filter(self._may_pay, self._drafters):
            wait_s = max(least_s, -self._left(kind) / self._share(kind))
            self._quiet_s = min(self._quiet_s, wait_s)

    def _share(self, kind: int) -> float:
        """Of the time of steps, for an account."""
        return EXPLORING / len(self._balance_s) * (1.0 if kind == NGRAM else TRYING)

    def _left(self, kind: int) -> float:
        """Balance after a short draft."""
        drafter = self._drafters.get(kind)
        return self._balance_s[kind] - (_seconds(drafter, PROBE_TOKENS) if drafter else 0.0)

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
        best = max(kinds, key=self._speed_up, default=PLAIN)
        if is_auto and self._speed_up(best) < 1:
            best = PLAIN
        last, self._trying = self._trying, PLAIN
        begun = self._speed_ups.get((last, self._decoding.bit_length()))
        if begun is not None and last != best and begun.steps < LEAST_STEPS and begun.so_far > 1:
            self._trying = last  # Until enough is known of it.
        else:
            others = [kind for kind in kinds if kind != best and self._may_pay(kind)]
            other = max(others, key=self._left, default=PLAIN)
            if other and self._left(other) > 0 and not self._overdue_s():
                self._trying = other
        return self._trying or best

    def _may_pay(self, kind: int) -> bool:
        """Whether drafts of this drafter would pay if all of them were right; true while it is not
        known what it takes.
        """
        drafter, plain_s = self._drafters[kind], self._token_s * self._decoding
        if not drafter.token_s:
            return True
        for length in _LENGTHS:
            step_s = max(plain_s, self.costs.seconds(self._decoding * (1 + length)) or 0.0)
            if (1 + length) * plain_s >= LEAST_GAIN * (step_s + _seconds(drafter, length)):
                return True
        return False

    def _offers(
        self, decoding: Seq[Sequence], spare: int, ways: Mapping[Speculate, int], *, looks: bool
    ) -> Offers:
        """The drafts that sequences could have."""
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
                elif is_auto and not drafter.holds(sequence):  # One at a time.
                    way = PLAIN if entering or self._balance_s[way] <= 0 else way
                    entering = True
            looking = looks if is_auto else state.mode == "ngram"
            past = self._past.of(sequence.namespace) if looking and state.shares else None
            offer = state.offer(sequence.tokens, most, way, self.chances, looks=looking, past=past)
            if offer is not None:
                if not offer.tokens:
                    offer.most = min(most, self._drafters[offer.kind].most or most)
                offers.append((sequence, state, offer))
        return offers

    def _ask(self, kind: int, lengths: Mapping[Sequence, int]) -> dict[Sequence, Draft]:
        """What the drafter `kind` guesses; nothing, if it fails."""
        drafter, began = self._drafters[kind], self._clock()
        drafts: dict[Sequence, Draft] = {}
        try:
            drafts = drafter.draft(lengths)
        except RunnerLost:
            raise
        except Exception:
            log.exception("no drafts in this step")
            for sequence in lengths:
                drafter.forget(sequence)
        made = {one: draft for one, draft in drafts.items() if draft.tokens}
        took_s = self._clock() - began
        # Where it had nothing to catch up with, its fastest calls tell what this one takes.
        expected_s = _seconds(drafter, max((len(one.tokens) for one in made.values()), default=0))
        if took_s > OUTLIER * expected_s:
            self._late_s += took_s - expected_s
        return made

    def _lengths(self, offers: Offers, spare: int) -> list[int]:
        """How many tokens each of `offers` gets."""
        lengths = [0 if state.mode == "auto" else offer.most for _, state, offer in offers]
        forced = sum(lengths)
        before = self._decoding + forced
        if all(lengths) or not self.costs.is_measured(before):
            return lengths
        places = [
            (offer.chance**ahead, -ahead, index)
            for index, (_, _, offer) in enumerate(offers)
            if not lengths[index]
            for ahead in range(1, offer.most + 1)
        ]
        places.sort(reverse=True)
        most = spare - forced
        # Half as many tokens again at most as in steps whose time is known.
        most = min(most, max(LEAST_GROWTH, self.costs.most_tokens * 3 // 2 - before))
        del places[max(0, most) :]
        for _, _, index in places[: self._worth(places, offers, before)]:
            lengths[index] += 1
        for index, (_, _, offer) in enumerate(offers):
            if offer.kind == self._trying and self._trying and sum(lengths) == forced:
                lengths[index] = min(offer.most, PROBE_TOKENS)
        return lengths

    def _worth(self, places: list[tuple[float, int, int]], offers: Offers, before: int) -> int:
        """How many of `places` (chance, minus the place in the draft, offer), the likeliest first,
        bring the most tokens per second in addition to `before` other tokens.
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
    """What drafts of `tokens` tokens take."""
    return drafter.call_s + tokens * drafter.token_s


def _group(tokens: int) -> int:
    """The largest number of tokens that counts together with this one."""
    step = 1 if tokens <= 16 else 4 if tokens <= 32 else 16
    return -(-tokens // step) * step
