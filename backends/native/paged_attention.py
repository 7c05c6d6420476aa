"""Attention over the paged memory by gathering pages: for processors and Apple GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from hearth.backends.native.kv_pool import KvPool
from hearth.backends.native.kv_rows import FP8, Q8_0, from_rows
from hearth.backends.native.scores import additive, attend_to, causal_mask
from hearth.kernels.cpu.layers import Attention, Pages, Step
from hearth.kernels.cuda.matrix import has_triton
from hearth.quant.families.config import ModelConfig

_MOST_BEFORE_RUNS: Final = 4
"""Tokens of a row that the kernels for processors compute as any others where they take runs."""
_PADDING: Final = 0.25
"""Of the pages that are read for single tokens of several sequences at once, so much may be there
only to make their lengths equal; sequences that differ by more are read apart.
"""

_MANY_KEYS: Final = 384
"""From this many of all rows together on, keys and values are not widened for single tokens; with
fewer it costs little. Printed by `benchmarks/half_attention.py`.
"""


@dataclass(frozen=True, slots=True)
class PagedRow:
    """New tokens of one sequence: `count` from position `start` on."""

    start: int
    count: int
    tables: tuple[Sequence[int], ...]
    """For each group the blocks of the sequence, those of the new tokens included; -1 where a
    window has left a block behind.
    """
    has_drafts: bool = False
    """Its tokens are attended for as if each came alone, with the same bits."""
    parents: Sequence[int] = ()
    """Of the last tokens, which are a tree; see `Row.parents`."""

    @property
    def known(self) -> int:
        """The first position of nodes of a tree; without one, the end."""
        return self.start + self.count - len(self.parents)

    @property
    def paths(self) -> list[list[int]]:
        """For each token the cells, counted from `start`, of the nodes of the tree that it sees."""
        plain = self.count - len(self.parents)
        paths: list[list[int]] = [[] for _ in range(plain)]
        for place, parent in enumerate(self.parents):
            paths.append([*paths[plain - 1 + parent], plain + place])
        return paths

    @property
    def positions(self) -> Sequence[int]:
        if not self.parents:
            return range(self.start, self.start + self.count)
        return [
            self.known - 1 + len(path) if path else self.start + at
            for at, path in enumerate(self.paths)
        ]


_Sides = tuple[Tensor, Tensor]
"""Keys and values of a layer, as `KvPool.layer`."""
_Pages = Tensor | slice
"""Numbers of pages; those that follow one another are read in place."""


@dataclass(frozen=True, slots=True)
class _Singles:
    """Rows of one new token each, that are read together."""

    tokens: Tensor | None
    """[rows] their places among all new tokens; None: they are all, and in order."""
    rows: int
    pages: _Pages
    """[rows · pages]"""
    keys: slice
    """Of the pages' tokens of each row."""
    mask: Tensor | None
    """[1, rows, 1, keys], to add."""
    dtype: torch.dtype
    """Of the arithmetic."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A row of several new tokens."""

    begin: int
    end: int
    pages: _Pages | None
    """None: it sees nothing but its own new tokens."""
    keys: slice
    """Of the pages' tokens."""
    mask: Tensor | None = None
    """[1, 1, tokens, keys], to add; None: each sees itself and all before it."""
    spans: tuple[slice | Tensor, ...] = ()
    """Instead, where each token is computed for itself: which of the keys it sees."""


@dataclass(frozen=True, slots=True)
class _GroupPlan:
    slots: Tensor | slice
    """[tokens] where keys and values go, as numbers of tokens in the pool."""
    singles: tuple[_Singles, ...]
    runs: tuple[_Run, ...]


