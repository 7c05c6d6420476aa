"""A sequence that scores given tokens instead of generating new ones."""

from __future__ import annotations

from collections.abc import Callable

from hearth.backends.contract.events import Failed, Finished, FinishReason, Scores, TokenLogprob
from hearth.backends.engine.logprobs import (
    Piece,
    log_normaliser,
    logprob_of,
    named,
    top_logprobs,
)
from hearth.backends.engine.runner import Row, StepResult
from hearth.backends.engine.sequence import Clock, Sequence
from hearth.backends.errors import InternalError

Answer = Callable[[Scores | Finished | Failed], None]


class Scoring(Sequence):
    """Computes the log probability of each token given those before it.

    The last token is never computed, because nothing follows it.

    Args:
        tokens: two or more ids.
        emit: gets exactly one of `Scores`, `Failed` and `Finished("cancelled")`.
        top: how many of the likeliest tokens are reported at each position; 0: `Scores.tokens` is
            empty.
        piece: for token texts; required if `top` is not 0.

    Raises:
        InternalError: `top` without `piece`.
    """

    def __init__(
        self,
        ident: int,
        tokens: list[int],
        emit: Answer,
        *,
        top: int = 0,
        piece: Piece | None = None,
        session: str = "",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(ident, tokens[:-1], session=session, clock=clock, emit=emit)
        if top and piece is None:
            raise InternalError(f"The {top} likeliest tokens cannot be named without their texts.")
        self._top = top
        self._piece = piece
        self._next = tokens[1:]
        self._logprobs: list[float] = []
        self._tokens: list[TokenLogprob] = []

    def cacheable_tokens(self) -> list[int]:
        """Before anything is scored, the logits of every token are needed; after a preemption,
        those of tokens that are already scored are not.
        """
        return self.tokens[: len(self._logprobs) + 1]

    def outputs(self, count: int) -> int:
        return max(0, self.computed + count - max(self.computed, len(self._logprobs)))

    def take(self, row: Row, result: StepResult) -> FinishReason | None:
        """Record the log probability of the token that follows each computed one."""
        for logits in result.logits[row.slot] if row.outputs else ():
            normaliser = log_normaliser(logits, len(self._logprobs) + 1)
            token = self._next[len(self._logprobs)]
            logprob = logprob_of(logits, token, normaliser)
            if self._top and self._piece is not None:
                likeliest = top_logprobs(logits, self._top, normaliser)
                self._tokens.append(named(token, logprob, likeliest, self._piece))
            self._logprobs.append(logprob)
        return "stop" if len(self._logprobs) == len(self._next) else None

    def finish(self, reason: FinishReason) -> None:
        if reason == "cancelled":
            self._end(Finished(reason))
        else:
            self._end(Scores(tuple(self._logprobs), tuple(self._tokens)))
