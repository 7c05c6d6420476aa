"""The interface by which a layer attends to earlier tokens.

This is the only part of a layer that differs between devices, and between a step over the paged
KV pool and a text on its own.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


class Attend(Protocol):
    """Attention over the rows of one forward pass, with all its sequences flattened.

    An instance is made for one forward pass and knows where each sequence's keys and values are.
    """

    def __call__(
        self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """Store the keys and values of the new tokens, and attend to all that each token may see.

        Args:
            layer: number of the layer; its window comes from the model's config.
            query: [tokens, heads, head_dim], with rotary positions applied.
            key_value: [tokens, 2, kv_heads, head_dim]: keys, also with rotary positions applied,
                before values.
            sinks: [heads] learned scores of gpt-oss, or None.

        Returns:
            [tokens, heads, head_dim], of the query's dtype.
        """
        ...


@runtime_checkable
class FinishesHeads(Protocol):
    """An `Attend` that computes head norms and rotary positions itself, on NVIDIA cards."""

    def finished(
        self,
        layer: int,
        heads: Tensor,
        norms: tuple[Tensor, Tensor, float] | None,
        rotary: tuple[Tensor, Tensor] | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """Like `Attend.__call__`, for queries and keys without norms and positions applied.

        Args:
            heads: [tokens, heads + 2 · kv_heads, head_dim]: queries, keys, values; overwritten.
            norms: weights [head_dim] float32 of queries and of keys, and epsilon; None if the
                model has no head norms.
            rotary: cosine and sine; None if the layer has no positions.
        """
        ...
