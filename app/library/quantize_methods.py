"""The quantization methods that this application offers.

They are those of `hearth.quant`, with a runner for methods that use activations.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hearth.quant.methods import Method, Methods, methods

if TYPE_CHECKING:
    from hearth.quant.folders.calibrated import CalibratedModel


def all_methods() -> Methods:
    """Every method. Code that runs models is imported only when a method is used."""
    from hearth.quant.folders.methods import Runner

    return methods(Runner(_open_model, _calibration_text()))


CONVERT: Final = "convert"
"""The method of `hearth convert`, which rounds nothing and is in no menu."""


def method_named(name: str) -> Method:
    """One of `all_methods`, or `CONVERT`. Raises `UnknownMethod`."""
    if name == CONVERT:
        from hearth.quant.folders.convert import Conversion

        return Conversion()
    return all_methods().named(name)


def _calibration_text() -> Path:
    with as_file(files("hearth.assets") / "texts" / "calibration.txt") as path:
        return path


def _open_model(folder: Path, tokens: int) -> CalibratedModel:
    from hearth.backends.native.calibrated import CalibratedFolder

    return CalibratedFolder(folder, tokens)
