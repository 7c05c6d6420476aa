"""The size of llama.cpp's compute buffer: the scratch memory of one graph.

llama.cpp places a graph's tensors into one buffer, each for as long as an operator still reads it
(`ggml_gallocr`). The size of the buffer is therefore that of the tensors alive at the widest point,
plus the unused gaps between them. The sizes below were found by asking llama.cpp for the buffers of
many shapes (`no_alloc`), varying one number at a time; tests/quant/test_memory.py checks them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hearth.quant.memory_shape import ModelShape

_F32: Final = 4
_F16: Final = 2
_WORK_BYTES: Final = 2
"""Bytes of each input element of a matrix product, in the type that it multiplies: f16 or less."""


@dataclass(frozen=True, slots=True)
class Graph:
    """The largest amount that one graph computes."""

    tokens: int
    """Tokens at once (n_ubatch)."""
    cells: int
    """Cells of the KV cache that the tokens attend to."""
    sequences: int
    """Sequence ids that the context is made for (n_seq_max)."""
    outputs: int
    """Rows of logits."""
    flash: bool
    """With flash attention."""

    @property
    def rows(self) -> int:
        """Tokens as llama.cpp plans them: equally many for each sequence."""
        return -(-min(self.tokens, self.cells) // self.sequences) * self.sequences


def compute_bytes(shape: ModelShape, graph: Graph) -> int:
    """Size of the compute buffer that llama.cpp reports, in bytes.

    It holds the attention mask throughout, and the activations.
    """
    return mask_bytes(shape, graph, graph.rows) + activation_bytes(shape, graph)


def activation_bytes(shape: ModelShape, graph: Graph) -> int:
    """Bytes of the results that operators pass to each other: the largest of three points.

    These are: between the matrices of the feed-forward part (three of its rows, four of the
    residual stream), in attention (two of queries, keys and values, three of the stream), and at
    the logits. Without flash attention, attention also holds the scores of every row with every
    cell, for each head.
    """
    tokens = graph.rows
    row = _F32 * tokens
    width, queries = row * shape.width, row * shape.heads * shape.key_length
    keys = row * shape.kv_heads * shape.key_length
    attention = 2 * queries + 2 * keys + 3 * width
    if not graph.flash:
        attention += row * shape.heads * graph.cells
    between = 3 * row * shape.feed_forward + 4 * width
    logits = _F32 * shape.vocabulary * min(graph.outputs, tokens) + width
    return max(attention, between, logits)


def mask_bytes(shape: ModelShape, graph: Graph, tokens: int) -> int:
    """Bytes of the attention mask: f16 for flash attention, else f32; one for each kind of
    attention."""
    element = _F16 if graph.flash else _F32
    return (2 if shape.windows else 1) * element * tokens * graph.cells


def work_bytes(shape: ModelShape, tokens: int) -> int:
    """Bytes of the operators' own scratch buffer, which holds the converted input rows of the
    widest matrix (`ggml_graph_plan`)."""
    widest = max(shape.feed_forward, shape.width, shape.heads * shape.key_length)
    return _WORK_BYTES * tokens * widest
