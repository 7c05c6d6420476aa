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
"""What compressed-tensors calls a scope, where that is something else."""


def quantization_config(
    storage: Storage,
    ignored: Sequence[str],
    outside: Mapping[str, Storage] | None = None,
    skipped: Sequence[str] = (),
) -> dict[str, Any]:
    """
    Args:
        storage: of the matrices of blocks.
        ignored: modules with a plain matrix, by name.
        outside: of embedding and output matrix where these are quantized, and of what is stored
            otherwise than most, by the names of their tensors; of compressed-tensors alone.
        skipped: those of `ignored` that are of a kind that is quantized in other blocks.
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
    # transformers has no embedding of packed weights: it unpacks the model when it loads it. But it
    # unpacks all matrices by the first group (5.23), so of several kinds it is not asked to: then
    # it refuses the folder rather than computing something else.
    is_embedding = any(canonical(name) == EMBEDDING for name in outside)
    is_unpacked = storage.needs_dequantizing or is_embedding
    is_one_kind = all(own == storage for own in targets)
    return {
        "quant_method": "compressed-tensors",
        # Of transformers' `CompressedTensorsConfig`, which passes it on to no one.
        **({"dequantize": True} if is_unpacked and is_one_kind else {}),
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "config_groups": groups,
        "ignore": list(dict.fromkeys(_anywhere(module) or module for module in ignored)),
    }


def _anywhere(module: str) -> str | None:
    """A pattern for a module that transformers and vLLM name otherwise than files do: of a text
    model whatever the prefix, of any other part all modules. None: its name is the same everywhere.
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
