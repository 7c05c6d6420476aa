"""The drafts of one sequence: which of them it could have, and how often they were right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Final

from hearth.backends.contract.sampling import Speculate, SpeculateRule
from hearth.backends.engine.laws import Law
from hearth.backends.engine.ngram import NgramIndex, draft_from

LEAST_CHANCE: Final = 0.15
"""On "auto", tokens that are less likely right are not drafted: they are only compared."""
FIRST_NGRAM: Final = 0.1
"""Chance that a token after a match is right, before any was compared: that costs nothing, so no
token is drafted on trust."""
FIRST_DRAFTER: Final = 0.5
"""The same of a model, which somebody chose for that."""
FIRST_WEIGHT: Final = 2.0
"""Tokens that what is believed at first counts as."""
LOOKS: Final = 6
"""Looks in a row at a sequence on "auto" after which there was nothing to draft, as after a change
in a text that repeats itself. After more of them it is not looked at in each step:"""
MOST_RESTING: Final = 3
"""one step between two looks, then two, then so many."""
SEQUENCE_WINDOW: Final = 12.0
"""Tokens back to which a sequence remembers how often its drafts were right;"""
WORKER_WINDOW: Final = 64.0
"""and all sequences of a worker together."""


def kind_of(drafter: int) -> int:
    """The kind of drafts that the drafter of this index makes, which is negative; the others are of
    n-grams, by the bits of the length of the match.
    """
    return ~drafter


class Chances:
    """How often a drafted token was right if those before it were, by the kind of draft: a moving
    average.

    Args:
        window: tokens that count.
        prior: what a kind begins with; None: `FIRST_NGRAM` and `FIRST_DRAFTER`.
    """

    def __init__(self, window: float, prior: Chances | None = None) -> None:
        self._keep = 1 - 1 / window
        self._prior = prior
        self._known: dict[int, tuple[float, float]] = {}
        """(right, all): sums of which each token back counts less."""

    def of(self, kind: int) -> float:
        """The chance of the next token of such a draft, in [0, 1]."""
        right, seen = self._known.get(kind) or self._first(kind)
        return right / seen

    def learn(self, kind: int, right: int, wrong: int) -> None:
        """`right` tokens of a draft were right, and the `wrong` ones after them were not."""
        known, seen = self._known.get(kind) or self._first(kind)
        for at in range(right + wrong):
            known, seen = known * self._keep + (at < right), seen * self._keep + 1
        self._known[kind] = known, seen
        if self._prior is not None:
            self._prior.learn(kind, right, wrong)

    def _first(self, kind: int) -> tuple[float, float]:
        """What others of the worker saw; a longer match is as good as a shorter one, or better."""
        if self._prior is None:
            chance = FIRST_DRAFTER if kind < 0 else FIRST_NGRAM
        else:
            chance = self._prior.of(kind)
            if kind > 0 and kind - 1 in self._known:
                chance = max(chance, self.of(kind - 1))
        return chance * FIRST_WEIGHT, FIRST_WEIGHT


@dataclass(slots=True)
class Draft:
    """Tokens that are guessed to follow a sequence.

    Attributes:
        laws: what each of them was drawn from. None: nothing else could have been guessed, as by
            n-grams, greedily, or where the rule does not need it.
        parents: of a tree, for each token the place of the one that it follows: 0 is the last that
            is known, 1 the first of the draft. Empty: each follows the one before it.
    """

    tokens: list[int]
    laws: list[Law] | None = None
    parents: Seq[int] = ()


@dataclass(slots=True)
class Offer:
    """A draft that a sequence could have."""

    kind: int
    chance: float
    most: int
    tokens: list[int] = field(default_factory=list)
    """Of an n-gram; empty: a drafter makes them."""


@dataclass(slots=True)
class Speculating:
    """The drafts of one sequence.

    Attributes:
        mode: "auto" drafts where that pays, the others always.
        most: tokens of a draft at most.
        entered: kinds of drafters that hold something of it.
        kind: of its last draft.
        rule: which drafts are kept.
        laws: of the draft of this step, see `Draft`.
        resting: steps until it is looked at again.
    """

    mode: Speculate
    most: int
    rule: SpeculateRule = "match"
    laws: list[Law] | None = None
    drafted: list[int] = field(default_factory=list)
    """How many tokens were drafted at each position of a draft;"""
    accepted: list[int] = field(default_factory=list)
    """how many of them were right."""
    entered: set[int] = field(default_factory=set)
    kind: int = 0
    resting: int = 0
    _index: NgramIndex = field(default_factory=NgramIndex)
    _chances: Chances | None = None
    _idle: int = 0
    """Looks in a row after which there was nothing to draft, as far as they count."""
    _guess: tuple[int, int, int] | None = None
    """(kind, place, token) of the first token after the last match, to be compared with what is
    drawn there; that costs nothing, unlike a wider row.
    """

    def offer(
        self, known: Seq[int], most: int, drafters: Mapping[int, float], worker: Chances
    ) -> Offer | None:
        """The better draft of at most `most` tokens after those `known`; None: there is none, or on
        "auto" none that is likely.

        Args:
            drafters: the kinds of those that may draft for it, and what a token of each costs, as a
                part of a token of a step without drafts.
            worker: of all sequences, where this one begins.
        """
        chances = self._chances
        if chances is None:
            chances = self._chances = Chances(SEQUENCE_WINDOW, worker)
        if self._guess is not None:
            self._compare(known, *self._guess)
        kind = 0
        best, least = (0.0, LEAST_CHANCE) if self.mode == "auto" else (-math.inf, 0.0)
        for one, cost in drafters.items():  # A token costs what it brings at most.
            if (worth := chances.of(one) - cost) > best:
                kind, best = one, worth
        tokens: list[int] = []
        if self.mode in ("auto", "ngram"):
            place, matched = self._index.find(known)
            if matched:
                length = matched.bit_length()
                self._guess = length, len(known), known[place]
                if chances.of(length) >= max(least, best):
                    kind, tokens = length, draft_from(known, place, most)
        if kind:
            self._idle = 0
            return Offer(kind, chances.of(kind), most, tokens)
        if self.mode == "auto":
            self._idle = min(self._idle + 1, LOOKS + MOST_RESTING)
            self.resting = max(0, self._idle - LOOKS)
        return None

    def use(self, offer: Offer) -> None:
        """`offer` is drafted."""
        self.kind = offer.kind
        self._guess = None

    def verified(self, drafts: int, right: int) -> None:
        """The first `right` tokens of a draft were right."""
        while len(self.drafted) < drafts:
            self.drafted.append(0)
            self.accepted.append(0)
        for place in range(drafts):
            self.drafted[place] += 1
            self.accepted[place] += place < right
        assert self._chances is not None
        self._chances.learn(self.kind, right, int(right < drafts))

    def _compare(self, known: Seq[int], kind: int, place: int, token: int) -> None:
        """What was drawn where a token had been guessed."""
        if len(known) > place:
            self._guess = None
            if is_right := known[place] == token:
                self._idle = 0
            assert self._chances is not None
            self._chances.learn(kind, int(is_right), int(not is_right))
