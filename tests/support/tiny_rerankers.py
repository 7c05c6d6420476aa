"""Tiny models with random weights that embed or rank: an encoder, and a decoder with a head."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from gguf_builder import save, tiny_vocabulary

WIDTH = 64
Tensors = dict[str, NDArray[np.float32]]


def tiny_bert(
    path: Path,
    positions: int,
    *,
    pooling: gguf.PoolingType = gguf.PoolingType.CLS,
    head: int = 0,
    word_pieces: bool = False,
) -> Tensors:
    """Writes one layer of an encoder with learned positions.

    Args:
        positions: trained context.
        head: outputs of a classification head (`cls` and `cls.output`); 0: none.
        word_pieces: BERT's own kind of vocabulary rather than byte pairs.

    Returns:
        The tensors of the head, matrices as [outputs, inputs].
    """
    writer = _writer(path, "bert", positions, pooling)
    writer.add_head_count(2)
    writer.add_layer_norm_eps(1e-6)
    writer.add_causal_attention(False)
    writer.add_token_type_count(1)
    words = _add_word_pieces(writer) if word_pieces else _add_words(writer)
    rng = np.random.default_rng(0)
    matrices = {"token_embd": words, "position_embd": positions, "token_types": 1}
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
    for name, rows in (matrices | dict.fromkeys((f"blk.0.{n}" for n in names), WIDTH)).items():
        writer.add_tensor(f"{name}.weight", _random(rng, rows))
        if name.startswith("blk."):
            writer.add_tensor(f"{name}.bias", np.zeros(rows, np.float32))
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(WIDTH, np.float32))
    tensors: Tensors = {}
    if head:
        tensors = {
            "cls.weight": _random(rng, WIDTH),
            "cls.bias": _random(rng, 1)[0],
            "cls.output.weight": _random(rng, head),
            "cls.output.bias": rng.standard_normal(head).astype(np.float32),
        }
    _finish(writer, tensors)
    return tensors


def tiny_jina_reranker(path: Path) -> Tensors:
    """Writes one layer of jina-reranker-v1's architecture: an encoder without positions (ALiBi),
    gated feed-forward, a head of one matrix, words in pieces between [CLS] and [SEP].

    Returns:
        The tensors of the head, matrices as [outputs, inputs].
    """
    writer = _writer(path, "jina-bert-v2", 512, gguf.PoolingType.RANK)
    writer.add_head_count(2)
    writer.add_layer_norm_eps(1e-6)
    writer.add_causal_attention(False)
    writer.add_token_type_count(2)
    words = _add_word_pieces(writer)
    rng = np.random.default_rng(2)
    rows = {"token_embd": words, "token_types": 2}
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate", "ffn_down")
    for name, count in (rows | dict.fromkeys((f"blk.0.{n}" for n in names), WIDTH)).items():
        writer.add_tensor(f"{name}.weight", _random(rng, count))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.bias", np.zeros(WIDTH, np.float32))
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
        writer.add_tensor(f"{name}.bias", np.zeros(WIDTH, np.float32))
    tensors = {"cls.weight": _random(rng, 1), "cls.bias": np.array([0.1], np.float32)}
    _finish(writer, tensors)
    return tensors


def tiny_qwen3_reranker(
    path: Path, *, labels: tuple[str, ...] = ("yes", "no"), context: int = 512, head: bool = True
) -> Tensors:
    """Writes one layer of a decoder whose score is the labels' probabilities after its last token.

    Returns:
        The tensors of the head, matrices as [outputs, inputs].
    """
    writer = _writer(path, "qwen3", context, gguf.PoolingType.RANK)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_classifier_output_labels(labels)
    words = _add_words(writer)
    rng = np.random.default_rng(1)
    rows = {"attn_q": WIDTH, "attn_k": 32, "attn_v": 32, "attn_output": WIDTH}
    rows |= dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down"), WIDTH)
    writer.add_tensor("token_embd.weight", _random(rng, words))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for name, count in rows.items():
        writer.add_tensor(f"blk.0.{name}.weight", _random(rng, count))
    norms = {"attn_norm": WIDTH, "ffn_norm": WIDTH, "attn_q_norm": 16, "attn_k_norm": 16}
    for name, count in norms.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(count, np.float32))
    tensors = {"cls.output.weight": _random(rng, len(labels))} if head else {}
    _finish(writer, tensors)
    return tensors


def _writer(
    path: Path, architecture: str, context: int, pooling: gguf.PoolingType
) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_pooling_type(pooling)
    return writer


def _add_words(writer: gguf.GGUFWriter) -> int:
    """Adds a vocabulary; returns its size."""
    words = tiny_vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words.tokens)
    writer.add_token_types(words.types)
    writer.add_token_merges(words.merges)
    writer.add_eos_token_id(words.id_of("<|end|>"))
    return len(words.tokens)


def _add_word_pieces(writer: gguf.GGUFWriter) -> int:
    """Adds a vocabulary of word pieces as in BERT; returns its size."""
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    letters = "abcdefghijklmnopqrstuvwxyz.?"
    tokens = [*specials, *(f"\u2581{letter}" for letter in letters), *letters]
    control, normal = int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL)
    types = [control if token in specials else normal for token in tokens]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(3)
    writer.add_sep_token_id(3)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_add_sep_token(False)
    return len(tokens)


def _random(rng: np.random.Generator, rows: int) -> NDArray[np.float32]:
    return (rng.standard_normal((rows, WIDTH)) * WIDTH**-0.5).astype(np.float32)


def _finish(writer: gguf.GGUFWriter, tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    save(writer)
