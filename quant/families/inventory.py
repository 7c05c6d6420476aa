"""Checks that a model's files hold the tensors that its config requires, by names, shapes and
types, before tensor data is read or memory is allocated. Without torch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from hearth.quant.errors import CorruptFile, UnsupportedModel
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.family import Family
from hearth.quant.families.shapes import parameter_shapes
from hearth.quant.families.source import Choice, Part, Shape, Source, choose, shape_of
from hearth.quant.hf_names import HEAD, canonical, is_needless, is_of_another_quantization
from hearth.quant.stored import StoredTensor

_NEEDLESS_IN_GGUF = re.compile(
    r"^(v|a|mm)\.|^rope_(freqs|factors_long|factors_short)\.weight$|\.nextn\.|\.attn_rot_embd$"
)
"""The counterpart of `is_needless` for names in GGUF."""
_LAYER = re.compile(r"(?:model\.layers|blk)\.(\d+)\.")
_WITHOUT_LAYER = re.compile(r"^layers\.\d+\.")
_SHOWN_NAMES = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """A parameter of the decoder, and where it comes from."""

    name: str
    shape: Shape
    choice: Choice
    """Parts, with the names used in the file."""
    source: Source
    """All possible sources, with canonical names."""

    @property
    def axis(self) -> int:
        """The axis along which parts are joined."""
        return self.source.axis

    @property
    def stored(self) -> Iterator[str]:
        """The names of the stored tensors that make up the parameter."""
        return (name for part in self.choice for name in part.names)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The tensors of a file that are to be loaded, and those that are not."""

    wanted: Mapping[str, Wanted]
    """Parameters to load, by name."""
    skipped: tuple[str, ...]
    """Tensors of the file that are known but not needed."""
    unknown: tuple[str, ...]
    """Tensors of the file that are not known."""


def take_inventory(
    family: Family,
    config: ModelConfig,
    stored: Mapping[str, StoredTensor],
    *,
    is_gguf: bool,
    kinds: Collection[str],
) -> Inventory:
    """Find every parameter in the file.

    Args:
        stored: the tensors of the file.
        kinds: types that can be used, besides gpt-oss's MXFP4 in two tensors.

    Raises:
        CorruptFile: a tensor is missing or misshapen; `field` in `data` names it.
        UnsupportedModel: tensors are of a type that cannot be used, or quantized in an unknown
            way.
    """
    spelled = {name: name for name in stored} if is_gguf else _canonical_names(stored)
    for name in stored:
        if is_of_another_quantization(name):
            raise UnsupportedModel(
                f"The model is quantized in a way that is not known here: it has a tensor "
                f"'{name}'.",
                "Use the model's original weights, or a GGUF of it.",
                field=name,
            )
    shapes = parameter_shapes(config)
    wanted: dict[str, Wanted] = {}
    missing: list[str] = []
    for name, source in family.names(config).items():
        choices = source.gguf if is_gguf else source.hf
        choice = choose(choices, spelled)
        if choice is None:
            missing += _missing(choices, spelled)
            continue
        parts = tuple(
            replace(part, names=tuple(spelled[one] for one in part.names)) for part in choice
        )
        shape = shapes[_WITHOUT_LAYER.sub("", name)]
        wanted[name] = Wanted(name, shape, parts, source)
    if missing:
        raise _missing_error(missing)
    for one in wanted.values():
        _check(one, config, stored, kinds)
    used = {name for one in wanted.values() for name in one.stored}
    rest = [(ours, name) for ours, name in spelled.items() if name not in used]
    skipped = {name for ours, name in rest if _is_needless(ours, config)}
    unknown = tuple(name for _, name in rest if name not in skipped)
    return Inventory(wanted, tuple(sorted(skipped)), unknown)


def rows_of_parts(shape: Shape, axis: int, parts: int, config: ModelConfig) -> list[int]:
    """The number of rows of each part of a parameter: of queries, keys and values, or of gate and
    up.
    """
    if parts == 3:
        keys = config.kv_heads * config.head_dim
        return [config.heads * config.head_dim, keys, keys]
    return [shape[axis] // parts] * parts


def _canonical_names(stored: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Stored names by their canonical spelling."""
    names: dict[str, str] = {}
    for name in stored:
        ours = canonical(name)
        if ours in names:
            raise CorruptFile(
                f"Tensors '{names[ours]}' and '{name}' are both the model's '{ours}'.", field=name
            )
        names[ours] = name
    return names


def _missing(choices: tuple[Choice, ...], spelled: Mapping[str, str]) -> list[str]:
    """The missing tensors of the choice that lacks the fewest."""
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


def _check(
    wanted: Wanted,
    config: ModelConfig,
    stored: Mapping[str, StoredTensor],
    kinds: Collection[str],
) -> None:
    """Check that the types can be used, and that the shapes are those of the decoder."""
    part_shapes: list[Shape] = []
    for part in wanted.choice:
        for name in part.names:
            _check_type(stored[name], part, kinds)
        shapes = [stored[name].shape for name in part.names]
        try:
            part_shapes.append(shape_of(part, shapes))
        except (ValueError, IndexError) as error:
            raise _misshapen(wanted, stored, f"{error}") from error
    lengths = [shape[wanted.axis] if len(shape) > wanted.axis else 0 for shape in part_shapes]
    expected = rows_of_parts(wanted.shape, wanted.axis, len(wanted.choice), config)
    whole = [
        (*shape[: wanted.axis], sum(lengths), *shape[wanted.axis + 1 :]) for shape in part_shapes
    ]
    if any(shape != wanted.shape for shape in whole) or lengths != expected:
        raise _misshapen(wanted, stored, f"the config asks for {_joined(expected, wanted)}")


def _joined(lengths: list[int], wanted: Wanted) -> str:
    if len(lengths) == 1:
        return str(wanted.shape)
    rest = wanted.shape[wanted.axis + 1 :]
    first = wanted.shape[: wanted.axis]
    return " and ".join(str((*first, length, *rest)) for length in lengths)


def _misshapen(wanted: Wanted, stored: Mapping[str, StoredTensor], problem: str) -> CorruptFile:
    names = list(wanted.stored)
    shown = " and ".join(f"'{name}' {stored[name].shape}" for name in names[:3])
    return CorruptFile(
        f"Tensor {shown} cannot be the model's {wanted.name}: {problem}.",
        "The config belongs to another model: download all of its files again.",
        field=names[0],
    )


def _check_type(tensor: StoredTensor, part: Part, kinds: Collection[str]) -> None:
    if tensor.kind != "U8" if part.is_mxfp4 else tensor.kind not in kinds:
        raise UnsupportedModel(
            f"Tensor '{tensor.name}' is of type {tensor.kind}, which cannot be used here.",
            "Choose another file of this model.",
            field=tensor.name,
        )


def _is_needless(name: str, config: ModelConfig) -> bool:
    """Whether a tensor of that canonical name is known but not needed."""
    if config.tied and name in (HEAD, "output.weight"):
        return True
    layer = _LAYER.match(name)
    beyond = layer is not None and int(layer[1]) >= len(config.layers)
    return beyond or is_needless(name) or _NEEDLESS_IN_GGUF.search(name) is not None
