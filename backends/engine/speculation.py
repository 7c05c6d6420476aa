"""How many tokens are guessed for each sequence before a step, which then computes all of them and
keeps those that the sampler draws as well, or accepts.

The law of the text does not depend on it, nor the text itself with the rule "match": a draft only
decides how many tokens one step brings.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Any, Final, Protocol

from hearth.backends.contract.sampling import Speculate
from hearth.backends.engine.drafts import (
    WORKER_WINDOW,
    Chances,
    Draft,
    Offer,
    Speculating,
    kind_of,
)
from hearth.backends.engine.runner import Row, StepResult
from hearth.backends.engine.sequence import Sequence

LEAST_GAIN: Final = 1.02
"""Steps with drafts must bring this many times the tokens per second."""
PLAIN_EVERY: Final = 64
"""Of so many steps with drafts one has none, which is measured again."""
EXPLORING: Final = 0.005
"""Part of the time of steps that may be lost to find out whether a drafter pays."""
MOST_EXPLORING: Final = 4
"""Steps without drafts that may be saved up for that."""
PROBE_TOKENS: Final = 2
RETHINK_STEPS: Final = 256
"""Steps without drafts after which it is asked again whether a drafter could pay."""
MOST_COUNTED: Final = 4
"""Tokens of a draft that the time of a call is divided among where drafters are compared."""
BEST_CHANCE: Final = 0.9
"""A drafter that would not pay with this share of its tokens right is not tried."""

COSTS_STEPS: Final = 32
"""Steps for which what a token of a drafter costs is not worked out again."""

LAST_STEPS: Final = 8
"""The fastest of so many steps tells what one costs: other programs only make them longer,"""
LEAST_STEPS: Final = 3
"""and of fewer nothing is known."""

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

    def observe(self, sequence: Sequence, hidden: Any) -> None:
        """The last token of `sequence` was drawn from the state `hidden`."""
        return

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, Draft]:
        """What may follow each sequence: as many tokens as given for it, or fewer."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Free what is held of `sequence`; it may come back."""
        ...


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

    def is_measured(self, tokens: int) -> bool:
        """Whether enough steps of about `tokens` tokens were seen."""
        return _group(tokens) in self._fastest


