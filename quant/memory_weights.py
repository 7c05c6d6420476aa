"""How a file's tensors are held in memory: which are copied, and which each token reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from hearth.quant.gguf.file import GgufFile, TensorInfo
from hearth.quant.gguf.types import TensorType

_EMBEDDING: Final = "token_embd.weight"
_OUTPUT: Final = "output.weight"
_EXPERTS: Final = "_exps."
_ROWS: Final = {TensorType.Q8_0: 4}
_USUAL_ROWS: Final = 8
"""A matrix is repacked if its number of rows is a multiple of this (exceptions: `_ROWS`)."""


def repacked_types(cpu_flags: Collection[str]) -> frozenset[TensorType]:
    """The types whose matrices llama.cpp stores in another order on a processor
    (`ggml_repack_get_optimal_repack_type` of ggml-cpu/repack.cpp, llama-cpp-python 0.3.36).

    A library that was built with AMX repacks more types into its own order, which takes up to an
    eighth more than the file (Q8_0); the processor flags do not show whether it was.

    Args:
        cpu_flags: the flags in /proc/cpuinfo.
    """
    repacked: set[TensorType] = set()
    kinds = TensorType
    if "avx2" in cpu_flags:
        repacked |= {kinds.Q4_0, kinds.Q4_K, kinds.IQ4_NL, kinds.MXFP4}
    if "avx512f" in cpu_flags:
        repacked.add(kinds.Q2_K)
    if "asimddp" in cpu_flags:
        repacked |= {kinds.Q4_0, kinds.Q4_K, kinds.Q5_K, kinds.Q6_K}
        repacked |= {kinds.IQ4_NL, kinds.MXFP4, kinds.Q8_0}
    return frozenset(repacked)


@dataclass(frozen=True, slots=True)
class Weights:
    """The sizes of a model's weights in files and in memory, in bytes."""

    tensor_bytes: int
    """All tensors."""
    file_bytes: int
    """All files, headers included."""
    repacked_bytes: int = 0
    """Tensors that are stored in another order."""
    doubled_bytes: int = 0
    """The part of `repacked_bytes` that is also needed in the order of the file: the embedding, if
    it is the output matrix as well."""
    mapped: bool = False
    """The file is mapped, so repacked tensors are additional copies; otherwise tensors are read
    directly into the other order."""

    @property
    def held(self) -> int:
        """The mapped pages of the file, or the tensors in allocated memory."""
        return self.file_bytes if self.mapped else self.tensor_bytes

    @property
    def copied(self) -> int:
        """Copies of tensors in addition to `held`."""
        return self.repacked_bytes if self.mapped else self.doubled_bytes


def weights_of(header: GgufFile, types: Collection[TensorType], *, mapped: bool) -> Weights:
    """The weights of a model.

    Args:
        header: of the first file, with the others as `shards`.
        types: the types that are repacked; empty if llama.cpp may not repack (`extra_buffers`).
        mapped: the file is mapped.
    """
    tensors = header.all_tensors
    is_tied = all(tensor.name != _OUTPUT for tensor in tensors)
    repacked = doubled = 0
    for tensor in tensors:
        if not _is_repacked(tensor, types):
            continue
        if tensor.name != _EMBEDDING:
            repacked += tensor.nbytes
        elif is_tied:
            repacked += tensor.nbytes
            doubled += tensor.nbytes
    return Weights(
        tensor_bytes=sum(tensor.nbytes for tensor in tensors),
        file_bytes=sum(part.size_bytes for part in (header, *header.shards)),
        repacked_bytes=repacked,
        doubled_bytes=doubled,
        mapped=mapped,
    )


def read_bytes_per_token(header: GgufFile) -> int:
    """Bytes of weights that are read to compute one token: all matrices, but only the experts that
    are used. An embedding that is not the output matrix is left out, since only one row is read.
    """
    arch = header.architecture
    tensors: Iterable[TensorInfo] = header.all_tensors
    has_output = any(tensor.name == _OUTPUT for tensor in tensors)
    experts = header.integer(f"{arch}.expert_count", 0)
    used = header.integer(f"{arch}.expert_used_count", experts)
    read = 0
    for tensor in tensors:
        if tensor.name == _EMBEDDING and has_output:
            continue
        is_expert = _EXPERTS in tensor.name and experts > 0
        read += tensor.nbytes * used // experts if is_expert else tensor.nbytes
    return read


def _is_repacked(tensor: TensorInfo, types: Collection[TensorType]) -> bool:
    rows = _ROWS.get(tensor.type, _USUAL_ROWS)
    return (
        tensor.type in types
        and len(tensor.shape) in (2, 3)
        and tensor.name.endswith(".weight")
        and tensor.shape[1] % rows == 0
    )
