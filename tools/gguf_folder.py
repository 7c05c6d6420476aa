"""Converts a GGUF file of the families llama, qwen2 and qwen3 to a folder of safetensors, as
transformers would store it: for methods and measurements that begin with a folder.

    python tools/gguf_folder.py smollm2.gguf --out DIR --type bf16

Packed weights are unpacked, so the folder is no better than the file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from hearth.backends.native.gguf_model import read_gguf_config
from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.convert.pre_types import DIGITS, NAMES
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.source import choose, rows_of
from hearth.quant.gguf.file import GgufFile
from hearth.quant.gguf.preflight import check
from hearth.quant.gguf.tensor_file import GgufTensorFile
from hearth.quant.gguf.values import NumberArray, StringArray

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_CLASSES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
_CONTROL, _USER_DEFINED = 3, 4
"""Types of tokens in llama.h."""


def write_folder(path: Path, folder: Path, kind: str = "bf16") -> Path:
    """Write the model of the GGUF file at `path` to a new folder.

    Args:
        kind: type of the matrices, a key of `DTYPES`; norms are F32 if the file has them so.

    Raises:
        ValueError: an unknown family, scaling of rotary positions or vocabulary.
    """
    header = check(path)
    family, config = read_gguf_config(header)
    if family.name not in _CLASSES or config.experts is not None:
        raise ValueError(f"{path.name} is a {header.architecture}, not {', '.join(_CLASSES)}")
    tokenizer = tokenizer_of(header)
    values = config_of(header, family.name, config)
    folder.mkdir(parents=True)
    file = GgufTensorFile(header)
    stored: dict[str, Tensor] = {}
    for source in family.names(config).values():
        choice = choose(source.gguf, file.stored)
        if choice is None or len(choice) != len(source.hf[0]):
            raise ValueError(f"{path.name} has tensors in an order that is not known here")
        for part, ours in zip(choice, source.hf[0], strict=True):
            rows = rows_of(part, [file.read(name) for name in part.names])
            packed = PackedWeight(rows, file.stored[part.names[0]].packing)
            dtype = DTYPES[kind] if rows.ndim > 1 else torch.float32
            stored[ours.names[0]] = packed.unpacked(torch.float32).to(dtype).contiguous()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    _write(folder / "config.json", values | {"dtype": str(DTYPES[kind]).removeprefix("torch.")})
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", settings_of(header))
    return folder


def config_of(header: GgufFile, family: str, config: ModelConfig) -> dict[str, Any]:
    """The values of config.json."""
    (rope,) = {layer.rope for layer in config.layers}
    if rope is None or rope.scaling is not None or config.groups != (None,):
        raise ValueError("positions are scaled, or layers look through a window")
    return {
        "model_type": family,
        "architectures": [f"{_CLASSES[family]}ForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": len(config.layers),
        "intermediate_size": config.feed_forward,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context,
        "rope_theta": rope.theta,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied,
        "hidden_act": "silu",
        "attention_bias": config.out_bias,
        "eos_token_id": header.value("tokenizer.ggml.eos_token_id", None),
        "bos_token_id": header.value("tokenizer.ggml.bos_token_id", None),
    }


def tokenizer_of(header: GgufFile) -> Tokenizer:
    """A byte-level vocabulary with the file's own splitting of words."""
    name = header.value("tokenizer.ggml.pre", "")
    rules = next((how for how, known in NAMES.items() if known == name), None)
    if header.value("tokenizer.ggml.model", "") != "gpt2" or rules is None:
        raise ValueError(f"the vocabulary cuts words as {name!r}, which is not known here")
    tokens, kinds = _list(header, "tokens"), _list(header, "token_type")
    merges = [tuple(pair.split(" ", 1)) for pair in _list(header, "merges")]
    ids = {token: number for number, token in enumerate(tokens)}
    cuts, ignores_merges = rules
    tokenizer = Tokenizer(models.BPE(ids, merges, ignore_merges=ignores_merges))
    steps: list[Any] = [
        pre_tokenizers.Digits(individual_digits=True)
        if cut == DIGITS
        else pre_tokenizers.Split(Regex(cut), "isolated")
        for cut in cuts
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, kinds, strict=True):
        if kind == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    return tokenizer


def settings_of(header: GgufFile) -> dict[str, Any]:
    """The values of tokenizer_config.json."""
    tokens = _list(header, "tokens")
    values: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(header.value("tokenizer.ggml.add_bos_token", False)),
    }
    for key, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        ident = header.value(f"tokenizer.ggml.{name}_token_id", None)
        if isinstance(ident, int):
            values[f"{key}_token"] = tokens[ident]
    if template := header.chat_templates.get("default"):
        values["chat_template"] = template
    return values


def _list(header: GgufFile, key: str) -> list[Any]:
    values = header.metadata[f"tokenizer.ggml.{key}"]
    if not isinstance(values, StringArray | NumberArray):
        raise ValueError(f"tokenizer.ggml.{key} is no list")
    return list(values)


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("--type", choices=DTYPES, default="bf16")
    chosen = parser.parse_args()
    print(write_folder(chosen.file, chosen.out, chosen.type))


if __name__ == "__main__":
    main()
