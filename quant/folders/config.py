"""The `quantization_config` of a new config.json. Without torch.

Sources: compressed-tensors' `quantization/quant_config.py`, GPTQModel's `quantization/config.py`,
AutoAWQ's `models/_config.py`, transformers' `utils/quantization_config.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from hearth.quant.folders.storage import FP8_BLOCK, Storage
from hearth.quant.hf_names import EMBEDDING

_FORMATS: Final = {
    ("packed", "int"): "pack-quantized",
    ("scaled", "int"): "int-quantized",
    ("scaled", "fp8"): "float-quantized",
    ("scaled", "e5m2"): "float-quantized",
}
_STRATEGIES: Final = {"row": "channel"}
"""What compressed-tensors calls a scope, where that is something else."""


def quantization_config(
    storage: Storage, ignored: Sequence[str], head: tuple[str, Storage] | None = None
) -> dict[str, Any]:
    """
    Args:
        storage: of the matrices of all blocks.
        ignored: modules with a plain matrix, by name.
        head: name and storage of the output matrix, or of the embedding that is used as one, where
            it is quantized too; of compressed-tensors alone.
    """
    group = -1 if storage.group is None else storage.group
    match storage.layout:
        case "gptq":
            return {
                "quant_method": "gptq",
                "bits": storage.bits,
                "group_size": group,
                "sym": storage.symmetric,
                "desc_act": False,
                "lm_head": False,
                "checkpoint_format": "gptq_v2",
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
            return _compressed(storage, ignored, head)


def _compressed(
    storage: Storage, ignored: Sequence[str], head: tuple[str, Storage] | None
) -> dict[str, Any]:
    groups = {"group_0": _group(storage, "Linear")}
    formats = {_format(storage)}
    if head is not None:
        name, own = head
        groups["group_1"] = _group(own, f"re:{re.escape(name)}$")
        formats.add(_format(own))
    # transformers has no embedding of packed weights: it unpacks the model when it loads it.
    is_embedding = head is not None and head[0].endswith(EMBEDDING.removesuffix(".weight"))
    return {
        "quant_method": "compressed-tensors",
        # Of transformers' `CompressedTensorsConfig`, which passes it on to no one.
        **({"dequantize": True} if storage.needs_dequantizing or is_embedding else {}),
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "config_groups": groups,
        "ignore": list(ignored),
    }


def _group(storage: Storage, target: str) -> dict[str, Any]:
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
        "targets": [target],
        "format": _format(storage),
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
    }


def _format(storage: Storage) -> str:
    return _FORMATS[storage.layout, storage.kind]
