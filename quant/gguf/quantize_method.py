"""The method of `hearth.quant.methods` that makes GGUF from GGUF or a folder of safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from hearth.quant.convert.folder import SUFFIX, FolderSource, folder_of
from hearth.quant.gguf import preflight
from hearth.quant.gguf.errors import CannotQuantize, NeedsImportanceMatrix
from hearth.quant.gguf.imatrix import planned, read
from hearth.quant.gguf.mixes import mixes, read_recipe
from hearth.quant.gguf.quantize import QuantizePlan, plan
from hearth.quant.gguf.source import GgufSource
from hearth.quant.methods import (
    CALIBRATION,
    Option,
    Plan,
    Quantized,
    Running,
    Target,
    given_options,
)

Stamp = tuple[tuple[str, int, int], ...]
_MAGIC = b"GGUF"
AUTO, OFF = "auto", "off"
"""Values of the option imatrix: make a matrix, or use none."""
BUNDLED = "bundled text"
"""The dataset name in a matrix that was made without a text from the user."""


class GgufMethod:
    """llama.cpp's types and mixes, packed by llama.cpp's own library."""

    name = "gguf"
    title = "GGUF"
    about = "The types of llama.cpp: 8 to 1 bits a weight, for processors and every GPU."
    suffix = ".gguf"
    options: tuple[Option, ...] = (
        Option(
            "imatrix",
            "file",
            "An importance matrix of the model, which makes fewer bits hurt less: a file, auto to "
            "have one made, or off. By default one is made for the types that need it.",
            choices=(AUTO, OFF),
        ),
        CALIBRATION,
        Option(
            "backend",
            "choice",
            "What runs the model for an importance matrix. By default llamacpp, and native for "
            "folders.",
            choices=(AUTO, "llamacpp", "native"),
        ),
        Option(
            "tensor",
            "texts",
            "PATTERN=TYPE: tensors whose name matches the regular expression get that type; the "
            "first match wins.",
        ),
        Option("requantize", "flag", "Pack weights again that are quantized already."),
    )

    def targets(self) -> list[Target]:
        """Every mix."""
        return [Target(mix.name, mix.about) for mix in mixes()]

    def __init__(self) -> None:
        self._folder: tuple[Stamp, FolderSource] | None = None
        """The folder that was read last, cached because reading a vocabulary takes a second."""

    def target_named(self, name: str, source: Path) -> str:
        """The mix that the user called `name`; for a folder, "auto" is the stored number type.

        Raises:
            BadRecipe: there is no such mix.
            CorruptFile, UnsupportedModel: for "auto", as in `FolderSource`.
        """
        if name.lower() == AUTO:
            weights = self._source(source)
            if isinstance(weights, FolderSource):
                return weights.stored_type.name
        return read_recipe(name).mix.name

    def takes(self, source: Path) -> bool:
        """Whether `source` begins like a GGUF file, or is a model folder in safetensors."""
        if source.is_dir() or source.suffix == SUFFIX:
            return folder_of(source) is not None
        try:
            with source.open("rb") as stream:
                return stream.read(len(_MAGIC)) == _MAGIC
        except OSError:
            return False

    def plan(self, source: Path, target: str, options: Mapping[str, Any]) -> QuantizePlan:
        """See `quantize.plan`. The source is first checked like every model. Without the option
        imatrix, a type that needs a matrix is planned with one that will be made.

        Raises:
            CorruptFile, UnsupportedModel: source or importance matrix cannot be used.
            BadRecipe, CannotQuantize, NeedsImportanceMatrix, UnknownOption: see the classes.
        """
        options = given_options(self, options)
        recipe = read_recipe(target, options.get("tensor") or ())
        weights = self._source(source)
        matrix = options.get("imatrix")
        making = planned(weights.header, dataset_of(options))
        try:
            importance = read(matrix) if matrix and matrix not in (AUTO, OFF) else None
        except OSError as error:
            raise CannotQuantize(
                f"{matrix} cannot be read: {error.strerror}.",
                "Check the path of the importance matrix (--imatrix).",
            ) from error
        requantize = bool(options.get("requantize"))
        if matrix == AUTO:
            importance = making
        try:
            return plan(weights, recipe, importance, requantize=requantize)
        except NeedsImportanceMatrix:
            if matrix or weights.header.is_encoder:
                raise
            return plan(weights, recipe, making, requantize=requantize)

    def _source(self, path: Path) -> GgufSource | FolderSource:
        """The checked source at `path`."""
        folder = folder_of(path)
        if folder is None:
            return GgufSource(preflight.check(path))
        stamp = _stamp(folder)
        if self._folder is None or self._folder[0] != stamp:
            self._folder = (stamp, FolderSource(folder))
        return self._folder[1]

    def run(self, plan: Plan, path: Path, **how: Unpack[Running]) -> Quantized:
        """See `quantize_run.run`. Raises `TypeError` if `plan` is of another method."""
        from hearth.quant.gguf.quantize_run import run

        if not isinstance(plan, QuantizePlan):
            raise TypeError(f"a plan of {type(plan).__name__} is not one of {self.title}")
        return run(plan, path, **how)


def dataset_of(options: Mapping[str, Any]) -> str:
    """The name of the text that a matrix is made from with these `options`."""
    text = options.get("calibration")
    return Path(text).name if text else BUNDLED


def _stamp(folder: Path) -> Stamp:
    """Names, sizes and times of the files in `folder`, which reveal changes."""
    entries = []
    for path in folder.iterdir():
        status = path.stat()
        entries.append((str(path), status.st_size, status.st_mtime_ns))
    return tuple(sorted(entries))