class Speculation:
    """Chooses who gets drafts in a step, and of how many tokens.

    Where a sequence is on "auto", token j of its draft is worth the chance that it and all before
    it are right, and costs what a step of one more token takes, as it was measured. The
    likeliest tokens of all sequences are taken, as many as bring the most tokens per second.

    Chances of n-grams are learnt without drafts, by comparing. What is not known of a drafter costs
    time to find out: that comes out of a small part of the time of all steps, to which steps with
    drafts add what they gain.

    Args:
        drafters: models that guess; of those that a sequence may have it gets the best.
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
        self._drafters = {kind_of(index): drafter for index, drafter in enumerate(drafters)}
        self._may_lack = any(type(one).can_draft is not Drafter.can_draft for one in drafters)
        """Some of them cannot draft always."""
        self._possible = possible
        self._clock = clock
        self._since_plain = 0
        self._costs_of_drafters: dict[tuple[Speculate, int], dict[int, float]] = {}
        """By mode and sequences that decode: see `_work_out`."""
        self._left = COSTS_STEPS
        """Steps after which these are worked out again."""
        self._allowance_s = 0.0
        """What exploring may still take."""
        self._drafting = 0
        """Tokens drafted for the step that is computed,"""
        self._right = 0
        """and how many of them were right."""

    def draft(
        self, decoding: Seq[Sequence], spare: int, has_room: Callable[[Sequence, int], bool]
    ) -> dict[Sequence, Draft]:
        """Drafts for those who decode, of at most `spare` tokens in all.

        Args:
            has_room: whether a sequence can have this many tokens more than are known.
        """
        self._drafting = self._right = 0
        if not self._possible or spare < 1:
            return {}
        offers: Offers = []
        costs, all_of = self._costs_of_drafters, self._drafters
        for sequence in decoding:
            state = sequence.speculating
            if state is None:
                continue
            state.laws = None
            if state.resting:
                state.resting -= 1
                continue
            if (most := min(state.most, sequence.most_drafts, spare)) < 1:
                continue
            key = state.mode, len(decoding)
            if (own := costs.get(key)) is None:
                own = costs[key] = self._work_out(*key)
            if self._may_lack:
                own = {kind: own[kind] for kind in own if all_of[kind].can_draft(sequence)}
            offer = state.offer(sequence.tokens, most, own, self.chances)
            if offer is not None:
                if not offer.tokens:
                    offer.most = min(offer.most, self._drafters[offer.kind].most or offer.most)
                offers.append((sequence, state, offer))
        if offers:
            lengths = self._lengths(offers, len(decoding), spare)
        elif self._drafters and (probe := self._probe(decoding, spare)) is not None:
            offers, lengths = [probe], [probe[2].most]
        else:
            return {}
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
                state.entered.add(offer.kind)
                asked.setdefault(offer.kind, {})[sequence] = length
        for kind, by_model in asked.items():
            for sequence, draft in self._ask(self._drafters[kind], by_model).items():
                if sequence.speculating is not None:
                    made[sequence], sequence.speculating.laws = draft, draft.laws
        self._drafting = sum(len(draft.tokens) for draft in made.values())
        return made

    def see(self, sequence: Sequence, row: Row, result: StepResult, before: int) -> None:
        """`sequence`, which had `before` tokens, has taken what `row` brought: its last token was
        drawn from one of the hidden states of `result`.
        """
        state = sequence.speculating
        if state is None or sequence.slot is None or row.slot not in result.hidden:
            return
        for drafter in self._drafters.values():
            if state.mode in ("auto", drafter.mode):
                path = row.path(sequence.tokens[before:])
                drafter.observe(sequence, result.hidden[row.slot][path[-1] if path else 0])

    def verified(self, sequence: Sequence, row: Row, right: int) -> None:
        """The first `right` of the drafts of `row` were right."""
        state = sequence.speculating
        assert state is not None
        state.verified(row.depth, right)
        by = "ngram" if state.kind > 0 else self._drafters[state.kind].mode
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
        """The last step had `tokens` tokens with drafts, no prefill, and took `seconds`."""
        self.costs.observe(tokens, seconds)
        if not self._drafters:
            return
        self._left -= 1
        if self._left <= 0:
            self._left = COSTS_STEPS
            self._costs_of_drafters.clear()
        before = tokens - self._drafting
        plain_s = self.costs.seconds(before)
        if plain_s is None:
            return
        self._allowance_s += EXPLORING * plain_s
        if self._drafting:
            wider_s = (self.costs.seconds(tokens) or plain_s) - plain_s
            self._allowance_s += self._right * plain_s / before - wider_s
        self._allowance_s = min(self._allowance_s, MOST_EXPLORING * plain_s)

    def forget(self, sequence: Sequence) -> None:
        """`sequence` gave up its slot."""
        for drafter in self._drafters.values():
            drafter.forget(sequence)
        if sequence.speculating is not None:
            sequence.speculating.entered.clear()

    @property
    def drafter_bytes(self) -> int:
        """What keys and values of drafters take of memory."""
        return sum(drafter.nbytes for drafter in self._drafters.values())

    def _ask(self, drafter: Drafter, lengths: Mapping[Sequence, int]) -> dict[Sequence, Draft]:
        """What `drafter` guesses, which is charged."""
        began = self._clock()
        made = {one: draft for one, draft in drafter.draft(lengths).items() if draft.tokens}
        took_s = self._clock() - began
        self._left = 0
        # Where it had nothing to catch up with, its fastest calls tell what this one takes.
        depth = max((len(one.tokens) for one in made.values()), default=0)
        expected_s = _seconds(drafter, depth)
        self._allowance_s -= took_s if took_s > 2 * expected_s else expected_s
        return made

    def _work_out(self, mode: Speculate, decoding: int) -> dict[int, float]:
        """What a token costs of each drafter that `mode` may have, as a part of one of a step
        without drafts.
        """
        if not self._drafters:
            return {}
        plain_s = self.costs.seconds(decoding)
        return {
            kind: _seconds(drafter, MOST_COUNTED) / MOST_COUNTED / plain_s if plain_s else 0.0
            for kind, drafter in self._drafters.items()
            if mode in ("auto", drafter.mode)
        }

    def _lengths(self, offers: Offers, decoding: int, spare: int) -> list[int]:
        """How many tokens each of `offers` gets."""
        lengths = [0 if state.mode == "auto" else offer.most for _, state, offer in offers]
        forced = sum(lengths)
        before = decoding + forced
        if all(lengths) or not self.costs.is_measured(before):
            return lengths
        # What a drafter has to catch up with must be within what exploring may take.
        places = [
            (offer.chance**ahead, -ahead, index)
            for index, (_, state, offer) in enumerate(offers)
            if not lengths[index]
            and (offer.tokens or offer.kind in state.entered or self._allowance_s > 0)
            for ahead in range(1, offer.most + 1)
        ]
        places.sort(reverse=True)
        del places[max(0, spare - forced) :]
        for _, _, index in places[: self._worth(places, offers, before)]:
            lengths[index] += 1
        return lengths

    def _probe(
        self, decoding: Seq[Sequence], spare: int
    ) -> tuple[Sequence, Speculating, Offer] | None:
        """A short draft of a drafter that does not seem to pay, for one sequence, if exploring may
        take that now.
        """
        before = len(decoding)
        if self._allowance_s <= 0 or not self.costs.is_measured(before):
            return None
        for sequence in decoding:
            state = sequence.speculating
            if state is None or state.mode != "auto":
                continue
            most = min(state.most, sequence.most_drafts, spare)
            for kind, drafter in self._drafters.items():
                can_draft = most > 0 and drafter.can_draft(sequence)
                if can_draft and self._could_pay(drafter, most, before):
                    return sequence, state, Offer(kind, 0.0, min(most, PROBE_TOKENS))
        # None of them could: that is asked again when this much may be explored again.
        self._allowance_s = -RETHINK_STEPS * EXPLORING * (self.costs.seconds(before) or 0.0)
        return None

    def _could_pay(self, drafter: Drafter, most: int, before: int) -> bool:
        """Whether drafts of some length for all would pay where nearly all of them are right."""
        plain_s = self.costs.seconds(before)
        if plain_s is None:
            return False
        gain = 1.0
        for ahead in range(1, most + 1):
            gain += BEST_CHANCE**ahead
            seconds = self.costs.seconds(before * (1 + ahead)) or plain_s
            if gain * plain_s > LEAST_GAIN * (seconds + _seconds(drafter, ahead)):
                return True
        return False

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
    step = 1 if tokens <= 8 else 4 if tokens <= 32 else 16
    return -(-tokens // step) * step
