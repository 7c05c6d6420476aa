"""How much memory a model takes when llama.cpp runs it, computed from what its file declares.

`memory_use` adds up the parts. The file's header gives them exactly (`hearth.quant.memory_shape`);
before a header is available, the size of the file gives an estimate with its uncertainty.
`benchmarks/memory_fit.py` compares the sums with the memory that workers take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from hearth.quant.memory_graph import Graph, compute_bytes, work_bytes
from hearth.quant.memory_shape import GUESS_FACTOR, ModelShape
from hearth.quant.memory_weights import Weights

RUNTIME_BASE_BYTES: Final = 92 << 20
"""What a worker takes without a model: the interpreter, numpy, llama.cpp and their libraries, and
what its threads allocate. Together with `_WORKER_TOKEN_BYTES` this is VmHWM less the other parts,
for the models of benchmarks/memory_fit.py --full: CPython 3.11 and llama-cpp-python 0.3.36 on Linux
x86-64, a processor with AVX-512 (2026-11-25). Render and grammar helpers are separate processes."""
_WORKER_TOKEN_BYTES: Final = 350
"""What a worker takes for each token of its vocabulary, in addition to llama.cpp's share."""

_TOKEN_BYTES: Final = {"gpt2": 229, "llama": 152, "bert": 149, "t5": 527}
_MERGE_BYTES: Final = 89
"""What llama.cpp's vocabulary keeps for each token, by kind of tokenizer, and for each byte-pair
merge: the texts, the lookup tables in both directions, and the text of each token. Measured as the
growth of a process that loads only the vocabulary (`vocab_only`), over the nineteen vocabularies
that come with llama.cpp's source; nearly all are within a tenth of it."""
_CELL_BYTES: Final = 256
"""What llama.cpp and the engine record for each cell besides its keys and values: position,
sequences and token."""
_LOGIT_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Pool:
    """The parameters of a context, and how full its KV pool is."""

    cells: int
    """Tokens that the pool has room for."""
    copied_cells: int
    """Tokens that were copied into the pool when it last grew; 0 if it never did."""
    used_cells: int
    """Tokens that the pool holds. Unused cells take memory for keys and values, which are zeroed
    when the pool is made, but no scratch memory."""
    kv_type: str
    """Tensor type of keys, in lower case."""
    value_type: str
    sequences: int
    """Sequence ids (n_seq_max)."""
    tokens: int
    """Tokens of one graph (n_ubatch)."""
    flash: bool = True
    outputs: int = 1
    """Rows of logits that are requested at once."""
    part_cells: int = 0
    """Tokens that are copied at once to be written to disk."""
    state_bytes: int = 0
    """Recurrent states of all sequence ids."""
    may_transpose: bool = False
    """Attention may switch between flash and the other kind, which stores values in another
    layout."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of a worker with a given `Pool`, by part, in bytes."""

    weights: int
    """Tensors in the worker's own memory, or the whole mapped file."""
    repacked: int
    """Copies of tensors in another order."""
    kv: int
    """Keys and values of the whole pool."""
    states: int
    """States of recurrent layers."""
    compute: int
    """Scratch memory of a graph, and copies of keys and values being written to disk."""
    outputs: int
    """Rows of logits."""
    vocabulary: int
    base: int
    """Interpreter and libraries."""
    growing: int
    """The copy of the pool's contents when it last grew; no scratch memory exists at that time."""
    transposing: int
    """The copy of the pool's contents while attention switches to the other kind: only on
    processors where that pays, and only if that much memory is free."""
    mapped: bool = False
    """`weights` are pages of a file, which the system can drop and read again."""
    uncertain: int = 0
    """By how much the sum may be too high or too low because it is estimated from the file's size;
    0 if it is known."""

    @property
    def held(self) -> int:
        """Memory in normal operation, with the pool filled as given."""
        return (
            self.weights
            + self.repacked
            + self.kv
            + self.states
            + self.compute
            + self.outputs
            + self.vocabulary
            + self.base
        )

    @property
    def total(self) -> int:
        """The peak while the pool grew to its size, as VmHWM shows it without a switch of
        attention."""
        return self.held + max(0, self.growing - self.compute)

    @property
    def most(self) -> int:
        """The peak that VmHWM shows if attention was also switched to the other kind."""
        return max(self.total, self.held + self.transposing)

    @property
    def needed(self) -> int:
        """What must be in memory at once for every token. Of a mapped file, the tensors that were
        repacked into copies are not counted twice."""
        return self.total - (self.repacked if self.mapped else 0)


def memory_use(shape: ModelShape, weights: Weights, pool: Pool) -> MemoryUse:
    """The memory of a worker, by part.

    Args:
        shape: of the model, from its header.
        weights: the file.
        pool: of the context.

    Raises:
        KeyError: a type of `pool` is not a tensor type.
    """
    token_bytes = shape.kv_bytes_per_token(pool.kv_type, pool.value_type)
    graph = Graph(pool.tokens, pool.used_cells, pool.sequences, pool.outputs, pool.flash)
    scratch = compute_bytes(shape, graph) + work_bytes(shape, pool.tokens)
    return MemoryUse(
        weights=weights.held,
        repacked=weights.copied,
        kv=pool.cells * (token_bytes + _CELL_BYTES),
        states=pool.state_bytes,
        compute=scratch + pool.part_cells * token_bytes,
        outputs=_LOGIT_BYTES * shape.vocabulary * max(pool.sequences, pool.outputs),
        vocabulary=vocabulary_bytes(shape) + _WORKER_TOKEN_BYTES * shape.vocabulary,
        base=RUNTIME_BASE_BYTES,
        growing=pool.copied_cells * token_bytes,
        transposing=pool.used_cells * token_bytes if pool.may_transpose else 0,
        mapped=weights.mapped,
    )


def estimated_use(
    file_bytes: int, shape: ModelShape, pool: Pool, *, knows_kv: bool = False, mapped: bool = False
) -> MemoryUse:
    """`memory_use` without a header, from the size of the files and the usual shape of models of
    that size (`guessed_shape`).

    `uncertain` covers half to twice the guessed parts: keys and values, scratch memory, rows of
    logits and vocabulary.

    Args:
        file_bytes: of all files.
        shape: guessed.
        pool: of the context.
        knows_kv: the sizes of keys and values are known rather than guessed.
        mapped: the file will be mapped. How much of it is repacked is unknown, so all of it is
            counted as repacked.
    """
    weights = Weights(file_bytes, file_bytes, repacked_bytes=file_bytes, mapped=mapped)
    use = memory_use(shape, weights, pool)
    guessed = use.compute + use.outputs + use.vocabulary
    if not knows_kv:
        guessed += use.kv + use.growing
    return replace(use, uncertain=int(guessed * (GUESS_FACTOR - 1)))


def vocabulary_bytes(shape: ModelShape) -> int:
    """Approximate size of llama.cpp's vocabulary, in bytes."""
    token = _TOKEN_BYTES.get(shape.tokenizer, _TOKEN_BYTES["gpt2"])
    return token * shape.vocabulary + _MERGE_BYTES * shape.merges
