"""Helpers for tests of the converter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hearth.quant.gguf.quantize import QuantizePlan
from hearth.quant.gguf.quantize_method import GgufMethod
from hearth.quant.gguf.quantize_run import run


def planned_of(folder: Path, name: str = "auto", **options: Any) -> QuantizePlan:
    """The plan that the menu makes for `folder`."""
    method = GgufMethod()
    return method.plan(folder, method.target_named(name, folder), options)


def converted(folder: Path, target: Path, name: str = "auto", **options: Any) -> Path:
    """Convert `folder` to the GGUF file `target`."""
    return run(planned_of(folder, name, **options), target).path
