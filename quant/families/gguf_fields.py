"""A typed reader of GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from hearth.quant.errors import CorruptFile, UnsupportedModel
from hearth.quant.gguf.file import GgufFile
from hearth.quant.gguf.plain_numbers import find_tensor, read_numbers
from hearth.quant.gguf.values import NumberArray
from hearth.quant.json_fields import Getters


@dataclass(frozen=True, slots=True)
class GgufFields(Getters):
    """The metadata of a GGUF model and the list of its tensors, from which some config values
    follow. It works without torch, since the host needs it before it chooses a runner.

    Keys are given without the prefix of the architecture.
    """

    header: GgufFile

    def has(self, key: str) -> bool:
        return self._full(key) in self.header.metadata

    def same(self, key: str, layers: int, default: int | None = None) -> int:
        """An integer of at least 1 that must be the same for all `layers`."""
        values = self.header.per_layer(self._full(key), layers, default)
        if len(set(values)) > 1:
            raise self.unsupported(key, "one value for all layers")
        if values[0] < 1:
            raise self.wrong(key, "must be at least 1")
        return values[0]

    def pattern(self, key: str, layers: int, default: int) -> tuple[bool, ...]:
        """[layers] whether a pattern includes each layer. The value is an array of booleans, or a
        number n for "all but every n-th layer" (0: all).
        """
        value = self.header.value(self._full(key), default)
        if isinstance(value, NumberArray):
            if len(value) < layers:
                raise self.wrong(key, f"must have one value for each of {layers} layers")
            return tuple(bool(value[index]) for index in range(layers))
        period = self.integer(key, default, least=0)
        return tuple(period == 0 or index % period < period - 1 for index in range(layers))

    def stores(self, name: str) -> bool:
        """Whether there is a tensor of that name."""
        return self.shape_of(name) is not None

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor in PyTorch's order, (o, i) for a matrix from i to o; None if there
        is no tensor of that name.
        """
        tensor = find_tensor(self.header, name)
        return None if tensor is None else tensor.shape[::-1]

    def vector(self, name: str, length: int) -> tuple[float, ...]:
        """The numbers of a small tensor; empty if there is no tensor of that name.

        Raises:
            CorruptFile: it is not a vector of `length`, or has numbers that are not finite and
                above 0.
            OSError: it cannot be read.
        """
        shape = self.shape_of(name)
        if shape is None:
            return ()
        if shape != (length,):
            raise CorruptFile(
                f"{self.header.path}: tensor '{name}' has shape {shape}, must be ({length},).",
                path=str(self.header.path),
                field=name,
            )
        numbers = read_numbers(self.header, name)
        if not all(isfinite(value) and value > 0 for value in numbers):
            raise CorruptFile(
                f"{self.header.path}: tensor '{name}' has values that are not above 0.",
                path=str(self.header.path),
                field=name,
            )
        return numbers

    def wrong(self, key: str, must: str) -> CorruptFile:
        """The error for an invalid value."""
        full = self._full(key)
        shown = repr(self.header.metadata[full])[:60] if self.has(key) else "missing"
        return CorruptFile(
            f"{self.header.path}: key '{full}' is {shown}, {must}.",
            path=str(self.header.path),
            field=full,
        )

    def unsupported(self, key: str, supported: str) -> UnsupportedModel:
        """The error for a valid value that the native runner does not support."""
        full = self._full(key)
        return UnsupportedModel(
            f"{self.header.path}: the native runner does not support the value of key '{full}'; it "
            f"supports {supported}.",
            "Run it with --backend llamacpp.",
            path=str(self.header.path),
            field=full,
        )

    def _value(self, key: str) -> object:
        return self.header.value(self._full(key))

    def _full(self, key: str) -> str:
        return f"{self.header.architecture}.{key}"
