"""Samples the next token from the logits of any runner, in numpy.

The order of the steps is that of `SamplingParams`. A pool of candidates is narrowed step by step;
its ids stay in ascending order, so that ties and the draw itself depend neither on how a step found
its survivors, nor on whether it started from the whole vocabulary or a shortlist.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence, Set
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.dry import RepeatedRuns
from hearth.backends.engine.laws import Law, certain, residual
from hearth.backends.engine.logprobs import log_normaliser, logprob_of, not_finite, top_logprobs
from hearth.backends.engine.matcher import Matcher
from hearth.backends.engine.penalties import SeenTokens, penalise
from hearth.backends.engine.random_stream import (
    ACCEPT,
    DRAW,
    GUESS,
    RECOVER,
    REDRAW,
    XTC,
    fresh_seed,
    race,
    random_bits,
    uniform,
)
from hearth.backends.engine.selection import FIRST_LOOK, Indices, Sparse, largest, smallest_cover
from hearth.backends.engine.shortlist import RaceSpec, Shortlist, ShortlistSpec
from hearth.backends.engine.truncation import (
    Pool,
    likely,
    nucleus,
    typical,
    weights_of,
    without_top_choices,
)
from hearth.backends.errors import InvalidParameter

Logits = NDArray[np.float32]

_BAN: Final = -100.0
"""A logit bias at or below this bans the token."""
SMALL_POOL: Final = 4096
"""Pools up to this size are computed in float64, larger ones in float32, which is several times
faster."""
_SUM_ERROR: Final = 4e-6
"""Bound of the relative difference between sums of exp(logits) of a vocabulary computed here and on
a device: in float32 an exponential is off by at most 3e-7, and the sum by 2e-7."""


@dataclass(slots=True)  # Not frozen: one is made per token, and freezing costs a microsecond.
class Drawn:
    """A token, and its log probabilities under the model if they were requested."""

    id: int
    logprob: float | None = None
    """Natural log, under the raw logits."""
    top: tuple[tuple[int, float], ...] = ()
    """(id, logprob) of the likeliest tokens, best first."""


class _FallsShort(Exception):
    """The shortlist does not decide what is drawn."""


@dataclass(slots=True)
class _Hidden:
    """The part of the vocabulary that is missing from a pool of candidates from a shortlist."""

    short: Shortlist
    work: Logits
    """The adjusted logits of `short`."""

    def survivors(self, pool: Pool, params: SamplingParams) -> Indices:
        """The candidates that the first truncation step would keep of the whole vocabulary, if all
        of them are in `pool`.

        Raises:
            _FallsShort: some are not in `pool`, or rounding decides.
        """
        if params.typical_p < 1.0:
            raise _FallsShort
        if params.top_p < 1.0:
            weights = weights_of(pool)
            total, error = self._total(float(pool.max()))
            target = params.top_p * total
            kept = smallest_cover(pool, weights, target)
            mass, last = float(weights[kept].sum(dtype=np.float64)), float(weights[kept].min())
            if target + error < mass < target + last - error:
                return kept
        elif params.min_p > 0.0 and pool.max() + math.log(params.min_p) > self.short.floor:
            return likely(pool, params.min_p)
        raise _FallsShort

    def _total(self, peak: float) -> tuple[float, float]:
        """The sum of exp(adjusted logits - `peak`) over the vocabulary, and its maximum error."""
        with np.errstate(over="ignore", invalid="ignore"):  # With NaN, no comparison succeeds.
            raw = total = float(np.exp(np.float64(self.short.log_sum - peak)))
            if self.work is not self.short.values:
                total += float(np.exp(self.work.astype(np.float64) - peak).sum())
                total -= float(np.exp(self.short.values.astype(np.float64) - peak).sum())
        return total, _SUM_ERROR * (raw + total)


class Sampler:
    """Draws the tokens of one sequence.

    Args:
        params: validated (`hearth.backends.engine.validate`).
        prompt_ids: the tokens that the penalties see before the first draw.
        breakers: token ids of `params.dry_sequence_breakers` (`dry.breaker_ids`), only for DRY.

    Attributes:
        seed: the seed in use; freshly drawn if `params` has none.
        is_greedy: the likeliest token is always taken.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        prompt_ids: Sequence[int] = (),
        breakers: Set[int] = frozenset(),
    ) -> None:
        self.params = params
        self.seed = fresh_seed() if params.seed is None else params.seed
        self.is_greedy = params.temperature == 0.0
        self._bias = _bias_of(params)
        self._seen: SeenTokens | None = None
        self._repeats: RepeatedRuns | None = None
        if params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty:
            self._seen = SeenTokens(params.repetition_window, prompt_ids)
        if params.dry_multiplier > 0.0:
            self._repeats = RepeatedRuns(params.dry_window, breakers, prompt_ids)
        self._adjusts = any(one is not None for one in (self._bias, self._seen, self._repeats))
        """Logits may be adjusted, apart from bans."""

    def accept(self, token: int) -> None:
        """Add `token` to the penalties' history."""
        if self._seen is not None:
            self._seen.add(token)
        if self._repeats is not None:
            self._repeats.add(token)

    def fork(self) -> Sampler:
        """A copy that draws the same tokens and keeps its own history from here on."""
        made = copy(self)
        made._seen = None if self._seen is None else self._seen.copy()
        made._repeats = None if self._repeats is None else self._repeats.copy()
        return made

    def shortlist(self, position: int, banned: Collection[int] = ()) -> ShortlistSpec | None:
        """The shortlist that usually suffices for the draw at `position` with `banned`; None if
        the draw needs all logits.
        """
        params = self.params
        adjusted = [sparse[0] for sparse in self._adjustments() if sparse is not None]
        if banned:
            adjusted.append(_array(banned))
        if self.is_greedy:
            count = 1 if params.logprobs is None and not adjusted else FIRST_LOOK
        else:
            narrows = params.typical_p == 1.0 and (params.top_p < 1.0 or params.min_p > 0.0)
            if params.top_k >= FIRST_LOOK or not (params.top_k or narrows):
                return None
            count = FIRST_LOOK
        if adjusted:
            return ShortlistSpec(count, np.concatenate(adjusted))
        spec = ShortlistSpec(count, np.empty(0, dtype=np.intp))
        if not (self.is_greedy or params.xtc_probability) and params.typical_p == 1.0:
            key = random_bits(self.seed, position)
            some = params.temperature, params.top_k, params.top_p, params.min_p
            spec.race = RaceSpec(key, *some)
        return spec

    def draw(
        self,
        logits: Logits | Shortlist,
        position: int,
        *,
        banned: Collection[int] = (),
        matcher: Matcher | None = None,
    ) -> Drawn:
        """Draw the token at `position`.

        The result depends only on the logits, the accepted tokens and (seed, position). A shortlist
        gives the same token as the whole row, which is fetched if the shortlist does not decide.

        With a grammar, the token is first drawn without it. Only if the grammar does not allow that
        token, another one is drawn independently from the allowed tokens. With p the law of the
        first draw, A its sum over the allowed tokens, and r the law of the second draw, an allowed
        token t has probability p(t) + (1 - A) r(t). Top-k and the other truncations act on all
        tokens in the first draw, and on the allowed ones in the second. Without truncation,
        r(t) = p(t)/A and the total is p(t)/A as well: the same as masking first, but the mask is
        only computed when the first draw fails.

        Args:
            logits: [V] float32, left unchanged, or the shortlist of them that `shortlist` requested
                with the same `banned`.
            position: index of the token in its sequence.
            banned: ids that may not be drawn (end tokens with `ignore_eos` or before `min_tokens`);
                an end token is drawn anyway where a grammar allows nothing else.
            matcher: the grammar, at `position`.

        Raises:
            InternalError: the model produced NaN or infinite logits, or the grammar failed.
            InvalidParameter: `logit_bias`, `banned` and the grammar leave no token, or the grammar
                met a bound.
        """
        if isinstance(logits, Shortlist):
            with suppress(_FallsShort):
                drawn = self._draw_from(logits, position, banned)
                if matcher is None or matcher.allows(drawn.id):
                    return drawn
            logits = logits.row()
        # If greedy, bans matter only if the likeliest token is banned: avoid the copy otherwise.
        work = self.adjusted(logits, () if self.is_greedy and matcher is None else banned)
        if self.is_greedy:
            token = int(work.argmax())
            if token in banned:
                work = self.adjusted(logits, banned)
                token = int(work.argmax())
            self._check_peak(logits, work.item(token), position)
        else:
            self._check_peak(logits, float(work.max()), position)
            token = self._sample(work, position)
        if matcher is not None and not matcher.allows(token):
            masked = self._masked(work, banned, position, matcher.allowed())
            if self.is_greedy:
                token = int(masked.argmax())
            else:
                token = self._sample(masked, position, REDRAW)
        return self._with_logprobs(token, logits)

    def law(
        self,
        logits: Logits,
        position: int,
        *,
        banned: Collection[int] = (),
        matcher: Matcher | None = None,
    ) -> Law:
        """The law that `draw` draws from, given whether XTC acts at `position`. Arguments and
        errors as for `draw`. With a grammar it computes the mask.
        """
        work = self.adjusted(logits, banned)
        self._check_peak(logits, float(work.max()), position)
        law = self._law_of(work, position)
        if matcher is None:
            return law
        allowed = matcher.allowed()
        stays = allowed[law.ids]
        if stays.all():
            return law
        again = self._law_of(self._masked(work, banned, position, allowed), position)
        mixed = np.zeros(work.size)
        mixed[law.ids] = law.chances * stays
        mixed[again.ids] += law.chances[~stays].sum() * again.chances
        return Law.of(mixed)

    def guess(
        self,
        logits: Logits,
        position: int,
        *,
        banned: Collection[int] = (),
        matcher: Matcher | None = None,
    ) -> tuple[int, Law]:
        """A draft token from the logits of another model, and the law it was drawn from. Like
        `draw`, but independent of every draw, acceptance and recovery at `position`.
        """
        law = self.law(logits, position, banned=banned, matcher=matcher)
        return law.at(uniform(self.seed, position, GUESS)), law

    def verify(
        self,
        logits: Logits,
        position: int,
        draft: int,
        guess: Law | None,
        *,
        banned: Collection[int] = (),
        matcher: Matcher | None = None,
    ) -> Drawn:
        """The token at `position` by rejection sampling (arXiv 2211.17192, algorithm 1): with p the
        law of `draw` and q the law of `draft`, the result is `draft` with probability
        min(1, p / q), else a token from norm(max(p - q, 0)). The result has law p, whatever q is.

        Args:
            draft: the drafted token.
            guess: q; None: nothing but `draft` could have been drafted.
        """
        if self.is_greedy:
            return self.draw(logits, position, banned=banned, matcher=matcher)
        law = self.law(logits, position, banned=banned, matcher=matcher)
        guess = certain(draft) if guess is None else guess
        chance = guess.chance(draft)
        if chance > 0.0 and uniform(self.seed, position, ACCEPT) * chance < law.chance(draft):
            return self._with_logprobs(draft, logits)
        recovered = residual(law, guess).at(uniform(self.seed, position, RECOVER))
        return self._with_logprobs(recovered, logits)

    def _with_logprobs(self, token: int, logits: Logits) -> Drawn:
        if self.params.logprobs is None:
            return Drawn(token)
        normaliser = log_normaliser(logits)
        top = top_logprobs(logits, self.params.logprobs, normaliser)
        return Drawn(token, logprob_of(logits, token, normaliser), top)

    @staticmethod
    def _check_peak(logits: Logits, peak: float, position: int) -> None:
        """Check for invalid logits. A finite maximum means that there is no NaN, because numpy's
        `max` and `argmax` return NaN if there is one.
        """
        if math.isfinite(peak):
            return
        if peak == -math.inf and math.isfinite(logits.max()):
            raise InvalidParameter(
                "logit_bias",
                f"Every token is banned at position {position}, so none can be drawn.",
                "Ban fewer tokens with logit_bias, or turn ignore_eos off.",
            )
        raise not_finite(position)

    @staticmethod
    def _masked(
        work: Logits, banned: Collection[int], position: int, allowed: NDArray[np.bool_]
    ) -> Logits:
        """The adjusted logits `work` restricted to the `allowed` tokens. At least one is left: a
        banned end token if there is no other.
        """
        masked = np.where(allowed, work, np.float32(-np.inf))
        if not math.isfinite(masked.max()):
            ends = [token for token in banned if allowed[token]]
            if not ends:
                raise InvalidParameter(
                    "logit_bias",
                    f"Every token that the grammar allows at position {position} is banned.",
                    "Ban fewer tokens with logit_bias, or ask for less in the schema.",
                )
            masked[min(ends)] = 0.0
        return masked

    def _draw_from(self, short: Shortlist, position: int, banned: Collection[int]) -> Drawn:
        """The token that `draw` would take from the whole row without a grammar.

        Raises:
            _FallsShort: `short` does not determine that token.
        """
        if not math.isfinite(short.log_sum):
            raise _FallsShort
        work = self.adjusted(short.values, banned, short.ids)
        token = short.best
        if not self.is_greedy or work is not short.values:
            known = np.flatnonzero(work > short.floor)
            if not known.size:
                raise _FallsShort
            ids, pool = short.ids[known], work[known]
            if self.is_greedy:
                token = int(ids[pool.argmax()])
            else:
                token = self._sample(pool, position, ids=ids, hidden=_Hidden(short, work))
        count = self.params.logprobs
        if count is None:
            return Drawn(token)
        if np.count_nonzero(short.values > short.floor) < count:
            raise _FallsShort
        top = top_logprobs(short.values, count, short.log_sum)
        place = int(np.searchsorted(short.ids, token))
        logprob = logprob_of(short.values, place, short.log_sum)
        return Drawn(token, logprob, tuple((int(short.ids[at]), value) for at, value in top))

    def _adjustments(self) -> tuple[Sparse | None, Sparse | None, Sparse | None]:
        """The logit biases, the token counts for the penalties, and the DRY penalties."""
        seen = None if self._seen is None else self._seen.entries()
        repeated = None if self._repeats is None else self._repeats.penalties(self.params)
        return self._bias, seen, repeated

    def adjusted(
        self, logits: Logits, banned: Collection[int] = (), ids: Indices | None = None
    ) -> Logits:
        """A copy of `logits` with bias, penalties and bans applied; `logits` itself if there are
        none.

        Args:
            ids: the token ids of `logits`, ascending; None: the whole vocabulary.
        """
        if not self._adjusts and not banned:
            return logits
        bias, seen, repeated = self._adjustments()
        if bias is None and seen is None and repeated is None and not banned:
            return logits

        def places(tokens: Indices) -> Indices:
            return tokens if ids is None else np.searchsorted(ids, tokens)

        work = logits.copy()
        if bias is not None:
            work[places(bias[0])] += bias[1]
        if seen is not None:
            penalise(work, (places(seen[0]), seen[1]), self.params)
        if repeated is not None:
            work[places(repeated[0])] -= repeated[1]
        if banned:
            work[places(_array(banned))] = -np.inf
        return work

    def _sample(
        self,
        pool: Pool,
        position: int,
        stream: int = DRAW,
        *,
        ids: Indices | None = None,
        hidden: _Hidden | None = None,
    ) -> int:
        """Draw a token from adjusted logits.

        Args:
            pool: logits of `ids`, which are ascending; with None, of the whole vocabulary.
            hidden: the part of the vocabulary that `pool` lacks.

        Raises:
            _FallsShort: the result may depend on the hidden part.
        """
        ids, pool = self._survivors(pool, position, ids, hidden)
        weights = weights_of(pool, self.params.temperature)
        place = race(weights, self.seed, position, stream, ids)
        return place if ids is None else int(ids[place])

    def _law_of(self, work: Logits, position: int) -> Law:
        """The law of `_sample` for the adjusted logits `work` of the whole vocabulary."""
        ids, pool = self._survivors(work, position, None, None)
        return Law.of(weights_of(pool, self.params.temperature), ids)

    def _survivors(
        self, pool: Pool, position: int, ids: Indices | None, hidden: _Hidden | None
    ) -> tuple[Indices | None, Pool]:
        """Ids and logits of the candidates that may be drawn."""
        params = self.params
        size = pool.size if hidden is None else hidden.short.vocab_size
        if 0 < params.top_k < size:
            if pool.size < params.top_k:
                raise _FallsShort
            size, hidden = params.top_k, None
            ids, pool = _narrowed(ids, pool, np.sort(largest(pool, size)))
        if size <= SMALL_POOL:
            pool = pool.astype(np.float64)
        if hidden is not None:
            ids, pool = _narrowed(ids, pool, hidden.survivors(pool, params))
        else:
            if params.typical_p < 1.0:
                ids, pool = _narrowed(ids, pool, typical(pool, params.typical_p))
            if params.top_p < 1.0:
                ids, pool = _narrowed(ids, pool, nucleus(pool, params.top_p))
        if params.min_p > 0.0:
            ids, pool = _narrowed(ids, pool, likely(pool, params.min_p))
        chance = params.xtc_probability
        if chance > 0.0 and uniform(self.seed, position, XTC) < chance:
            ids, pool = _narrowed(ids, pool, without_top_choices(pool, params.xtc_threshold))
        return ids, pool


def _bias_of(params: SamplingParams) -> Sparse | None:
    if not params.logit_bias:
        return None
    ids = np.fromiter(params.logit_bias.keys(), dtype=np.intp)
    bias = np.fromiter(params.logit_bias.values(), dtype=np.float32)
    return ids, np.where(bias <= _BAN, np.float32(-np.inf), bias)


def _array(tokens: Collection[int]) -> Indices:
    return np.fromiter(tokens, dtype=np.intp, count=len(tokens))


def _narrowed(ids: Indices | None, pool: Pool, kept: Indices) -> tuple[Indices, Pool]:
    return (kept if ids is None else ids[kept]), pool[kept]
