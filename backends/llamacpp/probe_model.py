"""Random llama models for probing a library.

A quantized model and its float32 twin test whether results are right; one layer with heads of a
given shape tests the speed of attention; a few layers of one type test the speed of a runner
(`bench.speed_probe`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.models import ModelSettings
from hearth.backends.errors import HearthError
from hearth.backends.llamacpp.footprint import plan_for
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.runner import LlamaRunner
from hearth.backends.machine.memory import available_bytes
from hearth.quant.gguf.reader import read_header

VOCAB = 288


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention heads of a layer."""

    heads: int
    kv_heads: int
    key_length: int
    value_length: int


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a llama whose layers are all alike."""

    hidden: int
    ffn: int
    context: int
    heads: Heads
    layers: int = 1
    vocab: int = VOCAB

    @property
    def outer(self) -> dict[str, tuple[int, ...]]:
        """The tensors outside the layers."""
        return {
            "token_embd.weight": (self.vocab, self.hidden),
            "output_norm.weight": (self.hidden,),
            "output.weight": (self.vocab, self.hidden),
        }

    @property
    def layer(self) -> dict[str, tuple[int, ...]]:
        """The tensors of one layer."""
        heads, hidden, ffn = self.heads, self.hidden, self.ffn
        return {
            "attn_norm.weight": (hidden,),
            "attn_q.weight": (heads.heads * heads.key_length, hidden),
            "attn_k.weight": (heads.kv_heads * heads.key_length, hidden),
            "attn_v.weight": (heads.kv_heads * heads.value_length, hidden),
            "attn_output.weight": (hidden, heads.heads * heads.value_length),
            "ffn_norm.weight": (hidden,),
            "ffn_gate.weight": (ffn, hidden),
            "ffn_up.weight": (ffn, hidden),
            "ffn_down.weight": (hidden, ffn),
        }

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """All tensors of a llama with one layer."""
        return {**self.outer, **{f"blk.0.{name}": shape for name, shape in self.layer.items()}}


PAIR_CONTEXT = 256
_PAIR = Shape(hidden=256, ffn=512, context=PAIR_CONTEXT, heads=Heads(4, 2, 64, 64))
"""Widths are a multiple of every repacked layout's block (AMX tiles: 32; K-quants: 256)."""

FORMATS = ("Q8_0", "Q4_0")
"""Quantized types that the probe covers: gguf-py can write them, and both AMX and repacking kernels
take them."""


def write_pair(folder: Path, format_name: str) -> tuple[Path, Path]:
    """Write a one-layer model quantized to `format_name`, and one with equal weights in float32.

    Args:
        folder: for the files, which are named after the format.
        format_name: one of `FORMATS`.

    Returns:
        (quantized, float32).
    """
    import gguf

    kind = gguf.GGMLQuantizationType[format_name]
    rng = np.random.default_rng(0)
    packed: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for name, shape in _PAIR.tensors.items():
        packed[name] = plain[name] = weights = _weights(shape, rng)
        if len(shape) > 1:
            packed[name] = gguf.quants.quantize(weights, kind)
            plain[name] = gguf.quants.dequantize(packed[name], kind)
    quantized, exact = folder / f"{format_name}.gguf", folder / f"{format_name}-f32.gguf"
    write_llama(quantized, packed, kind, _PAIR)
    write_llama(exact, plain, None, _PAIR)
    return quantized, exact


def write_attention(path: Path, heads: Heads, context: int) -> Path:
    """Write a one-layer float32 model in which nearly all the work is attention."""
    layer = Shape(hidden=64, ffn=32, context=context, heads=heads)
    rng = np.random.default_rng(0)
    tensors = {name: _weights(shape, rng) for name, shape in layer.tensors.items()}
    write_llama(path, tensors, None, layer)
    return path


def open_probe(
    path: Path, settings: ModelSettings, threads: int, *, extra_buffers: bool = True
) -> LlamaRunner:
    """Open a model that this module wrote.

    Args:
        extra_buffers: see `LlamaModel.open`.

    Raises:
        HearthError: the model cannot be loaded.
    """
    plan = plan_for(read_header(path), settings, available_bytes())
    model = LlamaModel.open(path, extra_buffers=extra_buffers)
    try:
        return LlamaRunner(model, plan, threads=threads, batch_threads=threads)
    except HearthError:
        model.close()
        raise


def _weights(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    """Ones for a norm, and random numbers for a matrix."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    weights: NDArray[np.float64] = rng.standard_normal(shape) * shape[-1] ** -0.5
    return weights.astype(np.float32)


def write_llama(
    path: Path, tensors: Mapping[str, Any], kind: Any, shape: Shape, tokens: Sequence[str] = ()
) -> None:
    """Write a llama model.

    Args:
        tensors: by name; those that are not float32 are packed as `kind`.
        tokens: the vocabulary, which begins with `<unk>`, `<s>`, `</s>` and the bytes; empty for a
            vocabulary of only ordinary tokens.
    """
    import gguf

    normal = [gguf.TokenType.NORMAL] * shape.vocab
    special = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    kinds = (special if tokens else []) + normal

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("hearth probe")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads.heads)
    writer.add_head_count_kv(shape.heads.kv_heads)
    writer.add_key_length(shape.heads.key_length)
    writer.add_value_length(shape.heads.value_length)
    writer.add_rope_dimension_count(shape.heads.key_length)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(list(tokens) or [f"<{i}>" for i in range(shape.vocab)])
    writer.add_token_scores([0.0] * shape.vocab)
    writer.add_token_types([int(kind) for kind in kinds[: shape.vocab]])
    for name, data in tensors.items():
        is_packed = kind is not None and data.dtype != "float32"
        writer.add_tensor(name, data, raw_dtype=kind if is_packed else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
