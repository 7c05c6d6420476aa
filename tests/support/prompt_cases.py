"""Attention of the last tokens of texts in pages, compared with sums in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gpu_cases import Kinds, exact, pages_of
from hearth.kernels.cuda.attention import (
    Seen,
    Texts,
    attend_prompts,
    block_rows,
    blocks_of,
    is_roomy,
)

CASES: dict[str, dict[str, Any]] = {
    "one head for all": {"heads": 4, "kv_heads": 1},
    "a head for each": {"heads": 3, "kv_heads": 3, "page": 32},
    "groups, capped": {"heads": 4, "kv_heads": 2, "softcap": 20.0},
    "sinks": {"heads": 8, "kv_heads": 4, "sinks": True, "page": 256},
    "a window": {"heads": 4, "kv_heads": 2, "window": 20},
    "a window in large pages, sinks": {
        "heads": 4,
        "kv_heads": 2,
        "window": 9,
        "page": 256,
        "sinks": True,
    },
    "more heads together than rows": {"heads": 20, "kv_heads": 1},
    "heads that are no power of two": {"heads": 5, "kv_heads": 1, "size": 80},
    "small heads together": {"heads": 4, "kv_heads": 2, "size": 16, "layout": "heads"},
    "heads of 96": {"heads": 2, "kv_heads": 2, "size": 96, "layout": "heads"},
    "shared pages": {"heads": 4, "kv_heads": 2, "shared": 1, "lengths": (40, 17, 130, 61)},
}


class Prompts:
    """Texts whose last tokens are new.

    Args:
        counts: number of new tokens of each text.
    """

    def __init__(
        self,
        counts: Sequence[int] = (1, 16, 37, 20),
        *,
        lengths: Sequence[int] = (1, 16, 130, 61),
        heads: int,
        kv_heads: int,
        dtype: torch.dtype,
        window: int | None = None,
        softcap: float = 0.0,
        sinks: bool = False,
        size: int = 32,
        page: int = 16,
        kinds: Kinds = (None, None),
        device: str = "cpu",
        **options: Any,
    ) -> None:
        self.counts, self.lengths, self.window = counts, lengths, window
        self.device, self.is_packed = device, kinds != (None, None)
        self.heads, self.kv_heads, self.size, self.dtype = heads, kv_heads, size, dtype
        self.page = page
        starts = [length - count for length, count in zip(lengths, counts, strict=True)]
        begins = [0 if window is None else max(start + 1 - window, 0) for start in starts]
        self.keys, self.values, self.seen = pages_of(
            lengths,
            begins,
            page=page,
            kv_heads=kv_heads,
            size=size,
            dtype=dtype,
            kinds=kinds,
            **options,
        )
        generator = torch.Generator().manual_seed(1)
        query = 2 * torch.randn(sum(counts), heads + 3, size, generator=generator)
        self.query = query.to(dtype)[:, :heads]
        self.how: dict[str, Any] = {"scale": size**-0.5, "softcap": softcap}
        generator = torch.Generator().manual_seed(3)
        self.sinks = torch.randn(heads, generator=generator) if sinks else None

    def found(self, some: slice = slice(None), *, rows: int = 0) -> torch.Tensor:
        """The output for some of the texts, with programs of `rows` rows; 0: the default number."""
        counts = np.array(self.counts[some], np.int32)
        starts = np.array(self.lengths[some], np.int32) - counts
        firsts, tables = np.cumsum(counts, dtype=np.int32) - counts, self.seen.tables[some].clone()
        if self.window is not None:  # Pages outside the window are not there.
            left = np.maximum(starts + 1 - self.window, 0) // self.page
            starts = starts - left.astype(np.int32) * self.page
            for table, pages in zip(tables, left, strict=True):
                table[: len(table) - pages] = table[pages:].clone()
        begin = sum(self.counts[: some.start or 0])
        shape = self.heads, self.kv_heads, self.size
        how = {"is_packed": self.is_packed, "is_roomy": is_roomy(torch.device(self.device))}
        rows = rows or block_rows(*shape, int(max(counts)), self.dtype, **how)
        tokens = rows // (self.heads // self.kv_heads)
        places = torch.from_numpy(np.stack((firsts, counts, starts), 1))
        blocks = torch.from_numpy(blocks_of(counts, starts, tokens))
        texts = Texts(*(one.to(self.device) for one in (tables, places, blocks)), rows)
        query = self.query[begin : begin + int(counts.sum())]
        given = [one.to(self.device) for one in (query, self.keys, self.values)]
        sinks = self.sinks if self.sinks is None else self.sinks.to(self.device)
        found = attend_prompts(*given, texts, window=self.window, sinks=sinks, **self.how)
        return found.cpu()

    def wanted(self) -> torch.Tensor:
        """The expected output in float64, token by token."""
        text = np.repeat(np.arange(len(self.counts)), self.counts)
        ends = np.concatenate(
            [
                np.arange(length - count, length) + 1
                for length, count in zip(self.lengths, self.counts, strict=True)
            ]
        )
        begins = np.zeros_like(ends) if self.window is None else np.maximum(ends - self.window, 0)
        numbers = [torch.from_numpy(one.astype(np.int32)) for one in (begins, ends)]
        seen = Seen(self.seen.tables[text], *numbers, max(self.lengths))
        return exact(self.query, self.keys, self.values, seen, sinks=self.sinks, **self.how)
