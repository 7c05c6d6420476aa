"""The catalogue of recommended models, which comes with Hearth and needs no network.

Its sizes are approximate (parameters times bits per weight); the Hub knows those of the files.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from hearth.app.format import argument
from hearth.app.nearest import nearest
from hearth.backends.errors import CorruptFile, ModelNotFound

Purpose = Literal["chat", "code", "embedding", "reranker"]

_PULLABLE = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", re.ASCII)
_SHAPE = ("layers", "kv_heads", "head_size")


@dataclass(frozen=True, slots=True)
class Shape:
    """Determines the size of keys and values: 2 × layers × kv_heads × head_size per token."""

    layers: int
    kv_heads: int
    head_size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the catalogue.

    Attributes:
        name: the name for `hearth pull`, in lower case.
        title: the name as its makers write it.
        repo: the repository of GGUF files on the Hub, `org/name`.
        purpose: what the model is for.
        parameters: number of parameters.
        active_parameters: parameters used for a token; fewer than `parameters` in a mixture of
            experts.
        licence: the Hub's name of the licence.
        context: trained context in tokens; 0 if not recorded.
        shape: None if not recorded.
        sizes: approximate bytes of each type of quantization that the repository offers, ascending.
        recommended: the type of quantization that suits most people.
        summary: one sentence.
    """

    name: str
    title: str
    repo: str
    purpose: Purpose
    parameters: int
    active_parameters: int
    licence: str
    context: int
    shape: Shape | None
    sizes: Mapping[str, int]
    recommended: str
    summary: str

    @property
    def size_bytes(self) -> int:
        """Approximate bytes of the recommended file."""
        return self.sizes[self.recommended]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All models of the catalogue, the smallest of each purpose first, and by name."""

    entries: tuple[Entry, ...]
    _by_name: Mapping[str, Entry] = field(repr=False, compare=False)

    def get(self, name: str) -> Entry | None:
        """The model called `name`, regardless of case; None if there is none."""
        return self._by_name.get(name.lower())

    def not_found(self, name: str) -> ModelNotFound:
        """The error for a missing model `name`, with the most similar names."""
        near = nearest(name, self._by_name, most=3)
        guess = f"Did you mean {' or '.join(near)}? " if near else ""
        return ModelNotFound(
            f'The catalogue has no model "{name}".',
            f"{guess}`hearth pull` alone shows the catalogue; any other repository of the Hub is "
            "named by its owner and name: hearth pull org/name.",
            name=name,
            nearest=near,
        )


def load_catalogue(path: Path | None = None) -> Catalogue:
    """The catalogue that comes with Hearth, or the one at `path`.

    Raises:
        CorruptFile: the catalogue is missing or cannot be read.
    """
    if path is None:
        from importlib.resources import files

        path = Path(str(files("hearth.assets"))) / "catalogue.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        entries = [_entry(table, data["bits_per_weight"]) for table in data["models"]]
        order = get_args(Purpose)
        entries.sort(key=lambda entry: (order.index(entry.purpose), entry.parameters))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CorruptFile(
            f"{path} cannot be read: {error}.",
            "The installation is damaged: install Hearth again.",
            field="file",
        ) from error
    return Catalogue(tuple(entries), {entry.name: entry for entry in entries})


def pull_command(name: str) -> str:
    """The command that downloads the model `name`; empty if `name` cannot be downloaded."""
    if _PULLABLE.fullmatch(name):
        return f"hearth pull {argument(name)}"
    base, _, quant = name.partition(":")
    entry = load_catalogue().get(base)
    if entry is None or (quant and quant.upper() not in map(str.upper, entry.sizes)):
        return ""
    return f"hearth pull {entry.name}{':' + quant if quant else ''}"


def _entry(table: Mapping[str, Any], bits: Mapping[str, float]) -> Entry:
    """The model that a table of the catalogue describes. A wrong table raises Python's errors."""
    fields = {name: value for name, value in table.items() if name not in (*_SHAPE, "quants")}
    parameters = round(table["parameters"])
    sizes = {quant: round(parameters * bits[quant] / 8) for quant in table["quants"]}
    return Entry(
        **{"active_parameters": parameters, "context": 0, **fields, "parameters": parameters},
        shape=Shape(*(table[name] for name in _SHAPE)) if _SHAPE[0] in table else None,
        sizes=dict(sorted(sizes.items(), key=lambda item: item[1])),
    )
