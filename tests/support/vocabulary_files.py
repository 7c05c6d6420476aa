"""GGUF files that hold a vocabulary and no weights; llama.cpp loads them as such."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf

from gguf_builder import byte_alphabet

KINDS = {
    bool: gguf.GGUFValueType.BOOL,
    int: gguf.GGUFValueType.UINT32,
    float: gguf.GGUFValueType.FLOAT32,
    str: gguf.GGUFValueType.STRING,
}
SAMPLE = "aBz '\n\r\t10,!$sTé語한\u0301あñΩ½—€\u3000A<|."
"""Characters of all kinds that word patterns distinguish."""


def write_vocabulary(
    path: Path,
    model: str,
    tokens: Sequence[str | bytes],
    *,
    types: Sequence[int] | None = None,
    scores: Sequence[float] | None = None,
    merges: Sequence[str] | None = None,
    name: str = "test",
    **extra: Any,
) -> Path:
    """Writes a file whose vocabulary is of the kind `model`; `extra`: further keys without their
    prefix "tokenizer.ggml.", e.g. `bos_token_id=1`.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_tokenizer_model(model)
    writer.add_token_list(list(tokens))
    if types is not None:
        writer.add_token_types(list(types))
    if scores is not None:
        writer.add_token_scores(list(scores))
    if merges is not None:
        writer.add_token_merges(list(merges))
    for key, value in extra.items():
        writer.add_key_value(f"tokenizer.ggml.{key}", value, KINDS[type(value)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def pairwise_bpe(path: Path, pre: str) -> Path:
    """Byte-level BPE in which any two neighbouring bytes of `SAMPLE` can be merged, so that ids
    show where words end.
    """
    alphabet = byte_alphabet()
    used = sorted({alphabet[byte] for char in SAMPLE for byte in char.encode()})
    merges = [f"{left} {right}" for left in used for right in used]
    tokens = [*alphabet, *(merge.replace(" ", "") for merge in merges)]
    return write_vocabulary(path, "gpt2", tokens, merges=merges, pre=pre, eos_token_id=0)
