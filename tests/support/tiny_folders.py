"""Folders of tiny models with all files besides the weights: vocabulary, template, defaults."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gguf_builder import SPECIALS, TEMPLATE, tiny_vocabulary
from tiny_checkpoints import VOCABULARY, tiny_checkpoint

QWEN2_EXPRESSION = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARK = "\u2581"
WEIGHTS = "model.safetensors"
Tensors = dict[str, Tensor]


def tiny_folder(family: str, folder: Path, **changes: Any) -> Path:
    """A checkpoint as `tiny_checkpoint` writes it, with a vocabulary whose words are split as
    Qwen2's.
    """
    tiny_checkpoint(family, folder, **changes)
    add_vocabulary(folder)
    return folder


def add_vocabulary(folder: Path) -> None:
    """Write `tokenizer.json` and related files: the vocabulary of `gguf_builder.tiny_vocabulary`,
    with fewer tokens than the embedding has rows.
    """
    words = tiny_vocabulary()
    ends = words.id_of("<|end|>")
    write_json(folder / "tokenizer.json", byte_level(words.tokens, words.merges, SPECIALS))
    write_json(
        folder / "tokenizer_config.json",
        {"eos_token": "<|end|>", "pad_token": "<|end|>", "chat_template": TEMPLATE},
    )
    write_json(
        folder / "generation_config.json",
        {"eos_token_id": [ends], "temperature": 0.5, "top_k": 20, "top_p": 0.75},
    )
    if (folder / "config.json").is_file():
        change_json(folder / "config.json", eos_token_id=ends, bos_token_id=None, pad_token_id=None)
    assert len(words.tokens) < VOCABULARY


def rewrite(folder: Path, change: Callable[[Tensors], object]) -> Path:
    """Change the tensors of a checkpoint in one file."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    return folder


def pack_experts(folder: Path) -> Path:
    """Replace the experts of a gpt-oss checkpoint by others, in MXFP4."""
    generator = torch.Generator().manual_seed(2)

    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
            experts, inputs, outputs = tensors.pop(name).shape
            shape = (experts, outputs, inputs // 32)
            for part, least, most, size in (("blocks", 0, 256, (16,)), ("scales", 118, 122, ())):
                values = torch.randint(least, most, (*shape, *size), generator=generator)
                tensors[f"{name}_{part}"] = values.to(torch.uint8)

    change_json(folder / "config.json", quantization_config={"quant_method": "mxfp4"})
    return rewrite(folder, change)


def byte_level(
    tokens: Sequence[str],
    merges: Sequence[str],
    specials: Sequence[str] = (),
    expression: str = QWEN2_EXPRESSION,
    **model: Any,
) -> dict[str, Any]:
    """A `tokenizer.json` that splits words and encodes them in bytes."""
    ids = {text: ident for ident, text in enumerate(tokens)}
    cut = {
        "type": "Split",
        "pattern": {"Regex": expression},
        "behavior": "Isolated",
        "invert": False,
    }
    spell = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        **_common(ids, merges, specials, {}),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [cut, spell | {"use_regex": False}]},
        "post_processor": None,
        "decoder": spell | {"use_regex": True},
        "model": _model(ids, merges, **model),
    }


def scored(
    pieces: Sequence[str], specials: Mapping[str, int], *, scheme: str = "prepend", **model: Any
) -> dict[str, Any]:
    """A `tokenizer.json` as transformers makes it from a SentencePiece model.

    Args:
        pieces: by id; pieces of several characters, except <0x..>, are merged in that order.
        specials: added tokens, by their ids.
        scheme: "prepend": a normalizer puts ▁ in front; or a `prepend_scheme` of Metaspace.
    """
    ids = {text: ident for ident, text in enumerate(pieces)}
    kept = {text: None for text in pieces if text not in specials and not text.startswith("<0x")}
    merges = [
        f"{piece[:cut]} {piece[cut:]}"
        for piece in kept
        for cut in range(1, len(piece))
        if piece[:cut] in kept and piece[cut:] in kept
    ]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    back = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}
    steps = [{"type": "Prepend", "prepend": MARK}, replace]
    spaces = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": False}
    is_prepended = scheme == "prepend"
    return {
        **_common(ids, merges, tuple(specials), specials),
        "normalizer": {"type": "Sequence", "normalizers": steps} if is_prepended else None,
        "pre_tokenizer": None if is_prepended else spaces,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}]},
        "model": _model(ids, merges, **{"byte_fallback": True, "unk_token": "<unk>", **model}),
    }


def _common(
    ids: Mapping[str, int],
    merges: Sequence[str],
    specials: Sequence[str],
    more: Mapping[str, int],
) -> dict[str, Any]:
    added = [
        {
            "id": more.get(text, ids.get(text)),
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for text in specials
    ]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}


def _model(ids: Mapping[str, int], merges: Sequence[str], **changes: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": ids,
        "merges": list(merges),
        **changes,
    }


def write_json(path: Path, values: Any) -> Path:
    path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
    return path


def change_json(path: Path, **changes: Any) -> Path:
    """Change values of the object at `path`; None removes a key."""
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    return write_json(path, {key: value for key, value in values.items() if value is not None})
