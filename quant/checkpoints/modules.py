"""Finds the tensors that make up a quantized matrix, and its shape. From headers, without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import gcd, prod
from pathlib import Path
from typing import Final, NamedTuple

from hearth.quant.checkpoints.nf4_state import Nf4State, parse_state
from hearth.quant.checkpoints.scheme import Checkpoint, Layout, QuantizedTensor, Scheme
from hearth.quant.errors import CorruptFile
from hearth.quant.safetensors_header import SafetensorsHeader, TensorEntry
from hearth.quant.stored import ELEMENT_BYTES, StoredTensor

_FLOATS: Final = ("F16", "BF16", "F32")
_MOST_CONTENT: Final = 4096
"""Maximum bytes of a tensor that is read as metadata of a matrix."""
_FP8_GROUP: Final = 128
"""Inputs that share a scale in a `PackedWeight` of FP8."""
_NOT_WEIGHTS: Final = (
    *(".input_scale", ".input_zero_point", ".input_global_scale", ".activation_scale"),
    *(".output_scale", ".q_scale", ".k_scale", ".v_scale"),
)
"""Name suffixes of tensors for activations, keys and values, which are not used."""


class _Matrix(NamedTuple):
    """The matrix of a module, as it is loaded."""

    packing: str
    outputs: int
    inputs: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class _Form:
    """The tensors of a layout, by the suffixes of their names."""

    layout: Layout
    anchor: str
    """Suffix of the tensor that identifies a matrix."""
    needed: tuple[str, ...]
    optional: tuple[str, ...]
    kinds: Mapping[str, tuple[str, ...]]
    """The types allowed for some of the tensors."""
    matrix: Callable[[_Module], _Matrix]
    """Checks the shapes and returns the matrix. Raises `CorruptFile`."""


@dataclass(frozen=True, slots=True)
class _Module:
    """The stored form of a quantized matrix."""

    name: str
    scheme: Scheme
    parts: Mapping[str, TensorEntry]
    """Tensors by the suffixes of their names."""
    paths: Mapping[str, Path]
    """Files of all tensors of the model, by tensor name."""

    def wrong(self, leaf: str, must: str) -> CorruptFile:
        entry = self.parts[leaf]
        return CorruptFile(
            f"Tensor '{entry.name}' {entry.shape} of type {entry.kind} {must}.",
            "The quantization_config belongs to another model, or the file is damaged: download "
            "all of its files again.",
            field=entry.name,
        )

    def expect(self, leaf: str, *shapes: tuple[int, ...]) -> None:
        """Raises `CorruptFile` if the tensor exists and has none of the `shapes`."""
        if leaf in self.parts and self.parts[leaf].shape not in shapes:
            allowed = " or ".join(str(shape) for shape in shapes)
            raise self.wrong(leaf, f"must be {allowed}")

    def needs_order(self, leaf: str) -> None:
        """Raises `CorruptFile` if inputs may be in any order, but the tensor with it is missing."""
        if self.scheme.is_ordered and leaf not in self.parts:
            raise CorruptFile(
                f"The model's files have no tensor '{self.name}{leaf}', which says in what order "
                "its inputs are.",
                "Download all of the model's files again.",
                field=f"{self.name}{leaf}",
            )

    def element_bytes(self, leaf: str) -> int:
        return ELEMENT_BYTES[self.parts[leaf].kind]

    def content(self, leaf: str) -> bytes:
        """The bytes of a small tensor."""
        entry = self.parts[leaf]
        if entry.nbytes > _MOST_CONTENT:
            raise self.wrong(leaf, f"is longer than {_MOST_CONTENT:,} bytes")
        with self.paths[entry.name].open("rb") as stream:
            stream.seek(entry.start)
            data = stream.read(entry.nbytes)
        if len(data) < entry.nbytes:
            raise self.wrong(leaf, "is cut off: the file became shorter")
        return data


def resolve(
    headers: Sequence[SafetensorsHeader], checkpoint: Checkpoint | None
) -> dict[str, StoredTensor]:
    """The tensors of a model by name. Each quantized matrix is one `QuantizedTensor` under the name
    that it would have if it were not quantized.

    Args:
        headers: of all files of the model.
        checkpoint: how matrices are quantized; None if they are not.

    Raises:
        CorruptFile: a tensor of a quantized matrix is missing or misshapen; it is named.
        UnsupportedModel: as in `Checkpoint.scheme_of`.
        OSError: a file cannot be read.
    """
    stored = {name: entry for header in headers for name, entry in header.tensors.items()}
    if checkpoint is None:
        return dict(stored)
    paths = {name: header.path for header in headers for name in header.tensors}
    forms = [form for form in _FORMS if form.layout in checkpoint.layouts]
    quantized: dict[str, StoredTensor] = {}
    used: set[str] = set()
    for name in stored:
        for form in forms:
            if not name.endswith(form.anchor):
                continue
            module = name.removesuffix(form.anchor)
            scheme = checkpoint.scheme_of(module)
            if scheme is None:
                raise CorruptFile(
                    f"Tensor '{name}' is quantized, and the quantization_config says that "
                    f"'{module}' is not.",
                    "Download config.json again.",
                    field=name,
                )
            if scheme.layout != form.layout:
                continue
            parts = _parts(module, form, stored)
            used |= {part.name for part in parts.values()}
            tensor = _quantized(_Module(module, scheme, parts, paths), form)
            quantized[tensor.name] = tensor
            break
    if "scaled" in checkpoint.layouts:
        _check_scaled(stored, used)
    plain = {
        name: entry
        for name, entry in stored.items()
        if name not in used and not name.endswith(_NOT_WEIGHTS)
    }
    return plain | quantized


def _check_scaled(stored: Mapping[str, TensorEntry], used: Set[str]) -> None:
    """Raises `CorruptFile` for FP8 tensors without scales, which would pass for plain numbers."""
    for name, entry in stored.items():
        if entry.kind in _FLOAT8 and name not in used:
            raise CorruptFile(
                f"Tensor '{name}' is in FP8, and the model's files have no scale of it.",
                "Download all of the model's files again.",
                field=name,
            )


def _parts(module: str, form: _Form, stored: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The tensors of a module, by the suffixes of their names."""
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
    matrix = form.matrix(module)
    return QuantizedTensor(
        f"{module.name}.weight",
        (matrix.outputs, matrix.inputs),
        matrix.packing,
        matrix.held_bytes,
        scheme=module.scheme,
        parts={leaf: entry.name for leaf, entry in module.parts.items()},
    )


