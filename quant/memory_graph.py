"""How large llama.cpp's compute buffer is: the scratch memory of one graph.

llama.cpp plans a graph's tensors into one buffer, each as long as somebody still reads it
(`ggml_gallocr`), so its size is what is alive at the widest moment, and what lies unused between.
The sizes below were found by asking llama.cpp for the buffers of many shapes (`no_alloc`), one
number varied at a time; tests/quant/test_memory.py asks it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hearth.quant.memory_shape import ModelShape

_F32: Final = 4
_F16: Final = 2
_WORK_BYTES: Final = 2
"""Of each element that goes into a matrix, in the type that the product wants: f16 or less."""


@dataclass(frozen=True, slots=True)
class Graph:
    """What one graph computes at most."""

    tokens: int
    """Tokens at once (n_ubatch)."""
    cells: int
    """Size of the pool that they look back on."""
    sequences: int
    """Ids that the context is made for (n_seq_max)."""
    outputs: int
    """Rows of logits."""
    flash: bool
    """With flash attention."""

    @property
    def rows(self) -> int:
        """Tokens as llama.cpp plans them: equally many of each sequence."""
        return -(-min(self.tokens, self.cells) // self.sequences) * self.sequences


def compute_bytes(shape: ModelShape, graph: Graph) -> int:
    """Size of the compute buffer that llama.cpp reports, in bytes.

    It holds the attention mask throughout, and the activations.
    """
    return mask_bytes(shape, graph, graph.rows) + activation_bytes(shape, graph)


def activation_bytes(shape: ModelShape, graph: Graph) -> int:
    """What operators leave for each other, in bytes: the largest of three moments.

    They are: between the matrices of the feed-forward part (three of its rows, four of the residual
    stream), in attention (two of queries, keys and values, three of the stream), and at the logits.
    Without flash attention there is also the product of every row with every cell, for each head.
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
    """Which token looks at which cell: f16 for flash attention, else f32; once for each kind of
    attention."""
    element = _F16 if graph.flash else _F32
    return (2 if shape.windows else 1) * element * tokens * graph.cells


def work_bytes(shape: ModelShape, tokens: int) -> int:
    """The operators' own scratch buffer: the rows of the widest matrix, converted
    (`ggml_graph_plan`)."""
    widest = max(shape.feed_forward, shape.width, shape.heads * shape.key_length)
    return _WORK_BYTES * tokens * widest
