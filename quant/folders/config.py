"""The `quantization_config` of a new config.json. Without torch.

Sources: compressed-tensors' `quantization/quant_config.py`, GPTQModel's `quantization/config.py`,
AutoAWQ's `models/_config.py`, transformers' `utils/quantization_config.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hearth.quant.folders.storage import FP8_BLOCK, Storage
from hearth.quant.hf_names import EMBEDDING, canonical, is_needless

_FORMATS: Final = {
    ("packed", "int"): "pack-quantized",
    ("scaled", "int"): "int-quantized",
    ("scaled", "fp8"): "float-quantized",
    ("scaled", "e5m2"): "float-quantized",
}
_STRATEGIES: Final = {"row": "channel"}
"""Scopes that compressed-tensors names differently."""


def quantization_config(
    storage: Storage,
    ignored: Sequence[str],
    outside: Mapping[str, Storage] | None = None,
    skipped: Sequence[str] = (),
) -> dict[str, Any]:
    """
    Args:
        storage: of the matrices of blocks.
        ignored: names of modules with a plain matrix.
        outside: storage by tensor name, for embedding and output matrix if they are quantized, and
            for matrices that are stored differently from most; only for compressed-tensors.
        skipped: those of `ignored` that are matrices of blocks, which are usually quantized.
    """
    group = -1 if storage.group is None else storage.group
    match storage.layout:
        case "gptq":
            return {
                "quant_method": "gptq",
                "bits": storage.bits,
                "group_size": group,
                "sym": storage.symmetric,
                "desc_act": storage.has_order,
                "lm_head": False,
                "checkpoint_format": "gptq_v2",
                **({"dynamic": {f"-:{re.escape(o)}$": {} for o in skipped}} if skipped else {}),
            }
        case "awq":
            return {
                "quant_method": "awq",
                "bits": storage.bits,
                "group_size": group,
                "zero_point": True,
                "version": "gemm",
                "modules_to_not_convert": list(ignored),
            }
        case "nf4":
            return {
                "quant_method": "bitsandbytes",
                "load_in_4bit": True,
                "load_in_8bit": False,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": False,
                "bnb_4bit_compute_dtype": "bfloat16",
                "bnb_4bit_quant_storage": "uint8",
                "llm_int8_skip_modules": list(ignored),
            }
        case _:
            return _compressed(storage, ignored, outside or {})


def _compressed(
    storage: Storage, ignored: Sequence[str], outside: Mapping[str, Storage]
) -> dict[str, Any]:
    groups = {"group_0": _group(storage, ["Linear"])}
    targets: dict[Storage, list[str]] = {}
    for name, own in outside.items():
        module = name.removesuffix(".weight")
        target = _anywhere(module) or f"re:{re.escape(module)}$"
        targets.setdefault(own, []).append(target)
    for number, (own, modules) in enumerate(targets.items(), 1):
        groups[f"group_{number}"] = _group(own, modules)
    formats = {_format(own) for own in (storage, *targets)}
    # transformers has no packed embeddings, so it has to unpack the model on load. But it unpacks
    # all matrices by the first group (5.23), so with several kinds this is not requested:
    # transformers then refuses the folder instead of computing with wrong weights.
    is_embedding = any(canonical(name) == EMBEDDING for name in outside)
    is_unpacked = storage.needs_dequantizing or is_embedding
    is_one_kind = all(own == storage for own in targets)
    return {
        "quant_method": "compressed-tensors",
        # A key of transformers' `CompressedTensorsConfig`, which does not pass it on.
        **({"dequantize": True} if is_unpacked and is_one_kind else {}),
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "config_groups": groups,
        "ignore": list(dict.fromkeys(_anywhere(module) or module for module in ignored)),
    }


def _anywhere(module: str) -> str | None:
    """A pattern for a module that transformers and vLLM name differently from the files. For a text
    model it matches any prefix; for another part, all of its modules. None if the name is the same
    everywhere.
    """
    name = canonical(f"{module}.").removesuffix(".")
    own = name.removeprefix("model.")
    if is_needless(f"{name}."):
        return rf"re:(?:.*\.)?{own.partition('.')[0]}\b.*"
    return None if name == module else rf"re:(?:.*\.)?{re.escape(own)}$"


def _group(storage: Storage, targets: Sequence[str]) -> dict[str, Any]:
    weights: dict[str, Any] = {
        "num_bits": storage.bits,
        "type": "float" if storage.is_float8 else "int",
        "symmetric": storage.symmetric,
        "strategy": _STRATEGIES.get(storage.scope, storage.scope),
        "dynamic": False,
    }
    if storage.scope == "group":
        weights["group_size"] = storage.group
    if storage.scope == "block":
        weights["block_structure"] = [FP8_BLOCK, FP8_BLOCK]
    return {
        "targets": list(targets),
        "format": _format(storage),
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
    }


def _format(storage: Storage) -> str:
    return _FORMATS[storage.layout, storage.kind]
