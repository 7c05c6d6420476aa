"""Draws the next token from logits: the reference for every runner, in numpy.

The order of the steps is that of `SamplingParams`. A pool of candidates is narrowed step by step;
its ids stay in ascending order, so that ties and the draw itself do not depend on how a step found
its survivors.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence, Set
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.draw_spec import Drawn, DrawSpec, Sparse
from hearth.backends.engine.dry import RepeatedRuns
from hearth.backends.engine.logprobs import log_normaliser, logprob_of, top_logprobs
from hearth.backends.engine.matcher import Matcher
from hearth.backends.engine.penalties import SeenTokens, penalise
from hearth.backends.engine.random_stream import DRAW, REDRAW, XTC, fresh_seed, uniform
from hearth.backends.engine.selection import Indices, largest
from hearth.backends.engine.truncation import (
    Pool,
    likely,
    nucleus,
    pick,
    typical,
    weights_of,
    without_top_choices,
)
from hearth.backends.errors import InternalError, InvalidParameter

Logits = NDArray[np.float32]

_BAN: Final = -100.0
"""A logit bias at or below this bans the token."""
SMALL_POOL: Final = 4096
"""Pools up to this size are computed in float64, larger ones in float32: several times faster."""


class Sampler:
    """Draws the tokens of one sequence.

    Args:
        params: validated (`hearth.backends.engine.validate`).
        prompt_ids: what the penalties see before the first draw.
        breakers: token ids of `params.dry_sequence_breakers` (`dry.breaker_ids`), for DRY alone.

    Attributes:
        seed: the seed in use; drawn fresh where `params` has none.
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
        self._greedy = params.temperature == 0.0
        self._bias = _bias_of(params)
        self._seen: SeenTokens | None = None
        self._repeats: RepeatedRuns | None = None
        if params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty:
            self._seen = SeenTokens(params.repetition_window, prompt_ids)
        if params.dry_multiplier > 0.0:
            self._repeats = RepeatedRuns(params.dry_window, breakers, prompt_ids)

    def accept(self, token: int) -> None:
        """Tell the penalties that `token` was taken."""
        if self._seen is not None:
            self._seen.add(token)
        if self._repeats is not None:
            self._repeats.add(token)

    def spec(self, position: int, banned: Collection[int] = ()) -> DrawSpec:
        """What `draw` does with the logits at `position`, a grammar aside."""
        params = self.params
        return DrawSpec(
            params,
            0.0 if self._greedy else uniform(self.seed, position, DRAW),
            not self._greedy
            and params.xtc_probability > 0.0
            and uniform(self.seed, position, XTC) < params.xtc_probability,
            self._bias,
            None if self._seen is None else self._seen.entries(),
            None if self._repeats is None else self._repeats.penalties(params),
            banned,
        )

    def draw(
        self,
        logits: Logits,
        position: int,
        *,
        banned: Collection[int] = (),
        matcher: Matcher | None = None,
    ) -> Drawn:
        """The token at `position`.

        It depends on the logits, the accepted tokens and (seed, position) alone.

        With a grammar the token is drawn as ever, and only if the grammar does not allow it, drawn
        again, independently, from what is allowed. With p the probabilities and A their sum over
        what is allowed, an allowed token t comes with p(t) + (1 - A) p(t)/A = p(t)/A: what masking
        at once would give, at a mask for the failures alone. Top-k and the other truncations act
        on all tokens the first time, and on the allowed ones the second.

        Args:
            logits: [V] float32, left unchanged.
            position: index of the token in its sequence.
            banned: ids that may not be drawn (end tokens with `ignore_eos` or before `min_tokens`);
                an end token is drawn in spite of that where a grammar lets nothing else follow.
            matcher: the grammar, at `position`.

        Raises:
            InternalError: the model produced NaN or infinite logits, or the grammar failed.
            InvalidParameter: `logit_bias`, `banned` and the grammar leave no token, or the grammar
                met a bound.
        """
        spec = self.spec(position, banned)
        work = _adjusted(logits, spec)
        if self._greedy:
            token = int(work.argmax())
            self._check_peak(logits, float(work[token]), position)
        else:
            self._check_peak(logits, float(work.max()), position)
            token = _sample(work, spec, spec.number)
        if matcher is not None and not matcher.allows(token):
            token = self._choose_allowed(work, spec, position, matcher.allowed())
        if self.params.logprobs is None:
            return Drawn(token)
        normaliser = log_normaliser(logits)
        top = top_logprobs(logits, self.params.logprobs, normaliser)
        return Drawn(token, logprob_of(logits, token, normaliser), top)

    @staticmethod
    def _check_peak(logits: Logits, peak: float, position: int) -> None:
        """A finite maximum means that there is no NaN: numpy's `max` and `argmax` let NaN win."""
        if math.isfinite(peak):
            return
        if peak == -math.inf and math.isfinite(logits.max()):
            raise InvalidParameter(
                "logit_bias",
                f"Every token is banned at position {position}, so none can be drawn.",
                "Ban fewer tokens with logit_bias, or turn ignore_eos off.",
            )
        raise InternalError(
            f"The model produced logits that are not finite numbers at position {position}.",
            "The model file may be damaged: check its sha256, or try another quantization.",
            position=position,
        )

    def _choose_allowed(
        self, work: Logits, spec: DrawSpec, position: int, allowed: NDArray[np.bool_]
    ) -> int:
        """A token from the adjusted logits `work`, of those that are `allowed`."""
        masked = np.where(allowed, work, np.float32(-np.inf))
        best = int(masked.argmax())
        if math.isfinite(masked[best]):
            if self._greedy:
                return best
            return _sample(masked, spec, uniform(self.seed, position, REDRAW))
        ends = [token for token in spec.banned if allowed[token]]
        if ends:
            return min(ends)
        raise InvalidParameter(
            "logit_bias",
            f"Every token that the grammar allows at position {position} is banned.",
            "Ban fewer tokens with logit_bias, or ask for less in the schema.",
        )