class PagedAttention:
    """Implements `Attend` for one step, and on NVIDIA cards `FinishesHeads`.

    Args:
        pool: keys and values.
        rows: in the order of their tokens in the forward pass.
        compute: dtype of the arithmetic; keys and values are kept as the pool has them.
        fused: the device's fused kernels may be used; else scores are written out.
        kernels: attention of each layer over the pool, for rows of few tokens, or none.
        kernels_take_runs: they are for rows of many tokens as well.
        deterministic: what a token sees is computed for it alone, so that the result does not
            depend on what else is in the step. Slow for prompts.
    """

    def __init__(
        self,
        pool: KvPool,
        config: ModelConfig,
        rows: Sequence[PagedRow],
        *,
        compute: torch.dtype,
        fused: bool = True,
        deterministic: bool = False,
        kernels: Sequence[Attention] = (),
        kernels_take_runs: bool = False,
    ) -> None:
        self.pool = pool
        self._rows = rows
        self._kernels = kernels
        self._config = config
        self._compute = compute
        self._fused = fused
        self._attend_to = partial(
            attend_to, scale=config.scale, softcap=config.attention_softcap, fused=fused
        )
        self._deterministic = deterministic
        keys, values = pool.dtypes
        self._kept = keys if keys == values and keys not in (Q8_0, FP8) else compute
        self._device = pool.layer(0)[0].device
        self._shared = config.heads // config.kv_heads
        self._plans: dict[int, _GroupPlan] = {}
        self._pages: dict[int, Pages] = {}
        self._kernels_take_runs = kernels_take_runs

    def __call__(
        self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        self.pool.write(layer, self._plan_of(layer).slots, key_value)
        return self._attended(layer, query, key_value, sinks)

    def finished(
        self,
        layer: int,
        heads: Tensor,
        norms: tuple[Tensor, Tensor, float] | None,
        rotary: tuple[Tensor, Tensor] | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """See `FinishesHeads`."""
        slots, queries, count = (
            self._plan_of(layer).slots,
            self._config.heads,
            self._config.kv_heads,
        )
        assert isinstance(slots, Tensor)
        self.pool.finish_and_write(layer, slots, heads, queries, norms, rotary)
        key_value = heads[:, queries:].view(len(heads), 2, count, heads.shape[2])
        return self._attended(layer, heads[:, :queries], key_value, sinks)

    def _attended(
        self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        plan, pool = self._plan_of(layer), self.pool.layer(layer)
        if self._kernels:
            out = query.new_empty(query.shape, dtype=torch.float32)
            self._kernels[layer](pool, self._pages_of(layer), query.float(), out)
            return out.to(query.dtype)
        # [tokens, kv_heads, heads that share one, head_dim]
        shape = (len(query), -1, self._shared, query.shape[-1])
        grouped = query.view(shape).to(self._compute)
        if len(plan.singles) == 1 and plan.singles[0].tokens is None:
            out = self._attend_singles(plan.singles[0], grouped, pool, sinks)
        elif len(plan.runs) == 1 and not plan.singles:
            out = self._attend_run(plan.runs[0], grouped, key_value, pool, sinks)
        else:
            out = torch.empty_like(grouped)
            for singles in plan.singles:
                some = grouped[singles.tokens]
                out[singles.tokens] = self._attend_singles(singles, some, pool, sinks)
            self._attend_runs(plan, grouped, key_value, pool, sinks, out)
        return out.flatten(1, 2).to(query.dtype)

    def step(self, layer: int, rotary: tuple[Tensor, Tensor] | None) -> Step:
        """For `HalfLayers` of the layers that are of one group with `layer`, and of one rope."""
        return self._pages_of(layer).step(self.pool.layer(layer)[0].shape[1], rotary)

    def _attend_runs(
        self,
        plan: _GroupPlan,
        query: Tensor,
        key_value: Tensor,
        pool: _Sides,
        sinks: Tensor | None,
        out: Tensor,
    ) -> None:
        for run in plan.runs:
            part = slice(run.begin, run.end)
            out[part] = self._attend_run(run, query[part], key_value[part], pool, sinks)

    def _attend_singles(
        self, plan: _Singles, query: Tensor, pool: _Sides, sinks: Tensor | None
    ) -> Tensor:
        keys, values = self._read(pool, plan.pages, plan.rows, plan.keys, plan.dtype)
        found = self._attend_to(
            query.to(plan.dtype).transpose(0, 1),
            keys,
            values,
            mask=plan.mask,
            sinks=None if sinks is None else sinks.view(-1, 1, self._shared, 1),
        )
        return found.transpose(0, 1).to(query.dtype)

    def _attend_run(
        self, run: _Run, query: Tensor, key_value: Tensor, pool: _Sides, sinks: Tensor | None
    ) -> Tensor:
        """`query` is [tokens, kv_heads, shared, head_dim]; so is what it returns."""
        if run.pages is None:
            keys, values = key_value.permute(1, 2, 0, 3).to(self._compute)
        else:
            seen = self._read(pool, run.pages, 1, run.keys, self._compute)
            keys, values = (side[:, 0] for side in seen)
        if self._deterministic:
            return torch.cat(
                [self._attend_one(run, at, query, keys, values, sinks) for at in range(len(query))]
            )
        heads = query.permute(1, 2, 0, 3)
        found = self._attend_to(
            heads,
            keys.unsqueeze(1),
            values.unsqueeze(1),
            mask=run.mask,
            causal=run.mask is None,
            sinks=None if sinks is None else sinks.view(-1, self._shared, 1, 1),
        )
        return found.permute(2, 0, 1, 3)

    def _attend_one(
        self, run: _Run, at: int, query: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """One token of a run as if it came alone: exactly the keys that it sees, and no mask."""
        seen = run.spans[at]
        found = self._attend_to(
            query[at].unsqueeze(1),
            keys[:, seen].unsqueeze(1),
            values[:, seen].unsqueeze(1),
            sinks=None if sinks is None else sinks.view(-1, 1, self._shared, 1),
        )
        return found.transpose(0, 1)

    def _read(
        self, pool: _Sides, pages: _Pages, rows: int, keys: slice, dtype: torch.dtype
    ) -> list[Tensor]:
        """Keys and values of the places `keys` in the pages of each row: both
        [kv_heads, rows, keys, head_dim].
        """
        found = []
        for side in pool:
            if isinstance(pages, slice):
                read = side[:, pages].flatten(1, 2).unsqueeze(1)
            else:
                read = side.index_select(1, pages).view(len(side), rows, -1, side.shape[-1])
            found.append(from_rows(read[:, :, keys], dtype))
        return found

    # ---- once a step

    def _is_for_kernels(self, row: PagedRow) -> bool:
        """Long runs are faster by AMX."""
        is_few = row.count <= _MOST_BEFORE_RUNS or row.has_drafts or self._deterministic
        return bool(self._kernels) and (is_few or not self._kernels_take_runs)

    def _plan_of(self, layer: int) -> _GroupPlan:
        group = self.pool.group_of[layer]
        if group not in self._plans:
            self._plans[group] = self._plan(self._rows, group, self._config.groups[group])
        return self._plans[group]

    def _pages_of(self, layer: int) -> Pages:
        group = self.pool.group_of[layer]
        if group not in self._pages:
            tables: list[int] = []
            starts: list[int] = []
            positions: list[int] = []
            apart: list[bool] = []
            runs: list[tuple[int, int]] = []
            for row in self._rows:
                if self._kernels_take_runs and not self._is_for_kernels(row):
                    runs.append((len(positions), len(positions) + row.count))
                starts += [len(tables)] * row.count
                positions += row.positions
                apart += [not self._is_for_kernels(row)] * row.count
                tables += row.tables[group]
            self._pages[group] = Pages(
                torch.tensor(positions),
                torch.tensor(tables, dtype=torch.int32),
                torch.tensor(starts),
                torch.tensor(apart),
                torch.tensor(runs, dtype=torch.int64),
                *self._trees(),
            )
        return self._pages[group]

    def _trees(self) -> tuple[Tensor | None, Tensor | None]:
        """`Pages.known` and `Pages.paths`."""
        if not any(row.parents for row in self._rows):
            return None, None
        known = [row.known for row in self._rows for _ in range(row.count)]
        paths = [[row.start + at for at in path] for row in self._rows for path in row.paths]
        reach = max(map(len, paths))
        return torch.tensor(known), torch.tensor([[*p, *[0] * (reach - len(p))] for p in paths])

    def _plan(self, rows: Sequence[PagedRow], group: int, window: int | None) -> _GroupPlan:
        page = self.pool.page
        slots: list[int] = []
        singles: list[_Reach] = []
        runs: list[_Run] = []
        begin = 0
        for row in rows:
            table = row.tables[group]
            end = row.start + row.count
            slots += [table[at // page] * page + at % page for at in range(row.start, end)]
            if self._kernels:
                continue  # They read block tables (`_pages_of`).
            first = 0 if window is None else max(row.start + 1 - window, 0)
            reach = _Reach(begin, first, end, table[first // page : -(-end // page)])
            if row.count == 1 and not self._deterministic:
                singles.append(reach)
            elif row.parents:
                runs.append(self._tree(row, reach, window))
            else:
                runs.append(self._run(row, reach, window))
            begin += row.count
        return _GroupPlan(
            # Kernels take no slices.
            (self._tensor if has_triton(self._device.type) else self._places)(slots),
            tuple(self._together(together, begin) for together in self._buckets(singles)),
            tuple(runs),
        )

    def _run(self, row: PagedRow, reach: _Reach, window: int | None) -> _Run:
        begin, end = reach.token, reach.token + row.count
        offset = reach.first % self.pool.page
        keys = slice(offset, offset + reach.end - reach.first)
        pages = self._places(reach.blocks)
        if self._deterministic:
            # Also its own new tokens come from the pages, rounded as they will be ever after.
            ends = range(row.start + 1, reach.end + 1)
            begins = [0 if window is None else max(stop - window, 0) for stop in ends]
            seen = zip(begins, ends, strict=True)
            spans = tuple(slice(a - reach.first, b - reach.first) for a, b in seen)
            return _Run(begin, end, pages, keys, spans=spans)
        if row.start == 0 and (window is None or row.count <= window):
            return _Run(begin, end, None, slice(0))
        queries, positions = range(row.start, reach.end), range(reach.first, reach.end)
        mask = causal_mask(queries, positions, window, dtype=self._compute, device=self._device)
        return _Run(begin, end, pages, keys, mask)

    def _tree(self, row: PagedRow, reach: _Reach, window: int | None) -> _Run:
        offset, length = reach.first % self.pool.page, reach.end - reach.first
        sees = torch.zeros((row.count, length), dtype=torch.bool)
        for at, (position, path) in enumerate(zip(row.positions, row.paths, strict=True)):
            begin = 0 if window is None else max(position + 1 - window, 0)
            sees[at, begin - reach.first : min(position + 1, row.known) - reach.first] = True
            sees[at, [row.start + cell - reach.first for cell in path[-(window or 0) :]]] = True
        spans: tuple[Tensor, ...] = ()
        if self._deterministic:
            spans = tuple(one.nonzero().flatten().to(self._device) for one in sees)
        mask = additive(sees.to(self._device), self._compute)[None, None]
        ends = reach.token, reach.token + row.count
        pages = self._places(reach.blocks)
        return _Run(*ends, pages, slice(offset, offset + length), mask, spans=spans)

    def _buckets(self, singles: list[_Reach]) -> Iterable[list[_Reach]]:
        """Rows that are read together."""
        buckets: list[list[_Reach]] = []
        read = 0
        for one in sorted(singles, key=lambda reach: -len(reach.blocks)):
            if buckets:
                padded = (len(buckets[-1]) + 1) * len(buckets[-1][0].blocks)
                if padded - read - len(one.blocks) <= _PADDING * padded:
                    buckets[-1].append(one)
                    read += len(one.blocks)
                    continue
            buckets.append([one])
            read = len(one.blocks)
        return buckets

    def _together(self, rows: list[_Reach], count: int) -> _Singles:
        """A plan for `rows`, of `count` tokens in the step."""
        rows.sort(key=lambda reach: reach.token)
        page = self.pool.page
        longest = max(len(row.blocks) for row in rows)
        pages: list[int] = []
        spans = []
        for row in rows:
            pages += [*row.blocks, *[row.blocks[0]] * (longest - len(row.blocks))]
            start = row.first % page
            spans.append((start, start + row.end - row.first))
        tokens = None if len(rows) == count else self._tensor([row.token for row in rows])
        dtype = self._dtype_for(len(rows) * longest * page)
        first, last = min(start for start, _ in spans), max(end for _, end in spans)
        mask = None
        if any(span != (first, last) for span in spans):
            places = torch.arange(first, last, device=self._device)
            bounds = torch.tensor(spans, device=self._device)
            sees = (places >= bounds[:, :1]) & (places < bounds[:, 1:])
            mask = additive(sees, dtype)[None, :, None]
        found = self._places(pages) if len(rows) == 1 else self._tensor(pages)
        return _Singles(tokens, len(rows), found, slice(first, last), mask, dtype)

    def _dtype_for(self, keys: int) -> torch.dtype:
        """Of the arithmetic of single tokens that see `keys` keys: many of half precision are not
        widened, that takes longer than all that is done with them.
        """
        plain = self._fused and not self._config.attention_softcap and not self._config.sinks
        return self._kept if plain and keys >= _MANY_KEYS else self._compute

    def _places(self, numbers: Sequence[int]) -> Tensor | slice:
        """A slice where `numbers` follow one another."""
        first, count = numbers[0], len(numbers)
        if numbers[-1] == first + count - 1 and list(numbers) == list(range(first, first + count)):
            return slice(first, first + count)
        return self._tensor(numbers)

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._device)


@dataclass(frozen=True, slots=True)
class _Reach:
    """What the new tokens of a row see of a group: positions `first` to `end` - 1."""

    token: int
    """The place of its first new token among all."""
    first: int
    end: int
    blocks: Sequence[int]
    """Those that hold these positions."""
