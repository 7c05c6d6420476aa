"""Attention over the paged memory by gathering pages: for processors and Apple GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from hearth.backends.native.config import ModelConfig
from hearth.backends.native.kv_pool import KvPool
from hearth.backends.native.scores import attend_to

_PADDING: Final = 0.25
"""Of the pages that are read for single tokens of several sequences at once, so much may be there
only to make their lengths equal; sequences that differ by more are read apart.
"""

_LARGEST: Final = 65504.0
"""What infinities are kept as: the largest of half precision, whose products stay finite."""


@dataclass(frozen=True, slots=True)
class PagedRow:
    """New tokens of one sequence: `count` from position `start` on."""

    start: int
    count: int
    tables: tuple[Sequence[int], ...]
    """For each group the blocks of the sequence, those of the new tokens included; -1 where a
    window has left a block behind.
    """


@dataclass(frozen=True, slots=True)
class _Singles:
    """Rows of one new token each, that are read together."""

    tokens: Tensor
    """[rows] their places among all new tokens."""
    pages: Tensor
    """[rows · pages]"""
    mask: Tensor | None
    """[1, rows, 1, keys]"""


@dataclass(frozen=True, slots=True)
class _Run:
    """A row of several new tokens."""

    begin: int
    end: int
    pages: Tensor | None
    """None: it sees nothing but its own new tokens."""
    keys: slice
    """Of the pages' tokens."""
    mask: Tensor | None
    """[1, 1, tokens, keys]; None: each sees itself and all before it."""


@dataclass(frozen=True, slots=True)
class _GroupPlan:
    slots: Tensor
    """[tokens] where keys and values go, as numbers of tokens in the pool."""
    singles: tuple[_Singles, ...]
    runs: tuple[_Run, ...]


