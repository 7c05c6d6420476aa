"""Beam search: several hypotheses of one answer are continued in parallel, and the likeliest kept.

The rules are those of transformers' `GenerationMixin._beam_search`: in each round the likeliest
continuations of all hypotheses are ranked by the sum of their tokens' log probabilities. Those that
end are collected, ranked by that sum over length ** length_penalty; the others continue.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.events import FinishReason
from hearth.backends.contract.requests import BeamSearch
from hearth.backends.engine.generation import Generation
from hearth.backends.engine.logprobs import log_normaliser, logprob_of, top_logprobs
from hearth.backends.engine.runner import Row, StepResult
from hearth.backends.engine.sampler import Drawn
from hearth.backends.engine.selection import largest
from hearth.backends.engine.sequence import Sequence
from hearth.backends.errors import InvalidParameter

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Continuation:
    """A hypothesis extended by one token."""

    score: float
    """The sum of its tokens' log probabilities."""
    parent: int
    drawn: Drawn


@dataclass(frozen=True, slots=True)
class _Ended:
    """A complete hypothesis."""

    score: float
    """The sum of log probabilities, divided by length ** `length_penalty`."""
    drawn: list[Drawn]


class Beam(Sequence):
    """One hypothesis. In each round its tokens may be replaced by those of another hypothesis that
    it continues.

    Args:
        search: the search it belongs to.
        number: its index, from 0; in the first round all beams start from continuations of beam 0.
    """

    def __init__(self, search: Search, number: int) -> None:
        first = search.answers[0]
        super().__init__(
            first.id,
            list(first.tokens),
            priority=first.priority,
            session=first.session,
            clock=first.clock,
            pins=first.pins if number == 0 else (),
        )
        self._search = search
        self._number = number
        self.drawn: list[Drawn] = []
        self.score = 0.0

    def cacheable_tokens(self) -> list[int]:
        """Tokens that other beams computed are always reused."""
        first = self._search.answers[0]
        return self.tokens if self._number or self.drawn else first.cacheable_tokens()

    def outputs(self, count: int) -> int:
        return int(count == self.pending)

    def report_progress(self, computed: int) -> None:
        if self._number == 0 and not self.drawn:
            self._search.answers[0].report_progress(computed)

    def on_admitted(self) -> None:
        if self._number == 0:
            self._search.begin(self.cached)

    def take(self, row: Row, result: StepResult) -> FinishReason | None:
        """Report the continuations of the hypothesis; the last beam to do so ends the round."""
        self.report_progress(self.computed)
        # `pending`: another beam's report ended the round, and this beam has a new token since.
        if not row.outputs or self.pending:
            return None
        return self._search.report(self._number, result.logits[row.slot][-1])

    def rearranged(self) -> Iterable[Sequence]:
        return self._search.rearranged()

    def finish(self, reason: FinishReason) -> None:
        self.done = True
        self._search.finish(reason)

    def fail(self, error: Exception) -> None:
        self.done = True
        for answer in self._search.answers:
            answer.fail(error)


