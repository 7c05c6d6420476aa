"""Tiny llamas for asking a library something: a quantized one and its float32 twin, whether it
computes the right thing; one layer with heads of a given shape, how fast attention is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VOCAB = 288


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention of a layer."""

    heads: int
    kv_heads: int
    key_length: int
    value_length: int


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer of a llama."""

    hidden: int
    ffn: int
    context: int
    heads: Heads


PAIR_CONTEXT = 256
_PAIR = _Layer(hidden=256, ffn=512, context=PAIR_CONTEXT, heads=Heads(4, 2, 64, 64))
"""Widths are a multiple of every repacked layout's block (AMX tiles: 32; K-quants: 256)."""

FORMATS = ("Q8_0", "Q4_0")
"""Quantized types that the probe covers: gguf-py can write them, and both AMX and repacked kernels
take them."""


def write_pair(folder: Path, format_name: str, seed: int = 0) -> tuple[Path, Path]:
    """Write a one-layer model quantized to `format_name`, and one with the very same weights in
    float32.

    Args:
        folder: where to; the files are named after the format.
        format_name: one of `FORMATS`.

    Returns:
        (quantized, float32).
    """
    import gguf

    kind = gguf.GGMLQuantizationType[format_name]
    rng = np.random.default_rng(seed)
    packed: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for name, shape in _shapes(_PAIR).items():
        if len(shape) == 1:
            packed[name] = plain[name] = np.ones(shape, np.float32)
            continue
        weight = (rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
        packed[name] = gguf.quants.quantize(weight, kind)
        plain[name] = gguf.quants.dequantize(packed[name], kind)
    quantized, exact = folder / f"{format_name}.gguf", folder / f"{format_name}-f32.gguf"
    _write(quantized, packed, kind, _PAIR)
    _write(exact, plain, None, _PAIR)
    return quantized, exact


def write_attention(path: Path, heads: Heads, context: int, seed: int = 0) -> Path:
    """Write a one-layer model in which nearly all the work is attention, in float32."""
    layer = _Layer(hidden=64, ffn=32, context=context, heads=heads)
    rng = np.random.default_rng(seed)
    tensors = {
        name: np.ones(shape, np.float32)
        if len(shape) == 1
        else (rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
        for name, shape in _shapes(layer).items()
    }
    _write(path, tensors, None, layer)
    return path


def _shapes(layer: _Layer) -> dict[str, tuple[int, ...]]:
    heads = layer.heads
    hidden, ffn = layer.hidden, layer.ffn
    return {
        "token_embd.weight": (VOCAB, hidden),
        "output_norm.weight": (hidden,),
        "output.weight": (VOCAB, hidden),
        "blk.0.attn_norm.weight": (hidden,),
        "blk.0.attn_q.weight": (heads.heads * heads.key_length, hidden),
        "blk.0.attn_k.weight": (heads.kv_heads * heads.key_length, hidden),
        "blk.0.attn_v.weight": (heads.kv_heads * heads.value_length, hidden),
        "blk.0.attn_output.weight": (hidden, heads.heads * heads.value_length),
        "blk.0.ffn_norm.weight": (hidden,),
        "blk.0.ffn_gate.weight": (ffn, hidden),
        "blk.0.ffn_up.weight": (ffn, hidden),
        "blk.0.ffn_down.weight": (hidden, ffn),
    }


def _write(path: Path, tensors: dict[str, Any], kind: Any, layer: _Layer) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("hearth self-test")
    writer.add_context_length(layer.context)
    writer.add_embedding_length(layer.hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(layer.ffn)
    writer.add_head_count(layer.heads.heads)
    writer.add_head_count_kv(layer.heads.kv_heads)
    writer.add_key_length(layer.heads.key_length)
    writer.add_value_length(layer.heads.value_length)
    writer.add_rope_dimension_count(layer.heads.key_length)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"<{i}>" for i in range(VOCAB)])
    writer.add_token_scores([0.0] * VOCAB)
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * VOCAB)
    for name, data in tensors.items():
        is_packed = kind is not None and data.dtype != "float32"
        writer.add_tensor(name, data, raw_dtype=kind if is_packed else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