class PagedAttention:
    """Implements `hearth.backends.native.attention.Attend` for one step.

    Args:
        pool: keys and values.
        rows: in the order of their tokens in the forward pass.
        compute: dtype of the arithmetic; keys and values are kept as the pool has them.
        fused: the device's fused kernels may be used; else scores are written out.
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
    ) -> None:
        self._pool = pool
        self._config = config
        self._compute = compute
        self._fused = fused
        self._deterministic = deterministic
        self._device = pool.keys(0).device
        self._shared = config.heads // config.kv_heads
        self._plans = [
            self._plan(rows, group, window) for group, window in enumerate(config.groups)
        ]

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        plan = self._plans[self._pool.group_of[layer]]
        keys, values = self._pool.keys(layer), self._pool.values(layer)
        for pool, new in ((keys, key), (values, value)):
            flat = pool.view(pool.shape[0], -1, pool.shape[-1])
            # Always finite: others get the page later, and may read it where they see nothing.
            finite = torch.nan_to_num(new.to(pool.dtype), 0.0, _LARGEST, -_LARGEST)
            flat.index_copy_(1, plan.slots, finite.transpose(0, 1))
        # [tokens, kv_heads, heads that share one, head_dim]
        shape = (len(query), self._config.kv_heads, self._shared, -1)
        grouped = query.reshape(shape).to(self._compute)
        out = torch.empty_like(grouped)
        for singles in plan.singles:
            out[singles.tokens] = self._attend_singles(singles, grouped, keys, values, sinks)
        for run in plan.runs:
            part = grouped[run.begin : run.end]
            if run.pages is None:
                seen = (key[run.begin : run.end], value[run.begin : run.end])
                run_keys, run_values = (one.transpose(0, 1).to(self._compute) for one in seen)
            else:
                run_keys = self._gathered(keys, run.pages, 1)[:, 0, run.keys]
                run_values = self._gathered(values, run.pages, 1)[:, 0, run.keys]
            out[run.begin : run.end] = self._attend_run(run, part, run_keys, run_values, sinks)
        return out.flatten(1, 2).to(query.dtype)

    def _attend_singles(
        self, plan: _Singles, query: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None
    ) -> Tensor:
        rows = plan.tokens.shape[0]
        found = attend_to(
            query[plan.tokens].transpose(0, 1),
            self._gathered(keys, plan.pages, rows),
            self._gathered(values, plan.pages, rows),
            scale=self._config.scale,
            mask=plan.mask,
            softcap=self._config.attention_softcap,
            fused=self._fused,
            sinks=None if sinks is None else sinks.view(-1, 1, self._shared, 1),
        )
        return found.transpose(0, 1)

    def _attend_run(
        self, run: _Run, query: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """`query` is [tokens, kv_heads, shared, head_dim], `keys` [kv_heads, keys, head_dim]."""
        if self._deterministic:
            return torch.cat(
                [self._attend_one(run, at, query, keys, values, sinks) for at in range(len(query))]
            )
        heads = query.permute(1, 2, 0, 3)
        shape = (-1, self._shared, -1, -1)
        found = attend_to(
            heads,
            keys.unsqueeze(1).expand(shape),
            values.unsqueeze(1).expand(shape),
            scale=self._config.scale,
            mask=run.mask,
            causal=run.mask is None,
            softcap=self._config.attention_softcap,
            fused=self._fused,
            sinks=None if sinks is None else sinks.view(-1, self._shared, 1, 1),
        )
        return found.permute(2, 0, 1, 3)

    def _attend_one(
        self, run: _Run, at: int, query: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """One token of a run as if it came alone: exactly the keys that it sees, and no mask."""
        seen = slice(0, at + 1)
        if run.mask is not None:
            places = run.mask[0, 0, at].nonzero()
            seen = slice(int(places[0]), int(places[-1]) + 1)
        found = attend_to(
            query[at].unsqueeze(1),
            keys[:, seen].unsqueeze(1),
            values[:, seen].unsqueeze(1),
            scale=self._config.scale,
            softcap=self._config.attention_softcap,
            fused=self._fused,
            sinks=None if sinks is None else sinks.view(-1, 1, self._shared, 1),
        )
        return found.transpose(0, 1)

    def _gathered(self, pool: Tensor, pages: Tensor, rows: int) -> Tensor:
        """[kv_heads, rows, pages of a row · page, head_dim] in the dtype of the arithmetic."""
        found = pool.index_select(1, pages)
        return found.view(pool.shape[0], rows, -1, pool.shape[-1]).to(self._compute)

    # ---- once a step

    def _plan(self, rows: Sequence[PagedRow], group: int, window: int | None) -> _GroupPlan:
        page = self._pool.page
        slots: list[int] = []
        singles: list[_Reach] = []
        runs: list[_Run] = []
        begin = 0
        for row in rows:
            table = row.tables[group]
            end = row.start + row.count
            slots += [table[at // page] * page + at % page for at in range(row.start, end)]
            first = 0 if window is None else max(row.start + 1 - window, 0)
            reach = _Reach(begin, first, end, table[first // page : -(-end // page)])
            if row.count == 1 and not self._deterministic:
                singles.append(reach)
            else:
                runs.append(self._run(row, reach, window))
            begin += row.count
        return _GroupPlan(
            torch.tensor(slots, dtype=torch.long, device=self._device),
            tuple(self._together(together) for together in self._buckets(singles)),
            tuple(runs),
        )

    def _run(self, row: PagedRow, reach: _Reach, window: int | None) -> _Run:
        begin, end = reach.token, reach.token + row.count
        if row.start == 0 and (window is None or row.count <= window):
            return _Run(begin, end, None, slice(0), None)
        offset = reach.first % self._pool.page
        queries = torch.arange(row.start, reach.end, device=self._device).unsqueeze(1)
        positions = torch.arange(reach.first, reach.end, device=self._device)
        mask = positions <= queries
        if window is not None:
            mask &= positions > queries - window
        keys = slice(offset, offset + reach.end - reach.first)
        return _Run(begin, end, self._tensor(reach.blocks), keys, mask[None, None])

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

    def _together(self, rows: list[_Reach]) -> _Singles:
        page = self._pool.page
        longest = len(rows[0].blocks)
        pages: list[int] = []
        spans = []
        for row in rows:
            pages += [*row.blocks, *[row.blocks[0]] * (longest - len(row.blocks))]
            start = row.first % page
            spans.append((start, start + row.end - row.first))
        tokens = self._tensor([row.token for row in rows])
        if all(span == (0, longest * page) for span in spans):
            return _Singles(tokens, self._tensor(pages), None)
        places = torch.arange(longest * page, device=self._device)
        bounds = torch.tensor(spans, device=self._device)
        mask = (places >= bounds[:, :1]) & (places < bounds[:, 1:])
        return _Singles(tokens, self._tensor(pages), mask[None, :, None])

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
