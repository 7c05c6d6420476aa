"""Attention of single tokens with GPU kernels, and on Apple GPUs a different one for prompts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from hearth.backends.native.attention import Attend
from hearth.backends.native.kv_pool import KvPool, by_token
from hearth.backends.native.kv_rows import FP8, Q8_0
from hearth.backends.native.paged_attention import PagedRow
from hearth.backends.native.reaches import Reaches, to_device
from hearth.kernels.cuda.attention import Seen, attend_decode, reads_packed
from hearth.kernels.metal import shaders
from hearth.kernels.metal.shaders import has_metal
from hearth.quant.families.config import ModelConfig


def splits_rows(
    config: ModelConfig,
    device: torch.device,
    kv: tuple[torch.dtype, torch.dtype],
    dtype: torch.dtype,
) -> bool:
    """Whether the kernels of `device` read keys and values of dtypes `kv`, computing in `dtype`."""
    if device.type == "mps":
        return set(kv) == {dtype} and config.head_dim <= shaders.MOST_SIZE
    packed = {Q8_0, FP8} if reads_packed(config.head_dim, dtype) else set()
    return set(kv) <= {dtype, *packed}


class PoolAttention(ABC):
    """Implements `Attend` and `FinishesHeads` (`hearth.backends.native.attention`): keys and values
    go into the pool, and attention reads them there.

    Args:
        slots: for each group [tokens] int64: where keys and values go, as token indices in the
            pool.
    """

    def __init__(self, pool: KvPool, config: ModelConfig, slots: Sequence[Tensor]) -> None:
        self._pool = pool
        self._config = config
        self._slots = slots

    def __call__(
        self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        self._pool.write(layer, self._slots[self._pool.group_of[layer]], key_value)
        return self._attended(layer, query, sinks)

    def finished(
        self,
        layer: int,
        heads: Tensor,
        norms: tuple[Tensor, Tensor, float] | None,
        rotary: tuple[Tensor, Tensor] | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """See `FinishesHeads`."""
        queries, slots = self._config.heads, self._slots[self._pool.group_of[layer]]
        self._pool.finish_and_write(layer, slots, heads, queries, norms, rotary)
        return self._attended(layer, heads[:, :queries], sinks)

    @abstractmethod
    def _attended(self, layer: int, query: Tensor, sinks: Tensor | None) -> Tensor: ...


class SingleTokens(PoolAttention):
    """Attention of rows of one token each.

    All inputs are on the device: of the numbers of a step, the host uses only `Seen.most`.

    Args:
        pool: keys and values, see `SplitAttention`.
        seen: for each group.
    """

    def __init__(
        self, pool: KvPool, config: ModelConfig, slots: Sequence[Tensor], seen: Sequence[Seen]
    ) -> None:
        super().__init__(pool, config, slots)
        self._seen = seen

    def _attended(self, layer: int, query: Tensor, sinks: Tensor | None) -> Tensor:
        keys, values = map(by_token, self._pool.layer(layer))
        attend = shaders.attend_decode if has_metal(keys.device.type) else attend_decode
        attended = attend(
            query if keys.dtype in (Q8_0, FP8) else query.to(keys.dtype),
            keys,
            values,
            self._seen[self._pool.group_of[layer]],
            scale=self._config.scale,
            softcap=self._config.attention_softcap,
            sinks=sinks,
        )
        return attended.to(query.dtype)


class SplitAttention:
    """Implements `Attend` for one step on Apple GPUs.

    `attend_decode` computes all rows of one token in one call per layer; another `Attend` computes
    the other rows.

    Args:
        pool: its keys and values have the same dtype, in which attention is computed, or one or
            both of them are E4M3 or Q8_0. Any layout.
        rows: in the order of their tokens in the forward pass.
        others: makes the `Attend` for rows of several tokens.
    """

    def __init__(
        self,
        pool: KvPool,
        config: ModelConfig,
        rows: Sequence[PagedRow],
        others: Callable[[Sequence[PagedRow]], Attend],
    ) -> None:
        self._config = config
        single = [row for row in rows if row.count == 1]
        longer = [row for row in rows if row.count > 1]
        self._others = others(longer) if longer else None
        is_single = np.repeat([row.count == 1 for row in rows], [row.count for row in rows])
        reaches = [
            Reaches(single, group, window, pool.page)
            for group, window in enumerate(config.groups if single else ())
        ]
        parts = [reach.slots.view(np.int32) for reach in reaches]  # Eight-byte elements first.
        if longer:
            parts += [np.flatnonzero(some).view(np.int32) for some in (is_single, ~is_single)]
        for reach in reaches:
            parts += [reach.begins, reach.keys, reach.table.ravel()]
        sent = iter(to_device(parts, pool.layer(0)[0].device))
        slots = [next(sent).view(torch.int64) for _ in reaches]
        self._places = [next(sent).view(torch.int64) for _ in range(2)] if longer else []
        """[tokens] int64: indices of single tokens, and of the others; empty if all are single."""
        seen = [
            Seen(
                begins=next(sent),
                ends=next(sent),
                tables=next(sent).view(reach.table.shape),
                most=int((reach.keys - reach.begins).max()),
            )
            for reach in reaches
        ]
        self._singles = SingleTokens(pool, config, slots, seen) if single else None

    def __call__(
        self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        if self._others is None:
            assert self._singles is not None
            return self._singles(layer, query, key_value, sinks)
        if self._singles is None:
            return self._others(layer, query, key_value, sinks)
        single, longer = self._places
        out = query.new_empty(query.shape)
        out[longer] = self._others(layer, query[longer], key_value[longer], sinks)
        out[single] = self._singles(layer, query[single], key_value[single], sinks)
        return out
