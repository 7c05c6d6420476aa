"""The facts of a GGUF header that planning needs; `hearth.quant.gguf.file.GgufFile` has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hearth.quant.gguf.file import GgufFile


class GgufFacts(Protocol):
    """Facts that are read from a GGUF header (`hearth.quant.gguf.preflight`)."""

    @property
    def architecture(self) -> str: ...
    @property
    def context_length(self) -> int: ...
    def value(self, key: str, default: Any = None) -> Any: ...
    def kv_bytes_per_token(self, type_k: str, type_v: str) -> int: ...


def integer(facts: GgufFacts, name: str, default: int = 0) -> int:
    """A number of the architecture; the largest if each layer has its own."""
    stored = facts.value(f"{facts.architecture}.{name}", default)
    if isinstance(stored, int):
        return stored
    return max((int(value) for value in stored), default=default)


def has_rank_head(shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a file has the tensors that compute a score from a text's vector.

    See `build_pooling` in llama-graph.cpp. Without them, llama.cpp returns numbers of the vector
    itself as scores.

    Args:
        shapes: (inputs, outputs) of the file's tensors, by name.
    """
    return "cls.output.weight" in shapes or shapes.get("cls.weight", ())[1:] == (1,)


def least_long_cells(header: GgufFile) -> int:
    """Cells of the smallest context for which llama.cpp uses longrope's factors for long texts.

    0 if the model has no such factors.
    """
    if all(tensor.name != "rope_factors_long.weight" for tensor in header.all_tensors):
        return 0
    key = f"{header.architecture}.rope.scaling.original_context_length"
    return (header.integer(key, header.context_length) or 0) + 1
