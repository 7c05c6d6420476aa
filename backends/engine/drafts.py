"""The drafts of one sequence: which of them it could have, and how often they were right."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Final

from hearth.backends.contract.sampling import Speculate
from hearth.backends.engine.ngram import NgramIndex

FIRST_CHANCE: Final = 0.6
"""Chance that a drafted token is right, before anything is known."""
LEARNING: Final = 0.15
PROBE_TOKENS: Final = 2
PROBE_AFTER: Final = 16
"""Steps for which nothing was drafted, because it did not pay, before it is tried again;"""
PROBE_AT_MOST: Final = 256
"""twice as many each time that the probe was wrong."""
MODEL: Final = 0
"""The kind of draft that a model makes; others are of n-grams, by the length of the match,"""
HEADS: Final = -1
"""or of Medusa heads."""

Costs = Mapping[int, tuple[float, float]]
"""By kind, what guessing costs, in steps without drafts: for the first token, and for each."""


@dataclass(slots=True)
class Draft:
    """Tokens that are guessed to follow a sequence.

    Attributes:
        parents: of a tree, for each token the place of the one that it follows: 0 is the last that
            is known, 1 the first of the draft. Empty: each follows the one before it.
    """

    tokens: list[int]
    parents: Seq[int] = ()


@dataclass(slots=True)
class Offer:
    """A draft that a sequence could have."""

    kind: int
    chance: float
    most: int
    tokens: list[int] = field(default_factory=list)
    """Of an n-gram; empty: a model makes them."""


@dataclass(slots=True)
class Speculating:
    """The drafts of one sequence.

    Attributes:
        mode: "auto" drafts where that pays, the others always.
        most: tokens of a draft at most.
    """

    mode: Speculate
    most: int
    drafted: list[int] = field(default_factory=list)
    """How many tokens were drafted at each position of a draft;"""
    accepted: list[int] = field(default_factory=list)
    """how many of them were right."""
    _index: NgramIndex = field(default_factory=NgramIndex)
    _chances: dict[int, float] = field(default_factory=dict)
    _kind: int = MODEL
    _skipped: int = 0
    _patience: int = PROBE_AFTER

    def offer(
        self, known: Seq[int], most: int, costs: Costs, most_by_heads: int | None = None
    ) -> Offer | None:
        """The best draft of at most `most` tokens after those `known`; None: there is none.

        Args:
            costs: of `MODEL` and `HEADS`, as far as they can guess now.
            most_by_heads: tokens that heads guess at most; None: `most`.
        """
        offers = []
        if self.mode in ("auto", "ngram"):
            tokens, matched = self._index.draft(known, most)
            kind = matched.bit_length()
            if tokens:
                offers.append(Offer(kind, self._chance(kind), most, tokens))
        if self.mode in ("auto", "draft") and MODEL in costs:
            offers.append(Offer(MODEL, self._chance(MODEL), most))
        if self.mode in ("auto", "medusa") and HEADS in costs:
            at_most = most if most_by_heads is None else min(most, most_by_heads)
            offers.append(Offer(HEADS, self._chance(HEADS), at_most))
        return max(offers, key=lambda offer: _rate(offer, costs), default=None)

    def use(self, offer: Offer, length: int) -> int:
        """`length` tokens of `offer` would pay; returns how many to draft."""
        if self.mode == "auto" and not length:
            self._skipped += 1
            if self._skipped > self._patience:
                length = min(PROBE_TOKENS, offer.most)
        if length:
            self._skipped = 0
            self._kind = offer.kind
        return length

    def verified(self, drafts: int, right: int) -> None:
        """The first `right` tokens of a draft were right."""
        while len(self.drafted) < drafts:
            self.drafted.append(0)
            self.accepted.append(0)
        for place in range(drafts):
            self.drafted[place] += 1
            self.accepted[place] += place < right
        chance = self._chance(self._kind)
        for hit in [1.0] * right + [0.0] * (right < drafts):
            chance += LEARNING * (hit - chance)
        self._chances[self._kind] = chance
        self._patience = PROBE_AFTER if right else min(2 * self._patience, PROBE_AT_MOST)

    def _chance(self, kind: int) -> float:
        """That a token is right if those before it are."""
        return self._chances.get(kind, FIRST_CHANCE)


def _rate(offer: Offer, costs: Costs) -> float:
    """Tokens of a step with all of `offer`, by the time of a step without and of guessing."""
    first, each = costs.get(offer.kind, (0.0, 0.0))
    tokens = sum(offer.chance**ahead for ahead in range(offer.most + 1))
    return tokens / (1.0 + first + each * offer.most)
