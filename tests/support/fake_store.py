"""Sequences by id without a model: lists of cells that are really shared, with a check of every
call.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import astuple, dataclass, field
from itertools import count
from typing import Literal

Kind = Literal["full", "recurrent", "sliding"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One token in the pool."""

    number: int
    token: int


@dataclass(frozen=True, slots=True)
class FakeState:
    """A saved sequence."""

    tokens: tuple[int, ...]
    oldest: int
    first: int = 0
    """Position of the first of `tokens`."""
    state_bytes: int = 0
    """Bytes of a memory whose size does not depend on the number of tokens."""

    @property
    def nbytes(self) -> int:
        return self.state_bytes or 8 * len(self.tokens)


@dataclass(slots=True)
class _Held:
    cells: list[Cell] = field(default_factory=list)
    oldest: int = 0
    """Position of the first cell that was not overwritten; no earlier cell may be read."""


class FakeStore:
    """Implements `SequenceStore`; raises AssertionError on calls that are not allowed for any
    library.

    Args:
        sequences: number of ids.
        cells: size of the pool.
        kind: full: a sequence can be continued from any prefix. recurrent: only from its end.
            sliding: from its end, or where the `window` tokens before are still held.
        window: of "sliding".
        overwrites: a sliding window overwrites cells that it has passed, as soon as it can.
        can_save: whether `save` returns a state.
        allocated: cells that there is memory for at first; None: all.
        most_offloaded: limit of tokens in copies of parts; None: the number of cells.
        budget: limit of tokens of the pool and of copies of parts together; None: no common limit.
        state_bytes: of each sequence, whose tokens take no memory then; 0: tokens take 8 bytes
            each.
        on_copy: called with the tokens of each part that is copied, in or out.
        available_bytes: of plain memory; None: enough.
        grows_after: number of polls after which memory that `grow` asked for is available; None:
            never.
    """

    fingerprint = b"fake"

    def __init__(
        self,
        sequences: int,
        cells: int,
        *,
        kind: Kind = "full",
        window: int = 8,
        overwrites: bool = True,
        can_save: bool = True,
        allocated: int | None = None,
        most_offloaded: int | None = None,
        budget: int | None = None,
        state_bytes: int = 0,
        on_copy: Callable[[int], None] = lambda tokens: None,
        available_bytes: Callable[[], int] | None = None,
        grows_after: int | None = None,
    ) -> None:
        self._grows_after = grows_after
        self._looks_left: int | None = None
        self._wanted = 0
        self._available_bytes = available_bytes
        self.most_offloaded = most_offloaded
        self._budget = budget
        self.on_copy = on_copy
        self._state_bytes = state_bytes
        self.token_bytes = 0 if state_bytes else 8
        self.sequences = sequences
        self.allocated_tokens = self._first = cells if allocated is None else allocated
        self._cells = cells
        self.kind = kind
        self.keeps_past = kind == "full"
        self.can_save = can_save
        self.refuses_restore = False
        """Whether `restore` fails."""
        self._window = window
        self._overwrites = overwrites and kind == "sliding"
        self._held = [_Held() for _ in range(sequences)]
        self._numbers = count()

    @property
    def state_bytes(self) -> int:
        return self.sequences * self._state_bytes

    def pack(self, state):
        return b"fake", memoryview(repr(astuple(state)).encode())

    def unpack(self, meta, data):
        assert meta == b"fake"
        text = bytearray(data.nbytes)
        data.read([memoryview(text)])
        return FakeState(*ast.literal_eval(text.decode()))

    def available_bytes(self) -> int | None:
        return None if self._available_bytes is None else self._available_bytes()

    def make_room(self, cells: int) -> None:
        self.allocated_tokens = max(self.allocated_tokens, min(cells, self._cells))
        self._looks_left = None

    def grow(self, cells: int) -> bool:
        if self._looks_left == 0:
            self.make_room(self._wanted)
        elif self._looks_left is not None:
            self._looks_left -= 1
        elif self._grows_after is not None and self.allocated_tokens < cells <= self._cells:
            self._wanted, self._looks_left = cells, self._grows_after
        return cells <= self.allocated_tokens

    def most_offloaded_while_growing(self, cells: int) -> int:
        if self._budget is None:
            return self.most_offloaded_bytes
        return 8 * max(0, self._budget - max(cells, self.allocated_tokens))

    @property
    def is_growing(self) -> bool:
        return self._looks_left is not None

    @property
    def most_offloaded_bytes(self) -> int:
        most = self.most_offloaded
        if self._budget is not None:
            return 8 * max(0, self._budget - self.allocated_tokens)
        return 8 * (self._cells if most is None else most) + self.state_bytes

    @property
    def cells(self) -> int:
        """Cells in use; a shared cell counts once."""
        return self.cells_of(range(self.sequences))

    def cells_of(self, sequences: Iterable[int]) -> int:
        """Cells that at least one of `sequences` holds."""
        return len({cell.number for held in sequences for cell in self._held[held].cells})

    def tokens(self, sequence: int) -> list[int]:
        """The tokens that `sequence` holds."""
        return [cell.token for cell in self._held[sequence].cells]

    def compute(self, sequence: int, tokens: Seq[int]) -> None:
        """Add `tokens` to the end of `sequence`, as a step does."""
        held = self._held[sequence]
        held.cells += [Cell(next(self._numbers), token) for token in tokens]
        assert self.cells <= self.allocated_tokens <= self._cells, "the pool is full"
        if self._overwrites:
            held.oldest = max(held.oldest, len(held.cells) - self._window)

    def intact(self, sequence: int, held: int, tokens: int) -> bool:
        now = self._held[sequence]
        assert held == len(now.cells) and 1 <= tokens <= held
        if self.kind == "full" or tokens == held:
            return True
        return self.kind == "sliding" and now.oldest <= max(0, tokens - self._window)

    def share(self, source: int, target: int, tokens: int) -> None:
        given = self._held[source]
        assert source != target and not self._held[target].cells, "the target must be empty"
        assert self.intact(source, len(given.cells), tokens), "this is not what it was"
        self._held[target] = _Held(given.cells[:tokens], given.oldest)

    def shrink(self, cells: int) -> None:
        assert cells == self.cells
        if self.most_offloaded_bytes < 8 * cells:
            self.allocated_tokens = max(cells, self._first)

    def cut(self, sequence: int, tokens: int) -> bool:
        held = self._held[sequence]
        if tokens == 0:
            self._held[sequence] = _Held()
            return True
        assert tokens <= len(held.cells)
        if not self.intact(sequence, len(held.cells), tokens):
            return False
        del held.cells[tokens:]
        return True

    def forget(self, sequence: int, start: int, count: int, *, is_own: bool) -> bool:
        held = self._held[sequence]
        assert self.kind == "full" and 0 < count < len(held.cells) - start
        others = {id(c) for other in self._held if other is not held for c in other.cells}
        assert is_own == all(id(cell) not in others for cell in held.cells)
        kept = self.tokens(sequence)[:start] + self.tokens(sequence)[start + count :]
        if not is_own and self.cells + len(kept) > self.allocated_tokens:
            return False
        self._held[sequence] = _Held()
        self.compute(sequence, kept)
        return True

    def saved_bytes(self, sequence: int) -> int:
        return self._state_bytes or 8 * len(self._held[sequence].cells)

    def save(self, sequence: int) -> FakeState | None:
        assert self._held[sequence].cells, "there is nothing to save"
        if not self.can_save:
            return None
        held = self._held[sequence]
        return FakeState(tuple(self.tokens(sequence)), held.oldest, state_bytes=self._state_bytes)

    def restore(self, sequence: int, state: FakeState) -> bool:
        assert not self._held[sequence].cells, "the target must be empty"
        if self.refuses_restore or self.cells + len(state.tokens) > self._cells:
            return False
        self.make_room(self.cells + len(state.tokens))
        self.compute(sequence, state.tokens)
        self._held[sequence].oldest = state.oldest
        return True

    def save_part(self, sequence: int, start: int, end: int) -> FakeState | None:
        cells = self._held[sequence].cells
        assert self.kind == "full" and 0 <= start < end <= len(cells)
        if not self.can_save:
            return None
        self.on_copy(end - start)
        return FakeState(tuple(cell.token for cell in cells[start:end]), 0, start)

    def restore_part(self, sequence: int, state: FakeState, start: int, end: int) -> bool:
        assert self.kind == "full" and len(self._held[sequence].cells) == start
        assert state.first <= start < end <= state.first + len(state.tokens)
        if self.refuses_restore or self.cells + len(state.tokens) > self._cells:
            return False
        self.on_copy(len(state.tokens))
        self.make_room(self.cells + len(state.tokens))
        self.compute(sequence, state.tokens[start - state.first : end - state.first])
        return True
