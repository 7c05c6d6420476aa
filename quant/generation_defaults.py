"""The sampling parameters that the makers of a model recommend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hearth.quant.convert.folder_files import GENERATION, optional_fields
from hearth.quant.errors import CorruptFile
from hearth.quant.gguf.file import GgufFile
from hearth.quant.json_fields import finite_number

_GGUF_KEYS: Final = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling parameters from a model's own files; None if a file does not set them."""

    temperature: float | None = None
    """0 if the files ask for greedy sampling."""
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    eos_ids: frozenset[int] = frozenset()
    """Every end-of-generation token that the files name."""

    @property
    def named(self) -> Mapping[str, float]:
        """The sampling parameters that the files set, by Hearth's names."""
        values = {name: getattr(self, name) for name in _GGUF_KEYS}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def gguf_values(self) -> Mapping[str, float]:
        """The same values by GGUF's keys."""
        return {_GGUF_KEYS[name]: value for name, value in self.named.items()}

    @property
    def words(self) -> str:
        """The parameters as one line of text; empty if the files set none."""
        return ", ".join(f"{name} {value:g}" for name, value in self.named.items())


def about_sampling(defaults: GenerationDefaults) -> tuple[str, ...]:
    """Notes for the user who loads a model; empty if the files recommend nothing."""
    return (f"The model's makers recommend {defaults.words}.",) if defaults.words else ()


def read_generation_defaults(folder: Path) -> GenerationDefaults:
    """The defaults in `generation_config.json` of `folder`; empty if there is no such file.

    Raises:
        CorruptFile: the file is not a JSON object, or a value is not a number.
    """
    config = optional_fields(folder, GENERATION).values
    values = {**config, "temperature": 0} if config.get("do_sample") is False else config
    return GenerationDefaults(**_numbers(folder, values), eos_ids=_ids(folder, config))


def gguf_generation_defaults(file: GgufFile) -> GenerationDefaults:
    """The defaults in the `general.sampling.*` keys of a GGUF file, without end tokens, which the
    tokenizer defines.

    Raises:
        CorruptFile: a value is not a number.
    """
    values = {name: file.value(key) for name, key in _GGUF_KEYS.items()}
    return GenerationDefaults(**_numbers(file.path, values))


def _numbers(where: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: values[name] for name in _GGUF_KEYS if values.get(name) is not None}
    for name, value in numbers.items():
        numbers[name] = finite_number(value)
        if numbers[name] is None:
            raise _wrong(where, name, value, "a number")
    if "top_k" in numbers:
        if not numbers["top_k"].is_integer():
            raise _wrong(where, "top_k", numbers["top_k"], "a whole number")
        numbers["top_k"] = int(numbers["top_k"])
    return numbers


def _ids(where: Path, values: Mapping[str, Any]) -> frozenset[int]:
    value = values.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for ident in ids:
        if isinstance(ident, bool) or not isinstance(ident, int) or ident < 0:
            raise _wrong(where, "eos_token_id", ident, "a token id")
    return frozenset(ids)


def _wrong(where: Path, name: str, found: object, expected: str) -> CorruptFile:
    shown = repr(found)[:60]
    return CorruptFile(
        f"The generation defaults of {where} have {shown} as {name}, which is not {expected}.",
        "Correct the file, or remove the line.",
        field=name,
    )
