"""GGUF files of tiny decoders, written without Hearth's converter: names and keys as in llama.cpp.

The one thing taken from the code under test is which tensors make up a parameter; llama.cpp, which
reads the same file, would not find them under other names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor

from gguf_builder import save, tiny_vocabulary
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.models.rope import inverse_frequencies
from hearth.quant.families.config import ModelConfig, Rope, RopeScaling
from hearth.quant.families.family import Family


def write_gguf(path: Path, architecture: str, family: Family, decoder: Decoder) -> Path:
    """`decoder` as a GGUF in F32, with a vocabulary of as many tokens."""
    config = decoder.config
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in _metadata(config).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](f"{architecture}.{key}", value)
    _add_tokenizer(writer, config.vocab_size)
    parameters = dict(decoder.named_parameters())
    for name, source in family.names(config).items():
        parts = source.gguf[0]
        for part, rows in zip(
            parts, _split(parameters[name], source.axis, name, len(parts), config), strict=True
        ):
            if part.heads:
                rows = _interleaved(rows, part.heads)
            writer.add_tensor(part.names[0], rows.contiguous().numpy())
    for name, factors in _factors(config).items():
        writer.add_tensor(name, torch.tensor(factors).numpy())
    save(writer)
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, size: int) -> None:
    words = tiny_vocabulary(size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words.tokens)
    writer.add_token_types(words.types)
    writer.add_token_merges(words.merges)
    writer.add_eos_token_id(words.id_of("<|end|>"))
    writer.add_add_bos_token(False)


def _metadata(config: ModelConfig) -> dict[str, Any]:
    values: dict[str, Any] = {
        "context_length": config.context,
        "embedding_length": config.width,
        "block_count": len(config.layers),
        "feed_forward_length": config.feed_forward,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
    }
    ropes = [layer.rope for layer in config.layers if layer.rope is not None]
    windows = [layer.window for layer in config.layers]
    values |= _rope(ropes[-1])
    if any(windows):
        values["attention.sliding_window"] = max(window or 0 for window in windows)
        values["rope.freq_base_swa"] = ropes[windows.index(max(w or 0 for w in windows))].theta
        if config.family != "gpt_oss":
            values["attention.sliding_window_pattern"] = 2
    if config.experts is not None:
        values["expert_count"] = config.experts.count
        values["expert_used_count"] = config.experts.active
        values["expert_feed_forward_length"] = config.experts.width
    if config.family == "gemma2":
        values["attn_logit_softcapping"] = config.attention_softcap
        values["final_logit_softcapping"] = config.logit_softcap
    return values


def _rope(rope: Rope) -> dict[str, Any]:
    values: dict[str, Any] = {
        "rope.freq_base": rope.theta,
        "rope.dimension_count": rope.dimensions,
    }
    scaling = rope.scaling
    if scaling is None or scaling.kind == "llama3":
        return values
    if scaling.kind == "longrope":
        return values | {
            "rope.scaling.original_context_length": scaling.original_context,
            "rope.scaling.attn_factor": scaling.attention_factor,
        }
    values |= {"rope.scaling.type": scaling.kind, "rope.scaling.factor": scaling.factor}
    if scaling.kind == "yarn":
        values["rope.scaling.original_context_length"] = scaling.original_context
    return values


def _factors(config: ModelConfig) -> dict[str, Sequence[float]]:
    rope = config.layers[0].rope
    scaling = rope.scaling if rope is not None else None
    if rope is None or not isinstance(scaling, RopeScaling):
        return {}
    if scaling.kind == "longrope":
        return {
            "rope_factors_long.weight": scaling.long_factors,
            "rope_factors_short.weight": scaling.short_factors,
        }
    if scaling.kind == "llama3":
        plain = inverse_frequencies(Rope(rope.theta, rope.dimensions), 0)
        return {"rope_freqs.weight": (plain / inverse_frequencies(rope, 0)).tolist()}
    return {}


def _split(
    tensor: Tensor, axis: int, name: str, parts: int, config: ModelConfig
) -> tuple[Tensor, ...]:
    if parts == 1:
        return (tensor,)
    if ".qkv." in name:
        head = config.head_dim
        return tensor.split([config.heads * head, *[config.kv_heads * head] * 2], dim=axis)
    return tensor.chunk(parts, dim=axis)


def _interleaved(rows: Tensor, heads: int) -> Tensor:
    """Reorder the rows of queries and keys as llama.cpp's converter does."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)
