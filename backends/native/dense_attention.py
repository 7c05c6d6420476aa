"""Attention over whole texts, without a memory of keys and values: for embeddings and tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hearth.backends.native.scores import additive, attend_to
from hearth.quant.families.config import ModelConfig


class DenseAttention:
    """An `Attend` over texts that are computed whole, in one forward pass."""

    def __init__(self, config: ModelConfig, lengths: Sequence[int]) -> None:
        """`lengths`: tokens of each text, in the order in which they follow one another."""
        self._config = config
        self._lengths = list(lengths)
        self._masks: dict[tuple[int, int], Tensor] = {}

    def __call__(
        self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """As `Attend`."""
        window = self._config.layers[layer].window
        attended = [
            self._text(window, *text, sinks)
            for text in zip(
                torch.split_with_sizes(query, self._lengths),
                torch.split_with_sizes(key_value, self._lengths),
                strict=True,
            )
        ]
        return torch.cat(attended)

    def _text(
        self,
        window: int | None,
        query: Tensor,
        key_value: Tensor,
        sinks: Tensor | None,
    ) -> Tensor:
        """One text: [tokens, heads, head_dim]."""
        key, value = key_value.unbind(1)
        config, length = self._config, len(query)
        groups = (config.kv_heads, config.heads // config.kv_heads)
        attended = attend_to(
            query.transpose(0, 1).reshape(*groups, length, config.head_dim),
            key.transpose(0, 1)[:, None],
            value.transpose(0, 1)[:, None],
            scale=config.scale,
            mask=None if window is None or window >= length else self._mask(length, window, query),
            causal=window is None or window >= length,
            softcap=config.attention_softcap,
            sinks=None if sinks is None else sinks.view(*groups, 1, 1),
        )
        return attended.flatten(0, 1).transpose(0, 1)

    def _mask(self, length: int, window: int, like: Tensor) -> Tensor:
        """[1, 1, length, length], to add: a token sees itself and the `window` - 1 before it."""
        mask = self._masks.get((length, window))
        if mask is None:
            causal = torch.ones(length, length, dtype=torch.bool, device=like.device).tril()
            mask = additive(causal.triu(1 - window), like.dtype)[None, None]
            self._masks[length, window] = mask
        return mask
