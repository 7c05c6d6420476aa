"""Attention over the paged KV pool by gathering pages, for processors and Apple GPUs."""

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
"""Rows of up to this many tokens are computed token by token even by kernels that take runs."""
_PADDING: Final = 0.25
"""Most padding, as a share of the pages that are read at once for single tokens of several
sequences; sequences whose lengths differ by more are read separately.
"""

_MANY_KEYS: Final = 384
"""From this many keys in all rows together on, keys and values are not widened for single tokens;
for fewer, widening costs little. Printed by `benchmarks/half_attention.py`.
"""


@dataclass(frozen=True, slots=True)
class PagedRow:
    """New tokens of one sequence: `count` tokens from position `start` on."""

    start: int
    count: int
    tables: tuple[Sequence[int], ...]
    """For each group the blocks of the sequence, including those of the new tokens; -1 for blocks
    that a window has left behind.
    """
    has_drafts: bool = False
    """The attention of each token is computed as if it came alone, bit for bit."""
    parents: Sequence[int] = ()
    """Parents of the last tokens, which form a tree; see `Row.parents`."""

    @property
    def known(self) -> int:
        """The first position of the tree's nodes, or the end of the row without a tree."""
        return self.start + self.count - len(self.parents)

    @property
    def paths(self) -> list[list[int]]:
        """For each token the cells, counted from `start`, of the tree's nodes that it sees."""
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
"""Keys and values of a layer, see `KvPool.layer`."""
_Pages = Tensor | slice
"""Indices of pages; consecutive pages (a slice) are read in place."""


@dataclass(frozen=True, slots=True)
class _Singles:
    """Rows of one new token each whose pages are read together."""

    tokens: Tensor | None
    """[rows] indices among all new tokens; None if they are all of them, in order."""
    rows: int
    pages: _Pages
    """[rows · pages]"""
    keys: slice
    """The keys to use, among the tokens in the pages of each row."""
    mask: Tensor | None
    """[1, rows, 1, keys], added to the scores."""
    dtype: torch.dtype
    """Dtype of the arithmetic."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A row of several new tokens."""

    begin: int
    end: int
    pages: _Pages | None
    """None if the row sees nothing but its own new tokens."""
    keys: slice
    """The keys to use, among the tokens in the pages."""
    mask: Tensor | None = None
    """[1, 1, tokens, keys], added to the scores; None if each token sees itself and all before."""
    spans: tuple[slice | Tensor, ...] = ()
    """Used instead of the mask if each token is computed on its own: the keys that each sees."""


@dataclass(frozen=True, slots=True)
class _GroupPlan:
    slots: Tensor | slice
    """[tokens] where keys and values go, as token indices in the pool."""
    singles: tuple[_Singles, ...]
    runs: tuple[_Run, ...]


