"""`quantization_config` of FP8 as DeepSeek and Qwen publish it, and of bitsandbytes NF4.

Source: transformers' `utils/quantization_config.py`, `FineGrainedFP8Config` and
`BitsAndBytesConfig`.
"""

from __future__ import annotations

from typing import Final

from hearth.quant.checkpoints.scheme import Checkpoint, Scheme
from hearth.quant.json_fields import Fields

WEIGHTS_ALONE: Final = (
    "The checkpoint was made for activations in {what}, too. They stay as they are here, but for "
    "prompts on NVIDIA cards: weights alone are quantized."
)


def fp8(fields: Fields) -> Checkpoint:
    """Raises the errors of `read_checkpoint`."""
    if fields.text("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise fields.unsupported("fmt", "e4m3")
    if fields.text("expert_dtype", "fp8") != "fp8":
        raise fields.unsupported("expert_dtype", "fp8")
    usual: tuple[int, int] | None = None if "weight_block_size" in fields.values else (128, 128)
    scheme = Scheme("scaled", 8, block=block_of(fields, "weight_block_size") or usual)
    return Checkpoint(
        "FP8",
        lambda module: scheme,
        frozenset({"scaled"}),
        (WEIGHTS_ALONE.format(what="FP8"),),
    )


def block_of(fields: Fields, key: str) -> tuple[int, int] | None:
    """Outputs and inputs that share a scale; None if there are no blocks.

    Raises:
        CorruptFile: the value is not a pair of numbers.
        UnsupportedModel: the number of inputs is not a multiple of 128.
    """
    numbers = fields.numbers(key)
    if not numbers:
        return None
    if len(numbers) != 2 or any(not one.is_integer() or one < 1 for one in numbers):
        raise fields.wrong(key, "must be two whole numbers from 1")
    rows, columns = (int(one) for one in numbers)
    if columns % 128:
        raise fields.unsupported(key, "blocks of 128 inputs, or a multiple of that")
    return rows, columns


def bitsandbytes(fields: Fields) -> Checkpoint:
    """Raises the errors of `read_checkpoint`."""
    for key in ("load_in_8bit", "_load_in_8bit"):
        if fields.flag(key, False):
            raise fields.unsupported(key, "false: load_in_4bit with bnb_4bit_quant_type nf4")
    if not fields.has("bnb_4bit_quant_type") or fields.text("bnb_4bit_quant_type") != "nf4":
        raise fields.unsupported("bnb_4bit_quant_type", "nf4")
    scheme = Scheme("nf4", 4)
    return Checkpoint("NF4", lambda module: scheme, frozenset({"nf4"}))
