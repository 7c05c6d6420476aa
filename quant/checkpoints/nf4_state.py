"""The JSON metadata that bitsandbytes stores for a 4-bit matrix (`QuantState.as_dict`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod

from hearth.quant.checkpoints.scheme import NF4_BLOCKS
from hearth.quant.json_fields import finite_number


@dataclass(frozen=True, slots=True)
class Nf4State:
    """The state of one matrix."""

    shape: tuple[int, int]
    """Outputs and inputs."""
    block: int
    """Codes that share a scale."""
    nested_block: int | None
    """Number of scales that share a scale if scales are quantized too; else None."""
    nested_offset: float
    """Number that is added to quantized scales."""


def parse_state(content: bytes) -> Nf4State:
    """Raises `ValueError` that names the invalid value."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError("is not JSON") from error
    if not isinstance(values, dict):
        raise ValueError("is not a JSON object")
    if values.get("quant_type") != "nf4":
        raise ValueError(f"says quant_type {str(values.get('quant_type'))[:40]!r}, must be 'nf4'")
    shape = values.get("shape")
    if not isinstance(shape, list) or len(shape) != 2 or any(type(one) is not int for one in shape):
        raise ValueError(f"says shape {str(shape)[:40]}, must be two numbers")
    if min(shape) < 1 or prod(shape) >= 1 << 48:
        raise ValueError(f"says shape {str(shape)[:40]}, must be two numbers from 1")
    if values.get("blocksize") not in NF4_BLOCKS:
        raise ValueError(f"says blocksize {str(values.get('blocksize'))[:40]}")
    nested = values.get("nested_blocksize")
    offset = finite_number(values.get("nested_offset", 0.0))
    if nested is not None and nested not in NF4_BLOCKS:
        raise ValueError(f"says nested_blocksize {str(nested)[:40]}")
    if offset is None:
        raise ValueError(f"says nested_offset {str(values['nested_offset'])[:40]}")
    return Nf4State((shape[0], shape[1]), values["blocksize"], nested, offset)
