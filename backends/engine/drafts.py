"""The drafts of one sequence: which of them it could have, and how often they were right."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Final

from hearth.backends.contract.sampling import Speculate, SpeculateRule
from hearth.backends.engine.laws import Law
from hearth.backends.engine.ngram import NgramIndex, draft_from
from hearth.backends.engine.past_texts import SHORTEST_OF_OTHERS, Follower, PastTexts

LEAST_CHANCE: Final = 0.15
"""On "auto", tokens that are less likely right are not drafted: they are only compared."""
FIRST_NGRAM: Final = 0.1
"""Chance that a token after a match is right, before any was compared: that costs nothing, so no
token is drafted on trust."""
FIRST_DRAFTER: Final = 0.8
"""The same of a model, which somebody chose for that: what is tried of it at first is as long as
would pay then."""
FIRST_WEIGHT: Final = 2.0
"""Tokens that what is believed at first counts as; of drafters what others of the worker saw counts
as all that is remembered."""
SEQUENCE_WINDOW: Final = 32.0
"""Tokens back to which a sequence remembers how often its drafts were right;"""
WORKER_WINDOW: Final = 64.0
"""and all sequences of a worker together."""


CHATS: Final = 16
"""Added to the kind of a draft that other texts gave."""


def kind_of(drafter: int) -> int:
    """The kind of drafts that the drafter of this index makes, which is negative; the others are of
    n-grams, by the bits of the length of the match, with `CHATS` where another text had it.
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
        self._window = window
        self._keep = 1 - 1 / window
        self._prior = prior
        self._known: dict[int, tuple[float, float]] = {}
        """(right, all): sums of which each token back counts less."""

    def of(self, kind: int) -> float:
        """The chance of the next token of such a draft, in [0, 1]."""
        right, seen = self._known.get(kind, (0.0, 0.0))
        chance, weight = self._first(kind)
        weight *= 1 - seen / self._window  # What was believed at first counts less, too.
        return (right + chance * weight) / (seen + weight)

    def learn(self, kind: int, right: int, wrong: int) -> None:
        """`right` tokens of a draft were right, and the `wrong` ones after them were not."""
        known, seen = self._known.get(kind, (0.0, 0.0))
        for at in range(right + wrong):
            known, seen = known * self._keep + (at < right), seen * self._keep + 1
        self._known[kind] = known, seen
        if self._prior is not None:
            self._prior.learn(kind, right, wrong)

    def _first(self, kind: int) -> tuple[float, float]:
        """What others of the worker saw until now, and as how many tokens that counts; a longer
        match is as good as a shorter one, or better.
        """
        if self._prior is None:
            return (FIRST_DRAFTER if kind < 0 else FIRST_NGRAM), FIRST_WEIGHT
        chance = self._prior.of(kind)
        if kind < 0:
            return chance, SEQUENCE_WINDOW
        if kind - 1 in self._known:
            chance = max(chance, self.of(kind - 1))
        return chance, FIRST_WEIGHT


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
        kind: of its last draft.
        rule: which drafts are kept.
        laws: of the draft of this step, see `Draft`.
        shares: other texts may be guessed from, and others from this one.
    """

    mode: Speculate
    most: int
    rule: SpeculateRule = "match"
    laws: list[Law] | None = None
    shares: bool = True
    drafted: list[int] = field(default_factory=list)
    """How many tokens were drafted at each position of a draft;"""
    accepted: list[int] = field(default_factory=list)
    """how many of them were right."""
    kind: int = 0
    _index: NgramIndex = field(default_factory=NgramIndex)
    _follower: Follower = field(default_factory=Follower)
    _chances: Chances | None = None
    _guesses: list[tuple[int, int, int]] = field(default_factory=list)
    """(kind, place, token) of the first token after each of the last matches, to be compared with
    what is drawn there; that costs nothing, unlike a wider row.
    """

    def offer(
        self,
        known: Seq[int],
        most: int,
        drafter: int,
        worker: Chances,
        *,
        looks: bool,
        past: PastTexts | None = None,
    ) -> Offer | None:
        """The better draft of at most `most` tokens after those `known`; None: there is none, or on
        "auto" none that is likely.

        Args:
            drafter: the kind of the one that may draft for it; 0: none.
            worker: of all sequences, where this one begins.
            looks: n-grams may, too.
            past: texts of others.
        """
        chances = self._chances
        if chances is None:
            chances = self._chances = Chances(SEQUENCE_WINDOW, worker)
        kind, tokens, least = drafter, [], LEAST_CHANCE if self.mode == "auto" else 0.0
        if looks:
            self._compare(known)
            if drafter:
                least = chances.of(drafter)
            for match, guess in self._matches(known, most, past):
                self._guesses.append((match, len(known), guess[0]))
                chance = chances.of(match)
                if chance > least or (chance == least and kind == drafter):
                    kind, tokens, least = match, guess, chance
        most = len(tokens) or most
        return Offer(kind, chances.of(kind), most, tokens) if kind else None

    def use(self, offer: Offer) -> None:
        """`offer` is drafted."""
        self.kind = offer.kind
        self._guesses = [one for one in self._guesses if one[0] != offer.kind]

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

    def _matches(
        self, known: Seq[int], most: int, past: PastTexts | None
    ) -> Iterator[tuple[int, list[int]]]:
        """The kinds of drafts of n-grams that there are, and what they guess: of its own text, and
        of others where its own has only a shorter match.
        """
        place, matched = self._index.find(known)
        if matched:
            yield matched.bit_length(), draft_from(known, place, most)
        if past is not None and matched < SHORTEST_OF_OTHERS:
            tokens, matched = self._follower.find(known, past, most)
            if tokens:
                yield CHATS + matched.bit_length(), tokens

    def _compare(self, known: Seq[int]) -> None:
        """What was drawn where tokens had been guessed."""
        assert self._chances is not None
        if self._guesses and len(known) > self._guesses[0][1]:
            for kind, place, token in self._guesses:
                is_right = known[place] == token
                self._chances.learn(kind, int(is_right), int(not is_right))
        self._guesses.clear()
