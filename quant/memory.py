"""How much memory a model takes that llama.cpp runs: arithmetic on what its file declares.

`memory_use` adds up the parts; the file's header gives them exactly (`hearth.quant.memory_shape`),
and before there is a header, the size of the file gives an estimate that says how uncertain it is.
`benchmarks/memory_fit.py` sets the sums beside what workers take.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from hearth.quant.memory_graph import Graph, compute_bytes, work_bytes
from hearth.quant.memory_shape import GUESS_FACTOR, ModelShape
from hearth.quant.memory_weights import Weights

RUNTIME_BASE_BYTES: Final = 92 << 20
"""What a worker takes without a model: the interpreter, numpy, llama.cpp and their libraries, and
what its threads allocate. With `_WORKER_TOKEN_BYTES` what VmHWM leaves after the other parts, for
the models of benchmarks/memory_fit.py --full: CPython 3.11 and llama-cpp-python 0.3.36 on Linux
x86-64, a processor with AVX-512 (2026-11-25). Render and grammar helpers are processes of their
own."""
_WORKER_TOKEN_BYTES: Final = 350
"""What a worker takes for each token of its vocabulary, next to what llama.cpp does."""

_TOKEN_BYTES: Final = {"gpt2": 229, "llama": 152, "bert": 149, "t5": 527}
_MERGE_BYTES: Final = 89
"""What llama.cpp's vocabulary keeps for a token, by kind of tokenizer, and for a merge of byte
pairs: texts, both ways of looking them up, and what each is as text. By how much a process grows
that loads the vocabulary alone (`vocab_only`), over the nineteen that come with llama.cpp's source;
nearly all are within a tenth of it."""
_CELL_BYTES: Final = 256
"""What is noted of each cell beside its keys and values: position, sequences, and its token, in
llama.cpp and in the engine."""
_LOGIT_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Pool:
    """What a context is made with, and how full it is."""

    cells: int
    """Tokens that it has room for."""
    copied_cells: int
    """Tokens that were moved into it when it grew last; 0 where it did not."""
    used_cells: int
    """Tokens that it holds: what lies beyond takes its keys and values, which are zeroed when the
    pool is made, and no scratch memory."""
    kv_type: str
    """Tensor type of keys, in lower case."""
    value_type: str
    sequences: int
    """Sequence ids (n_seq_max)."""
    tokens: int
    """Tokens of one graph (n_ubatch)."""
    flash: bool = True
    outputs: int = 1
    """Rows of logits that are asked for at once."""
    part_cells: int = 0
    """Tokens that are copied at once to be written to disk."""
    state_bytes: int = 0
    """Recurrent states of all sequence ids."""
    may_turn: bool = False
    """Attention may change between flash and the other kind, for which values lie otherwise."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What one worker takes whose pool holds what `Pool` says, by part, in bytes."""

    weights: int
    """Tensors in memory of its own, or the whole mapped file."""
    repacked: int
    """Copies of mapped tensors in another order."""
    kv: int
    """Keys and values of the whole pool."""
    states: int
    """Of recurrent layers."""
    compute: int
    """Scratch memory of a graph, and copies of keys and values on their way to the disk."""
    outputs: int
    """Rows of logits."""
    vocabulary: int
    base: int
    """Interpreter and libraries."""
    growing: int
    """The copy of what a pool held, when it last grew. There is no scratch memory then."""
    turning: int
    """A copy of what it holds, while attention changes to the other kind: only on processors where
    that pays, and only where so much is free."""
    mapped: bool = False
    """`weights` are pages of a file, which the system can drop and read again."""
    uncertain: int = 0
    """The sum may be so much less or more: known from the file's size alone. 0: known."""

    @property
    def held(self) -> int:
        """At work, when the pool has come to hold that."""
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
        """The most on the way there, which is what VmHWM shows; `most` if attention changed."""
        return self.held + max(0, self.growing - self.compute)

    @property
    def most(self) -> int:
        """What VmHWM shows if attention changed too."""
        return max(self.total, self.held + self.turning)

    @property
    def needed(self) -> int:
        """What must be in memory at once for every token: of a mapped file, not what was copied out
        of it."""
        return self.total - (self.repacked if self.mapped else 0)


def memory_use(shape: ModelShape, weights: Weights, pool: Pool) -> MemoryUse:
    """The memory of a worker, by part.

    Args:
        shape: of the model, from its header.
        weights: the file.
        pool: of the context.

    Raises:
        KeyError: a type of `pool` is no tensor type.
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
        turning=pool.used_cells * token_bytes if pool.may_turn else 0,
        mapped=weights.mapped,
    )


def estimated_use(
    file_bytes: int, shape: ModelShape, pool: Pool, *, knows_kv: bool = False, mapped: bool = False
) -> MemoryUse:
    """`memory_use` where there is no header yet, only the size of the files and a shape that models
    of that size usually have (`guessed_shape`).

    `uncertain` covers half to twice what was guessed: keys and values, scratch memory, rows of
    logits and vocabulary.

    Args:
        file_bytes: of all files.
        shape: guessed.
        pool: of the context.
        knows_kv: the sizes of keys and values are known, and not guessed.
        mapped: the file will be mapped; how much of it is repacked is not known then, and all of it
            is counted.
    """
    weights = Weights(file_bytes, file_bytes, repacked_bytes=file_bytes, mapped=mapped)
    use = memory_use(shape, weights, pool)
    guessed = use.compute + use.outputs + use.vocabulary
    if not knows_kv:
        guessed += use.kv + use.growing
    return replace(use, uncertain=int(guessed * (GUESS_FACTOR - 1)))


def vocabulary_bytes(shape: ModelShape) -> int:
    """What llama.cpp's vocabulary takes, in bytes: approximately."""
    token = _TOKEN_BYTES.get(shape.tokenizer, _TOKEN_BYTES["gpt2"])
    return token * shape.vocabulary + _MERGE_BYTES * shape.merges
