"""Samples tokens ahead of a sequence, for drafts."""

from __future__ import annotations

from collections.abc import Callable, Collection

from hearth.backends.engine.drafts import Draft
from hearth.backends.engine.matcher import Matcher
from hearth.backends.engine.sampler import Logits, Sampler
from hearth.backends.errors import InvalidParameter


class Lookahead:
    """Continues a sequence with copies of its sampler and matcher: the penalties see the tokens of
    the draft, and the grammar follows them.

    Every drawn token stays in the draft, end tokens included: dropping some tokens because of what
    they are would make the others more frequent than the model says.

    Args:
        sampler, matcher: copies.
        position: of the next token.
        banned: tokens that may not be drawn, given the number of tokens drafted so far.
        ends: tokens that end the sequence.
        ends_complete: a complete grammar also ends the sequence.
        has_laws: draw for rejection sampling, with random numbers that the sequence does not use,
            and store the laws; otherwise draw with the random numbers of the sequence.

    Attributes:
        draft: the tokens drawn so far.
        over: nothing can follow the last token of the draft.
    """

    def __init__(
        self,
        sampler: Sampler,
        matcher: Matcher | None,
        position: int,
        banned: Callable[[int], Collection[int]],
        ends: Collection[int],
        *,
        ends_complete: bool,
        has_laws: bool,
    ) -> None:
        self.draft = Draft([], [] if has_laws else None)
        self.over = False
        self._sampler = sampler
        self._matcher = matcher
        self._position = position
        self._banned = banned
        self._ends = ends
        self._ends_complete = ends_complete

    def draw(self, logits: Logits) -> None:
        """Add a token to the draft. Adds none where the grammar or `logit_bias` allows none; the
        sequence reports that error when it gets there.

        Args:
            logits: [V] float32, of a draft model at the position after the draft.

        Raises:
            InternalError: the logits are not finite.
        """
        try:
            self._take(self._drawn(logits))
        except InvalidParameter:
            self.over = True

    def _drawn(self, logits: Logits) -> int:
        ahead, laws = len(self.draft.tokens), self.draft.laws
        banned = self._banned(ahead)
        place = self._position + ahead
        if laws is None:
            return self._sampler.draw(logits, place, banned=banned, matcher=self._matcher).id
        token, law = self._sampler.guess(logits, place, banned=banned, matcher=self._matcher)
        laws.append(law)
        return token

    def _take(self, token: int) -> None:
        self.draft.tokens.append(token)
        if token in self._ends:
            self.over = True
            return
        self._sampler.accept(token)
        if self._matcher is not None:
            self._matcher.accept(token)
            self.over = self._ends_complete and self._matcher.complete
