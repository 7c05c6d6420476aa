"""Texts in pages, attended to step by step, and the reference attention over each whole text."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from hearth.backends.native.attention import Attend
from hearth.backends.native.kv_pool import KvPool
from hearth.backends.native.paged_attention import PagedAttention, PagedRow
from hearth.quant.families.config import LayerConfig, ModelConfig, Rope

HEADS, KV_HEADS, WIDTH = 8, 2, 16
Step = Sequence[tuple[int, int, int]]
"""Sequence, first position, number of tokens of each row."""
STEPS: Sequence[Step] = (
    [(0, 0, 17), (1, 0, 4)],
    [(1, 4, 5), (2, 0, 30)],
    [(0, 17, 1), (1, 9, 1), (2, 30, 1)],
    [(0, 18, 3), (1, 10, 1), (2, 31, 5)],
    [(2, 36, 1), (0, 21, 1), (1, 11, 4)],
)
LONG_STEPS: Sequence[Step] = (
    [(0, 0, 300), (1, 0, 4)],
    [(1, 4, 5), (2, 0, 600)],
    [(0, 300, 1), (1, 9, 1), (2, 600, 1)],
    [(0, 301, 3), (1, 10, 1), (2, 601, 200)],
    [(2, 801, 1), (0, 304, 1), (1, 11, 300)],
)
"""For pages of 256 tokens."""


class Texts:
    """Random queries, keys and values of several sequences, with blocks in random order; the first
    layer sees everything, the second has a window.

    Args:
        lengths: tokens for which there are blocks.
        dtype: of queries, and of stored keys and values unless `kept` is set.
        compute: dtype of the arithmetic where pages are gathered; by default `dtype`.
    """

    def __init__(
        self,
        *,
        page: int = 4,
        window: int = 5,
        lengths: Sequence[int] = (40, 40, 60),
        width: int = WIDTH,
        softcap: float = 0.0,
        sinks: bool = False,
        deterministic: bool = False,
        dtype: torch.dtype = torch.float32,
        kept: tuple[torch.dtype, torch.dtype] | None = None,
        compute: torch.dtype | None = None,
        device: str = "cpu",
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        rope = Rope(1e4, width)
        self.config = ModelConfig(
            "test",
            vocab_size=1,
            width=1,
            heads=HEADS,
            kv_heads=KV_HEADS,
            head_dim=width,
            feed_forward=1,
            layers=(LayerConfig(rope), LayerConfig(rope, window)),
            context=64,
            norm_eps=1e-5,
            tied=True,
            attention_softcap=softcap,
        )
        self.page = page
        self.compute = compute or dtype
        self.sinks = torch.randn(HEADS, generator=generator).to(device) if sinks else None
        self.deterministic = deterministic

        def drawn(heads: int) -> list[Tensor]:
            shapes = [(count, heads, width) for count in lengths]
            return [torch.randn(s, generator=generator).to(device, dtype) for s in shapes]

        self.query = drawn(HEADS)
        self.key, self.value = ([drawn(KV_HEADS) for _ in range(2)] for _ in "kv")
        self._wholes: dict[tuple[int, int], Tensor] = {}
        needed = [-(-count // page) for count in lengths]
        blocks = list(range(sum(needed) + 3))
        random.Random(1).shuffle(blocks)
        self.tables = [[blocks.pop() for _ in range(count)] for count in needed]
        self.pool = KvPool(
            self.config,
            page=page,
            dtypes=kept or (dtype, dtype),
            device=torch.device(device),
            most=(sum(needed) + 3,) * 2,
            start=(sum(needed) + 3,) * 2,
        )

    def step(self, rows: Step) -> list[Tensor]:
        """The output of each layer for the tokens of a step."""
        attend = self._attend([self._row(*row) for row in rows])
        query = torch.cat([self.query[s][at : at + count] for s, at, count in rows])
        found = []
        for layer in range(2):
            key, value = (
                torch.cat([of[layer][s][at : at + count] for s, at, count in rows])
                for of in (self.key, self.value)
            )
            key_value = torch.stack((key, value), dim=1)
            found.append(attend(layer, query, key_value, self.sinks))
        return found

    def expected(self, layer: int, rows: Step) -> Tensor:
        """The expected output of `step`, by the definition, in float32."""
        return torch.cat([self._whole(layer, s)[at : at + count] for s, at, count in rows])

    def block(self, layer: int, block: int) -> Tensor:
        """The contents of the pool, of one type: [2, page, kv_heads, head_dim]."""
        return torch.stack([side[:, block].transpose(0, 1) for side in self.pool.layer(layer)])

    def _attend(self, rows: list[PagedRow]) -> Attend:
        return PagedAttention(
            self.pool, self.config, rows, compute=self.compute, deterministic=self.deterministic
        )

    def _row(self, sequence: int, start: int, count: int) -> PagedRow:
        """A row without the blocks that are outside the window of all its tokens."""
        table = self.tables[sequence]
        window = self.config.layers[1].window
        assert window is not None
        seen = max(start + 1 - window, 0) // self.page
        return PagedRow(start, count, (table, [-1] * seen + table[seen:]))

    def _whole(self, layer: int, sequence: int) -> Tensor:
        """Each token of a text: [tokens, heads, head_dim]."""
        if (layer, sequence) not in self._wholes:
            self._wholes[layer, sequence] = self._attended(layer, sequence)
        return self._wholes[layer, sequence]

    def _attended(self, layer: int, sequence: int) -> Tensor:
        query, key, value = (
            of[sequence].float() for of in (self.query, self.key[layer], self.value[layer])
        )
        count, width = len(query), query.shape[-1]
        grouped = query.unflatten(1, (KV_HEADS, -1))
        scores = torch.einsum("qkgd,skd->kgqs", grouped, key) * width**-0.5
        if cap := self.config.attention_softcap:
            scores = torch.tanh(scores / cap) * cap
        window = self.config.layers[layer].window
        sees = torch.ones(count, count, dtype=torch.bool, device=query.device).tril()
        if window is not None:
            sees = sees.triu(1 - window)
        scores = scores.masked_fill(~sees, float("-inf"))
        if self.sinks is not None:
            sinks = self.sinks.view(KV_HEADS, -1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, sinks], -1)
        weights = scores.softmax(-1)[..., :count]
        return torch.einsum("kgqs,skd->qkgd", weights, value).flatten(1, 2)
