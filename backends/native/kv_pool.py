"""Keys and values of all layers, in pages that block tables name."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from math import prod
from typing import Literal

import torch
from torch import Tensor

from hearth.backends.native.config import ModelConfig

Layout = Literal["heads", "pages"]
"""heads: all tokens of a head lie together, as products with one head after the other want them;
pages: all heads of a token lie together, as kernels with block tables want them.
"""


class KvPool:
    """Implements `hearth.backends.native.paging.store.PageStore` with tensors.

    Keys and values of a layer are one tensor, so that both are written and read at once. In which
    order it lies depends on who reads it, see `Layout`. Layers of one group (`ModelConfig.groups`)
    have the same number of blocks.

    On a processor the whole budget is taken from the system at once, and costs memory only where it
    was written to. Elsewhere a group starts small and is doubled by copying; it is never smaller.

    Args:
        page: tokens of a block.
        most: blocks of each group at most.
        start: blocks of each group at first; elsewhere than on a processor.
        layout: who reads it.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        page: int,
        dtype: torch.dtype,
        device: torch.device,
        most: Sequence[int],
        start: Sequence[int],
        layout: Layout = "heads",
    ) -> None:
        self.page = page
        self.layout = layout
        self._heads, self._width = config.kv_heads, config.head_dim
        self._dtype = dtype
        self._device = device
        self._most = tuple(most)
        groups = config.groups
        self.group_of = tuple(groups.index(layer.window) for layer in config.layers)
        """The group of each layer."""
        first = most if device.type == "cpu" else start
        self._blocks = [min(have, limit) for have, limit in zip(first, most, strict=True)]
        self._layers = [self._zeros(self._blocks[group]) for group in self.group_of]

    def layer(self, layer: int) -> Tensor:
        """Keys, then values: [2, kv_heads, blocks, page, head_dim], or with the layout "pages"
        [2, blocks, page, kv_heads, head_dim].
        """
        return self._layers[layer]

    @property
    def nbytes(self) -> int:
        """Of all pages there is memory for."""
        return sum(tensor.nbytes for tensor in self._layers)

    def capacity(self, group: int) -> int:
        """Blocks that there is memory for now."""
        return self._blocks[group]

    def grow(self, group: int, blocks: int) -> bool:
        """Have memory for at least so many blocks; False where the device has none, or the budget
        ends before.
        """
        if blocks <= self._blocks[group]:
            return True
        if blocks > self._most[group]:
            return False
        more = min(max(blocks, 2 * self._blocks[group]), self._most[group])
        layers = [layer for layer, one in enumerate(self.group_of) if one == group]
        try:
            # One tensor after the other, so that no more than one is there twice.
            for layer in layers:
                self._layers[layer] = self._grown(self._layers[layer], more)
        except torch.OutOfMemoryError:
            return False  # Layers that grew already are only larger than they need be.
        self._blocks[group] = more
        return True

    def copy(self, group: int, source: int, target: int, tokens: int) -> None:
        """Give the block `target` the first `tokens` tokens of the block `source`."""
        for layer, one in enumerate(self.group_of):
            if one == group:
                blocks = self._by_block(self._layers[layer])
                blocks[target][..., :tokens, :] = blocks[source][..., :tokens, :]

    def _by_block(self, tensor: Tensor) -> Tensor:
        """A layer as [blocks, 2, kv_heads, page, head_dim]."""
        return (
            tensor.permute(2, 0, 1, 3, 4)
            if self.layout == "heads"
            else tensor.permute(1, 0, 3, 2, 4)
        )

    def _zeros(self, blocks: int) -> Tensor:
        """A layer of zeros; on a processor they take no memory before they are written over."""
        heads, page, width = self._heads, self.page, self._width
        shape = (2, heads, blocks, page, width)
        if self.layout == "pages":
            shape = (2, blocks, page, heads, width)
        if self._device.type != "cpu" or not blocks:
            return torch.zeros(shape, dtype=self._dtype, device=self._device)
        memory = mmap.mmap(-1, prod(shape) * self._dtype.itemsize)
        return torch.frombuffer(memory, dtype=self._dtype).view(shape)

    def _grown(self, tensor: Tensor, blocks: int) -> Tensor:
        have = len(self._by_block(tensor))
        if have >= blocks:
            return tensor
        larger = self._zeros(blocks)
        self._by_block(larger)[:have] = self._by_block(tensor)
        return larger
