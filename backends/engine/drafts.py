"""The drafts of one sequence: which of them it could have, and how often they were right."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Final

from hearth.backends.contract.sampling import Speculate, SpeculateRule
from hearth.backends.engine.laws import Law
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
"""The kind of draft that a model makes; the others are of n-grams, by the length of the match."""


@dataclass(slots=True)
class Draft:
    """Tokens that may follow a sequence."""

    tokens: list[int]
    laws: list[Law] | None = None
    """What each of them was drawn from. None: nothing else could have been guessed, as by n-grams,
    greedily, or where the rule does not need it."""


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
        rule: which drafts are kept.
        laws: of the draft of this step, see `Draft`.
    """

    mode: Speculate
    most: int
    rule: SpeculateRule = "match"
    laws: list[Law] | None = None
    drafted: list[int] = field(default_factory=list)
    """How many tokens were drafted at each position of a draft;"""
    accepted: list[int] = field(default_factory=list)
    """how many of them were right."""
    _index: NgramIndex = field(default_factory=NgramIndex)
    _chances: dict[int, float] = field(default_factory=dict)
    _kind: int = MODEL
    _skipped: int = 0
    _patience: int = PROBE_AFTER

    def offer(self, known: Seq[int], most: int, *, has_model: bool) -> Offer | None:
        """The better draft of at most `most` tokens after those `known`; None: there is none."""
        best = None
        if self.mode in ("auto", "draft") and has_model:
            best = Offer(MODEL, self._chance(MODEL), most)
        if self.mode in ("auto", "ngram"):
            tokens, matched = self._index.draft(known, most)
            kind = matched.bit_length()
            if tokens and (best is None or self._chance(kind) >= best.chance):
                best = Offer(kind, self._chance(kind), most, tokens)
        return best

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
