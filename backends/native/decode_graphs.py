"""Decode steps as CUDA graphs.

A whole forward pass of one token per row is recorded once and then started by one call. The inputs
that change from step to step are in buffers with fixed addresses.

A graph is recorded for a number of rows and a number of keys, both rounded up. Padding rows use
tokens of a spare block (`KvPool.spare_block`), and their results are ignored. These graphs do not
handle steps with prompts or drafts (see `prompt_graphs`), nor steps with too many rows or keys.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hearth.backends.native.graphs import Graph, GraphCache, GraphDevice, why_not
from hearth.backends.native.kv_pool import KvPool
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.paged_attention import PagedRow
from hearth.backends.native.reaches import Reaches
from hearth.backends.native.split_attention import SingleTokens
from hearth.backends.native.workspace import (
    GRAPH_KEYS,
    GRAPH_PARTIAL_BYTES,
    MOST_GRAPHS,
    graph_rows,
    partial_bytes,
)
from hearth.kernels.cuda.attention import Seen


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of step that a graph is recorded for."""

    rows: int
    keys: int
    """Tokens of the longest row that the graph can handle: determines how attention splits the keys
    and how wide the block tables are."""


class DecodeGraphs:
    """The graphs of a decoder over a pool.

    Args:
        device: records the graphs.
        pool: has a spare block.
        most_rows: most rows of a step.
        context: most tokens of a row.

    Attributes:
        hidden: hidden states of the last step, [rows, width] on the device, from which its logits
            were computed. Valid until the next step; None unless they are kept (`keep_hidden`).
    """

    def __init__(
        self, device: GraphDevice, decoder: Decoder, pool: KvPool, *, most_rows: int, context: int
    ) -> None:
        self._device = device
        self._decoder = decoder
        self._pool = pool
        self._sizes = graph_rows(most_rows)
        self._context = context
        self._logits: Tensor | None = None
        """[most rows, vocabulary] float32: logits of the last step."""
        self._hidden: Tensor | None = None
        """[most rows, width]: hidden states of the last step."""
        self.hidden: Tensor | None = None
        self._graphs: GraphCache[Shape, tuple[_Buffers, Graph]] = GraphCache(
            MOST_GRAPHS, why_not(decoder)
        )
        self._versions = self.state

    def __len__(self) -> int:
        """Number of graphs that are recorded now."""
        return len(self._graphs.recorded)

    def keep_hidden(self) -> None:
        """Keep the hidden states of steps from now on."""
        if self._hidden is None:
            config, like = self._decoder.config, self._pool.layer(0)[0]
            size = (self._sizes[-1], config.width)
            self._hidden = torch.zeros(size, dtype=self._decoder.activations, device=like.device)
            self._graphs.clear()

    def logits(self, rows: Sequence[PagedRow], tokens: Sequence[int]) -> Tensor | None:
        """Run a step of one token per row.

        Args:
            rows: one token each, without drafts.
            tokens: one token for each row.

        Returns:
            [rows, vocabulary] float32 on the device, valid until the next step; None if there is
            no graph for the step, in which case nothing was computed.
        """
        shape = self._shape(rows)
        if shape is None:
            return None
        if self._versions != self.state:  # Graphs contain addresses.
            self._graphs.clear()
            self._versions = self.state
        recorded = self._graphs.get(shape, lambda: self._captured(shape, rows, tokens))
        if recorded is None:
            return None
        buffers, graph = recorded
        buffers.fill(rows, tokens)
        graph.replay()
        assert self._logits is not None
        self.hidden = None if self._hidden is None else self._hidden[: len(rows)]
        return self._logits[: len(rows)]

    def next_logits(self, rows: Sequence[PagedRow], tokens: Tensor) -> Tensor | None:
        """Like `logits`, for tokens on the device, where they may still be being computed.

        Returns None also if the step's graph is not recorded yet.

        Args:
            tokens: [rows] of any dtype, whole numbers.
        """
        shape = self._shape(rows)
        recorded = None if shape is None else self._graphs.used(shape)
        if recorded is None or self._versions != self.state:
            return None
        buffers, graph = recorded
        buffers.fill(rows, [0] * len(rows))
        buffers.tokens[: len(rows)].copy_(tokens)
        graph.replay()
        assert self._logits is not None
        return self._logits[: len(rows)]

    @property
    def refused(self) -> str:
        """Why graphs are no longer recorded; "" while they are."""
        return self._graphs.refused

    @property
    def keeps_hidden(self) -> bool:
        """Whether `keep_hidden` was called."""
        return self._hidden is not None

    @property
    def state(self) -> tuple[int, int]:
        """Versions of the pool's tensors and of the weights; changes when either is replaced."""
        return self._pool.version, self._decoder.weights_version

    def _shape(self, rows: Sequence[PagedRow]) -> Shape | None:
        """The padded shape of a step; None if there is no graph for that many rows or keys."""
        if len(rows) > self._sizes[-1]:
            return None
        size = self._sizes[bisect_left(self._sizes, len(rows))]
        longest = max(row.start for row in rows) + 1
        keys = min(max(GRAPH_KEYS, 1 << (longest - 1).bit_length()), self._context)
        is_small = partial_bytes(self._decoder.config, size, keys) <= GRAPH_PARTIAL_BYTES
        return Shape(size, keys) if is_small else None

    def _captured(
        self, shape: Shape, rows: Sequence[PagedRow], tokens: Sequence[int]
    ) -> tuple[_Buffers, Graph]:
        """Record a graph with the inputs of this step, so that running it changes nothing else."""
        decoder, pool = self._decoder, self._pool
        buffers = _Buffers(decoder, pool, shape)
        buffers.fill(rows, tokens)
        if self._logits is None:
            size = (self._sizes[-1], decoder.config.vocab_size)
            self._logits = torch.zeros(size, dtype=torch.float32, device=buffers.tokens.device)
        out = self._logits[: shape.rows]
        kept = None if self._hidden is None else self._hidden[: shape.rows]
        attend = SingleTokens(pool, decoder.config, buffers.slots, buffers.seen)

        def step() -> None:
            hidden = decoder(buffers.tokens, buffers.positions, attend)
            if kept is not None:
                kept.copy_(hidden)
            out.copy_(decoder.logits(hidden))

        (graph,) = self._device.capture([step])
        return buffers, graph


