"""guide's weights as GGUF files, and back: the only form in which checkpoints are kept.

GGUF (ggml/docs/gguf.md) architecture "llama". llama.cpp rotates neighbouring pairs of a head's
channels where model.py rotates its two halves, so the rows of Q and K are reordered on the way.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from hearth.assets.guide.model import Guide, ModelConfig
from hearth.assets.guide.tokenizer import (
    CHAT_TEMPLATE,
    END,
    PAD,
    SPECIALS,
    Vocabulary,
    vocabulary,
)

Weights = dict[str, NDArray[np.float32]]

_FILE_TYPES = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16}
_BLOCK_NAMES = {
    "attn_norm": "attn_norm",
    "wq": "attn_q",
    "wk": "attn_k",
    "wv": "attn_v",
    "wo": "attn_output",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
DESCRIPTION = "A very small chat model that answers questions about Hearth and running models."


def to_pairs(w: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of Q or K [heads * head_dim, in] from half-split to llama.cpp's neighbouring pairs."""
    split = w.reshape(heads, 2, -1, w.shape[1])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(w.shape))


def to_halves(w: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """The inverse of ``to_pairs``."""
    split = w.reshape(heads, -1, 2, w.shape[1])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(w.shape))


def gguf_name(name: str) -> str:
    """The GGUF tensor name of a parameter of ``Guide``, for example "blocks.0.wq"."""
    plain = {"embedding": "token_embd.weight", "out_norm": "output_norm.weight"}
    if name in plain:
        return plain[name]
    _, number, part = name.split(".")
    return f"blk.{number}.{_BLOCK_NAMES[part]}.weight"


def weights_of(model: Guide) -> Weights:
    """The parameters of ``model`` under their GGUF names and in GGUF's row order, f32."""
    heads = {"wq": model.config.heads, "wk": model.config.kv_heads}
    weights: Weights = {}
    for name, p in model.named_parameters():
        w = p.detach().float().cpu().numpy().copy()
        part = name.rsplit(".", 1)[-1]
        weights[gguf_name(name)] = to_pairs(w, heads[part]) if part in heads else w
    return weights


def write_gguf(
    path: Path, weights: Weights, tokenizer: Tokenizer, config: ModelConfig, dtype: str
) -> None:
    """Writes a complete GGUF file; ``dtype`` "f16" or "f32" is that of the matrices.

    Norm weights stay f32. The file appears under its name only when it is whole.
    """
    _write(path, weights, vocabulary(tokenizer), config, dtype)


def _write(
    path: Path, weights: Weights, vocab: Vocabulary, config: ModelConfig, dtype: str
) -> None:
    temporary = path.with_name(path.name + ".part")
    w = gguf.GGUFWriter(temporary, "llama")
    w.add_type("model")
    w.add_name(config.name)
    w.add_description(DESCRIPTION)
    w.add_license("Apache-2.0")
    w.add_size_label(f"{config.parameters / 1e6:.1f}M")
    w.add_languages(["en"])
    w.add_file_type(_FILE_TYPES[dtype])
    w.add_vocab_size(config.vocab)
    w.add_context_length(config.context)
    w.add_embedding_length(config.hidden)
    w.add_block_count(config.layers)
    w.add_feed_forward_length(config.ffn)
    w.add_head_count(config.heads)
    w.add_head_count_kv(config.kv_heads)
    w.add_key_length(config.head_dim)
    w.add_value_length(config.head_dim)
    w.add_rope_dimension_count(config.head_dim)
    w.add_rope_freq_base(config.rope_base)
    w.add_layer_norm_rms_eps(config.norm_eps)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(vocab.tokens)
    kinds = [gguf.TokenType.CONTROL] * len(SPECIALS)
    kinds += [gguf.TokenType.NORMAL] * (len(vocab.tokens) - len(SPECIALS))
    w.add_token_types(kinds)
    w.add_token_merges(vocab.merges)
    # Never inserted (add_bos_token is false), but llama.cpp takes id 11 for it when none is given.
    w.add_bos_token_id(END)
    w.add_eos_token_id(END)
    w.add_eot_token_id(END)
    w.add_pad_token_id(PAD)
    w.add_add_bos_token(False)
    w.add_add_eos_token(False)
    w.add_chat_template(CHAT_TEMPLATE)
    for name, tensor in weights.items():
        w.add_tensor(name, tensor.astype(np.float16 if _is_half(tensor, dtype) else np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    os.replace(temporary, path)


def _is_half(tensor: NDArray[np.float32], dtype: str) -> bool:
    return dtype == "f16" and tensor.ndim > 1


def read_gguf(path: Path) -> tuple[Weights, Vocabulary, ModelConfig]:
    """The parts of a file that ``write_gguf`` wrote; matrices come back as f32."""
    reader = gguf.GGUFReader(path)

    def value(key: str) -> Any:
        return reader.fields[key].contents()

    config = ModelConfig(
        name=value("general.name"),
        vocab=value("llama.vocab_size"),
        hidden=value("llama.embedding_length"),
        layers=value("llama.block_count"),
        heads=value("llama.attention.head_count"),
        kv_heads=value("llama.attention.head_count_kv"),
        head_dim=value("llama.attention.key_length"),
        ffn=value("llama.feed_forward_length"),
        context=value("llama.context_length"),
        rope_base=value("llama.rope.freq_base"),
        norm_eps=value("llama.attention.layer_norm_rms_epsilon"),
    )
    vocab = Vocabulary(value("tokenizer.ggml.tokens"), value("tokenizer.ggml.merges"))
    weights = {t.name: t.data.astype(np.float32) for t in reader.tensors}
    return weights, vocab, config


def load_weights(model: Guide, weights: Weights) -> None:
    """Copies GGUF-ordered ``weights`` into ``model``; a missing tensor raises ``KeyError``."""
    import torch

    heads = {"wq": model.config.heads, "wk": model.config.kv_heads}
    with torch.no_grad():
        for name, p in model.named_parameters():
            w = weights[gguf_name(name)]
            part = name.rsplit(".", 1)[-1]
            p.copy_(torch.from_numpy(to_halves(w, heads[part]) if part in heads else w.copy()))


def convert(path_in: Path, path_out: Path, dtype: str) -> None:
    """Rewrites a guide GGUF with matrices in ``dtype`` ("f16" or "f32"), the rest unchanged."""
    weights, vocab, config = read_gguf(path_in)
    _write(path_out, weights, vocab, config, dtype)