class PagedAttention:
    """Implements `Attend` for one step, and on NVIDIA cards `FinishesHeads`.

    Args:
        pool: keys and values.
        rows: in the order of their tokens in the forward pass.
        compute: dtype of the arithmetic; keys and values are stored in the pool's dtypes.
        fused: the device's fused kernels may be used; otherwise scores are written out.
        kernels: kernels that compute the attention of each layer over the pool; empty to gather
            pages instead.
        kernels_take_runs: the kernels compute rows of many tokens as runs, not token by token.
        deterministic: the attention of each token is computed on its own, so that the result does
            not depend on the rest of the step. Slow for prompts.

    Attributes:
        stops: other forward passes may run within a layer: after its attention, and between heads
            of keys where attention takes most of the time.
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
        self._written: dict[int, Pages] = {}
        """The same without attention: keys and values are only written."""
        self._kernels_take_runs = kernels_take_runs
        self.stops = False

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
        slots, queries = self._plan_of(layer).slots, self._config.heads
        assert isinstance(slots, Tensor)
        self.pool.finish_and_write(layer, slots, heads, queries, norms, rotary)
        key_value = heads[:, queries:].view(len(heads), 2, -1, heads.shape[2])
        return self._attended(layer, heads[:, :queries], key_value, sinks)

    def _attended(
        self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        plan, pool = self._plan_of(layer), self.pool.layer(layer)
        if self._kernels:
            out = query.new_empty(query.shape, dtype=torch.float32)
            self._kernels[layer](pool, self._pages_of(layer), query.float(), out)
            return out.to(query.dtype)
        # [tokens, kv_heads, heads per KV head, head_dim]
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
            for run in plan.runs:
                part = slice(run.begin, run.end)
                new = grouped[part], key_value[part]
                out[part] = self._attend_run(run, *new, pool, sinks)
        return out.flatten(1, 2).to(query.dtype)

    def step(
        self, layer: int, rotary: tuple[Tensor, Tensor] | None, *, attends: bool = True
    ) -> Step:
        """The `Step` for `HalfLayers` of all layers with the group and the rope of `layer`.

        Args:
            attends: False: for `attend_one_head` afterwards.
        """
        pages = self._pages_of(layer)
        if not attends:
            group = self.pool.group_of[layer]
            pages = self._written.setdefault(group, pages.without_attention())
        return pages.step(self.pool.layer(layer)[0].shape[1], rotary)

    def seen(self, layer: int) -> int:
        """Number of keys that the new tokens see in `layer`, in total."""
        window = self._config.groups[self.pool.group_of[layer]]
        places = (row.start + row.count for row in self._rows for _ in range(row.count))
        return sum(place if window is None else min(place, window) for place in places)

    def attend_one_head(self, layer: int, kv_head: int, query: Tensor, out: Tensor) -> None:
        """Compute the attention of the heads that share `kv_head`, by kernels. Keys and values of
        the new tokens are in the pool.

        Args:
            query: [tokens, heads, head_dim] float32; the numbers of a token are contiguous.
            out: the same, written.
        """
        keys, values = self.pool.layer(layer)
        kept = slice(kv_head, kv_head + 1)
        asked = slice(kv_head * self._shared, (kv_head + 1) * self._shared)
        pool, pages = (keys[kept], values[kept]), self._pages_of(layer)
        self._kernels[layer](pool, pages, query[:, asked], out[:, asked], kv_head)

    def _attend_singles(
        self, plan: _Singles, query: Tensor, pool: _Sides, sinks: Tensor | None
    ) -> Tensor:
        keys, values = self._read(pool, plan.pages, plan.rows, plan.keys, plan.dtype)
        attended = self._attend_to(
            query.to(plan.dtype).transpose(0, 1),
            keys,
            values,
            mask=plan.mask,
            sinks=None if sinks is None else sinks.view(-1, 1, self._shared, 1),
        )
        return attended.transpose(0, 1).to(query.dtype)

    def _attend_run(
        self, run: _Run, query: Tensor, key_value: Tensor, pool: _Sides, sinks: Tensor | None
    ) -> Tensor:
        """`query` and the result are [tokens, kv_heads, shared, head_dim]."""
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
        attended = self._attend_to(
            heads,
            keys.unsqueeze(1),
            values.unsqueeze(1),
            mask=run.mask,
            causal=run.mask is None,
            sinks=None if sinks is None else sinks.view(-1, self._shared, 1, 1),
        )
        return attended.permute(2, 0, 1, 3)

    def _attend_one(
        self, run: _Run, at: int, query: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """Attention of one token of a run on its own: with only the keys it sees, and no mask."""
        seen = run.spans[at]
        attended = self._attend_to(
            query[at].unsqueeze(1),
            keys[:, seen].unsqueeze(1),
            values[:, seen].unsqueeze(1),
            sinks=None if sinks is None else sinks.view(-1, 1, self._shared, 1),
        )
        return attended.transpose(0, 1)

    def _read(
        self, pool: _Sides, pages: _Pages, rows: int, keys: slice, dtype: torch.dtype
    ) -> list[Tensor]:
        """Read keys and values of each row: both [kv_heads, rows, keys, head_dim].

        Args:
            pages: of all rows.
            keys: tokens to read, among those in the pages of a row.
        """
        sides = []
        for side in pool:
            if isinstance(pages, slice):
                read = side[:, pages].flatten(1, 2).unsqueeze(1)
            else:
                read = side.index_select(1, pages).view(len(side), rows, -1, side.shape[-1])
            sides.append(from_rows(read[:, :, keys], dtype))
        return sides

    # ---- once per step

    def _is_for_kernels(self, row: PagedRow) -> bool:
        """Whether the kernels compute a row token by token; long runs are faster with AMX."""
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
                continue  # The kernels read block tables (`_pages_of`).
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
            # Kernels do not take slices.
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
            # The row's new tokens are also read from the pages, rounded as later steps see them.
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
        """Group the rows whose pages are read together."""
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
        """The plan for `rows`, among `count` tokens of the step."""
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
        page_index = self._places(pages) if len(rows) == 1 else self._tensor(pages)
        return _Singles(tokens, len(rows), page_index, slice(first, last), mask, dtype)

    def _dtype_for(self, keys: int) -> torch.dtype:
        """Dtype of the arithmetic of single tokens that see `keys` keys.

        Many keys of half precision are not widened, because widening takes longer than the rest.
        """
        plain = self._fused and not self._config.attention_softcap and not self._config.sinks
        return self._kept if plain and keys >= _MANY_KEYS else self._compute

    def _places(self, numbers: Sequence[int]) -> Tensor | slice:
        """`numbers` as a slice if they are consecutive, else as a tensor."""
        first, count = numbers[0], len(numbers)
        if numbers[-1] == first + count - 1 and list(numbers) == list(range(first, first + count)):
            return slice(first, first + count)
        return self._tensor(numbers)

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._device)


@dataclass(frozen=True, slots=True)
class _Reach:
    """The positions `first` to `end` - 1, which the new tokens of a row see in a group."""

    token: int
    """The index of the row's first new token among all."""
    first: int
    end: int
    blocks: Sequence[int]
    """The blocks of these positions."""