class _Buffers:
    """The inputs of a step that a graph reads: one tensor on the device, filled by one copy.

    Two host buffers are used alternately: the copy from a buffer is done once the results of its
    step have been read, which happens before the second step after it starts.

    Attributes:
        tokens, positions: [rows] int64.
        slots, seen: for each group, as `SingleTokens` takes them.
    """

    def __init__(self, decoder: Decoder, pool: KvPool, shape: Shape) -> None:
        self._pool = pool
        self._windows = decoder.config.groups
        rows, page = shape.rows, pool.page
        most = [shape.keys if one is None else min(one, shape.keys) for one in self._windows]
        # A window may begin and end within a page.
        widths = [
            -(-keys // page) + (window is not None)
            for keys, window in zip(most, self._windows, strict=True)
        ]
        groups = len(widths)
        # Arrays of eight-byte elements come first.
        sizes = [2 * rows] * (2 + groups)
        for width in widths:
            sizes += [rows, rows, rows * width]
        device = pool.layer(0)[0].device
        self._hosts = [
            torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
            for _ in range(2)
        ]
        self._sizes, self._widths = sizes, widths
        self._there = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        there = self._there.split_with_sizes(sizes)
        wide = [part.view(torch.int64) for part in there[: 2 + groups]]
        self.tokens, self.positions, self.slots = wide[0], wide[1], wide[2:]
        self._rows = rows
        self.seen = [
            Seen(table.view(rows, width), begins, ends, keys)
            for begins, ends, table, width, keys in zip(
                *(there[2 + groups + at :: 3] for at in range(3)), widths, most, strict=True
            )
        ]

    def fill(self, rows: Sequence[PagedRow], tokens: Sequence[int]) -> None:
        """Write the inputs of a step; padding rows use position 0 of the spare blocks."""
        count, groups = len(rows), len(self._windows)
        self._hosts.reverse()
        host = self._hosts[0]
        parts: list[NDArray[np.int32]] = [
            part.numpy() for part in host.split_with_sizes(self._sizes)
        ]
        spare = tuple([self._pool.spare_block(group)] for group in range(groups))
        padded = [*rows, *[PagedRow(0, 1, spare)] * (self._rows - count)]
        token_ids, positions, *slots = (part.view(np.int64) for part in parts[: 2 + groups])
        token_ids[:count], token_ids[count:] = tokens, 0
        positions[:] = [row.start for row in padded]
        for group, window in enumerate(self._windows):
            reach = Reaches(padded, group, window, self._pool.page)
            begins, ends, table = parts[2 + groups + 3 * group :][:3]
            slots[group][:], begins[:], ends[:] = reach.slots, reach.begins, reach.keys
            of_rows = table.reshape(self._rows, self._widths[group])
            of_rows[:, : reach.table.shape[1]] = reach.table
        self._there.copy_(host, non_blocking=True)
