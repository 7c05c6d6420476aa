"""What a file holds beside what a decoder asks of it: checked by name, shape and type before
anything is read or any memory is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from hearth.backends.native.config import ModelConfig
from hearth.backends.native.families.family import Family
from hearth.backends.native.families.quirks import MxFp4Blocks
from hearth.backends.native.families.source import Choice, Part, choose, shape_of
from hearth.backends.native.tensors import StoredTensor
from hearth.kernels.blocks import packings
from hearth.quant.errors import CorruptFile, UnsupportedModel
from hearth.quant.hf_names import HEAD, canonical, is_needless, is_of_another_quantization

Shape = tuple[int, ...]

_FLOATS = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    }
)
_NEEDLESS_IN_GGUF = re.compile(
    r"^(v|a|mm)\.|^rope_(freqs|factors_long|factors_short)\.weight$|\.nextn\.|\.attn_rot_embd$"
)
"""The same as `is_needless`, by the names of GGUF."""
_LAYER = re.compile(r"(?:model\.layers|blk)\.(\d+)\.")
_SHOWN_NAMES = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parameter of the decoder, and where it comes from."""

    name: str
    shape: Shape
    choice: Choice
    """Parts, by the names of the file."""
    axis: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """What is to be loaded, and what is not."""

    wanted: Mapping[str, Wanted]
    """By the name of the parameter."""
    skipped: tuple[str, ...]
    """Tensors of the file that are known and not needed."""
    unknown: tuple[str, ...]
    """Tensors of the file that nobody knows."""


def take_inventory(
    family: Family,
    config: ModelConfig,
    shapes: Mapping[str, Shape],
    stored: Mapping[str, StoredTensor],
    *,
    is_gguf: bool,
) -> Inventory:
    """Finds every parameter in the file.

    Args:
        shapes: of the decoder's parameters, by name.
        stored: the tensors of the file.

    Raises:
        CorruptFile: a tensor is missing or misshapen; `field` in `data` names it.
        UnsupportedModel: tensors are of a type that cannot be used, or quantized in a way that is
            not known here.
    """
    spelled = {name: name for name in stored} if is_gguf else _canonical_names(stored)
    for name in stored:
        if is_of_another_quantization(name):
            raise UnsupportedModel(
                f"The model is quantized in a way that the native runner does not know: it has a "
                f"tensor '{name}'.",
                "Use the model's original weights, or a GGUF of it.",
                field=name,
            )
    sources = family.names(config)
    wanted: dict[str, Wanted] = {}
    missing: list[str] = []
    for name, shape in shapes.items():
        source = sources[name]
        choices = source.gguf if is_gguf else source.hf
        choice = choose(choices, spelled)
        if choice is None:
            missing += _missing(choices, spelled)
            continue
        parts = tuple(
            Part(tuple(spelled[one] for one in part.names), part.quirks) for part in choice
        )
        wanted[name] = Wanted(name, shape, parts, source.axis)
    if missing:
        raise _missing_error(missing)
    for one in wanted.values():
        _check(one, config, stored)
    used = {name for one in wanted.values() for part in one.choice for name in part.names}
    rest = [(ours, name) for ours, name in spelled.items() if name not in used]
    skipped = {name for ours, name in rest if _is_needless(ours, config)}
    unknown = tuple(name for _, name in rest if name not in skipped)
    return Inventory(wanted, tuple(sorted(skipped)), unknown)


def _canonical_names(stored: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Stored names by their canonical spelling."""
    found: dict[str, str] = {}
    for name in stored:
        ours = canonical(name)
        if ours in found:
            raise CorruptFile(
                f"Tensors '{found[ours]}' and '{name}' are both the model's '{ours}'.", field=name
            )
        found[ours] = name
    return found


def _missing(choices: tuple[Choice, ...], spelled: Mapping[str, str]) -> list[str]:
    """What is missing for the choice that lacks the least."""
    lacks = [
        [name for part in choice for name in part.names if name not in spelled]
        for choice in choices
    ]
    return min(lacks, key=len)


def _missing_error(names: list[str]) -> CorruptFile:
    shown = ", ".join(f"'{name}'" for name in names[:_SHOWN_NAMES])
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return CorruptFile(
        f"The model's files have no tensor {shown}{more}.",
        "Its config asks for them: download all of its files again.",
        field=names[0],
        missing=len(names),
    )


def _check(wanted: Wanted, config: ModelConfig, stored: Mapping[str, StoredTensor]) -> None:
    """Types can be used, and shapes are what the decoder asks for."""
    found: list[Shape] = []
    for part in wanted.choice:
        for name in part.names:
            _check_type(stored[name], part)
        shapes = [stored[name].shape for name in part.names]
        try:
            found.append(shape_of(part, shapes))
        except (ValueError, IndexError) as error:
            raise _misshapen(wanted, stored, f"{error}") from error
    lengths = [shape[wanted.axis] if len(shape) > wanted.axis else 0 for shape in found]
    expected = _rows_of_parts(wanted, config)
    whole = [(*shape[: wanted.axis], sum(lengths), *shape[wanted.axis + 1 :]) for shape in found]
    if any(shape != wanted.shape for shape in whole) or lengths != expected:
        raise _misshapen(wanted, stored, f"the config asks for {_joined(expected, wanted)}")


def _rows_of_parts(wanted: Wanted, config: ModelConfig) -> list[int]:
    """How many rows each part must have: queries, keys and values, or gate and up."""
    total, parts = wanted.shape[wanted.axis], len(wanted.choice)
    if parts == 3:
        keys = config.kv_heads * config.head_dim
        return [config.heads * config.head_dim, keys, keys]
    return [total // parts] * parts


def _joined(lengths: list[int], wanted: Wanted) -> str:
    if len(lengths) == 1:
        return str(wanted.shape)
    rest = wanted.shape[wanted.axis + 1 :]
    first = wanted.shape[: wanted.axis]
    return " and ".join(str((*first, length, *rest)) for length in lengths)


def _misshapen(wanted: Wanted, stored: Mapping[str, StoredTensor], problem: str) -> CorruptFile:
    names = [name for part in wanted.choice for name in part.names]
    shown = " and ".join(f"'{name}' {stored[name].shape}" for name in names[:3])
    return CorruptFile(
        f"Tensor {shown} cannot be the model's {wanted.name}: {problem}.",
        "The config belongs to another model: download all of its files again.",
        field=names[0],
    )


def _check_type(tensor: StoredTensor, part: Part) -> None:
    if tensor.packing:
        usable = tensor.packing in packings()
        kind = tensor.packing
    else:
        is_mxfp4 = bool(part.quirks) and isinstance(part.quirks[0], MxFp4Blocks)
        usable = tensor.dtype == torch.uint8 if is_mxfp4 else tensor.dtype in _FLOATS
        kind = str(tensor.dtype).removeprefix("torch.")
    if not usable:
        raise UnsupportedModel(
            f"Tensor '{tensor.name}' is of type {kind}, which the native runner cannot use.",
            "Choose another file of this model.",
            field=tensor.name,
        )


def _is_needless(name: str, config: ModelConfig) -> bool:
    """Whether a tensor of that canonical name is known, and not needed."""
    if config.tied and name in (HEAD, "output.weight"):
        return True
    layer = _LAYER.match(name)
    beyond = layer is not None and int(layer[1]) >= len(config.layers)
    return beyond or is_needless(name) or _NEEDLESS_IN_GGUF.search(name) is not None


def names_of(wanted: Wanted) -> Iterator[str]:
    """The stored tensors that `wanted` is made of."""
    for part in wanted.choice:
        yield from part.names
