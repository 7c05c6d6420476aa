"""GGUF files built field by field, so that a test can damage any one of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

U8, U16, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 2, 4, 5, 6, 7, 8, 9, 10
TENSOR_F32, TENSOR_F16, TENSOR_Q8_0, TENSOR_I32 = 0, 1, 8, 26


def text(value: str | bytes) -> bytes:
    """A string as it is stored: length, then bytes."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def typed(kind: int, payload: bytes) -> bytes:
    """A value with its type in front."""
    return struct.pack("<I", kind) + payload


def u32(value: int) -> bytes:
    return typed(U32, struct.pack("<I", value))


def u16(value: int) -> bytes:
    return typed(U16, struct.pack("<H", value))


def i32(value: int) -> bytes:
    return typed(I32, struct.pack("<i", value))


def u64(value: int) -> bytes:
    return typed(U64, struct.pack("<Q", value))


def f32(value: float) -> bytes:
    return typed(F32, struct.pack("<f", value))


def boolean(value: int) -> bytes:
    return typed(BOOL, struct.pack("<B", value))


def string(value: str | bytes) -> bytes:
    return typed(STRING, text(value))


def listed(kind: int, payload: bytes, count: int) -> bytes:
    """An array whose stored count may contradict its payload."""
    return typed(ARRAY, struct.pack("<IQ", kind, count) + payload)


def strings(values: Sequence[str | bytes]) -> bytes:
    return listed(STRING, b"".join(map(text, values)), len(values))


def i32s(values: Sequence[int]) -> bytes:
    return listed(I32, struct.pack(f"<{len(values)}i", *values), len(values))


def f32s(values: Sequence[float]) -> bytes:
    return listed(F32, struct.pack(f"<{len(values)}f", *values), len(values))


@dataclass
class RawTensor:
    """One entry of the tensor list; `dims` in ggml's order, `offset` by default after the last."""

    name: str | bytes
    dims: tuple[int, ...]
    type: int = TENSOR_F32
    offset: int | None = None
    dim_count: int | None = None


@dataclass
class RawGguf:
    """A file to be written. Fields that are None are computed; the tensors' data are `data_bytes`
    zeros.
    """

    keys: list[tuple[str | bytes, bytes]] = field(default_factory=list)
    tensors: list[RawTensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    key_count: int | None = None
    tensor_count: int | None = None
    alignment: int = 32
    data_bytes: int | None = None
    tail: bytes = b""

    def put(self, key: str, value: bytes) -> None:
        """Set `key`, in its old place if it exists."""
        for index, (existing, _) in enumerate(self.keys):
            if existing == key:
                self.keys[index] = (key, value)
                return
        self.keys.append((key, value))

    def drop(self, key: str) -> None:
        self.keys = [pair for pair in self.keys if pair[0] != key]

    def tensor(self, name: str) -> RawTensor:
        return next(tensor for tensor in self.tensors if tensor.name == name)

    def header(self) -> bytes:
        out = [self.magic, struct.pack("<I", self.version)]
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        key_count = len(self.keys) if self.key_count is None else self.key_count
        out.append(struct.pack("<QQ", tensor_count, key_count))
        out += [text(key) + value for key, value in self.keys]
        offset = 0
        for tensor in self.tensors:
            dim_count = len(tensor.dims) if tensor.dim_count is None else tensor.dim_count
            stored = offset if tensor.offset is None else tensor.offset
            out.append(text(tensor.name) + struct.pack("<I", dim_count))
            out.append(struct.pack(f"<{len(tensor.dims)}Q", *tensor.dims))
            out.append(struct.pack("<IQ", tensor.type, stored))
            offset += self._padded(self._nbytes(tensor))
        return b"".join(out)

    def build(self) -> bytes:
        header = self.header()
        data = self.data_bytes
        if data is None:
            data = sum(self._padded(self._nbytes(tensor)) for tensor in self.tensors)
        return header.ljust(self._padded(len(header)), b"\0") + bytes(data) + self.tail

    def _padded(self, size: int) -> int:
        alignment = max(self.alignment, 1)
        return -(-size // alignment) * alignment

    @staticmethod
    def _nbytes(tensor: RawTensor) -> int:
        elements = prod(tensor.dims)
        if elements > 1 << 24:
            return 0
        return {TENSOR_F16: 2 * elements, TENSOR_Q8_0: elements // 32 * 34}.get(
            tensor.type, 4 * elements
        )


def small_llama(tokenizer: str = "gpt2") -> RawGguf:
    """A one-layer llama model: embedding 32, 2 heads, 1 KV head, feed-forward 64, few tokens."""
    raw = RawGguf()
    raw.put("general.architecture", string("llama"))
    raw.put("llama.context_length", u32(64))
    raw.put("llama.embedding_length", u32(32))
    raw.put("llama.block_count", u32(1))
    raw.put("llama.feed_forward_length", u32(64))
    raw.put("llama.attention.head_count", u32(2))
    raw.put("llama.attention.head_count_kv", u32(1))
    raw.put("llama.rope.dimension_count", u32(16))
    raw.put("llama.attention.layer_norm_rms_epsilon", f32(1e-5))
    tokens = [f"t{i}" for i in range(12)]
    if tokenizer == "llama":
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    raw.put("tokenizer.ggml.model", string(tokenizer))
    raw.put("tokenizer.ggml.tokens", strings(tokens))
    raw.put("tokenizer.ggml.scores", f32s([0.0] * len(tokens)))
    raw.put("tokenizer.ggml.token_type", i32s([1] * len(tokens)))
    raw.put("tokenizer.ggml.merges", strings(["t 1"]))
    raw.put("tokenizer.ggml.bos_token_id", u32(1))
    raw.put("tokenizer.ggml.eos_token_id", u32(2))
    raw.put("tokenizer.ggml.add_bos_token", boolean(1))
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (32, len(tokens)),
        "output_norm.weight": (32,),
        "output.weight": (32, len(tokens)),
        "blk.0.attn_norm.weight": (32,),
        "blk.0.attn_q.weight": (32, 32),
        "blk.0.attn_k.weight": (32, 16),
        "blk.0.attn_v.weight": (32, 16),
        "blk.0.attn_output.weight": (32, 32),
        "blk.0.ffn_norm.weight": (32,),
        "blk.0.ffn_gate.weight": (32, 64),
        "blk.0.ffn_up.weight": (32, 64),
        "blk.0.ffn_down.weight": (64, 32),
    }
    raw.tensors = [RawTensor(name, dims) for name, dims in shapes.items()]
    return raw