def _bias_of(params: SamplingParams) -> Sparse | None:
    if not params.logit_bias:
        return None
    ids = np.fromiter(params.logit_bias.keys(), dtype=np.intp)
    bias = np.fromiter(params.logit_bias.values(), dtype=np.float32)
    return ids, np.where(bias <= _BAN, np.float32(-np.inf), bias)


def _adjusted(logits: Logits, spec: DrawSpec) -> Logits:
    """Bias, penalties and bans, on a copy; `logits` itself where there is nothing to do."""
    if not spec.adjusts:
        return logits
    work = logits.copy()
    if spec.bias is not None:
        ids, bias = spec.bias
        work[ids] += bias
    if spec.seen is not None:
        penalise(work, spec.seen, spec.params)
    if spec.repeated is not None:
        ids, penalties = spec.repeated
        work[ids] -= penalties
    if len(spec.banned):
        work[np.fromiter(spec.banned, dtype=np.intp, count=len(spec.banned))] = -np.inf
    return work


def _sample(work: Logits, spec: DrawSpec, number: float) -> int:
    ids, pool = _survivors(work, spec)
    place = pick(weights_of(pool, spec.params.temperature), number)
    return place if ids is None else int(ids[place])


def _survivors(work: Logits, spec: DrawSpec) -> tuple[Indices | None, Pool]:
    """Ids (ascending; None: the whole vocabulary) and logits of what may be drawn."""
    params = spec.params
    ids: Indices | None = None
    pool: Pool = work
    if 0 < params.top_k < work.size:
        ids = np.sort(largest(work, params.top_k))
        pool = work[ids]
    if pool.size <= SMALL_POOL:
        pool = pool.astype(np.float64)
    if params.typical_p < 1.0:
        ids, pool = _narrowed(ids, pool, typical(pool, params.typical_p))
    if params.top_p < 1.0:
        ids, pool = _narrowed(ids, pool, nucleus(pool, params.top_p))
    if params.min_p > 0.0:
        ids, pool = _narrowed(ids, pool, likely(pool, params.min_p))
    if spec.is_xtc_active:
        ids, pool = _narrowed(ids, pool, without_top_choices(pool, params.xtc_threshold))
    return ids, pool


def _narrowed(ids: Indices | None, pool: Pool, kept: Indices) -> tuple[Indices, Pool]:
    return (kept if ids is None else ids[kept]), pool[kept]
