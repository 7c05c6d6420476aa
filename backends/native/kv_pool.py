"""Keys and values of all layers, in pages that block tables name."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from hearth.backends.native.config import ModelConfig


class KvPool:
    """Implements `hearth.backends.native.paging.store.PageStore` with tensors.

    A layer has keys and values of [kv_heads, blocks, page, head_dim] each: the tokens of a page lie
    together for each head, as attention reads them. Layers of one group (`ModelConfig.groups`) have
    the same number of blocks.

    On a processor the whole budget is taken from the system at once, and costs memory only where it
    was written to. Elsewhere a group starts small and is doubled by copying; it is never smaller.

    Args:
        page: tokens of a block.
        most: blocks of each group at most.
        start: blocks of each group at first; elsewhere than on a processor.
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
    ) -> None:
        self.page = page
        self._shape = (config.kv_heads, page, config.head_dim)
        self._dtype = dtype
        self._device = device
        self._most = tuple(most)
        groups = config.groups
        self.group_of = tuple(groups.index(layer.window) for layer in config.layers)
        """The group of each layer."""
        first = most if device.type == "cpu" else start
        self._blocks = [min(have, limit) for have, limit in zip(first, most, strict=True)]
        self._keys = [self._zeros(self._blocks[group]) for group in self.group_of]
        self._values = [self._zeros(self._blocks[group]) for group in self.group_of]

    def keys(self, layer: int) -> Tensor:
        """[kv_heads, blocks, page, head_dim]."""
        return self._keys[layer]

    def values(self, layer: int) -> Tensor:
        """[kv_heads, blocks, page, head_dim]."""
        return self._values[layer]

    @property
    def nbytes(self) -> int:
        """Of all pages there is memory for."""
        return sum(tensor.nbytes for tensor in (*self._keys, *self._values))

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
                self._keys[layer] = self._grown(self._keys[layer], more)
                self._values[layer] = self._grown(self._values[layer], more)
        except torch.OutOfMemoryError:
            return False  # Layers that grew already are only larger than they need be.
        self._blocks[group] = more
        return True

    def copy(self, group: int, source: int, target: int, tokens: int) -> None:
        """Give the block `target` the first `tokens` tokens of the block `source`."""
        for layer, one in enumerate(self.group_of):
            if one == group:
                for pool in (self._keys[layer], self._values[layer]):
                    pool[:, target, :tokens] = pool[:, source, :tokens]

    def _zeros(self, blocks: int) -> Tensor:
        """Zeros; on a processor they take no memory before they are written over."""
        heads, page, width = self._shape
        shape = (heads, blocks, page, width)
        if self._device.type != "cpu" or not blocks:
            return torch.zeros(shape, dtype=self._dtype, device=self._device)
        memory = mmap.mmap(-1, prod(shape) * self._dtype.itemsize)
        return torch.frombuffer(memory, dtype=self._dtype).view(shape)

    def _grown(self, tensor: Tensor, blocks: int) -> Tensor:
        if tensor.shape[1] >= blocks:
            return tensor
        larger = self._zeros(blocks)
        larger[:, : tensor.shape[1]] = tensor
        return larger
