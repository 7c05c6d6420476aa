"""Keys and values of all layers, in pages that block tables name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from hearth.backends.engine.kv.store import GroupSpec, SavedState
from hearth.backends.machine.memory import available_bytes
from hearth.backends.native.lazy_zeros import LazyZeros
from hearth.kernels.cuda.elementwise import store_tokens
from hearth.kernels.cuda.matrix import has_triton
from hearth.quant.families.config import ModelConfig

Layout = Literal["heads", "pages"]
"""heads: all tokens of a head lie together, as products with one head after the other want them;
pages: all heads of a token lie together, as kernels with block tables want them.
"""
_LARGEST: Final = 65504.0
"""What infinities are kept as: the largest of half precision, whose products stay finite."""


@dataclass(frozen=True, slots=True)
class SavedTokens:
    """Keys and values of some tokens of a sequence."""

    key_values: Tensor
    """[layers, tokens, 2, kv_heads, head_dim], in plain memory."""
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
        if isinstance(slots, Tensor) and has_triton(kept.device.type):
            is_by_head = self.layout == "heads"
            pool = kept.flatten(2, 3).transpose(1, 2) if is_by_head else kept.flatten(1, 2)
            store_tokens(pool, slots, key_value, _LARGEST)
            return
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
        tokens = [self._by_token(tensor)[self._slots(table, start, end)] for tensor in self._layers]
        try:
            return SavedTokens(torch.stack(tokens).cpu(), start, self.fingerprint)
        except (torch.OutOfMemoryError, MemoryError):
            return None

    @torch.inference_mode()
    def restore_part(self, table: Sequence[int], state: SavedState, start: int, end: int) -> bool:
        """See the protocol."""
        if not isinstance(state, SavedTokens) or state.fingerprint != self.fingerprint:
            return False
        slots = self._slots(table, start, end)
        wanted = state.key_values[:, start - state.start : end - state.start].to(self._device)
        for tensor, tokens in zip(self._layers, wanted, strict=True):
            self._by_token(tensor)[slots] = tokens
        return True

    def _slots(self, table: Sequence[int], start: int, end: int) -> tuple[Tensor, Tensor]:
        """Blocks and places within them of the tokens `start` to `end`."""
        positions = torch.arange(start, end)
        blocks = torch.tensor(table)[positions // self.page]
        return blocks.to(self._device), (positions % self.page).to(self._device)

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
