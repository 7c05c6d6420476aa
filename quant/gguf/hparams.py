"""Checks of the hyper-parameters that llama.cpp asserts on when it loads any architecture.

Source: `llama_model_base::load_hparams` in llama.cpp, whose assertions abort the process.
"""

from __future__ import annotations

from dataclasses import dataclass

from hearth.quant.gguf.faults import corrupt
from hearth.quant.gguf.file import GgufFile
from hearth.quant.gguf.types import ValueType

MAX_LAYERS = 512
MAX_EXPERTS = 1024
_U31_MAX = (1 << 31) - 1
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class HyperParameters:
    """The shape of a model. Lists have one entry per layer; a missing optional value is 0."""

    architecture: str
    context_length: int
    embedding_length: int
    layers: int
    heads: list[int]
    heads_kv: list[int]
    feed_forward: list[int]
    experts: int
    key_length: int
    value_length: int
    rope_dims: int


def read_hyper_parameters(file: GgufFile) -> HyperParameters:
    """The hyper-parameters of `file`.

    Raises:
        CorruptFile: a hyper-parameter is missing, of the wrong type or out of range, or two
            contradict each other.
    """
    arch = file.architecture
    layers = _u32(file, "block_count", 1, MAX_LAYERS)
    embedding = _u32(file, "embedding_length", 1, _U31_MAX)
    context = _u32(file, "context_length", 1, _U31_MAX)
    heads = file.per_layer(f"{arch}.attention.head_count", layers, 0)
    heads_kv = heads
    if f"{arch}.attention.head_count_kv" in file.metadata:
        heads_kv = file.per_layer(f"{arch}.attention.head_count_kv", layers)
    _check_heads(file, heads, heads_kv)
    head_length = embedding // next((count for count in heads if count), embedding)
    key_length = _u32(file, "attention.key_length", 0, _U31_MAX, head_length)
    _check_rope_scaling(file)
    _u32(file, "nextn_predict_layers", 0, layers, 0)
    return HyperParameters(
        architecture=arch,
        context_length=context,
        embedding_length=embedding,
        layers=layers,
        heads=heads,
        heads_kv=heads_kv,
        feed_forward=file.per_layer(f"{arch}.feed_forward_length", layers, 0),
        experts=_experts(file, layers),
        key_length=key_length,
        value_length=_u32(file, "attention.value_length", 0, _U31_MAX, head_length),
        rope_dims=_u32(file, "rope.dimension_count", 0, _U31_MAX, key_length),
    )


def _u32(file: GgufFile, name: str, smallest: int, largest: int, default: int | None = None) -> int:
    """The value of `<architecture>.<name>`; llama.cpp reads unsigned 32-bit integers only."""
    key = f"{file.architecture}.{name}"
    value = file.integer(key, default)
    kind = file.value_types.get(key, ValueType.U32)
    if kind is not ValueType.U32:
        raise corrupt(file.path, f"key '{key}'", f"is of type {kind.name}, must be U32")
    if not smallest <= value <= largest:
        raise corrupt(
            file.path, f"key '{key}'", f"{value:,}, must be from {smallest:,} to {largest:,}"
        )
    return value


def _check_heads(file: GgufFile, heads: list[int], heads_kv: list[int]) -> None:
    arch = file.architecture
    for layer, (count, count_kv) in enumerate(zip(heads, heads_kv, strict=True)):
        if count < 0 or count_kv < 0:
            raise corrupt(
                file.path,
                f"key '{arch}.attention.head_count'",
                f"layer {layer} has {count:,} heads and {count_kv:,} KV heads",
            )
        if count and count_kv and count % count_kv:
            raise corrupt(
                file.path,
                f"key '{arch}.attention.head_count_kv'",
                f"{count_kv:,} does not divide the {count:,} heads of layer {layer}",
            )


def _check_rope_scaling(file: GgufFile) -> None:
    key = f"{file.architecture}.rope.scaling.type"
    scaling = file.value(key, "linear")
    if scaling not in _ROPE_SCALINGS:
        raise corrupt(
            file.path, f"key '{key}'", f"{scaling!r}, must be one of {', '.join(_ROPE_SCALINGS)}"
        )


def _experts(file: GgufFile, layers: int) -> int:
    """Number of experts of a mixture-of-experts model; 0 for a dense model."""
    arch = file.architecture
    experts = _u32(file, "expert_count", 0, MAX_EXPERTS, 0)
    used_key = f"{arch}.expert_used_count"
    used = max(file.per_layer(used_key, layers, 0))
    if used > experts or (experts and used < 1):
        raise corrupt(file.path, f"key '{used_key}'", f"{used:,} of {experts:,} experts are used")
    groups = _u32(file, "expert_group_count", 0, max(experts - 1, 0), 0)
    if groups > 1:
        if experts % groups:
            raise corrupt(
                file.path,
                f"key '{arch}.expert_group_count'",
                f"{groups} does not divide {experts} experts",
            )
        _u32(file, "expert_group_used_count", 1, groups - 1, 0)
    return experts
