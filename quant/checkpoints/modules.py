"""Which stored tensors make up a quantized matrix, and its shape. Headers alone, without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from hearth.quant.checkpoints.scheme import Checkpoint, Layout, QuantizedTensor, Scheme
from hearth.quant.errors import CorruptFile
from hearth.quant.safetensors_header import SafetensorsHeader, TensorEntry
from hearth.quant.stored import ELEMENT_BYTES, StoredTensor

Parts = Mapping[str, TensorEntry]
_HALVES: Final = ("F16", "BF16", "F32")


@dataclass(frozen=True, slots=True)
class _Form:
    """The tensors of a layout, by the ends of their names."""

    anchor: str
    """The one by which a matrix is found."""
    needed: tuple[str, ...]
    optional: tuple[str, ...]
    kinds: Mapping[str, tuple[str, ...]]
    """The types that some of them must have."""
    shape: Callable[[_Module], tuple[int, int]]
    """Outputs and inputs. Raises `CorruptFile`."""


@dataclass(frozen=True, slots=True)
class _Module:
    """A quantized matrix, as it is stored."""

    name: str
    scheme: Scheme
    parts: Parts

    def wrong(self, leaf: str, must: str) -> CorruptFile:
        entry = self.parts[leaf]
        return CorruptFile(
            f"Tensor '{entry.name}' {entry.shape} of type {entry.kind} {must}.",
            "The quantization_config belongs to another model, or the file is damaged: download "
            "all of its files again.",
            field=entry.name,
        )

    def expect(self, leaf: str, *shapes: tuple[int, ...]) -> None:
        """Raises `CorruptFile` if the tensor is there and has none of the `shapes`."""
        if leaf in self.parts and self.parts[leaf].shape not in shapes:
            allowed = " or ".join(str(shape) for shape in shapes)
            raise self.wrong(leaf, f"must be {allowed}")


def resolve(
    headers: Sequence[SafetensorsHeader], checkpoint: Checkpoint | None
) -> dict[str, StoredTensor]:
    """The tensors of a model by name, where each quantized matrix is one `QuantizedTensor` under
    the name that it would have if it were not quantized.

    Args:
        headers: of all files of the model.
        checkpoint: None: no matrix is quantized.

    Raises:
        CorruptFile: a tensor of a quantized matrix is missing or misshapen; it is named.
        UnsupportedModel: as `Checkpoint.scheme_of`.
    """
    stored = {name: entry for header in headers for name, entry in header.tensors.items()}
    if checkpoint is None:
        return dict(stored)
    forms = {layout: _FORMS[layout] for layout in checkpoint.layouts}
    found: dict[str, StoredTensor] = {}
    used: set[str] = set()
    for name in stored:
        for layout, form in forms.items():
            if not name.endswith(form.anchor):
                continue
            module = name.removesuffix(form.anchor)
            scheme = checkpoint.scheme_of(module)
            if scheme is None or scheme.layout != layout:
                raise CorruptFile(
                    f"Tensor '{name}' is quantized, and the quantization_config says that "
                    f"'{module}' is not.",
                    "Download config.json again.",
                    field=name,
                )
            parts = _parts(module, form, stored)
            used |= {part.name for part in parts.values()}
            tensor = _quantized(_Module(module, scheme, parts), form)
            found[tensor.name] = tensor
            break
    return {name: entry for name, entry in stored.items() if name not in used} | found


def _parts(module: str, form: _Form, stored: Parts) -> dict[str, TensorEntry]:
    """The tensors of a module, by the ends of their names."""
    missing = [leaf for leaf in form.needed if f"{module}{leaf}" not in stored]
    if missing:
        raise CorruptFile(
            f"The model's files have no tensor '{module}{missing[0]}', which belongs to "
            f"'{module}{form.anchor}'.",
            "Download all of the model's files again.",
            field=f"{module}{missing[0]}",
        )
    leaves = (*form.needed, *(one for one in form.optional if f"{module}{one}" in stored))
    return {leaf: stored[f"{module}{leaf}"] for leaf in leaves}


def _quantized(module: _Module, form: _Form) -> QuantizedTensor:
    for leaf, kinds in form.kinds.items():
        if leaf in module.parts and module.parts[leaf].kind not in kinds:
            raise module.wrong(leaf, f"must be of type {' or '.join(kinds)}")
    outputs, inputs = form.shape(module)
    scheme = module.scheme
    return QuantizedTensor(
        f"{module.name}.weight",
        (outputs, inputs),
        scheme.packing,
        _held_bytes(module, outputs, inputs),
        scheme=scheme,
        parts={leaf: entry.name for leaf, entry in module.parts.items()},
    )


def _held_bytes(module: _Module, outputs: int, inputs: int) -> int:
    """Of codes, scales, codes for zero and an order."""
    scheme = module.scheme
    scales = next(entry for leaf, entry in module.parts.items() if leaf.endswith("scales"))
    groups = outputs * groups_of(inputs, scheme.group)
    held = outputs * inputs // (1 if scheme.packing == "INT8" else 2)
    held += groups * (ELEMENT_BYTES[scales.kind] + scheme.has_zeros)
    return held + (16 * inputs if scheme.is_ordered else 0)


def groups_of(inputs: int, group: int) -> int:
    """Scales of a row, where `group` inputs share one; 0: all do."""
    return -(-inputs // group) if group else 1


def _gptq_shape(module: _Module) -> tuple[int, int]:
    """`qweight` [inputs · bits / 32, outputs], packed along its first axis; `qzeros` [groups,
    outputs · bits / 32], along its second; `scales` [groups, outputs]; `g_idx` [inputs].
    """
    bits, shape = module.scheme.bits, module.parts[".qweight"].shape
    if len(shape) != 2 or not prod(shape) or shape[0] * 32 % bits:
        raise module.wrong(".qweight", f"holds no codes of {bits} bits")
    inputs, outputs = shape[0] * 32 // bits, shape[1]
    if inputs % 2:
        raise module.wrong(".qweight", "has an odd number of inputs")
    groups = groups_of(inputs, module.scheme.group)
    module.expect(".scales", (groups, outputs))
    module.expect(".qzeros", (groups, -(-outputs * bits // 32)))
    module.expect(".g_idx", (inputs,))
    return outputs, inputs


def _awq_shape(module: _Module) -> tuple[int, int]:
    """`qweight` [inputs, outputs / 8], `qzeros` [groups, outputs / 8], both packed along their
    second axis; `scales` [groups, outputs].
    """
    shape = module.parts[".qweight"].shape
    if len(shape) != 2 or not prod(shape) or shape[0] % 2:
        raise module.wrong(".qweight", "must have an even number of inputs, and outputs")
    inputs, outputs = shape[0], 8 * shape[1]
    groups = groups_of(inputs, module.scheme.group)
    if module.scheme.group and inputs % module.scheme.group:
        raise module.wrong(".qweight", f"has no whole groups of {module.scheme.group} inputs")
    module.expect(".scales", (groups, outputs))
    module.expect(".qzeros", (groups, shape[1]))
    return outputs, inputs


_INTEGERS: Final = {".qweight": ("I32",), ".qzeros": ("I32",), ".scales": _HALVES}
_FORMS: Final[Mapping[Layout, _Form]] = {
    "gptq": _Form(
        ".qweight",
        (".qweight", ".qzeros", ".scales"),
        (".g_idx",),
        {**_INTEGERS, ".g_idx": ("I32", "I64")},
        _gptq_shape,
    ),
    "awq": _Form(".qweight", (".qweight", ".qzeros", ".scales"), (), _INTEGERS, _awq_shape),
}
