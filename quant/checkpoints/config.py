"""Parsing of `quantization_config`. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from hearth.quant.checkpoints.compressed_config import compressed_tensors
from hearth.quant.checkpoints.fp8_config import bitsandbytes, fp8
from hearth.quant.checkpoints.gptq_config import awq, gptq
from hearth.quant.checkpoints.scheme import Checkpoint
from hearth.quant.errors import UnsupportedModel
from hearth.quant.json_fields import Fields, read_fields

KEY: Final = "quantization_config"
_ALONE: Final = "quantize_config.json"
"""The file that AutoGPTQ wrote before config.json had a section for it."""
_METHODS: Final[Mapping[str, Callable[[Fields], Checkpoint]]] = {
    "gptq": gptq,
    "awq": awq,
    "compressed-tensors": compressed_tensors,
    "fp8": fp8,
    "bitsandbytes": bitsandbytes,
}
_ELSEWHERE: Final = frozenset({"mxfp4"})
"""Formats that a family reads on its own: gpt-oss's experts."""


def read_checkpoint(fields: Fields) -> Checkpoint | None:
    """How the model of a `config.json` is quantized; None for plain numbers and gpt-oss's MXFP4.

    Raises:
        UnsupportedModel: a format or its variant cannot be read; it is named.
        CorruptFile: a value is invalid.
    """
    section = fields.section(KEY)
    if section is None:
        beside = fields.path.parent / _ALONE
        if not beside.is_file():
            return None
        section = read_fields(beside).over({"quant_method": "gptq"})
    method = section.text("quant_method")
    if method in _ELSEWHERE and fields.values.get("model_type") == "gpt_oss":
        return None
    if method not in _METHODS:
        raise section.unsupported("quant_method", f"{', '.join(_METHODS)}, and mxfp4 of gpt-oss")
    return _METHODS[method](section)


def refuse_quantized(path: Path, checkpoint: Checkpoint | None) -> None:
    """Raises `UnsupportedModel` if the weights are quantized, for uses that need plain numbers."""
    if checkpoint is not None:
        raise UnsupportedModel(
            f"{path}: the weights are quantized ({checkpoint.label}), and to convert them would "
            "quantize them a second time.",
            "Convert the model's original weights, or run this folder with --backend native.",
            path=str(path),
            field=KEY,
        )
