"""How the makers of a model recommend to sample from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hearth.backends.errors import CorruptFile
from hearth.backends.text.vocab.model_folder import read_json
from hearth.quant.gguf.file import GgufFile

_FILE: Final = "generation_config.json"
_GGUF_KEYS: Final = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling parameters as a model's own files have them; None where they say nothing."""

    temperature: float | None = None
    """0 where the files say that the likeliest token is to be taken."""
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    eos_ids: frozenset[int] = frozenset()
    """Every end-of-generation token that the files name."""

    @property
    def named(self) -> Mapping[str, float]:
        """The sampling parameters that the files say something of, by our names for them."""
        said = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
        }
        return {name: value for name, value in said.items() if value is not None}

    @property
    def words(self) -> str:
        """Them in a line; empty where the files say nothing."""
        return ", ".join(f"{name} {value:g}" for name, value in self.named.items())


def about_sampling(defaults: GenerationDefaults) -> tuple[str, ...]:
    """What who loads a model should know of it; empty where there is nothing to say."""
    return (f"The model's makers recommend {defaults.words}.",) if defaults.words else ()


def read_generation_defaults(folder: Path) -> GenerationDefaults:
    """What `generation_config.json` in `folder` says; nothing where there is no such file.

    Raises:
        CorruptFile: it is no JSON object, or a value is no number.
    """
    config = read_json(folder, _FILE)
    is_greedy = config.get("do_sample") is False
    return GenerationDefaults(
        temperature=0.0 if is_greedy else _number(folder, config, "temperature"),
        top_k=_integer(folder, config, "top_k"),
        top_p=_number(folder, config, "top_p"),
        min_p=_number(folder, config, "min_p"),
        repetition_penalty=_number(folder, config, "repetition_penalty"),
        eos_ids=_ids(folder, config),
    )


def gguf_generation_defaults(file: GgufFile) -> GenerationDefaults:
    """What the `general.sampling.*` keys of a GGUF file say; its end tokens are the tokenizer's.

    Raises:
        CorruptFile: a value is no number.
    """
    values = {name: file.value(key) for name, key in _GGUF_KEYS.items()}
    return GenerationDefaults(
        temperature=_number(file.path, values, "temperature"),
        top_k=_integer(file.path, values, "top_k"),
        top_p=_number(file.path, values, "top_p"),
        min_p=_number(file.path, values, "min_p"),
        repetition_penalty=_number(file.path, values, "repetition_penalty"),
    )


def _number(where: Path, values: Mapping[str, Any], name: str) -> float | None:
    found = values.get(name)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise _wrong(where, name, found, "a number")
    return float(found)


def _integer(where: Path, values: Mapping[str, Any], name: str) -> int | None:
    found = _number(where, values, name)
    if found is None:
        return None
    if not found.is_integer():
        raise _wrong(where, name, found, "a whole number")
    return int(found)


def _ids(where: Path, values: Mapping[str, Any]) -> frozenset[int]:
    found = values.get("eos_token_id")
    ids = [] if found is None else found if isinstance(found, list) else [found]
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
