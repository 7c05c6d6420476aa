"""The tensors of a folder held against those that its GGUF is to have, before one is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hearth.quant.convert.model import Model
from hearth.quant.convert.origin import Origin, Wanted, shape_of
from hearth.quant.errors import UnsupportedModel
from hearth.quant.gguf.faults import corrupt, quoted
from hearth.quant.gguf.file import TensorInfo
from hearth.quant.gguf.quantize_types import may_change
from hearth.quant.gguf.types import TensorType
from hearth.quant.hf_names import (
    HEAD,
    by_canonical_name,
    canonical,
    is_needless,
    is_of_another_quantization,
)
from hearth.quant.safetensors_header import SafetensorsHeader, TensorEntry

_TYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}
_WIDE = "F64"
"""Stored as F32."""
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True)
class Found:
    """A tensor of the GGUF, and where it comes from."""

    name: str
    shape: tuple[int, ...]
    """As PyTorch has it."""
    type: TensorType
    """Of the numbers as they are stored; what llama.cpp wants as F32 is F32."""
    origin: Origin
    """By the names of the files."""

    @property
    def rows(self) -> int:
        """Rows of one matrix of a stack."""
        return self.shape[-2] if len(self.shape) > 1 else 1

    @property
    def info(self) -> tuple[str, tuple[int, ...], TensorType, int]:
        """Name, shape in ggml's order, type, bytes."""
        shape = self.shape[::-1]
        blocks = -(-shape[0] // self.type.block_elements)
        nbytes = blocks * self.type.block_bytes
        for length in shape[1:]:
            nbytes *= length
        return self.name, shape, self.type, nbytes


def take_inventory(
    folder: Path, model: Model, headers: Sequence[SafetensorsHeader]
) -> tuple[Found, ...]:
    """Every tensor that `model` wants, found in `folder`.

    Raises:
        CorruptFile: one is missing or misshapen; `field` in `data` names it.
        UnsupportedModel: one is of a type that cannot be used, or there is one that belongs to no
            such model: without it, the GGUF would be another model.
    """
    entries = {name: entry for header in headers for name, entry in header.tensors.items()}
    spelled = by_canonical_name(entries)
    _check_quantization(folder, entries)
    found = []
    missing: list[str] = []
    for wanted in model.tensors:
        origin = next((one for one in wanted.choices if _is_there(one, spelled)), None)
        if origin is None:
            missing += _lacking(wanted, spelled)
        else:
            stored = tuple(entries[spelled[name]] for name in origin.names)
            found.append(_found(folder, wanted, origin, stored, model.architecture))
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise corrupt(
            folder,
            f"tensor {quoted(missing[0])}",
            f"is missing{more}, though config.json asks for it",
            "Download all files of the model again.",
        )
    _check_rest(folder, model, found, entries)
    return tuple(found)


def _is_there(origin: Origin, spelled: Mapping[str, str]) -> bool:
    return all(name in spelled for name in origin.names)


def _lacking(wanted: Wanted, spelled: Mapping[str, str]) -> list[str]:
    """What is missing for the choice that lacks the least."""
    lacks = ([name for name in one.names if name not in spelled] for one in wanted.choices)
    return min(lacks, key=len)


def _found(
    folder: Path,
    wanted: Wanted,
    origin: Origin,
    stored: Sequence[TensorEntry],
    architecture: str,
) -> Found:
    shape = shape_of(origin, [entry.shape for entry in stored])
    if shape != wanted.shape:
        shapes = " and ".join(str(list(entry.shape)) for entry in stored[:2])
        raise corrupt(
            folder,
            f"tensor {quoted(stored[0].name)}",
            f"has the shape {shapes}; for {wanted.name} config.json asks for {list(wanted.shape)}",
            "The config belongs to another model: download all of its files again.",
        )
    renamed = replace(origin, names=tuple(entry.name for entry in stored))
    return Found(wanted.name, wanted.shape, _type(wanted, origin, stored, architecture), renamed)


def _type(
    wanted: Wanted, origin: Origin, stored: Sequence[TensorEntry], architecture: str
) -> TensorType:
    if origin.packed:
        for entry in stored:
            _require(entry, ("U8",))
        return TensorType.MXFP4
    for entry in stored:
        _require(entry, (*_TYPES, _WIDE))
    info = TensorInfo(wanted.name, wanted.shape[::-1], TensorType.F32, 0, 0)
    kinds = {entry.dtype for entry in stored}
    if len(kinds) != 1 or not may_change(info, architecture):
        return TensorType.F32
    return _TYPES.get(kinds.pop(), TensorType.F32)


def _require(entry: TensorEntry, dtypes: Sequence[str]) -> None:
    if entry.dtype not in dtypes:
        raise UnsupportedModel(
            f"Tensor {quoted(entry.name)} is of type {entry.dtype}; what can be converted is "
            f"{', '.join(dtypes)}.",
            "Take the model's weights in BF16, F16 or F32, or a GGUF of it.",
            field=entry.name,
        )


def _check_quantization(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        if is_of_another_quantization(name):
            raise UnsupportedModel(
                f"{folder.name} is quantized in a way that cannot be converted: it has a tensor "
                f"{quoted(name)}.",
                "Take the model's original weights, or a GGUF of it.",
                field=name,
                path=str(folder),
            )


def _check_rest(folder: Path, model: Model, found: Sequence[Found], names: Iterable[str]) -> None:
    used = {name for one in found for name in one.origin.names}
    unknown = [name for name in names if name not in used and not _is_needless(name, model)]
    if not unknown:
        return
    shown = ", ".join(quoted(name) for name in unknown[:_SHOWN_NAMES])
    more = f" and {len(unknown) - _SHOWN_NAMES:,} more" if len(unknown) > _SHOWN_NAMES else ""
    raise UnsupportedModel(
        f"{folder.name} has tensors that no {model.architecture} model of its config has: "
        f"{shown}{more}.",
        "A file without them would be another model. Check config.json, or take a GGUF of it.",
        field=unknown[0],
        path=str(folder),
    )


def _is_needless(name: str, model: Model) -> bool:
    spelled = canonical(name)
    layer = _LAYER.match(spelled)
    is_beyond = layer is not None and int(layer[1]) >= model.layers
    is_twice = model.tied and spelled == HEAD
    return is_beyond or is_twice or is_needless(spelled)
