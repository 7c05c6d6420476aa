"""Writes models with random weights in the shapes of real ones, for benchmarks and tests.

    python tools/random_models.py qwen3-0.6b --type q4_k_m --out DIR

A file depends on its arguments alone. Weights are scaled like the initial weights of a model before
training, so that logits are finite and differ; the text of such a model is noise.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

import gguf
import numpy as np
from numpy.typing import NDArray

import vocabularies
from model_shapes import CONVOLUTION_TAPS, SHAPES, Shape, Tensor, tensors_of
from random_blocks import Kind, random_rows, row_bytes
from vocabularies import Vocabulary

FileType = Literal["f32", "f16", "q8_0", "q4_0", "q4_k_m"]
"""q4_k_m and q4_0 are mixtures, as in llama.cpp: see `storage_kind`."""

_FILE_TYPES: dict[FileType, tuple[gguf.LlamaFileType, Kind]] = {
    "f32": (gguf.LlamaFileType.ALL_F32, Kind.F32),
    "f16": (gguf.LlamaFileType.MOSTLY_F16, Kind.F16),
    "q8_0": (gguf.LlamaFileType.MOSTLY_Q8_0, Kind.Q8_0),
    "q4_0": (gguf.LlamaFileType.MOSTLY_Q4_0, Kind.Q4_0),
    "q4_k_m": (gguf.LlamaFileType.MOSTLY_Q4_K_M, Kind.Q4_K),
}
_FALLBACK = {Kind.Q4_K: Kind.Q5_0, Kind.Q6_K: Kind.Q8_0}
"""Types for rows that are not a whole number of 256-element blocks."""
_CHUNK_BYTES = 16 << 20


def write_model(
    shape: str | Shape,
    file_type: FileType,
    path: str | Path,
    *,
    vocab: str | Path | Vocabulary | None = None,
    seed: int = 0,
) -> Path:
    """Write a model and return its path, where it appears only when it is complete.

    Args:
        shape: the name of one of `SHAPES`, or another shape.
        vocab: "synthetic" (`vocabularies.synthetic`), "sdist" (`vocabularies.from_sdist` with the
            name in the shape), a GGUF file to copy the vocabulary from, or a vocabulary; None: the
            vocabulary that the shape names. It is padded with unused tokens to the shape's size.
        seed: of the weights.

    Raises:
        ValueError: the shape or the type is not known, or the vocabulary is too large.
    """
    if isinstance(shape, str):
        if shape not in SHAPES:
            raise ValueError(f"no shape is called {shape!r}; there are {', '.join(SHAPES)}")
        shape = SHAPES[shape]
    if file_type not in _FILE_TYPES:
        raise ValueError(f"{file_type!r} is no type; there are {', '.join(_FILE_TYPES)}")
    words = _vocabulary(shape, vocab)
    words = words.padded(shape.tokens or len(words.tokens))
    tensors = list(tensors_of(shape, len(words.tokens)))
    kinds = [storage_kind(tensor, file_type, shape) for tensor in tensors]
    path = Path(path)
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".unfinished-") as folder:
        unfinished = Path(folder, path.name)
        _write_header(unfinished, path.stem, shape, file_type, words, tensors, kinds)
        with unfinished.open("ab") as stream:
            _pad(stream)
            for tensor, kind in zip(tensors, kinds, strict=True):
                _write_tensor(stream, tensor, kind, rng)
        unfinished.replace(path)
    return path


def storage_kind(tensor: Tensor, file_type: FileType, shape: Shape) -> Kind:
    """The type that llama.cpp's quantizer gives a tensor (`llama_tensor_get_type` in
    `llama-quant.cpp`): a better one for the output matrix and, in q4_k_m, for half of the value
    and down matrices.
    """
    if not tensor.is_matrix:
        return Kind.F32
    chosen = _FILE_TYPES[file_type][1]
    if chosen in (Kind.Q4_0, Kind.Q4_K):
        is_output = tensor.name == ("token_embd.weight" if shape.tied else "output.weight")
        if is_output or (chosen is Kind.Q4_K and _gets_more_bits(tensor.name, shape)):
            chosen = Kind.Q6_K
    elements = gguf.GGML_QUANT_SIZES[chosen][0]
    return _FALLBACK.get(chosen, chosen) if tensor.dims[-1] % elements else chosen


def _gets_more_bits(name: str, shape: Shape) -> bool:
    """Whether `name` is a value or down matrix in the first or last eighth of its layers, or in
    every third layer between them.
    """
    block, _, part = name.removeprefix("blk.").partition(".")
    if part in ("ffn_down.weight", "ffn_down_exps.weight"):
        index, count = int(block), shape.layers
    elif part == "attn_v.weight":
        with_attention = [i for i in range(shape.layers) if i not in shape.recurrent_layers]
        index, count = with_attention.index(int(block)), len(with_attention)
    else:
        return False
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2


def _vocabulary(shape: Shape, vocab: str | Path | Vocabulary | None) -> Vocabulary:
    if isinstance(vocab, Vocabulary):
        return vocab
    if vocab == "synthetic" or (vocab is None and shape.vocabulary == "synthetic"):
        return vocabularies.synthetic()
    if vocab is not None and vocab != "sdist":
        return vocabularies.from_file(Path(vocab))
    if shape.vocabulary == "synthetic":
        raise ValueError("this shape has a synthetic vocabulary; name a file to use another")
    return vocabularies.from_sdist(shape.vocabulary)


def _write_header(
    path: Path,
    name: str,
    shape: Shape,
    file_type: FileType,
    words: Vocabulary,
    tensors: Sequence[Tensor],
    kinds: Sequence[Kind],
) -> None:
    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_name(name)
    writer.add_file_type(int(_FILE_TYPES[file_type][0]))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_key_length(shape.head_length)
    writer.add_value_length(shape.head_length)
    writer.add_rope_dimension_count(shape.head_length)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(words.tokens))
    if shape.recurrent_layers:
        layers = range(shape.layers)
        writer.add_head_count_kv(
            [0 if layer in shape.recurrent_layers else shape.kv_heads for layer in layers]
        )
        writer.add_shortconv_l_cache(CONVOLUTION_TAPS)
    else:
        writer.add_head_count_kv(shape.kv_heads)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.active_experts)
        writer.add_expert_feed_forward_length(shape.feed_forward)
    if shape.sliding_window:
        writer.add_sliding_window(shape.sliding_window)
        writer.add_sliding_window_pattern([layer % 2 == 0 for layer in range(shape.layers)])
    words.write(writer)
    for tensor, kind in zip(tensors, kinds, strict=True):
        size = math.prod(tensor.dims[:-1]) * row_bytes(kind, tensor.dims[-1])
        writer.add_tensor_info(tensor.name, tensor.dims, np.dtype(np.float32), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def _write_tensor(stream: BinaryIO, tensor: Tensor, kind: Kind, rng: np.random.Generator) -> None:
    if tensor.values is not None:
        stream.write(tensor.values.tobytes())
    else:
        rows, columns = math.prod(tensor.dims[:-1]), tensor.dims[-1]
        at_once = max(1, _CHUNK_BYTES // (4 * columns))
        for start in range(0, rows, at_once):
            count = min(at_once, rows - start)
            part: NDArray[Any] = random_rows(kind, count, columns, tensor.deviation, rng)
            stream.write(part.data)
    _pad(stream)


def _pad(stream: BinaryIO) -> None:
    stream.write(b"\0" * (-stream.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a model with random weights.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--type", dest="file_type", choices=get_args(FileType), default="q4_k_m")
    parser.add_argument("--out", type=Path, required=True, help="folder for SHAPE-TYPE.gguf")
    parser.add_argument("--vocab", help="synthetic, sdist or a GGUF file (default: the shape's)")
    parser.add_argument("--sdist", type=Path, help="source package, in place of a download")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    vocab: str | Vocabulary | None = args.vocab
    if args.sdist is not None:
        name = SHAPES[args.shape].vocabulary
        if name == "synthetic" or vocab not in (None, "sdist"):
            parser.error("--sdist is of use with a vocabulary from there only")
        vocab = vocabularies.from_sdist(name, sdist=args.sdist)
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    path = args.out / f"{args.shape}-{args.file_type}.gguf"
    write_model(args.shape, args.file_type, path, vocab=vocab, seed=args.seed)
    seconds = time.perf_counter() - started
    sys.stdout.write(f"{path}: {path.stat().st_size / 1e6:,.1f} MB in {seconds:.1f} s\n")


if __name__ == "__main__":
    main()
