"""Attention over the paged KV pool on NVIDIA cards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from hearth.backends.native.kv_pool import KvPool, by_token
from hearth.backends.native.kv_rows import FP8, Q8_0
from hearth.backends.native.paged_attention import PagedRow
from hearth.backends.native.reaches import Reaches, to_device
from hearth.backends.native.split_attention import PoolAttention
from hearth.kernels.cuda.attention import (
    Seen,
    Texts,
    attend_decode,
    attend_prompts,
    block_rows,
    blocks_of,
    is_roomy,
)
from hearth.quant.families.config import ModelConfig

_FEW: Final = 16
"""Rows of up to this many tokens are computed token by token, by the decode kernel, which splits
the keys of a long text among programs."""


class CardAttention(PoolAttention):
    """Attention for one step.

    Each layer takes one launch for the rows of few tokens and one for the others.

    Args:
        pool: its keys and values have the same dtype, in which attention is computed, or one or
            both of them are E4M3 or Q8_0.
        rows: in the order of their tokens in the forward pass; without trees.
        compute: dtype of queries.
    """

    def __init__(
        self, pool: KvPool, config: ModelConfig, rows: Sequence[PagedRow], compute: torch.dtype
    ) -> None:
        device = pool.layer(0)[0].device
        counts = np.array([row.count for row in rows], np.int32)
        firsts = np.cumsum(counts, dtype=np.int32) - counts
        is_few = counts <= _FEW
        few, many = np.flatnonzero(is_few), np.flatnonzero(~is_few)
        block = block_rows(
            config.heads,
            config.kv_heads,
            config.head_dim,
            int(counts.max()),
            compute,
            is_packed=not {FP8, Q8_0}.isdisjoint(pool.dtypes),
            is_roomy=is_roomy(device),
        )
        tokens = block // (config.heads // config.kv_heads)
        text = np.repeat(few, counts[few])  # The row of each token that is computed on its own.
        behind = np.concatenate([np.arange(count) for count in (0, *counts[few])], dtype=np.int32)
        # Arrays of eight-byte elements come first.
        parts = [(firsts[text] + behind).astype(np.int64).view(np.int32)]
        reaches = [
            Reaches(rows, group, window, pool.page) for group, window in enumerate(config.groups)
        ]
        parts += [reach.slots.view(np.int32) for reach in reaches]
        widths, most = [], []
        for reach, window in zip(reaches, config.groups, strict=True):
            starts = reach.keys - counts
            ends = starts[text] + behind + 1
            begins = np.zeros_like(ends) if window is None else np.maximum(ends - window, 0)
            most.append(int((ends - begins).max(initial=0)))
            widths.append(-(-int(ends.max(initial=1)) // pool.page))
            parts += [begins, ends, reach.table[text, : widths[-1]].ravel()]
            about = np.stack((firsts, counts, starts), 1)[many]
            parts += [about.ravel(), blocks_of(counts[many], starts[many], tokens).ravel()]
            parts.append(reach.table[many].ravel())
        sent = iter(to_device(parts, device))
        self._few = next(sent).view(torch.int64)
        """[tokens of short rows] int64: their indices among all tokens."""
        super().__init__(pool, config, [next(sent).view(torch.int64) for _ in reaches])
        self._groups: list[tuple[Seen | None, Texts | None]] = []
        for longest, width in zip(most, widths, strict=True):
            first, last, table = (next(sent) for _ in range(3))
            seen = Seen(table.view(len(text), width), first, last, longest) if len(few) else None
            places, blocks, table = (next(sent) for _ in range(3))
            texts = None
            if len(many):
                table = table.view(len(many), -1)
                texts = Texts(table, places.view(-1, 3), blocks.view(-1, 2), block)
            self._groups.append((seen, texts))

    def _attended(self, layer: int, query: Tensor, sinks: Tensor | None) -> Tensor:
        config, group = self._config, self._pool.group_of[layer]
        keys, values = map(by_token, self._pool.layer(layer))
        seen, texts = self._groups[group]

        def of_few(query: Tensor) -> Tensor:
            assert seen is not None
            cap = config.attention_softcap
            return attend_decode(
                query, keys, values, seen, scale=config.scale, softcap=cap, sinks=sinks
            )

        if texts is None:
            return of_few(query)
        attended = attend_prompts(
            query,
            keys,
            values,
            texts,
            scale=config.scale,
            window=config.groups[group],
            softcap=config.attention_softcap,
            sinks=sinks,
        )
        if seen is not None:
            attended.index_copy_(0, self._few, of_few(query[self._few]))
        return attended
