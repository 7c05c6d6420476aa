"""GGUF files that are well formed but make no sense as a model."""

from __future__ import annotations

from gguf_damage import HUGE, QUERY, Malformed, both, drop, drop_tensor, fields, put, tensor
from gguf_raw import (
    TENSOR_F16,
    TENSOR_I32,
    RawTensor,
    f32,
    f32s,
    i32,
    i32s,
    string,
    strings,
    typed,
    u32,
    u64,
)

MEANING = [
    Malformed("no architecture", drop("general.architecture"), "general.architecture", "missing"),
    Malformed(
        "architecture is a number",
        put("general.architecture", u32(1)),
        "general.architecture",
        "U32",
    ),
    Malformed(
        "vocabulary only", fields(tensors=[]), "tensor count", "vocabulary only", supported=False
    ),
    Malformed(
        "a projector",
        put("general.type", string("mmproj")),
        "general.type",
        "projector",
        supported=False,
    ),
    Malformed(
        "an adapter",
        put("general.type", string("adapter")),
        "general.type",
        "LoRA",
        supported=False,
    ),
    Malformed("no layers key", drop("llama.block_count"), "llama.block_count", "missing"),
    Malformed("no layers", put("llama.block_count", u32(0)), "llama.block_count", "from 1 to 512"),
    Malformed("513 layers", put("llama.block_count", u32(513)), "llama.block_count", "513"),
    Malformed(
        "layers as text", put("llama.block_count", string("1")), "llama.block_count", "STRING"
    ),
    Malformed("layers as U64", put("llama.block_count", u64(1)), "llama.block_count", "U32"),
    Malformed(
        "a layer without tensors", put("llama.block_count", u32(2)), "blk.1.attn_norm", "missing"
    ),
    Malformed("no context length", drop("llama.context_length"), "context_length", "missing"),
    Malformed("context of 0", put("llama.context_length", u32(0)), "context_length", "from 1"),
    Malformed("no embedding length", drop("llama.embedding_length"), "embedding_length", "missing"),
    Malformed("no heads", put("llama.attention.head_count", u32(0)), "head_count", "at least 1"),
    Malformed(
        "negative heads", put("llama.attention.head_count", i32(-2)), "head_count", "-2 heads"
    ),
    Malformed(
        "heads do not divide the embedding",
        put("llama.attention.head_count", u32(5)),
        "head_count",
        "does not divide the embedding",
    ),
    Malformed(
        "KV heads do not divide the heads",
        put("llama.attention.head_count_kv", u32(3)),
        "head_count_kv",
        "does not divide the 2 heads",
    ),
    Malformed(
        "heads for another number of layers",
        put("llama.attention.head_count", i32s([2, 2])),
        "head_count",
        "2 values for 1 layers",
    ),
    Malformed(
        "heads as fractions", put("llama.attention.head_count", f32s([2.0])), "head_count", "F32"
    ),
    Malformed(
        "rope wider than a head",
        put("llama.rope.dimension_count", u32(64)),
        "rope.dimension_count",
        "64",
    ),
    Malformed(
        "unknown rope scaling",
        put("llama.rope.scaling.type", string("cubic")),
        "rope.scaling",
        "cubic",
    ),
    Malformed("no epsilon", drop("llama.attention.layer_norm_rms_epsilon"), "epsilon", "None"),
    Malformed(
        "epsilon is not a number",
        put("llama.attention.layer_norm_rms_epsilon", f32(float("nan"))),
        "epsilon",
        "nan",
    ),
    Malformed(
        "experts used of none", put("llama.expert_used_count", u32(2)), "expert_used_count", "2"
    ),
    Malformed("2,000 experts", put("llama.expert_count", u32(2000)), "expert_count", "2,000"),
    Malformed("no feed-forward", drop("llama.feed_forward_length"), "feed_forward_length", "0"),
    Malformed("no tokenizer", drop("tokenizer.ggml.model"), "tokenizer.ggml.model", "missing"),
    Malformed("no tokens", drop("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens", "missing"),
    Malformed(
        "empty token list", put("tokenizer.ggml.tokens", strings([])), "ggml.tokens", "0 values"
    ),
    Malformed(
        "tokens are numbers", put("tokenizer.ggml.tokens", i32s([1] * 12)), "ggml.tokens", "I32"
    ),
    Malformed(
        "a token twice",
        put("tokenizer.ggml.tokens", strings([f"t{i % 11}" for i in range(12)])),
        "ggml.tokens",
        "'t0' is both token 0 and token 11",
    ),
    Malformed(
        "fewer scores than tokens",
        put("tokenizer.ggml.scores", f32s([0.0] * 11)),
        "ggml.scores",
        "11",
    ),
    Malformed(
        "scores are text", put("tokenizer.ggml.scores", strings(["0"])), "ggml.scores", "STRING"
    ),
    Malformed(
        "fewer token types than tokens",
        put("tokenizer.ggml.token_type", i32s([1])),
        "token_type",
        "1",
    ),
    Malformed(
        "token types of type F32",
        put("tokenizer.ggml.token_type", f32s([1.0] * 12)),
        "token_type",
        "must be a list of I32",
    ),
    Malformed("no merges", drop("tokenizer.ggml.merges"), "tokenizer.ggml.merges", "missing"),
    Malformed("merges are numbers", put("tokenizer.ggml.merges", i32s([1])), "ggml.merges", "I32"),
    Malformed(
        "end outside the vocabulary",
        put("tokenizer.ggml.eos_token_id", u32(12)),
        "eos_token_id",
        "12",
    ),
    Malformed(
        "beginning outside the vocabulary",
        put("tokenizer.ggml.bos_token_id", u32(HUGE >> 32)),
        "bos_token_id",
        "4,294,967,295",
    ),
    Malformed("end as I32", put("tokenizer.ggml.eos_token_id", i32(-1)), "eos_token_id", "I32"),
    Malformed(
        "flag as a number", put("tokenizer.ggml.add_bos_token", u32(1)), "add_bos_token", "BOOL"
    ),
    Malformed(
        "a beginning is asked for, none is named",
        both(
            drop("tokenizer.ggml.bos_token_id"),
            put("tokenizer.ggml.model", string("t5")),
        ),
        "add_bos_token",
        "names none",
    ),
    Malformed(
        "byte token missing",
        lambda raw: raw.put(
            "tokenizer.ggml.tokens",
            strings([f"<0x{byte:02X}>" for byte in range(255)] + list("wxyz")),
        ),
        "ggml.tokens",
        "0xFF",
        tokenizer="llama",
    ),
    Malformed(
        "fewer embeddings than tokens",
        tensor("token_embd.weight", dims=(32, 11)),
        "tensor 'token_embd.weight' shape",
        "(32, 12)",
    ),
    Malformed(
        "embedding is missing", drop_tensor("token_embd.weight"), "token_embd.weight", "missing"
    ),
    Malformed(
        "query transposed to a wrong width", tensor(QUERY, dims=(32, 16)), "attn_q.weight' shape"
    ),
    Malformed(
        "key as wide as the query",
        tensor("blk.0.attn_k.weight", dims=(32, 32)),
        "attn_k.weight' shape",
    ),
    Malformed("value is missing", drop_tensor("blk.0.attn_v.weight"), "attn_v.weight", "missing"),
    Malformed(
        "norm too short", tensor("output_norm.weight", dims=(16,)), "output_norm.weight' shape"
    ),
    Malformed(
        "norm in half precision",
        tensor("output_norm.weight", type=TENSOR_F16),
        "output_norm.weight' type",
        "F16, must be F32",
    ),
    Malformed("integer weights", tensor(QUERY, type=TENSOR_I32), "attn_q.weight' type", "I32"),
    Malformed(
        "output for other tokens", tensor("output.weight", dims=(32, 13)), "output.weight' shape"
    ),
    Malformed(
        "feed-forward down is transposed",
        tensor("blk.0.ffn_down.weight", dims=(32, 64)),
        "ffn_down",
    ),
    Malformed(
        "bias too long",
        lambda raw: raw.tensors.append(RawTensor("blk.0.attn_q.bias", (64,))),
        "attn_q.bias' shape",
    ),
    Malformed(
        "split into parts of another name", put("split.count", typed(2, b"\2\0")), "split.no"
    ),
    Malformed("split count as U32", put("split.count", u32(2)), "split.count", "U16"),
]
"""Files that `check` refuses although their structure is valid."""
