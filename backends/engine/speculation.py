"""How many tokens are guessed for each sequence before a step, which then computes all of them and
keeps those that the sampler draws as well.

What is drawn does not depend on it: a draft only decides how many tokens one step brings.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from itertools import pairwise
from typing import Final, Protocol

from hearth.backends.engine.drafts import HEADS, MODEL, Draft, Offer, Speculating
from hearth.backends.engine.medusa import HeadsDrafter
from hearth.backends.engine.runner import Row, StepResult
from hearth.backends.engine.sequence import Sequence

LEAST_GAIN: Final = 1.02
"""Steps with drafts must bring this many times the tokens per second."""
PLAIN_EVERY: Final = 64
"""Of so many steps with drafts one has none, which is measured again."""

LAST_STEPS: Final = 8
"""The fastest of so many steps tells what one costs: other programs only make them longer,"""
LEAST_STEPS: Final = 3
"""and of fewer nothing is known."""

Offers = list[tuple[Sequence, Speculating, Offer]]


class Drafter(Protocol):
    """A model that guesses how sequences go on."""

    @property
    def token_s(self) -> float:
        """Seconds that one token more for all sequences takes; 0 while not measured."""
        ...

    @property
    def nbytes(self) -> int:
        """What its keys and values take of memory now."""
        ...

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """What may follow each sequence: as many tokens as given for it, or fewer."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Free what is held of `sequence`; it may come back."""
        ...


