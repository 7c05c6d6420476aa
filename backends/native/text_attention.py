"""Attention over texts without the paged memory: for embeddings and tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hearth.backends.native.scores import attend_to, causal_mask
from hearth.quant.families.config import ModelConfig


def sliced_bytes(config: ModelConfig, tokens: int, dtype: torch.dtype) -> int:
    """What `SlicedAttention` keeps of a text of `tokens` tokens."""
    kept = sum(min(tokens, layer.window or tokens) for layer in config.layers)
    return 2 * config.kv_heads * config.head_dim * dtype.itemsize * kept


class SlicedAttention:
    """An `Attend` for one text, one slice after the other: it keeps keys and values as they are
    computed, so that the result is that of the whole text.

    Args:
        tokens: of the whole text.
    """

    def __init__(self, config: ModelConfig, tokens: int) -> None:
        self._config = config
        self._tokens = tokens
        self._kept: dict[int, Tensor] = {}
        """By layer: [2, kv_heads, tokens, head_dim], with a window only the last."""
        self._masks: dict[int | None, Tensor] = {}
        """Of this slice, by window."""
        self._start = 0
        self._end = 0

    def advance(self, tokens: int) -> None:
        """The next pass computes the next `tokens` tokens."""
        self._start, self._end = self._end, self._end + tokens
        self._masks.clear()

    def __call__(
        self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """As `Attend`."""
        config = self._config
        window = config.layers[layer].window
        new = key_value.permute(1, 2, 0, 3)
        is_whole = len(query) == self._tokens
        keys, values = new if is_whole else self._with_kept(layer, window, new)
        is_causal = self._start == 0 and (window is None or window >= self._end)
        groups = (config.kv_heads, config.heads // config.kv_heads)
        attended = attend_to(
            query.transpose(0, 1).reshape(*groups, len(query), config.head_dim),
            keys[:, None],
            values[:, None],
            scale=config.scale,
            mask=None if is_causal else self._mask(window, keys.shape[1], query),
            causal=is_causal,
            softcap=config.attention_softcap,
            sinks=None if sinks is None else sinks.view(*groups, 1, 1),
        )
        return attended.flatten(0, 1).transpose(0, 1)

    def _with_kept(self, layer: int, window: int | None, new: Tensor) -> Tensor:
        """What the slice sees of `layer`, up to its own last token; that is kept for the next."""
        kept = self._kept.get(layer)
        if window is not None:
            seen = new if kept is None else torch.cat((kept, new), dim=2)
            self._kept[layer] = seen[:, :, max(seen.shape[2] - window + 1, 0) :]
            return seen
        if kept is None:
            shape = (*new.shape[:2], self._tokens, new.shape[3])
            kept = self._kept[layer] = new.new_empty(shape)
        kept[:, :, self._start : self._end] = new
        return kept[:, :, : self._end]

    def _mask(self, window: int | None, keys: int, like: Tensor) -> Tensor:
        """[1, 1, tokens of the slice, keys], to add."""
        if window not in self._masks:
            queries, seen = range(self._start, self._end), range(self._end - keys, self._end)
            self._masks[window] = causal_mask(
                queries, seen, window, dtype=like.dtype, device=like.device
            )
        return self._masks[window]


class TextsAttention:
    """An `Attend` over texts that are computed whole, in one forward pass."""

    def __init__(self, config: ModelConfig, lengths: Sequence[int]) -> None:
        """`lengths`: tokens of each text, in the order in which they follow one another."""
        self._lengths = list(lengths)
        self._texts = [SlicedAttention(config, length) for length in lengths]
        for text, length in zip(self._texts, lengths, strict=True):
            text.advance(length)

    def __call__(
        self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """As `Attend`."""
        queries = torch.split_with_sizes(query, self._lengths)
        seen = torch.split_with_sizes(key_value, self._lengths)
        each = zip(self._texts, queries, seen, strict=True)
        return torch.cat([text(layer, own, keys, sinks) for text, own, keys in each])
