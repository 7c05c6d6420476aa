"""Architectures of the llama family: the tensors of each layer, and their shapes.

Source: `load_arch_tensors` in llama.cpp's `src/models/<architecture>.cpp`. Biases are optional
everywhere, and so is `output.weight` (the embedding is then used twice).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from hearth.quant.gguf.faults import corrupt, quoted
from hearth.quant.gguf.file import GgufFile, TensorInfo
from hearth.quant.gguf.hparams import HyperParameters
from hearth.quant.gguf.types import NOT_WEIGHTS, TensorType

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """How an architecture differs from llama."""

    head_norms: bool = False
    """Each query and key head is normalized."""
    post_norms: bool = False
    """The outputs of attention and feed-forward are normalized too."""
    square_attention: bool = False
    """All heads together are as wide as the embedding."""
    rope_covers_head: bool = True
    """Whole heads are rotated; False: only part of a head may be."""
    experts: bool = False
    """The model may be a mixture of experts."""


FAMILIES: dict[str, Family] = {
    "llama": Family(experts=True),
    "mistral3": Family(experts=True),
    "qwen2": Family(square_attention=True),
    "qwen3": Family(head_norms=True),
    "gemma": Family(rope_covers_head=False),
    "gemma2": Family(post_norms=True, rope_covers_head=False),
    "gemma3": Family(head_norms=True, post_norms=True, rope_covers_head=False),
}


def check_family(file: GgufFile, params: HyperParameters, vocabulary: int) -> None:
    """Check the tensors of a llama-like model against its hyper-parameters. Other architectures are
    not checked.

    Args:
        vocabulary: number of tokens; 0: the number of rows of the embedding.

    Raises:
        CorruptFile: a hyper-parameter is invalid, or a tensor is missing or has an unexpected shape
            or type.
    """
    family = FAMILIES.get(params.architecture)
    if family is None:
        return
    _check_parameters(file, params, family)
    tensors = {tensor.name: tensor for tensor in file.all_tensors}
    if not vocabulary:
        embedding = _present(file, tensors, "token_embd.weight")
        vocabulary = embedding.shape[-1]
    required, optional = _model_shapes(params, vocabulary)
    for layer in range(params.layers):
        layer_required, layer_optional = _layer_shapes(params, family, f"blk.{layer}.", tensors)
        required |= layer_required
        optional |= layer_optional
    for name, shape in required.items():
        _check_tensor(file, _present(file, tensors, name), shape)
    for name, shape in optional.items():
        if name in tensors:
            _check_tensor(file, tensors[name], shape)


def _check_parameters(file: GgufFile, params: HyperParameters, family: Family) -> None:
    arch = params.architecture
    heads, heads_kv = params.heads[0], params.heads_kv[0]
    for name, values in (
        ("attention.head_count", params.heads),
        ("attention.head_count_kv", params.heads_kv),
        ("feed_forward_length", params.feed_forward),
    ):
        if values[0] < 1 or len(set(values)) > 1:
            shown = values[0] if len(set(values)) == 1 else "differs between layers"
            raise corrupt(
                file.path, f"key '{arch}.{name}'", f"{shown}, must be at least 1 and one for all"
            )
    if f"{arch}.attention.key_length" not in file.metadata and params.embedding_length % heads:
        raise corrupt(
            file.path,
            f"key '{arch}.attention.head_count'",
            f"{heads:,} does not divide the embedding length {params.embedding_length:,}",
        )
    if params.key_length < 1 or params.key_length != params.value_length:
        raise corrupt(
            file.path,
            f"key '{arch}.attention.key_length'",
            f"{params.key_length:,}, the value length is {params.value_length:,}; "
            "they must be equal and at least 1",
        )
    if family.square_attention and heads * params.key_length != params.embedding_length:
        raise corrupt(
            file.path,
            f"key '{arch}.attention.head_count'",
            f"{heads:,} heads of {params.key_length:,} do not give the embedding length "
            f"{params.embedding_length:,}",
        )
    _check_rope(file, params, family)
    epsilon_key = f"{arch}.attention.layer_norm_rms_epsilon"
    epsilon = file.value(epsilon_key)
    if not isinstance(epsilon, float) or not isfinite(epsilon) or epsilon < 0:
        raise corrupt(
            file.path, f"key '{epsilon_key}'", f"{epsilon!r}, must be a finite F32 from 0"
        )
    if heads_kv > heads:
        raise corrupt(
            file.path, f"key '{arch}.attention.head_count_kv'", f"{heads_kv:,} of {heads:,} heads"
        )
    if params.experts and not family.experts:
        raise corrupt(file.path, f"key '{arch}.expert_count'", f"{params.experts}, must be 0")


def _check_rope(file: GgufFile, params: HyperParameters, family: Family) -> None:
    dims, head = params.rope_dims, params.key_length
    fits = dims == head if family.rope_covers_head else 0 < dims <= head
    if not fits or dims % 2:
        raise corrupt(
            file.path,
            f"key '{params.architecture}.rope.dimension_count'",
            f"{dims:,} for heads of {head:,} elements, must be even and "
            + ("equal" if family.rope_covers_head else "at most that"),
        )


def _model_shapes(
    params: HyperParameters, vocabulary: int
) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """The required and optional tensors outside of layers."""
    embedding = params.embedding_length
    required: dict[str, Shape] = {
        "token_embd.weight": (embedding, vocabulary),
        "output_norm.weight": (embedding,),
    }
    optional: dict[str, Shape] = {
        "output.weight": (embedding, vocabulary),
        "output.bias": (vocabulary,),
        "rope_freqs.weight": (params.rope_dims // 2,),
    }
    return required, optional


def _layer_shapes(
    params: HyperParameters, family: Family, block: str, tensors: dict[str, TensorInfo]
) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """The required and optional tensors of the layer whose tensor names begin with `block`."""
    embedding, feed_forward, head = (
        params.embedding_length,
        params.feed_forward[0],
        params.key_length,
    )
    query, key = params.heads[0] * head, params.heads_kv[0] * head
    required: dict[str, Shape] = {
        f"{block}attn_norm.weight": (embedding,),
        f"{block}attn_output.weight": (query, embedding),
        f"{block}ffn_norm.weight": (embedding,),
    }
    optional: dict[str, Shape] = {
        f"{block}attn_q.bias": (query,),
        f"{block}attn_k.bias": (key,),
        f"{block}attn_v.bias": (key,),
        f"{block}attn_output.bias": (embedding,),
    }
    if f"{block}attn_qkv.weight" in tensors:
        required[f"{block}attn_qkv.weight"] = (embedding, query + 2 * key)
        optional[f"{block}attn_qkv.bias"] = (query + 2 * key,)
    else:
        required[f"{block}attn_q.weight"] = (embedding, query)
        required[f"{block}attn_k.weight"] = (embedding, key)
        required[f"{block}attn_v.weight"] = (embedding, key)
    if family.head_norms:
        required[f"{block}attn_q_norm.weight"] = (head,)
        required[f"{block}attn_k_norm.weight"] = (head,)
    if family.post_norms:
        required[f"{block}post_attention_norm.weight"] = (embedding,)
        required[f"{block}post_ffw_norm.weight"] = (embedding,)
    if params.experts:
        required[f"{block}ffn_gate_inp.weight"] = (embedding, params.experts)
        required[f"{block}ffn_up_exps.weight"] = (embedding, feed_forward, params.experts)
        required[f"{block}ffn_down_exps.weight"] = (feed_forward, embedding, params.experts)
        optional[f"{block}ffn_gate_exps.weight"] = (embedding, feed_forward, params.experts)
    else:
        required[f"{block}ffn_gate.weight"] = (embedding, feed_forward)
        required[f"{block}ffn_up.weight"] = (embedding, feed_forward)
        required[f"{block}ffn_down.weight"] = (feed_forward, embedding)
        optional[f"{block}ffn_gate.bias"] = (feed_forward,)
        optional[f"{block}ffn_up.bias"] = (feed_forward,)
        optional[f"{block}ffn_down.bias"] = (embedding,)
    return required, optional


def _present(file: GgufFile, tensors: dict[str, TensorInfo], name: str) -> TensorInfo:
    tensor = tensors.get(name)
    if tensor is None:
        raise corrupt(file.path, f"tensor {quoted(name)}", "is missing")
    return tensor


def _check_tensor(file: GgufFile, tensor: TensorInfo, shape: Shape) -> None:
    """Check shape and type. Trailing dimensions of 1 may be present or omitted, as in ggml."""
    field = f"tensor {quoted(tensor.name)}"
    padding = (1,) * 4
    if (tensor.shape + padding)[:4] != (shape + padding)[:4]:
        raise corrupt(
            file.path,
            f"{field} shape",
            f"{tensor.shape}, the hyper-parameters ask for {shape}",
        )
    if len(shape) == 1 and tensor.type is not TensorType.F32:
        raise corrupt(file.path, f"{field} type", f"{tensor.type.name}, must be F32")
    if tensor.type in NOT_WEIGHTS:
        raise corrupt(file.path, f"{field} type", f"{tensor.type.name} cannot hold weights")
