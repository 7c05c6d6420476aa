"""What the engine asks of a runner: a small contract that llama.cpp, native PyTorch and a fake one
implement.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class RunnerLost(Exception):
    """The runner cannot go on. Its process must end; the host starts another."""


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """What a runner is and can do; fixed once it is loaded."""

    vocab_size: int
    context: int
    """Tokens one sequence may hold."""
    pool_tokens: int
    """Tokens that all sequences together may hold."""
    max_sequences: int
    chunk_tokens: int
    """Most tokens in one step, all rows together."""
    kv_bytes_per_token: int
    end_ids: frozenset[int]
    """Every end-of-generation token that the model declares."""
    can_roll_back: bool
    can_fork: bool


@dataclass(frozen=True, slots=True)
class Row:
    """Some tokens of one sequence in one step: `tokens` go to positions `start`, `start + 1`,
    ...
    """

    slot: int
    start: int
    tokens: Seq[int]
    wants_logits: bool
    """Ask for the logits after the last of `tokens`."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes: at most `chunk_tokens` tokens, at most one row a slot."""

    rows: tuple[Row, ...]

    @property
    def tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """`logits[slot]`: [vocab_size] float32, for each row that wanted them; valid until the next
    step.
    """

    logits: dict[int, NDArray[np.float32]]


class RunnerCache(Protocol):
    """The key-value memory of a runner's sequences, named by slot."""

    def reserve(self, slot: int, tokens: int) -> bool:
        """Make sure that `slot` can grow to `tokens` tokens; False if the pool cannot."""
        ...

    def trim(self, slot: int, tokens: int) -> bool:
        """Keep the first `tokens` tokens of `slot`; False if this model's memory cannot roll
        back.
        """
        ...

    def fork(self, source: int, target: int, tokens: int) -> None:
        """Let `target` share the first `tokens` tokens of `source`, which may still be running."""
        ...

    def release(self, slot: int) -> None:
        """Forget everything that `slot` holds."""
        ...

    def used_tokens(self) -> int:
        """Tokens held now, all slots together; a shared token counts once for each holder."""
        ...


class Runner(Protocol):
    """Executes plans. Not thread-safe: only the engine's thread calls it."""

    @property
    def info(self) -> RunnerInfo: ...

    @property
    def cache(self) -> RunnerCache: ...

    def step(self, plan: StepPlan) -> StepResult:
        """Compute `plan`. Raises `HearthError` if the library fails; then no row of the plan was
        computed. Raises `RunnerLost` if no further step can be.
        """
        ...

    def close(self) -> None:
        """Free everything; the runner cannot be used afterwards."""
        ...
