"""What tests of the converter share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hearth.quant.gguf.quantize import QuantizePlan
from hearth.quant.gguf.quantize_method import GgufMethod
from hearth.quant.gguf.quantize_run import run


def planned_of(folder: Path, name: str = "auto", **options: Any) -> QuantizePlan:
    """What the menu would make of `folder`."""
    method = GgufMethod()
    return method.plan(folder, method.target_named(name, folder), options)


def converted(folder: Path, target: Path, name: str = "auto", **options: Any) -> Path:
    """`folder` as the GGUF file `target`."""
    return run(planned_of(folder, name, **options), target).path
