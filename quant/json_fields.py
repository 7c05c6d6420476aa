"""A typed reader of `config.json` and similar files."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path

from hearth.quant.errors import CorruptFile, UnsupportedModel

MAX_BYTES = 4 << 20
_HINT = "Download the file again, or correct the value."


class Getters(ABC):
    """Values by key, each of the requested type.

    Every getter raises `CorruptFile`, which names file and key, if the value is missing and has no
    default, is of another type, or is out of range.
    """

    __slots__ = ()

    def integer(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = 1 << 31
    ) -> int:
        value = self._given(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, "must be an integer")
        if not least <= value <= most:
            raise self.wrong(key, f"must be from {least:,} to {most:,}")
        return value

    def number(
        self, key: str, default: float | None = None, *, least: float = -inf, most: float = inf
    ) -> float:
        value = finite_number(self._given(key, default))
        if value is None:
            raise self.wrong(key, "must be a finite number")
        if value < least:
            raise self.wrong(key, f"must be at least {least:g}")
        if value > most:
            raise self.wrong(key, f"must be at most {most:g}")
        return value

    def positive(self, key: str, default: float | None = None, *, most: float = inf) -> float:
        value = self.number(key, default, most=most)
        if value <= 0:
            raise self.wrong(key, "must be greater than 0")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._given(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._given(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "must be a string")
        return value

    def _given(self, key: str, default: object) -> object:
        value = self._value(key)
        if value is not None:
            return value
        if default is None:
            raise self.wrong(key, "must be given")
        return default

    @abstractmethod
    def _value(self, key: str) -> object:
        """The value of `key`; None if missing."""

    @abstractmethod
    def wrong(self, key: str, must: str) -> CorruptFile:
        """The error for an invalid value."""


@dataclass(frozen=True, slots=True)
class Fields(Getters):
    """An object of a JSON file. A value of null counts as missing."""

    path: Path
    values: Mapping[str, object]
    prefix: str = ""
    """Prefix of the keys in messages, such as "text_config." inside that section."""

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty if the key is missing."""
        texts = tuple(item for item in self._list(key) if isinstance(item, str))
        if len(texts) != len(self._list(key)):
            raise self.wrong(key, "must be a list of strings")
        return texts

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers; empty if the key is missing."""
        numbers = [finite_number(item) for item in self._list(key)]
        if None in numbers:
            raise self.wrong(key, "must be a list of finite numbers")
        return tuple(number for number in numbers if number is not None)

    def section(self, key: str) -> Fields | None:
        """The object under `key`; None if missing."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "must be an object")
        return Fields(self.path, value, f"{self.prefix}{key}.")

    def sections(self, key: str) -> tuple[Fields, ...]:
        """A list of objects; empty if the key is missing."""
        sections = tuple(
            Fields(self.path, item, f"{self.prefix}{key}[{place}].")
            for place, item in enumerate(self._list(key))
            if isinstance(item, dict)
        )
        if len(sections) != len(self._list(key)):
            raise self.wrong(key, "must be a list of objects")
        return sections

    def over(self, defaults: Mapping[str, object]) -> Fields:
        """These fields with a family's `defaults` for absent keys; a null value is kept."""
        return Fields(self.path, {**defaults, **self.values}, self.prefix)

    def wrong(self, key: str, must: str) -> CorruptFile:
        """The error for an invalid value."""
        value = self.values.get(key)
        shown = "is missing" if value is None else f"is {json.dumps(value)[:60]}"
        field = f"{self.prefix}{key}"
        return CorruptFile(
            f"{self.path}: '{field}' {shown}, {must}.", _HINT, path=str(self.path), field=field
        )

    def unsupported(self, key: str, supported: str) -> UnsupportedModel:
        """The error for a valid value that is not supported."""
        field = f"{self.prefix}{key}"
        return UnsupportedModel(
            f"{self.path}: '{field}' is {json.dumps(self.values.get(key))[:120]}, which is not "
            f"supported in a folder of safetensors; what is: {supported}.",
            "Take a GGUF of this model, and run it with --backend llamacpp.",
            path=str(self.path),
            field=field,
        )

    def _value(self, key: str) -> object:
        return self.values.get(key)

    def _list(self, key: str) -> list[object]:
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(key, "must be a list")
        return value


def finite_number(value: object) -> float | None:
    """`value` of a JSON file as a float; None if it is not a number, or too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # An integer of more than 308 digits.
        return None
    return number if isfinite(number) else None


def read_fields(path: Path, most_bytes: int = MAX_BYTES) -> Fields:
    """The object of the JSON file at `path`.

    Raises:
        CorruptFile: the file is longer than `most_bytes`, not JSON, or not an object.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise CorruptFile(f"{path} is longer than {most_bytes:,} bytes.", path=str(path))
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path} is not JSON: {error}.", path=str(path)) from error
    if not isinstance(values, dict):
        raise CorruptFile(f"{path} is not a JSON object.", path=str(path))
    return Fields(path, values)
