"""How many tokens are guessed for each sequence before a step, which then computes all of them and
keeps those that the sampler draws as well.

What is drawn does not depend on it: a draft only decides how many tokens one step brings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Final, Protocol

from hearth.backends.engine.drafts import Offer, Speculating
from hearth.backends.engine.prefill_budget import PrefillBudget
from hearth.backends.engine.runner import Row
from hearth.backends.engine.sequence import Sequence

LEAST_GAIN: Final = 1.02
"""Steps with drafts must bring so many times the tokens per second."""
PLAIN_EVERY: Final = 64
"""Of so many steps with drafts one has none, which is measured again."""


Offers = list[tuple[Sequence, Speculating, Offer]]


class Drafter(Protocol):
    """A model that guesses how sequences go on."""

    @property
    def token_s(self) -> float:
        """Seconds that one token more for all sequences takes; 0 while not measured."""
        ...

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """What may follow each sequence: so many tokens, or fewer."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """Free what is held of `sequence`; it may come back."""
        ...


class Speculation:
    """Chooses who gets drafts in a step, and of how many tokens.

    Where a sequence is on "auto", token j of its draft is worth the chance that it and all before
    it are right, and costs what a step of one more token takes, as the budget measured it. The
    likeliest tokens of all sequences are taken, as many as bring the most tokens per second.

    Args:
        budget: what steps cost.
        drafter: a draft model, if one is loaded.
        possible: False: the memory cannot forget tokens that turn out wrong.
    """

    def __init__(self, budget: PrefillBudget, drafter: Drafter | None, *, possible: bool) -> None:
        self._budget = budget
        self._drafter = drafter
        self._possible = possible
        self.drafted: list[int] = []
        self.accepted: list[int] = []
        self._since_plain = 0

    def draft(
        self, decoding: Seq[Sequence], spare: int, has_room: Callable[[Sequence, int], bool]
    ) -> dict[Sequence, list[int]]:
        """Drafts for those who decode, of at most `spare` tokens in all.

        Args:
            has_room: whether a sequence can have so many tokens more than are known.
        """
        if not self._possible or spare < 1:
            return {}
        has_model = self._drafter is not None
        offers: Offers = []
        for sequence in decoding:
            state = sequence.speculating
            most = 0 if state is None else min(state.most, sequence.most_drafts, spare)
            if state is not None and most > 0:
                offer = state.offer(sequence.tokens, most, has_model=has_model)
                if offer is not None:
                    offers.append((sequence, state, offer))
        if not offers:
            return {}
        lengths = self._lengths(offers, len(decoding), spare)
        made: dict[Sequence, list[int]] = {}
        by_model: dict[Sequence, int] = {}
        for (sequence, state, offer), length in zip(offers, lengths, strict=True):
            length = min(state.use(offer, length), spare)
            if not length or not has_room(sequence, length):
                continue
            spare -= length
            if offer.tokens:
                made[sequence] = offer.tokens[:length]
            else:
                by_model[sequence] = length
        if self._drafter is not None and by_model:
            drafts = self._drafter.draft(by_model)
            made |= {sequence: tokens for sequence, tokens in drafts.items() if tokens}
        return made

    def verified(self, sequence: Sequence, row: Row, right: int) -> None:
        """The first `right` of the drafts of `row` were right."""
        state = sequence.speculating
        assert state is not None
        state.verified(row.drafts, right)
        more = row.drafts - len(self.drafted)
        self.drafted += [0] * more
        self.accepted += [0] * more
        for place in range(row.drafts):
            self.drafted[place] += 1
            self.accepted[place] += place < right

    def forget(self, sequence: Sequence) -> None:
        """`sequence` gave up its slot."""
        if self._drafter is not None:
            self._drafter.forget(sequence)

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
        plain_s = self._budget.decode_s(before)
        if plain_s is None or self._since_plain >= PLAIN_EVERY:
            self._since_plain = 0
            return 0
        best, best_rate = 0, LEAST_GAIN * before / plain_s
        gain, depth = float(before), 0
        for count, (chance, ahead, index) in enumerate(places, 1):
            gain += chance
            if self._drafter is not None and not offers[index][2].tokens:
                depth = max(depth, -ahead)
            seconds = self._budget.decode_s(before + count) or plain_s
            if self._drafter is not None:
                seconds += depth * self._drafter.token_s
            if gain / seconds > best_rate:
                best, best_rate = count, gain / seconds
        self._since_plain += best > 0
        return best