def groups_of(inputs: int, group: int) -> int:
    """Number of scales per row if `group` inputs share one; a `group` of 0 means all inputs."""
    return -(-inputs // group) if group else 1


def _integers(
    module: _Module, outputs: int, inputs: int, scales: str, *, has_zeros: bool
) -> _Matrix:
    """A matrix of integer codes; `scales` is the suffix of the tensor with its scales."""
    if inputs % 2:
        raise module.wrong(next(iter(module.parts)), "has an odd number of inputs")
    groups = outputs * groups_of(inputs, module.scheme.group)
    bits = module.scheme.bits
    held = outputs * -(-inputs * bits // 8)
    held += groups * (module.element_bytes(scales) + has_zeros)
    held += 16 * inputs if module.scheme.is_ordered else 0
    return _Matrix(f"INT{bits}", outputs, inputs, held)


def _gptq(module: _Module) -> _Matrix:
    """`qweight` [inputs · bits / 32, outputs], packed along its first axis; `qzeros` [groups,
    outputs · bits / 32], along its second; `scales` [groups, outputs]; `g_idx` [inputs].
    """
    bits, shape = module.scheme.bits, module.parts[".qweight"].shape
    if len(shape) != 2 or not prod(shape) or shape[0] * 32 % bits:
        raise module.wrong(".qweight", f"holds no codes of {bits} bits")
    inputs, outputs = shape[0] * 32 // bits, shape[1]
    groups = groups_of(inputs, module.scheme.group)
    module.expect(".scales", (groups, outputs))
    module.expect(".qzeros", (groups, -(-outputs * bits // 32)))
    module.expect(".g_idx", (inputs,))
    module.needs_order(".g_idx")
    return _integers(module, outputs, inputs, ".scales", has_zeros=module.scheme.has_zeros)


def _awq(module: _Module) -> _Matrix:
    """`qweight` [inputs, outputs / 8], `qzeros` [groups, outputs / 8], both packed along their
    second axis; `scales` [groups, outputs].
    """
    shape = module.parts[".qweight"].shape
    if len(shape) != 2 or not prod(shape):
        raise module.wrong(".qweight", "must be a matrix")
    inputs, outputs = shape[0], 8 * shape[1]
    groups = groups_of(inputs, module.scheme.group)
    if module.scheme.group and inputs % module.scheme.group:
        raise module.wrong(".qweight", f"has no whole groups of {module.scheme.group} inputs")
    module.expect(".scales", (groups, outputs))
    module.expect(".qzeros", (groups, shape[1]))
    return _integers(module, outputs, inputs, ".scales", has_zeros=module.scheme.has_zeros)


def _packed(module: _Module) -> _Matrix:
    """`weight_packed` [outputs, words], packed along its second axis; `weight_scale` [outputs,
    groups] or [1]; `weight_zero_point` [outputs · bits / 32, groups], packed along its first;
    `weight_g_idx` [inputs]; `weight_shape` [2], which holds the shape.
    """
    bits, shape = module.scheme.bits, module.parts[".weight_packed"].shape
    module.expect(".weight_shape", (2,))
    is_long = module.parts[".weight_shape"].kind == "I64"
    numbers = memoryview(module.content(".weight_shape")).cast("q" if is_long else "i")
    outputs, inputs = numbers if len(numbers) == 2 else (0, 0)
    if min(outputs, inputs) < 1 or shape != (outputs, -(-inputs * bits // 32)):
        raise module.wrong(".weight_packed", f"holds no ({outputs}, {inputs}) codes of {bits} bits")
    groups = groups_of(inputs, module.scheme.group)
    each = () if module.scheme.group else ((1,), (1, 1), ())
    module.expect(".weight_scale", (outputs, groups), *each)
    module.expect(".weight_zero_point", (-(-outputs * bits // 32), groups))
    module.expect(".weight_g_idx", (inputs,))
    module.needs_order(".weight_g_idx")
    has_zeros = ".weight_zero_point" in module.parts
    return _integers(module, outputs, inputs, ".weight_scale", has_zeros=has_zeros)


def _scaled(module: _Module) -> _Matrix:
    """`weight` [outputs, inputs] in int8 or FP8; scales for the whole matrix [] or [1], for each
    output [outputs, 1], for groups [outputs, groups] or for blocks [block rows, block columns];
    optionally, for int8, `weight_zero_point` of the same shape.
    """
    weight = module.parts[".weight"]
    if len(weight.shape) != 2 or not prod(weight.shape):
        raise module.wrong(".weight", "must be a matrix")
    outputs, inputs = weight.shape
    shapes: list[tuple[int, ...]] = [(), (1,), (1, 1), (outputs,), (outputs, 1)]
    scale = next(leaf for leaf in module.parts if leaf.startswith(".weight_scale"))
    columns = 1
    if module.parts[scale].shape not in shapes:
        columns = groups_of(inputs, module.scheme.group)
        if module.scheme.block is not None:
            rows, wide = module.scheme.block
            columns = -(-inputs // _FP8_GROUP)
            shapes.append((-(-outputs // rows), -(-inputs // wide)))
        elif module.scheme.group:
            shapes.append((outputs, columns))
        module.expect(scale, *shapes)
    is_int = weight.kind == "I8"
    if is_int and module.scheme.group and inputs % module.scheme.group:
        raise module.wrong(".weight", f"has no whole groups of {module.scheme.group} inputs")
    if ".weight_zero_point" in module.parts:
        if not is_int:
            raise module.wrong(".weight_zero_point", "belongs to whole numbers")
        module.expect(".weight_zero_point", module.parts[scale].shape)
    each = module.element_bytes(scale) + (".weight_zero_point" in module.parts)
    held = weight.nbytes + outputs * columns * each
    return _Matrix("INT8" if is_int else _FLOAT8[weight.kind], outputs, inputs, held)


def _nf4(module: _Module) -> _Matrix:
    """`weight` of any shape and type, two codes per byte; `weight.absmax`, a scale for each block
    of consecutive codes; the state with the shape, see `parse_state`.
    """
    state = state_of(module.parts[STATE].name, module.content(STATE))
    outputs, inputs = state.shape
    weight = module.parts[".weight"]
    if inputs % 2 or outputs * inputs != 2 * weight.nbytes:
        raise module.wrong(".weight", f"holds no {state.shape} codes of 4 bits")
    scales = -(-outputs * inputs // state.block)
    is_nested = ".weight.nested_absmax" in module.parts
    absmax = module.parts[".weight.absmax"]
    if prod(absmax.shape) != scales or (absmax.kind == "U8") != is_nested:
        kind = "U8" if is_nested else "F32"
        raise module.wrong(".weight.absmax", f"must be {scales} scales of type {kind}")
    if is_nested:
        if state.nested_block is None or ".weight.nested_quant_map" not in module.parts:
            raise module.wrong(".weight.nested_absmax", "comes without what it means")
        module.expect(".weight.nested_absmax", (-(-scales // state.nested_block),))
        module.expect(".weight.nested_quant_map", (256,))
    module.expect(".weight.quant_map", (16,))
    groups = inputs // gcd(inputs, state.block)
    return _Matrix("NF4", outputs, inputs, outputs * inputs // 2 + 4 * outputs * groups)


def state_of(name: str, content: bytes) -> Nf4State:
    """The state of the matrix. Raises `CorruptFile`, which names the tensor, if it is invalid."""
    try:
        return parse_state(content)
    except ValueError as error:
        raise CorruptFile(
            f"Tensor '{name}' {error}.",
            "The file is damaged: download it again.",
            field=name,
        ) from error


STATE: Final = ".weight.quant_state.bitsandbytes__nf4"
_QZEROS: Final = {".qweight": ("I32",), ".qzeros": ("I32",), ".scales": _FLOATS}
_FLOAT8: Final = {"F8_E4M3": "FP8", "F8_E5M2": "FP8_E5M2"}
_SCALED: Final = {".weight": ("I8", *_FLOAT8), ".weight_zero_point": ("I8",)}
_FORMS: Final = (
    _Form(
        "gptq",
        ".qweight",
        (".qweight", ".qzeros", ".scales"),
        (".g_idx",),
        {**_QZEROS, ".g_idx": ("I32", "I64")},
        _gptq,
    ),
    _Form("awq", ".qweight", (".qweight", ".qzeros", ".scales"), (), _QZEROS, _awq),
    _Form(
        "packed",
        ".weight_packed",
        (".weight_packed", ".weight_scale", ".weight_shape"),
        (".weight_zero_point", ".weight_g_idx"),
        {
            ".weight_packed": ("I32",),
            ".weight_scale": _FLOATS,
            ".weight_shape": ("I64", "I32"),
            ".weight_zero_point": ("I32",),
            ".weight_g_idx": ("I32", "I64"),
        },
        _packed,
    ),
    *(
        _Form(
            "scaled",
            scale,
            (".weight", scale),
            (".weight_zero_point",),
            {**_SCALED, scale: _FLOATS},
            _scaled,
        )
        for scale in (".weight_scale", ".weight_scale_inv")
    ),
    _Form(
        "nf4",
        STATE,
        (".weight", ".weight.absmax", ".weight.quant_map", STATE),
        (".weight.nested_absmax", ".weight.nested_quant_map"),
        {
            ".weight.absmax": ("F32", "U8"),
            ".weight.quant_map": ("F32",),
            ".weight.nested_absmax": ("F32",),
            ".weight.nested_quant_map": ("F32",),
            STATE: ("U8",),
        },
        _nf4,
    ),
)
