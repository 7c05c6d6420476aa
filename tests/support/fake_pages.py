"""Pages without tensors: a cell records its token, its position and a digest of all tokens before
it, so that reading through a block table shows whether its contents were really written by these
tokens.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fake_runner import FakeRunner
from hearth.backends.engine.kv.disk import DiskTier
from hearth.backends.engine.kv.manager import KvLimits, KvManager
from hearth.backends.engine.kv.store import GroupSpec
from hearth.backends.engine.runner import StepPlan, StepResult
from hearth.backends.errors import InternalError

NOTHING = b""
"""The digest before the first token."""


class Cell(NamedTuple):
    """Keys and values of one token."""

    position: int
    token: int
    past: bytes
    """Digest of this token and all before it."""


def past_of(tokens: Seq[int], before: bytes = NOTHING) -> bytes:
    """A digest of `tokens` after the tokens whose digest is `before`."""
    for token in tokens:
        before = hashlib.blake2b(before + token.to_bytes(4, "little"), digest_size=12).digest()
    return before


def specs_of(
    windows: Seq[int | None], window_blocks: Seq[int] | None = None
) -> tuple[GroupSpec, ...]:
    """Groups with these windows, and the number of blocks for those that have a window; None:
    enough.
    """
    blocks = [None] * len(windows) if window_blocks is None else window_blocks
    return tuple(
        GroupSpec(window, None if window is None else most)
        for window, most in zip(windows, blocks, strict=True)
    )


@dataclass(frozen=True, slots=True)
class FakePart:
    """A copy of the tokens of a sequence from `start` on."""

    start: int
    cells: tuple[Cell, ...]

    @property
    def nbytes(self) -> int:
        return 8 * len(self.cells)


class FakePages:
    """Implements `BlockStore`; raises AssertionError on any call that breaks the contract of a
    store.

    Args:
        groups: the groups of the cache.
        page: tokens of a block.
        most: upper limit of blocks of each group.
        start: blocks of each group that always have memory; None: all.
        most_offloaded: limit of tokens in copies of parts.
    """

    token_bytes = 8
    state_bytes = 0
    fingerprint = b"fake"

    def __init__(
        self,
        groups: Seq[GroupSpec],
        page: int,
        most: Seq[int],
        start: int | None = None,
        most_offloaded: int = 0,
    ) -> None:
        self.most_offloaded_bytes = 8 * most_offloaded
        self.groups = tuple(groups)
        self.page = page
        self.most = list(most)
        """Lower it to make memory run out."""
        self.copies = 0
        self.shrunk = 0
        """Number of times that memory was reduced."""
        self._pages: list[list[list[Cell | None]]] = [[] for _ in groups]
        self._start = [blocks if start is None else min(start, blocks) for blocks in most]
        for group, blocks in enumerate(self._start):
            self.grow(group, blocks)

    def pack(self, state):
        return b"fake", memoryview(repr((state.start, [*map(tuple, state.cells)])).encode())

    def unpack(self, meta, data):
        assert meta == b"fake"
        text = bytearray(data.nbytes)
        data.read([memoryview(text)])
        start, cells = ast.literal_eval(text.decode())
        return FakePart(start, tuple(Cell(*cell) for cell in cells))

    def available_bytes(self) -> int | None:
        return None

    def save_part(self, table: Seq[int], start: int, end: int) -> FakePart:
        assert len(self.groups) == 1 and self.groups[0].window is None and start < end
        return FakePart(start, tuple(self._cell(0, table, at) for at in range(start, end)))

    def restore_part(self, table: Seq[int], state: FakePart, start: int, end: int) -> bool:
        assert state.start <= start < end <= state.start + len(state.cells)
        for at in range(start, end):
            block, place = divmod(at, self.page)
            self._pages[0][table[block]][place] = state.cells[at - state.start]
        return True

    def capacity(self, group: int) -> int:
        return len(self._pages[group])

    def grow(self, group: int, blocks: int) -> bool:
        if blocks > max(self.most[group], self.capacity(group)):
            return False
        pages = self._pages[group]
        pages += [[None] * self.page for _ in range(blocks - len(pages))]
        return True

    def nbytes(self, group: int) -> int:
        """One byte per token."""
        return self.capacity(group) * self.page

    def expect(self, group: int, blocks: int) -> None:
        self.grow(group, min(blocks, self.most[group]))

    def shrink(self, group: int, blocks: int) -> None:
        fewer = max(blocks, self._start[group])
        if fewer < self.capacity(group):
            del self._pages[group][fewer:]
            self.shrunk += 1

    def copy(self, group: int, source: int, target: int, tokens: int) -> None:
        assert source != target and 0 < tokens <= self.page
        pages = self._pages[group]
        pages[target][:tokens] = pages[source][:tokens]
        self.copies += 1

    def move(self, table: Seq[int], start: int, end: int, by: int) -> None:
        cells = [self._cell(0, table, at) for at in range(end)]
        assert [cell.position for cell in cells[:start]] == list(range(start))
        assert [cell.position - by for cell in cells[start:]] == list(range(start, end))
        self.write([table], 0, [cell.token for cell in cells], NOTHING)

    def rearrange(self, group: int, sources: Seq[int], targets: Seq[int]) -> None:
        pages = self._pages[group]
        held = [pages[cell // self.page][cell % self.page] for cell in sources]
        for cell, one in zip(targets, held, strict=True):
            pages[cell // self.page][cell % self.page] = one

    def write(self, tables: Seq[Seq[int]], start: int, tokens: Seq[int], before: bytes) -> bytes:
        """Write the cells of a step; `before` is the digest of all tokens before `start`."""
        for position, token in enumerate(tokens, start):
            before = past_of([token], before)
            block, place = divmod(position, self.page)
            for group, table in enumerate(tables):
                self._pages[group][table[block]][place] = Cell(position, token, before)
        return before

    def read(self, tables: Seq[Seq[int]], length: int) -> bytes:
        """The digest of the first `length` tokens, after a check of all cells that the next token
        would read, in every group.
        """
        last = NOTHING
        for group, spec in enumerate(self.groups):
            first = 0 if spec.window is None else max(0, length - spec.window + 1)
            cells = [self._cell(group, tables[group], at) for at in range(first, length)]
            for before, cell in pairwise(cells):
                assert past_of([cell.token], before.past) == cell.past, "a stale page"
            assert [cell.position for cell in cells] == list(range(first, length))
            if first == 0 and cells:
                assert past_of([cells[0].token]) == cells[0].past
            if cells:
                assert last in (NOTHING, cells[-1].past), "groups hold the same tokens"
                last = cells[-1].past
        return last

    def _cell(self, group: int, table: Seq[int], position: int) -> Cell:
        block, place = divmod(position, self.page)
        assert table[block] >= 0, "a window has passed what is looked at"
        cell = self._pages[group][table[block]][place]
        assert cell is not None, "nobody wrote here"
        return cell


class FakePagedRunner(FakeRunner):
    """Implements `Runner` over `FakePages`: the token after a prompt is a function of the cells
    that its block tables point to.

    Args:
        page: tokens of a block.
        windows: windows of the groups of layers; None: sees everything.
        window_blocks: limit of blocks of each group with a window; None: as many as the other
            groups.
        memory: limit of tokens of each group; None: enough.
        start: blocks of each group at first; None: all.
        most_offloaded: see `FakePages`.
        others: see `FakeRunner`.
    """

    def __init__(
        self,
        *,
        page: int = 4,
        windows: tuple[int | None, ...] = (None,),
        window_blocks: Seq[int] | None = None,
        memory: int | None = None,
        start: int | None = None,
        most_offloaded: int = 0,
        **how: object,
    ) -> None:
        super().__init__(**how)
        specs = specs_of(windows, window_blocks)
        blocks = -(-(self.info.pool_tokens if memory is None else memory) // page)
        self.store = FakePages(specs, page, [blocks] * len(specs), start, most_offloaded)
        self.limits = replace(self.limits, step_tokens=self.info.max_batch_tokens)
        self.info = replace(self.info, kv_bytes_per_token=8, keeps_past=windows == (None,))

    @property
    def pages(self) -> FakePages:
        return self.store

    def step(self, plan: StepPlan) -> StepResult:
        self._record(plan)
        before = {row.slot: self.store.read(row.handle, row.start) for row in plan.rows}
        if len(self.tape) == self.fail_at:
            for row in plan.rows:  # What the failed step wrote stays there.
                self.store.write(row.handle, row.start, row.tokens, b"garbage")
            raise InternalError("The fake runner was told to fail.")
        logits = {}
        for row in plan.rows:
            made, past = [], before[row.slot]
            for at, token in enumerate(row.tokens):
                past = self.store.write(row.handle, row.start + at, [token], past)
                if at >= len(row.tokens) - row.outputs:
                    made.append(self._after(past))
            self.computed_tokens += len(row.tokens)
            if made:
                logits[row.slot] = np.stack(made)
        return StepResult(logits)

    def logits(self, tokens: Seq[int]) -> np.ndarray:
        return self._after(past_of(tokens))

    def _after(self, past: bytes) -> np.ndarray:
        seed = int.from_bytes(past[:8], "little")
        return np.random.default_rng(seed).normal(size=self.info.vocab_size).astype(np.float32)


class PagedMemory:
    """A cache and its pages, with the calls that a runner and a scheduler make on them."""

    def __init__(
        self,
        *,
        page: int = 4,
        windows: tuple[int | None, ...] = (None,),
        window_blocks: Seq[int] | None = None,
        slots: int = 3,
        pool: int = 200,
        context: int | None = None,
        kept_tokens: int = 100,
        memory: int | None = None,
        start: int | None = None,
        step_tokens: int | None = None,
        kept_while_running: int | None = None,
        part_tokens: int = 16,
        most_offloaded: int = 0,
        disk: DiskTier | None = None,
    ) -> None:
        self.now = 0.0
        """Seconds, for pins."""
        specs = specs_of(windows, window_blocks)
        blocks = -(-(pool if memory is None else memory) // page)
        self.pages = FakePages(specs, page, [blocks] * len(specs), start, most_offloaded)
        self.cache = KvManager(
            self.pages,
            KvLimits(
                slots=slots,
                pool_tokens=pool,
                context=pool if context is None else context,
                kept_tokens=kept_tokens,
                step_tokens=step_tokens,
                kept_while_running=kept_while_running,
                part_tokens=part_tokens,
            ),
            clock=lambda: self.now,
            disk=disk,
        )

    def run(self, slot: int, tokens: Seq[int]) -> int:
        """Open `slot` with `tokens` and compute those that were not found; returns how many were
        found.
        """
        found = self.find(slot, tokens)
        assert self.cache.reserve(slot, len(tokens))
        self.compute(slot, tokens[found:])
        assert self.holds(slot, tokens)
        return found

    def find(self, slot: int, tokens: Seq[int]) -> int:
        """Open `slot` with `tokens`; returns how many were found."""
        expected = self.cache.match(tokens)
        found = self.cache.open(slot, tokens)
        assert found == expected
        assert self.holds(slot, tokens[:found])
        return found

    def compute(self, slot: int, tokens: Seq[int]) -> None:
        """Compute `tokens` in one step."""
        self.cache.prepare({slot: len(tokens)})
        self.write(slot, tokens)
        self.cache.commit(slot, tokens)
        self.check()

    def write(self, slot: int, tokens: Seq[int]) -> None:
        """Write the cells of a step, as between `prepare` and `commit`."""
        start = self.cache.length(slot)
        self.pages.write(self.tables(slot), start, tokens, self.read(slot))

    def keep(self, tokens: Seq[int], slot: int = 0) -> int:
        """Compute `tokens` and release them; returns how many were found."""
        found = self.run(slot, tokens)
        self.cache.release(slot, keep=True)
        self.check()
        return found

    def holds(self, slot: int, tokens: Seq[int]) -> bool:
        """Whether reading through the tables of `slot` gives exactly `tokens`."""
        return self.cache.length(slot) == len(tokens) and (
            self.read(slot) in (past_of(tokens), NOTHING)
        )

    def tables(self, slot: int) -> list[Seq[int]]:
        return self.cache.handle(slot)

    def read(self, slot: int) -> bytes:
        return self.pages.read(self.tables(slot), self.cache.length(slot))

    def check(self) -> None:
        self.cache.check_integrity()

    def blocks(self, group: int = 0) -> int:
        """Blocks in use."""
        self.check()
        return self.cache._leaves.groups[group].used

    @property
    def stats(self):
        self.check()
        return self.cache.stats()
