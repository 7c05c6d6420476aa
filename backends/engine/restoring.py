"""A sequence that only swaps in the part of a prompt that is stored outside the KV cache."""

from __future__ import annotations

from collections.abc import Callable

from hearth.backends.contract.events import Failed, Finished, FinishReason
from hearth.backends.engine.runner import Row, StepResult
from hearth.backends.engine.sequence import Clock, Sequence


class Restoring(Sequence):
    """Copies the first part of a prompt into the KV cache, as far as disk or host memory has it, so
    that a later request finds it there. One more token is computed, and then it ends.

    Args:
        tokens: of the prompt, at least one.
        emit: gets exactly one of `Finished` and `Failed`.
    """

    def __init__(
        self,
        ident: int,
        tokens: list[int],
        emit: Callable[[Finished | Failed], None],
        *,
        priority: int = 0,
        session: str = "",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(ident, tokens, priority=priority, session=session, clock=clock, emit=emit)
        self._found = 0
        """Tokens that are in the cache or being copied."""

    @property
    def total(self) -> int:
        return self.prompt_tokens if self.slot is None else min(self.prompt_tokens, self._found + 1)

    @property
    def pending(self) -> int:
        return self.total - self.computed

    def start(self, slot: int, computed: int, arriving: int = 0) -> None:
        self._found = computed + arriving
        super().start(slot, computed, arriving)

    def on_arrived(self) -> None:
        self._found = self.computed

    def cacheable_tokens(self) -> list[int]:
        return self.tokens

    def outputs(self, count: int) -> int:
        return 0

    def take(self, row: Row, result: StepResult) -> FinishReason | None:
        return None if self.pending > 0 else "stop"

    def finish(self, reason: FinishReason) -> None:
        self._end(Finished(reason))
