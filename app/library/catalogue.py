"""The catalogue of models worth having, which comes with Hearth and needs no network.

Its sizes are approximate, parameters times bits a weight, until the Hub is asked for the files.
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

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
_REPO = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_PULLABLE = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", re.ASCII)
_SHAPE = ("layers", "kv_heads", "head_size")
_MODEL_KEYS: Mapping[str, type] = {
    "name": str,
    "title": str,
    "repo": str,
    "purpose": str,
    "parameters": float,
    "active_parameters": float,
    "licence": str,
    "context": int,
    "layers": int,
    "kv_heads": int,
    "head_size": int,
    "quants": list,
    "recommended": str,
    "summary": str,
}
_OPTIONAL = ("active_parameters", "context", *_SHAPE)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the size of keys and values follows from: 2 × layers × kv_heads × head_size a token."""

    layers: int
    kv_heads: int
    head_size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A model of the catalogue.

    Attributes:
        name: what `hearth pull` takes, in lower case.
        title: as its makers write it.
        repo: the repository of GGUF files on the Hub, `org/name`.
        purpose: what it is for.
        parameters: of its weights.
        active_parameters: used for a token; `parameters` unless it is a mixture of experts.
        licence: as the Hub calls it.
        context: trained context in tokens; 0 if not recorded.
        shape: None if not recorded.
        sizes: approximate bytes of each type of quantization that the repository offers, ascending.
        recommended: the one of them for most people.
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
    """All of it, by name, the smallest model of each purpose first."""

    entries: tuple[Entry, ...]
    _by_name: Mapping[str, Entry] = field(repr=False, compare=False)

    def get(self, name: str) -> Entry | None:
        """The model called `name`, in any case of letters; None if there is none."""
        return self._by_name.get(name.lower())

    def not_found(self, name: str) -> ModelNotFound:
        """The error that says that there is no model called `name`, with the nearest names."""
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
        CorruptFile: it is missing or not what it must be; `field` in `data` names the place.
    """
    if path is None:
        from importlib.resources import files

        path = Path(str(files("hearth.assets"))) / "catalogue.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _fault(path, "file", str(error)) from error
    if set(data) != {"bits_per_weight", "models"}:
        raise _fault(path, "file", "must hold [bits_per_weight] and [[models]]")
    bits = _bits(path, data["bits_per_weight"])
    tables = data["models"]
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise _fault(path, "models", "must be a list of tables")
    entries = [_entry(path, table, bits) for table in tables]
    by_name = {entry.name: entry for entry in entries}
    if len(by_name) < len(entries):
        raise _fault(path, "name", "is there twice")
    order = get_args(Purpose)
    entries.sort(key=lambda entry: (order.index(entry.purpose), entry.parameters))
    return Catalogue(tuple(entries), by_name)


def pull_command(name: str) -> str:
    """The command that downloads what somebody calls `name`; empty if it can mean no download."""
    if _PULLABLE.fullmatch(name):
        return f"hearth pull {argument(name)}"
    base, _, quant = name.partition(":")
    entry = load_catalogue().get(base)
    if entry is None or (quant and quant.upper() not in map(str.upper, entry.sizes)):
        return ""
    return f"hearth pull {entry.name}{':' + quant if quant else ''}"


def _bits(path: Path, table: Any) -> Mapping[str, float]:
    if not isinstance(table, dict) or not all(
        isinstance(bits, int | float) and not isinstance(bits, bool) and 1 <= bits <= 32
        for bits in table.values()
    ):
        raise _fault(path, "bits_per_weight", "must give a number from 1 to 32 for each type")
    return table


def _entry(path: Path, table: dict[str, Any], bits: Mapping[str, float]) -> Entry:
    place = f"models.{table.get('name', '?')}"
    for key in table:
        if key not in _MODEL_KEYS:
            raise _fault(path, f"{place}.{key}", "is unknown")
    for key, kind in _MODEL_KEYS.items():
        if key not in table:
            if key not in _OPTIONAL:
                raise _fault(path, f"{place}.{key}", "is missing")
            continue
        allowed = (int, float) if kind is float else kind
        if not isinstance(table[key], allowed) or isinstance(table[key], bool):
            raise _fault(path, f"{place}.{key}", f"must be of type {kind.__name__}")
        if isinstance(table[key], int | float) and not 0 < table[key] < 10**13:
            raise _fault(path, f"{place}.{key}", "must be above 0 and below 10^13")
        if isinstance(table[key], str) and not table[key].strip():
            raise _fault(path, f"{place}.{key}", "is empty")
    _check_texts(path, place, table, bits)
    shape = [table[key] for key in _SHAPE if key in table]
    if len(shape) not in (0, len(_SHAPE)):
        raise _fault(path, place, f"needs all of {', '.join(_SHAPE)}, or none")
    parameters = round(table["parameters"])
    sizes = {quant: round(parameters * bits[quant] / 8) for quant in table["quants"]}
    return Entry(
        name=table["name"],
        title=table["title"],
        repo=table["repo"],
        purpose=table["purpose"],
        parameters=parameters,
        active_parameters=round(table.get("active_parameters", parameters)),
        licence=table["licence"],
        context=table.get("context", 0),
        shape=Shape(*shape) if shape else None,
        sizes=dict(sorted(sizes.items(), key=lambda item: item[1])),
        recommended=table["recommended"],
        summary=table["summary"],
    )


def _check_texts(path: Path, place: str, table: dict[str, Any], bits: Mapping[str, float]) -> None:
    quants = table["quants"]
    are_known = all(quant in bits for quant in quants) and len(set(quants)) == len(quants) > 0
    purposes = get_args(Purpose)
    for key, is_right, what in (
        ("name", _NAME.fullmatch(table["name"]), f"{table['name']!r} is not a name"),
        ("repo", _REPO.fullmatch(table["repo"]), f"{table['repo']!r} is not a repository"),
        ("purpose", table["purpose"] in purposes, f"must be one of {', '.join(purposes)}"),
        ("quants", are_known, "must be different types from [bits_per_weight]"),
        ("recommended", table["recommended"] in quants, "must be one of quants"),
        (
            "summary",
            table["summary"].endswith(".") and "\n" not in table["summary"],
            "must be one sentence with a full stop",
        ),
    ):
        if not is_right:
            raise _fault(path, f"{place}.{key}", what)


def _fault(path: Path, place: str, what: str) -> CorruptFile:
    return CorruptFile(
        f"{path}: {place}: {what}.",
        "The installation is damaged: install Hearth again.",
        field=place,
    )