class Search:
    """The beams of one request.

    Args:
        params: of the search.
        answers: one for each hypothesis to return, at most as many as beams. They are never
            computed; they get the tokens of the best hypotheses at the end.

    Attributes:
        beams: the sequences that are computed.
    """

    def __init__(self, params: BeamSearch, answers: Seq[Generation]) -> None:
        self.answers = answers
        self._params = params
        self._limits = answers[0].limits
        self.beams = [Beam(self, number) for number in range(params.width)]
        self._live = list(self.beams)
        self._reports: dict[int, list[_Continuation]] = {}
        self._ended: list[_Ended] = []
        self._changed: list[Sequence] = []

    @property
    def _made(self) -> int:
        """Number of new tokens of each live hypothesis."""
        return len(self._live[0].drawn)

    def begin(self, cached: int) -> None:
        """Called when the first beam was admitted with `cached` tokens found in the cache."""
        for answer in self.answers:
            answer.cached = cached
            answer.clock.admitted = self.beams[0].clock.admitted
            answer.on_admitted()

    def report(self, number: int, logits: Logits) -> FinishReason | None:
        """Record the continuations of beam `number`. When those of all beams are known, choose the
        best; returns why the search ends, or None.

        Args:
            logits: [V] float32.
        """
        if number not in self._reports:
            is_first_round = self._made == 0
            report = [] if is_first_round and number else self._continuations(number, logits)
            self._reports[number] = report
        if len(self._reports) < len(self._live):
            return None
        if not self.answers[0].clock.first_token:
            for answer in self.answers:
                answer.clock.first_token = time.monotonic()
        continuations = [one for report in self._reports.values() for one in report]
        self._reports.clear()
        if not continuations:
            raise InvalidParameter(
                "logit_bias",
                f"Every token is banned after {self._made} tokens, so none can follow.",
                "Ban fewer tokens with logit_bias, or turn ignore_eos off.",
            )
        self._choose(continuations)
        if self._live and not self._is_over():
            return None
        self._changed = list(self.beams)
        for beam in self.beams:
            beam.done = True
        return "stop"

    def rearranged(self) -> list[Sequence]:
        """Beams that ended in the last round, or continue from the tokens of another beam."""
        changed, self._changed = self._changed, []
        return changed

    def finish(self, reason: FinishReason) -> None:
        """End the answers, with the best hypotheses or as cancelled."""
        best = sorted(self._ended, key=lambda one: -one.score)
        for number, answer in enumerate(self.answers):
            if answer.done:
                continue
            ends: FinishReason | None = None
            if reason != "cancelled" and number < len(best):
                for drawn in best[number].drawn:
                    if (ends := answer.accept(drawn)) is not None:
                        break
            answer.finish(ends or reason)

    def _continuations(self, number: int, logits: Logits) -> list[_Continuation]:
        """The likeliest continuations, best first: as many as can matter for any results of the
        other beams.
        """
        normaliser = log_normaliser(logits)
        answer, beam = self.answers[0], self.beams[number]
        adjusted = answer.sampler.adjusted(logits, self._limits.banned(len(beam.drawn)))
        ids = largest(adjusted, min(self._kept, len(adjusted)))
        count = answer.sampler.params.logprobs
        top = () if count is None else top_logprobs(logits, count, normaliser)
        continuations = []
        for token in ids.tolist():
            logprob = float(adjusted[token]) - normaliser
            if math.isfinite(logprob):
                known = None if count is None else logprob_of(logits, token, normaliser)
                drawn = Drawn(token, known, top)
                continuations.append(_Continuation(beam.score + logprob, number, drawn))
        return continuations

    @property
    def _kept(self) -> int:
        """Number of continuations that are ranked, large enough that sufficiently many remain even
        if some end.
        """
        return self._params.width * max(2, 1 + len(self._limits.end_ids))

    def _choose(self, continuations: list[_Continuation]) -> None:
        """Rank `continuations`: collect those that end, and assign the others to the beams."""
        width, limits = self._params.width, self._limits
        ranked = sorted(continuations, key=lambda one: (-one.score, one.parent, one.drawn.id))
        length = self._made + 1
        ends = limits.end_ids | limits.stop_ids
        parents = {number: (beam.tokens[:], beam.drawn[:]) for number, beam in self._numbered()}
        going: list[_Continuation] = []
        ended: list[_Ended] = []
        for rank, one in enumerate(ranked[: self._kept]):
            is_end = one.drawn.id in ends or length >= limits.max_tokens
            if is_end and rank < width:
                score = one.score / length**self._params.length_penalty
                ended.append(_Ended(score, [*parents[one.parent][1], one.drawn]))
            elif not is_end and len(going) < width:
                going.append(one)
        if not (self._params.early_stopping is True and len(self._ended) >= width):
            self._ended = sorted([*self._ended, *ended], key=lambda one: -one.score)[:width]
        self._assign(going, parents)

    def _numbered(self) -> list[tuple[int, Beam]]:
        return [(number, beam) for number, beam in enumerate(self.beams) if not beam.done]

    def _assign(
        self, going: list[_Continuation], parents: dict[int, tuple[list[int], list[Drawn]]]
    ) -> None:
        """Each beam continues with the first continuation of its own hypothesis. Beams without one
        take further continuations of others, or end.
        """
        stays: dict[int, _Continuation] = {}
        moves: list[_Continuation] = []
        for one in going:
            if one.parent in stays:
                moves.append(one)
            else:
                stays[one.parent] = one
        self._changed = []
        live = []
        for number, beam in self._numbered():
            chosen = stays.get(number) or (moves.pop(0) if moves else None)
            if chosen is None:
                beam.done = True
                self._changed.append(beam)
                continue
            tokens, drawn = parents[chosen.parent]
            if chosen.parent != number:
                beam.tokens[:] = tokens
            if chosen.parent != number or beam.slot is None:
                self._changed.append(beam)
            beam.tokens.append(chosen.drawn.id)
            beam.drawn = [*drawn, chosen.drawn]
            beam.score = chosen.score
            live.append(beam)
        self._live = live

    def _is_over(self) -> bool:
        """Whether the search is over: no live hypothesis is expected to beat those that ended."""
        width, params = self._params.width, self._params
        if len(self._ended) < width:
            return False
        if params.early_stopping is True:
            return True
        length = self._made
        if params.early_stopping == "never" and params.length_penalty > 0:
            length = self._limits.max_tokens
        best = max(beam.score for beam in self._live) / length**params.length_penalty
        worst: float = min(one.score for one in self._ended)
        return bool(best <= worst)
