"""The drafts of one sequence: which ones it could have, and how often they were right."""

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
"""On "auto", tokens less likely to be right than this are not drafted, only compared afterwards."""
FIRST_NGRAM: Final = 0.1
"""Initial chance that a token after an n-gram match is right. It is below `LEAST_CHANCE`, because
comparing costs nothing, so no token has to be drafted on trust."""
FIRST_DRAFTER: Final = 0.8
"""Initial chance that a token of a drafter is right. It is high, because the user chose the model
for this."""
FIRST_WEIGHT: Final = 2.0
"""Weight of an initial chance, in tokens. For drafters, what the other sequences of the worker saw
has the weight of a full window instead."""
SEQUENCE_WINDOW: Final = 32.0
"""Window, in tokens, over which a sequence remembers how often its drafts were right."""
WORKER_WINDOW: Final = 64.0
"""The same window for all sequences of a worker together."""


CHATS: Final = 16
"""Added to the kind of a draft that comes from other texts."""


def kind_of(drafter: int) -> int:
    """The kind of drafts that the drafter with this index makes, which is negative. Other kinds are
    of n-grams: the bit length of the match length, plus `CHATS` if another text had the match.
    """
    return ~drafter


class Chances:
    """How often a drafted token was right given that those before it were, by kind of draft: a
    moving average.

    Args:
        window: of the moving average, in tokens.
        prior: initial values of each kind; None: `FIRST_NGRAM` and `FIRST_DRAFTER`.
    """

    def __init__(self, window: float, prior: Chances | None = None) -> None:
        self._window = window
        self._keep = 1 - 1 / window
        self._prior = prior
        self._known: dict[int, tuple[float, float]] = {}
        """(right, all) for each kind: exponentially decaying sums over tokens."""

    def of(self, kind: int) -> float:
        """The chance that the next token of such a draft is right, in [0, 1]."""
        right, seen = self._known.get(kind, (0.0, 0.0))
        chance, weight = self._first(kind)
        weight *= 1 - seen / self._window  # The initial value decays, too.
        return (right + chance * weight) / (seen + weight)

    def knows(self, kind: int) -> bool:
        """Whether a token of such a draft was compared."""
        return kind in self._known

    def learn(self, kind: int, right: int, wrong: int) -> None:
        """Record that `right` tokens of a draft were right, and the `wrong` ones after them not."""
        known, seen = self._known.get(kind, (0.0, 0.0))
        for at in range(right + wrong):
            known, seen = known * self._keep + (at < right), seen * self._keep + 1
        self._known[kind] = known, seen
        if self._prior is not None:
            self._prior.learn(kind, right, wrong)

    def _first(self, kind: int) -> tuple[float, float]:
        """The prior chance, from what other sequences of the worker saw, and its weight in tokens.
        A longer match is assumed to be at least as good as a shorter one.
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
        laws: the law that each token was drawn from. None if nothing else could have been drafted
            (n-grams, greedy drafts), or if the rule does not need it.
        parents: for a tree, the place of each token's parent: 0 is the last known token, 1 the
            first token of the draft. Empty for a chain, where each token follows the one before it.
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
    """The tokens of an n-gram draft; empty if a drafter will make them."""


@dataclass(slots=True)
class Speculating:
    """The drafts of one sequence.

    Attributes:
        mode: "auto" drafts where that pays off, the other modes always.
        most: maximum number of tokens of a draft.
        kind: of its last draft.
        rule: which drafts are kept.
        laws: of the draft of this step, see `Draft`.
        shares: drafts may come from other texts, and this text may be used for others.
    """

    mode: Speculate
    most: int
    rule: SpeculateRule = "match"
    laws: list[Law] | None = None
    shares: bool = True
    drafted: list[int] = field(default_factory=list)
    """How many tokens were drafted at each position of a draft."""
    accepted: list[int] = field(default_factory=list)
    """How many of the drafted tokens at each position were right."""
    kind: int = 0
    most_slowed_s: float | None = None
    """The value of `Speculation._slowed_s` up to which this sequence is as fast as without drafts,
    but for what is allowed; None before its first step.
    """
    _index: NgramIndex = field(default_factory=NgramIndex)
    _follower: Follower = field(default_factory=Follower)
    _chances: Chances | None = None
    _guesses: list[tuple[int, int, int]] = field(default_factory=list)
    """(kind, place, token) of the first token after each of the last matches, to be compared with
    the token that is drawn there. This costs nothing, unlike a wider row.
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
        """The best draft of at most `most` tokens after those `known`; None if there is none, or on
        "auto" none that is likely enough.

        Args:
            drafter: the kind of the drafter that may draft for it; 0: none.
            worker: chances over all sequences of the worker, the prior of this one's.
            looks: n-grams may be used, too.
            past: texts of other requests.
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
        """Record that `offer` is drafted."""
        self.kind = offer.kind
        self._guesses = [one for one in self._guesses if one[0] != offer.kind]

    def verified(self, drafts: int, right: int) -> None:
        """Record that of `drafts` drafted tokens the first `right` were right."""
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
        """The n-gram drafts as (kind, tokens): from its own text, and from other texts if its own
        has no long match.
        """
        place, matched = self._index.find(known)
        if matched:
            yield matched.bit_length(), draft_from(known, place, most)
        if past is not None and matched < SHORTEST_OF_OTHERS:
            tokens, matched = self._follower.find(known, past, most)
            if tokens:
                yield CHATS + matched.bit_length(), tokens

    def _compare(self, known: Seq[int]) -> None:
        """Compare the remembered guesses with the tokens that were drawn there."""
        assert self._chances is not None
        if self._guesses and len(known) > self._guesses[0][1]:
            for kind, place, token in self._guesses:
                is_right = known[place] == token
                self._chances.learn(kind, int(is_right), int(not is_right))
        self._guesses.clear()
