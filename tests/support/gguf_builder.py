"""Tiny GGUF models for tests: random llama weights, byte-level BPE; llama.cpp loads them."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np

SPECIALS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_MERGES = ("h e", "l l", "he ll", "hell o", "Ġ t", "Ġt h", "Ġth e", "i n", "a n", "an d")
_FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in id order, their llama.cpp token types, and the BPE merges."""

    tokens: list[str]
    types: list[int]
    merges: list[str]

    def id_of(self, token: str) -> int:
        return self.tokens.index(token)


def byte_alphabet() -> list[str]:
    """The 256 characters that represent bytes in GPT-2's byte-level BPE, in byte order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]


def tiny_vocabulary(size: int | None = None) -> Vocabulary:
    """256 byte tokens, ten merges and four control tokens; `size` pads with unused tokens.

    Raises:
        ValueError: `size` is smaller than the 270 tokens that are always there.
    """
    merged = [merge.replace(" ", "") for merge in _MERGES]
    tokens = [*byte_alphabet(), *merged, *SPECIALS]
    types = [gguf.TokenType.NORMAL] * (256 + len(merged)) + [gguf.TokenType.CONTROL] * len(SPECIALS)
    if size is not None:
        if size < len(tokens):
            raise ValueError(f"a vocabulary has at least {len(tokens)} tokens, not {size}")
        padding = size - len(tokens)
        tokens += [f"[PAD{i}]" for i in range(padding)]
        types += [gguf.TokenType.UNUSED] * padding
    return Vocabulary(tokens, [int(t) for t in types], list(_MERGES))


def tiny_llama(
    path: str | Path,
    *,
    dtype: Literal["f32", "f16", "bf16"] = "f32",
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int | None = None,
    context: int = 512,
    vocab: int | None = None,
    template: str | None = TEMPLATE,
    pre: str = "qwen2",
    seed: int = 0,
    quant: Literal["Q8_0", "Q4_0"] | None = None,
    name: str = "tiny",
    extra: Mapping[str, int | float | bool | str | list[int]] | None = None,
    endian: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
) -> Path:
    """Writes a random llama-architecture model and returns its path.

    Args:
        path: the file to write.
        dtype: type of the matrices; norms are always f32.
        hidden: embedding length; a multiple of `heads`, and of 32 with `quant`.
        layers, heads, kv_heads, context: the usual hyper-parameters.
        ffn: feed-forward length, by default twice `hidden`.
        vocab: number of tokens, by default 270 (see `tiny_vocabulary`).
        template: chat template, or None to leave it out.
        pre: how text is cut into words before they are tokenized, as llama.cpp calls it.
        seed: of the weights; the same seed writes the same bytes.
        quant: quantize the matrices with gguf-py instead of storing `dtype`.
        extra: more metadata; bool, int (u32), float (f32), str or array by value.
        endian: byte order of the file; llama.cpp only reads little-endian ones here.
    """
    writer = gguf.GGUFWriter(Path(path), "llama", endianess=endian)
    ffn = ffn or 2 * hidden
    writer.add_name(name)
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(int(_FILE_TYPES[(quant or dtype).lower()]))
    words = tiny_vocabulary(vocab)
    _add_tokenizer(writer, words, template, pre)
    for key, value in (extra or {}).items():
        _add_extra(writer, key, value)
    _add_tensors(
        writer,
        _shapes(hidden, layers, kv_heads * (hidden // heads), ffn, len(words.tokens)),
        gguf.GGMLQuantizationType[(quant or dtype).upper()],
        seed,
    )
    save(writer)
    return Path(path)


def save(writer: gguf.GGUFWriter) -> None:
    """Write the metadata and the tensors of `writer`, and close its file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(
    writer: gguf.GGUFWriter, words: Vocabulary, template: str | None, pre: str
) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_vocab_size(len(words.tokens))
    writer.add_token_list(words.tokens)
    writer.add_token_types(words.types)
    writer.add_token_merges(words.merges)
    writer.add_eos_token_id(words.id_of("<|end|>"))
    writer.add_add_bos_token(False)
    if template is not None:
        writer.add_chat_template(template)


def _add_extra(
    writer: gguf.GGUFWriter, key: str, value: int | float | bool | str | list[int]
) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_string(key, value)


def _shapes(
    hidden: int, layers: int, kv_width: int, ffn: int, vocab: int
) -> dict[str, tuple[int, ...]]:
    """Tensor shapes as numpy writes them: [out, in] for matrices."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, hidden),
        "output_norm.weight": (hidden,),
        "output.weight": (vocab, hidden),
    }
    for layer in range(layers):
        block = f"blk.{layer}."
        shapes |= {
            f"{block}attn_norm.weight": (hidden,),
            f"{block}attn_q.weight": (hidden, hidden),
            f"{block}attn_k.weight": (kv_width, hidden),
            f"{block}attn_v.weight": (kv_width, hidden),
            f"{block}attn_output.weight": (hidden, hidden),
            f"{block}ffn_norm.weight": (hidden,),
            f"{block}ffn_gate.weight": (ffn, hidden),
            f"{block}ffn_up.weight": (ffn, hidden),
            f"{block}ffn_down.weight": (hidden, ffn),
        }
    return shapes


def _add_tensors(
    writer: gguf.GGUFWriter,
    shapes: dict[str, tuple[int, ...]],
    matrix_type: gguf.GGMLQuantizationType,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    for name, shape in shapes.items():
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, dtype=np.float32))
            continue
        scale = 1.0 if name == "token_embd.weight" else shape[1] ** -0.5
        weight = (rng.standard_normal(shape) * scale).astype(np.float32)
        packed: np.ndarray[Any, Any] = gguf.quants.quantize(weight, matrix_type)
        is_plain = matrix_type in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
        writer.add_tensor(name, packed, raw_dtype=None if is_plain else matrix_type)


def mutate(data: bytes, rng: random.Random, *, header_bytes: int | None = None) -> bytes:
    """A damaged copy of a GGUF file: one to four random edits, nine of ten inside the header.

    Edits flip a bit, overwrite 1, 4 or 8 bytes with a telling value, swap, cut, or insert bytes.

    Args:
        data: the whole file.
        rng: the only source of randomness, so that a seed reproduces a case.
        header_bytes: length of the header region, by default at most the first 16 KiB.
    """
    out = bytearray(data)
    region = min(header_bytes or 16384, len(data))
    for _ in range(rng.randint(1, 4)):
        end = region if rng.random() < 0.9 else len(out)
        at = rng.randrange(max(1, min(end, len(out))))
        _edit(out, at, rng)
    return bytes(out)


def _edit(out: bytearray, at: int, rng: random.Random) -> None:
    kind = rng.randrange(8)
    if kind == 0 and at < len(out):
        out[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        out[at : at + 1] = bytes([rng.randrange(256)])
    elif kind in (2, 3):
        value = rng.choice((0, 1, 2, 31, 32, 255, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF))
        out[at : at + 4] = struct.pack("<I", value)[: max(0, len(out) - at)]
    elif kind in (4, 5):
        value = rng.choice((0, 1, 1 << 31, 1 << 32, (1 << 62) + 1, (1 << 63) - 1, (1 << 64) - 1))
        out[at : at + 8] = struct.pack("<Q", value)[: max(0, len(out) - at)]
    elif kind == 6:
        del out[at : at + rng.randint(1, 16)]
    else:
        out[at:at] = rng.randbytes(rng.randint(1, 16))
