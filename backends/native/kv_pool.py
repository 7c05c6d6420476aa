"""Keys and values of all layers, in pages that block tables name."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from hearth.backends.engine.kv.store import GroupSpec, SavedState
from hearth.backends.machine.memory import available_bytes
from hearth.backends.native.lazy_zeros import LazyZeros
from hearth.quant.families.config import ModelConfig

Layout = Literal["heads", "pages"]
"""heads: all tokens of a head lie together, as products with one head after the other want them;
pages: all heads of a token lie together, as kernels with block tables want them.
"""
_BY_HEAD: Final = (0, 1, 2, 3, 4)
_BY_TOKEN: Final = (0, 1, 3, 2, 4)
"""Axes of `SavedTokens.key_values` in memory; the permutation is its own inverse."""
_META: Final = struct.Struct("<I?")
"""Of a saved state: its start, and whether the tokens of a head lie together."""
_LARGEST: Final = 65504.0
"""What infinities are kept as: the largest of half precision, whose products stay finite."""


@dataclass(frozen=True, slots=True)
class SavedTokens:
    """Keys and values of some tokens of a sequence."""

    key_values: Tensor
    """[layers, 2, kv_heads, tokens, head_dim], in plain memory, in either order."""
    start: int
    """Position of the first."""
    fingerprint: bytes

    @property
    def nbytes(self) -> int:
        return self.key_values.nbytes


class KvPool:
    """Implements `hearth.backends.engine.kv.store.BlockStore` with tensors.

    Keys and values of a layer are one tensor, so that both are written and read at once. In which
    order it lies depends on who reads it, see `Layout`. Layers of one group (`ModelConfig.groups`)
    have the same number of blocks.

    On a processor addresses for the whole budget are taken at once, which costs memory only where
    something was written: a group grows block by block, and nothing is copied. Elsewhere it starts
    small and is doubled by copying. That may be within a step, so that the tensors are PyTorch's
    inference tensors: all that writes to them is in inference mode.

    Args:
        page: tokens of a block.
        most: blocks of each group at most.
        start: blocks of each group at least: there is memory for them from now on.
        fingerprint: of the model and of all that keys and values depend on; copies of others are
            refused.
        layout: who reads it.
    """

    state_bytes = 0

    def __init__(
        self,
        config: ModelConfig,
        *,
        page: int,
        dtype: torch.dtype,
        device: torch.device,
        most: Sequence[int],
        start: Sequence[int],
        fingerprint: bytes = b"",
        layout: Layout = "heads",
    ) -> None:
        self.page = page
        self.fingerprint = fingerprint
        self.layout = layout
        self._heads, self._width = config.kv_heads, config.head_dim
        self._dtype = dtype
        self._device = device
        self._most = tuple(most)
        groups = config.groups
        self.groups = tuple(map(GroupSpec, groups, most))
        self.group_of = tuple(groups.index(layer.window) for layer in config.layers)
        """The group of each layer."""
        self._start = tuple(min(have, limit) for have, limit in zip(start, most, strict=True))
        self._blocks = list(self._start)
        self._lazy = [
            LazyZeros(self._shape(self._most[group]), dtype)
            for group in (self.group_of if device.type == "cpu" else ())
        ]
        """Of each layer; none elsewhere than on a processor."""
        self._layers = [
            self._started(layer) if self._lazy else self._zeros(self._start[group])
            for layer, group in enumerate(self.group_of)
        ]

    def layer(self, layer: int) -> Tensor:
        """Keys, then values: [2, kv_heads, blocks, page, head_dim], or with the layout "pages"
        [2, blocks, page, kv_heads, head_dim].
        """
        return self._layers[layer]

    def write(self, layer: int, slots: Tensor | slice, key_value: Tensor) -> None:
        """Keep keys and values of new tokens.

        What is kept is finite always: others get the page later, and may read it where they see
        nothing.

        Args:
            slots: [tokens] int64: where they go, as numbers of tokens in the pool (block · page +
                place in the block).
            key_value: [tokens, 2, kv_heads, head_dim].
        """
        kept = self._layers[layer]
        finite = torch.nan_to_num(key_value.to(self._dtype), 0.0, _LARGEST, -_LARGEST)
        if self.layout == "heads":
            tokens = kept.view(-1, kept.shape[2] * self.page, self._width)
            new = finite.flatten(1, 2).transpose(0, 1)
        else:
            tokens = kept.view(2, -1, self._heads, self._width)
            new = finite.transpose(0, 1)
        if isinstance(slots, slice):
            tokens[:, slots] = new
        else:
            tokens.index_copy_(1, slots, new)

    def capacity(self, group: int) -> int:
        """Blocks that there is memory for now."""
        return self._blocks[group]

    def nbytes(self, group: int) -> int:
        """What they take of memory."""
        return self._blocks[group] * self.block_bytes(group)

    def block_bytes(self, group: int) -> int:
        """What a block takes in all layers of a group."""
        return self._layer_bytes * self.group_of.count(group)

    @torch.inference_mode()
    def grow(self, group: int, blocks: int) -> bool:
        """Have memory for at least so many blocks; False where the device has none, or the budget
        ends before.
        """
        if blocks <= self._blocks[group]:
            return True
        if blocks > self._most[group]:
            return False
        if self._lazy:
            self._blocks[group] = blocks
            return True
        more = min(max(blocks, 2 * self._blocks[group]), self._most[group])
        try:
            # One tensor after the other, so that no more than one is there twice.
            for layer in self._layers_of(group):
                if len(self._by_token(self._layers[layer])) < more:
                    self._layers[layer] = self._resized(self._layers[layer], more)
        except torch.OutOfMemoryError:
            return False  # Layers that grew already are only larger than they need be.
        self._blocks[group] = more
        return True

    @torch.inference_mode()
    def shrink(self, group: int, blocks: int) -> None:
        """Give back the memory of blocks from `blocks` on, but for those of the start, where the
        device takes it. What is read of them when they are there again is finite.
        """
        fewer = max(blocks, self._start[group])
        if fewer >= self._blocks[group]:
            return
        if self._lazy:
            axis = 2 if self.layout == "heads" else 1
            given = [self._lazy[layer].give_back(axis, fewer) for layer in self._layers_of(group)]
            self._blocks[group] = fewer if all(given) else self._blocks[group]
            return
        self._blocks[group] = fewer
        # What does not fit a second time, for a moment, stays larger than it need be.
        with suppress(torch.OutOfMemoryError):
            for layer in self._layers_of(group):
                self._layers[layer] = self._resized(self._layers[layer], fewer)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        elif self._device.type == "mps":
            torch.mps.empty_cache()

    @torch.inference_mode()
    def copy(self, group: int, source: int, target: int, tokens: int) -> None:
        """Give the block `target` the first `tokens` tokens of the block `source`."""
        for layer in self._layers_of(group):
            blocks = self._by_token(self._layers[layer])
            blocks[target, :tokens] = blocks[source, :tokens]

    @property
    def token_bytes(self) -> int:
        """See the protocol."""
        layers = sum(self.groups[group].window is None for group in self.group_of)
        return self._layer_bytes // self.page * layers

    @property
    def most_offloaded_bytes(self) -> int:
        """See the protocol: as much as the pool may take on a GPU. On a processor a copy would be
        in the same memory.
        """
        return 0 if self._lazy else self._most[0] * self.page * self.token_bytes

    def available_bytes(self) -> int:
        """See the protocol."""
        return available_bytes()

    @torch.inference_mode()
    def save_part(self, table: Sequence[int], start: int, end: int) -> SavedTokens | None:
        """See the protocol."""
        shape = (len(self._layers), 2, self._heads, end - start, self._width)
        axes = self._axes
        try:
            flat = torch.empty([shape[axis] for axis in axes], dtype=self._dtype)
        except (RuntimeError, MemoryError):
            return None
        saved = flat.permute(axes)
        for to, tensor in zip(saved, self._layers, strict=True):
            for at, slots in self._runs(table, start, end):
                tokens = self._by_head(tensor)[:, :, slots.start : slots.stop]
                _copy(to[:, :, at : at + len(slots)], tokens)
        return SavedTokens(saved, start, self.fingerprint)

    @torch.inference_mode()
    def restore_part(self, table: Sequence[int], state: SavedState, start: int, end: int) -> bool:
        """See the protocol."""
        if not isinstance(state, SavedTokens) or state.fingerprint != self.fingerprint:
            return False
        first = start - state.start
        for tensor, saved in zip(self._layers, state.key_values, strict=True):
            for at, slots in self._runs(table, start, end):
                tokens = saved[:, :, first + at : first + at + len(slots)]
                _copy(self._by_head(tensor)[:, :, slots.start : slots.stop], tokens)
        return True

    def pack(self, state: SavedState) -> tuple[bytes, memoryview]:
        """See the protocol."""
        assert isinstance(state, SavedTokens)
        flat = state.key_values.permute(self._axes)
        meta = _META.pack(state.start, self.layout == "heads")
        return meta, flat.view(-1).view(torch.uint8).numpy().data

    def unpack(self, meta: bytes, data: memoryview) -> SavedTokens | None:
        """See the protocol."""
        start, by_head = _META.unpack(meta)
        axes = _BY_HEAD if by_head else _BY_TOKEN
        shape = (len(self._layers), 2, self._heads, -1, self._width)
        try:
            flat = torch.frombuffer(data, dtype=self._dtype).view([shape[axis] for axis in axes])
        except (ValueError, RuntimeError):
            return None  # Not a whole number of tokens.
        return SavedTokens(flat.permute(axes), start, self.fingerprint)

    @property
    def _axes(self) -> tuple[int, ...]:
        """In which order those of `SavedTokens.key_values` lie: as in the pool."""
        return _BY_HEAD if self.layout == "heads" else _BY_TOKEN

    def _runs(self, table: Sequence[int], start: int, end: int) -> Iterator[tuple[int, range]]:
        """The tokens `start` to `end` where they lie together in the pool: the first of them, from
        `start` on, and their places in the pool. Blocks mostly follow each other.
        """
        at = start
        while at < end:
            block = at // self.page
            last = block
            while (last + 1) * self.page < end and table[last + 1] == table[last] + 1:
                last += 1
            stop = min(end, (last + 1) * self.page)
            slot = table[block] * self.page + at % self.page
            yield at - start, range(slot, slot + stop - at)
            at = stop

    def _by_head(self, tensor: Tensor) -> Tensor:
        """A layer as [2, kv_heads, tokens of the pool, head_dim]."""
        if self.layout == "heads":
            return tensor.flatten(2, 3)
        return tensor.flatten(1, 2).transpose(1, 2)

    def _by_token(self, tensor: Tensor) -> Tensor:
        """A layer as [blocks, page, 2, kv_heads, head_dim]."""
        return (
            tensor.permute(2, 3, 0, 1, 4)
            if self.layout == "heads"
            else tensor.permute(1, 2, 0, 3, 4)
        )

    def _layers_of(self, group: int) -> list[int]:
        return [layer for layer, one in enumerate(self.group_of) if one == group]

    @property
    def _layer_bytes(self) -> int:
        """Of a block in one layer."""
        return 2 * self._heads * self.page * self._width * self._dtype.itemsize

    def _shape(self, blocks: int) -> tuple[int, ...]:
        heads, page, width = self._heads, self.page, self._width
        if self.layout == "pages":
            return (2, blocks, page, heads, width)
        return (2, heads, blocks, page, width)

    def _zeros(self, blocks: int) -> Tensor:
        """A layer."""
        return torch.zeros(self._shape(blocks), dtype=self._dtype, device=self._device)

    def _started(self, layer: int) -> Tensor:
        """A layer on a processor, of which the blocks of the start take memory."""
        tensor = self._lazy[layer].tensor
        self._by_token(tensor)[: self._start[self.group_of[layer]]].zero_()
        return tensor

    def _resized(self, tensor: Tensor, blocks: int) -> Tensor:
        """A layer with the first `blocks` blocks of `tensor`, or with zeros after all of them."""
        made = self._zeros(blocks)
        kept = min(blocks, len(self._by_token(tensor)))
        self._by_token(made)[:kept] = self._by_token(tensor)[:kept]
        return made


def _copy(to: Tensor, source: Tensor) -> None:
    """Give `to` what `source` has, both with rows of whole numbers. On a processor by one thread:
    PyTorch would use all for each layer, and they wait for each other where others need cores.
    """
    if to.device.type == source.device.type == "cpu":
        np.copyto(to.view(torch.uint8).numpy(), source.view(torch.uint8).numpy())
    else:
        to.copy_(source)