class StepCosts:
    """What a step without prefill takes, by its tokens: nearby numbers count together."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._known: list[tuple[int, float]] = []
        """(tokens, seconds), ascending in both."""

    def observe(self, tokens: int, seconds: float) -> None:
        """A step of `tokens` tokens took `seconds`."""
        step = 1 if tokens <= 8 else 4 if tokens <= 32 else 16
        last = self._seconds.setdefault(-(-tokens // step) * step, deque(maxlen=LAST_STEPS))
        last.append(seconds)
        self._known = []
        least = math.inf  # More tokens do not take less time.
        for count in sorted(self._seconds, reverse=True):
            if len(self._seconds[count]) >= LEAST_STEPS:
                least = min(least, min(self._seconds[count]))
                self._known.append((count, least))
        self._known.reverse()

    def seconds(self, tokens: int) -> float | None:
        """Between numbers that were seen, on the straight line; beyond the largest, as there. None
        where no step of as many or fewer was seen.
        """
        known = self._known
        if not known or tokens < known[0][0]:
            return None
        for (fewer, low_s), (more, high_s) in pairwise(known):
            if fewer <= tokens < more:
                return low_s + (high_s - low_s) * (tokens - fewer) / (more - fewer)
        return known[-1][1]


class Speculation:
    """Chooses who gets drafts in a step, and of how many tokens.

    Where a sequence is on "auto", token j of its draft is worth the chance that it and all before
    it are right, and costs what a step of one more token takes, as it was measured. The
    likeliest tokens of all sequences are taken, as many as bring the most tokens per second.

    Args:
        drafter: a draft model, if one is loaded.
        possible: False: the memory cannot forget tokens that turn out wrong.
        heads: of the model, if they are loaded.
    """

    def __init__(
        self, drafter: Drafter | None, *, possible: bool, heads: HeadsDrafter | None = None
    ) -> None:
        self.costs = StepCosts()
        self._drafter = drafter
        self._heads = heads
        self._possible = possible
        self.drafted: list[int] = []
        self.accepted: list[int] = []
        self._since_plain = 0

    def draft(
        self, decoding: Seq[Sequence], spare: int, has_room: Callable[[Sequence, int], bool]
    ) -> dict[Sequence, Draft]:
        """Drafts for those who decode, of at most `spare` tokens in all.

        Args:
            has_room: whether a sequence can have this many tokens more than are known.
        """
        if not self._possible or spare < 1:
            return {}
        costs = self._guessing_costs(len(decoding))
        offers: Offers = []
        for sequence in decoding:
            state = sequence.speculating
            most = 0 if state is None else min(state.most, sequence.most_drafts, spare)
            if state is not None and most > 0:
                own = costs
                if self._heads is not None and not self._heads.can_draft(sequence):
                    own = {kind: cost for kind, cost in costs.items() if kind != HEADS}
                heads_most = None if self._heads is None else self._heads.most
                offer = state.offer(sequence.tokens, most, own, heads_most)
                if offer is not None:
                    offers.append((sequence, state, offer))
        if not offers:
            return {}
        lengths = self._lengths(offers, len(decoding), spare)
        made: dict[Sequence, Draft] = {}
        by_model: dict[Sequence, int] = {}
        by_heads: dict[Sequence, int] = {}
        for (sequence, state, offer), length in zip(offers, lengths, strict=True):
            length = min(state.use(offer, length), spare)
            if not length or not has_room(sequence, length):
                continue
            spare -= length
            if offer.tokens:
                made[sequence] = Draft(offer.tokens[:length])
            elif offer.kind == HEADS:
                by_heads[sequence] = length
            else:
                by_model[sequence] = length
        if self._drafter is not None and by_model:
            drafts = self._drafter.draft(by_model)
            made |= {sequence: Draft(tokens) for sequence, tokens in drafts.items() if tokens}
        if self._heads is not None and by_heads:
            made |= self._heads.draft(by_heads)
        return made

    def observe(self, sequence: Sequence, row: Row, result: StepResult, before: int) -> None:
        """`sequence`, which had `before` tokens, has taken what `row` brought: its last token was
        drawn from one of the hidden states.
        """
        state = sequence.speculating
        if self._heads is None or state is None or row.slot not in result.hidden:
            return
        if state.mode in ("auto", "medusa") and sequence.slot is not None:
            path = row.path(sequence.tokens[before:])
            self._heads.observe(sequence, result.hidden[row.slot][path[-1] if path else 0])

    def verified(self, sequence: Sequence, row: Row, right: int) -> None:
        """The first `right` of the drafts of `row` were right."""
        state = sequence.speculating
        assert state is not None
        state.verified(row.depth, right)
        more = row.depth - len(self.drafted)
        self.drafted += [0] * more
        self.accepted += [0] * more
        for place in range(row.depth):
            self.drafted[place] += 1
            self.accepted[place] += place < right

    def forget(self, sequence: Sequence) -> None:
        """`sequence` gave up its slot."""
        if self._drafter is not None:
            self._drafter.forget(sequence)
        if self._heads is not None:
            self._heads.forget(sequence)

    @property
    def drafter_bytes(self) -> int:
        """What heads, and keys and values of the draft model take of memory."""
        return sum(one.nbytes for one in (self._drafter, self._heads) if one is not None)

    def _guessing_costs(self, decoding: int) -> dict[int, tuple[float, float]]:
        """See `Costs`: of the draft model and the heads, where there are any."""
        plain_s = self.costs.seconds(decoding)
        unit = 0.0 if not plain_s else 1.0 / plain_s
        costs = {}
        if self._drafter is not None:
            costs[MODEL] = (0.0, self._drafter.token_s * unit)
        if self._heads is not None:
            costs[HEADS] = (self._heads.call_s * unit, 0.0)
        return costs

    def _lengths(self, offers: Offers, decoding: int, spare: int) -> list[int]:
        """How many tokens each of `offers` gets."""
        forced = [0 if state.mode == "auto" else offer.most for _, state, offer in offers]
        places = [
            (offer.chance**ahead, -ahead, index)
            for index, (_, _, offer) in enumerate(offers)
            if not forced[index]
            for ahead in range(1, offer.most + 1)
        ]
        places.sort(reverse=True)
        del places[max(0, spare - sum(forced)) :]
        before = decoding + sum(forced)
        lengths = list(forced)
        for _, _, index in places[: self._worth(places, offers, before)]:
            lengths[index] += 1
        return lengths

    def _worth(self, places: list[tuple[float, int, int]], offers: Offers, before: int) -> int:
        """How many of `places` (chance, minus the place in the draft, offer), the likeliest first,
        bring the most tokens per second in addition to `before` other tokens.
        """
        plain_s = self.costs.seconds(before)
        if plain_s is None or self._since_plain >= PLAIN_EVERY:
            self._since_plain = 0
            return 0
        best, best_rate = 0, LEAST_GAIN * before / plain_s
        gain, depth, heads_s = float(before), 0, 0.0
        for count, (chance, ahead, index) in enumerate(places, 1):
            gain += chance
            kind = offers[index][2].kind
            if kind == MODEL:
                depth = max(depth, -ahead)
            elif self._heads is not None and kind == HEADS:
                heads_s = self._heads.call_s
            seconds = (self.costs.seconds(before + count) or plain_s) + heads_s
            if self._drafter is not None:
                seconds += depth * self._drafter.token_s
            if gain / seconds > best_rate:
                best, best_rate = count, gain / seconds
        self._since_plain += best > 0
        return best
