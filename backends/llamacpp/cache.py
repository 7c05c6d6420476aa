"""The key-value memory of a runner: sequences in one unified llama.cpp pool that grows as it
fills."""

from __future__ import annotations

from collections.abc import Callable

from hearth.backends.engine.runner import RunnerLost
from hearth.backends.errors import Busy, DoesNotFit, InternalError, UnsupportedParameter
from hearth.backends.llamacpp.context import LlamaContext
from hearth.backends.llamacpp.memory import available_bytes
from hearth.backends.llamacpp.params import START_CELLS, ContextPlan
from hearth.backends.llamacpp.pool import CellPool


class LlamaCache:
    """Implements `hearth.backends.engine.runner.RunnerCache`; a slot is a llama.cpp sequence id.

    `reserve` promises room against the budget (`plan.pool_tokens`); the context itself starts small
    and doubles when steps fill it, because llama.cpp zeroes a whole pool when it makes one.

    Args:
        make_context: makes a context whose pool has at least so many cells.
        plan: sizes.
        can_roll_back: whether the model's memory can forget its last tokens alone.
    """

    def __init__(
        self,
        make_context: Callable[[int], LlamaContext],
        plan: ContextPlan,
        *,
        can_roll_back: bool,
    ) -> None:
        self._make_context = make_context
        self._plan = plan
        self._can_roll_back = can_roll_back
        self._pool = CellPool(plan.sequences)
        # A memory without a cost per token (recurrent) has nothing to grow.
        first = START_CELLS if plan.kv_bytes_per_token else plan.pool_tokens
        self._context: LlamaContext | None = make_context(min(plan.pool_tokens, first))

    @property
    def context(self) -> LlamaContext:
        """The context that holds the pool now; `make_room` may replace it.

        Raises:
            InternalError: it is closed.
        """
        if self._context is None:
            raise InternalError("The runner's memory is closed.")
        return self._context

    @property
    def cells(self) -> int:
        """Tokens that the pool has room for without growing."""
        return self.context.cells

    def length(self, slot: int) -> int:
        """Tokens that `slot` holds."""
        return self._pool.length(self._checked(slot))

    def reserve(self, slot: int, tokens: int) -> bool:
        """See the protocol; a promise counts cells that are shared once."""
        before = self._pool.promised(self._checked(slot))
        if tokens > self._plan.context:
            return False
        self._pool.promise(slot, tokens)
        if self._pool.promised_cells > self._plan.pool_tokens:
            self._pool.promise(slot, before)
            return False
        return True

    def trim(self, slot: int, tokens: int) -> bool:
        """See the protocol."""
        if tokens >= self.length(slot):
            return True
        if tokens > 0 and not self._can_roll_back:
            return False
        if not self.context.remove(slot, tokens):
            return False
        self._pool.trim(slot, tokens)
        return True

    def fork(self, source: int, target: int, tokens: int) -> None:
        """See the protocol; what `target` held is forgotten. Costs no memory and no computing.

        Raises:
            UnsupportedParameter: this model's memory cannot be shared in part.
            InternalError: `source` holds fewer tokens, or is `target`.
        """
        if not self._can_roll_back:
            raise UnsupportedParameter("fork", "This model's memory cannot share a prefix.")
        if source == target or tokens > self.length(source):
            raise InternalError(
                f"Slot {target} cannot share {tokens} tokens of slot {source}, "
                f"which holds {self.length(source)}."
            )
        promised = self._pool.promised(self._checked(target))
        self.release(target)
        self._pool.promise(target, promised)
        if tokens > 0:
            self.context.share(source, target, tokens)
            self._pool.fork(source, target, tokens)

    def release(self, slot: int) -> None:
        """See the protocol."""
        if self.length(slot):
            self.context.remove(slot, 0)
        self._pool.release(slot)

    def used_tokens(self) -> int:
        """See the protocol."""
        return self._pool.tokens

    def make_room(self, tokens: int) -> None:
        """Make sure that a step can add `tokens` tokens, growing the context if it must.

        Raises:
            Busy: the pool is full, or a larger one could not be had; what it holds is unchanged.
        """
        needed = self._pool.cells + tokens
        if needed > self._plan.pool_tokens:
            raise Busy(
                f"The KV pool holds {self._plan.pool_tokens:,} tokens and {needed:,} are needed.",
                "Try again when another request is done.",
                retry_after_s=1.0,
            )
        if needed > self.cells:
            self._grow(min(self._plan.pool_tokens, max(needed, 2 * self.cells)))

    def added(self, slot: int, tokens: int) -> None:
        """Note that a step computed `tokens` more tokens of `slot`."""
        self._pool.append(slot, tokens)

    def undo(self, slot: int) -> bool:
        """After a failed step: forget what llama.cpp may have stored of it beyond the noted length
        of `slot`.

        False if this memory cannot roll back; then `slot` holds nothing any more.
        """
        length = self.length(slot)
        if (length == 0 or self._can_roll_back) and self.context.remove(slot, length):
            return True
        self.context.remove(slot, 0)
        self._pool.trim(slot, 0)
        return False

    def close(self) -> None:
        """Free the context. May be called twice."""
        context, self._context = self._context, None
        if context is not None:
            context.close()

    def _grow(self, cells: int) -> None:
        """Move everything to a context of `cells` cells.

        Copy out, free, make, copy in: so that the two pools are never there together.
        """
        old_cells = self.cells
        kv_bytes = self._plan.kv_bytes_per_token
        more_bytes = (cells - old_cells + self._pool.cells) * kv_bytes
        free_bytes = available_bytes()
        if more_bytes > free_bytes:
            raise _cannot_grow(
                old_cells, cells, f"{more_bytes / 1e9:.2f} GB of {free_bytes / 1e9:.2f} GB free"
            )
        state = self.context.export()
        self.close()
        refused: DoesNotFit | None = None
        try:
            context = self._make_context(cells)
        except DoesNotFit as error:
            refused = error
            context = self._back_to(old_cells)
        self._context = context
        context.restore(state)
        if refused is not None:
            raise _cannot_grow(old_cells, cells, refused.message) from refused

    def _back_to(self, cells: int) -> LlamaContext:
        """A context of the size that there was before. Raises `RunnerLost` if even that is gone."""
        try:
            return self._make_context(cells)
        except DoesNotFit as error:
            raise RunnerLost(f"no memory for the {cells:,} cells that were there before") from error

    def _checked(self, slot: int) -> int:
        """`slot`, if it exists: llama.cpp asserts on sequence ids that it was not made for."""
        if not 0 <= slot < self._plan.sequences:
            raise InternalError(f"Slot {slot} does not exist; there are {self._plan.sequences}.")
        return slot


def _cannot_grow(old_cells: int, cells: int, why: str) -> Busy:
    return Busy(
        f"The KV pool cannot grow from {old_cells:,} to {cells:,} tokens: {why}.",
        "Try again when another request is done, close other programs, or use a smaller --ctx.",
        retry_after_s=1.0,
    )
