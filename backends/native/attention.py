"""How a layer sees what came before it: the one thing that differs between devices, and between a
step over the paged memory and a text on its own.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


class Attend(Protocol):
    """Attention over the rows of one forward pass, all sequences of it flattened.

    Made for one forward; it knows where the keys and values of each sequence are.
    """

    def __call__(
        self, layer: int, query: Tensor, key_value: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """Keep keys and values of the new tokens, and look at all that each of them may see.

        Args:
            layer: number of the layer; its window comes from the model's config.
            query: [tokens, heads, head_dim], with rotary positions applied.
            key_value: [tokens, 2, kv_heads, head_dim]: keys, likewise, before values.
            sinks: [heads] learned scores of gpt-oss, or None.

        Returns:
            [tokens, heads, head_dim], of the query's dtype.
        """
        ...


@runtime_checkable
class FinishesHeads(Protocol):
    """An `Attend` that works out norms and positions itself, on NVIDIA cards."""

    def finished(
        self,
        layer: int,
        heads: Tensor,
        norms: tuple[Tensor, Tensor, float] | None,
        rotary: tuple[Tensor, Tensor] | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """As an `Attend`, with queries and keys before their norms and positions.

        Args:
            heads: [tokens, heads + 2 · kv_heads, head_dim]: queries, keys, values; changed.
            norms: weights [head_dim] float32 of queries and of keys, and epsilon; or none.
            rotary: cosine and sine; None: no positions.
        """
        ...
