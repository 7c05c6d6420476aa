"""A tiny quantized llama and its float32 twin, for asking a library whether it computes the right
thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

HIDDEN = 256
"""A multiple of every repacked layout's block (AMX tiles: 32; K-quants: 256)."""
FFN = 512
VOCAB = 288
HEADS = 4
KV_HEADS = 2
CONTEXT = 256

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
    for name, shape in _shapes().items():
        if len(shape) == 1:
            packed[name] = plain[name] = np.ones(shape, np.float32)
            continue
        weight = (rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
        packed[name] = gguf.quants.quantize(weight, kind)
        plain[name] = gguf.quants.dequantize(packed[name], kind)
    quantized, exact = folder / f"{format_name}.gguf", folder / f"{format_name}-f32.gguf"
    _write(quantized, packed, kind)
    _write(exact, plain, None)
    return quantized, exact


def _shapes() -> dict[str, tuple[int, ...]]:
    width = KV_HEADS * (HIDDEN // HEADS)
    return {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "output.weight": (VOCAB, HIDDEN),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (width, HIDDEN),
        "blk.0.attn_v.weight": (width, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (FFN, HIDDEN),
        "blk.0.ffn_up.weight": (FFN, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, FFN),
    }


def _write(path: Path, tensors: dict[str, Any], kind: Any) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("hearth self-test")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
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
