"""Converts a folder of packed matrices to another format. Codes, scales and zero points are carried
over, so the dequantized weights are identical in float32. Matrices that the other format cannot
hold are refused by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Unpack

import torch

from hearth.kernels.dequantize_codes import MIDDLE
from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.checkpoints.config import KEY, read_checkpoint
from hearth.quant.checkpoints.reading import CodeParams, read_params, read_quantized
from hearth.quant.checkpoints.scheme import QuantizedTensor
from hearth.quant.convert.blocks import BLOCK
from hearth.quant.convert.folder import FolderSource, folder_of
from hearth.quant.convert.folder_files import CONFIG
from hearth.quant.convert.tensors import PACKED
from hearth.quant.errors import UnsupportedModel
from hearth.quant.families.table import family_of_hf
from hearth.quant.folders.matrices import Matrices, Matrix, matrices_of
from hearth.quant.folders.methods import FILE_MB, FORMATS, FolderMethod
from hearth.quant.folders.plan import FolderPlan
from hearth.quant.folders.storage import LAYOUT_NAMES, Storage
from hearth.quant.folders.write import EachAlone, write
from hearth.quant.gguf import quantize
from hearth.quant.gguf.errors import BadRecipe, CannotQuantize
from hearth.quant.gguf.mixes import PLAIN, Recipe, read_recipe
from hearth.quant.gguf.quantize import QuantizePlan
from hearth.quant.gguf.quantize_types import may_change
from hearth.quant.gguf.types import TensorType
from hearth.quant.json_fields import read_fields
from hearth.quant.methods import Option, Plan, Quantized, Running, given_options
from hearth.quant.safetensors import DTYPES, SafetensorsTensors
from hearth.quant.safetensors_shards import read_folder
from hearth.quant.tied_weights import as_stored

NAME: Final = "convert"
GGUF: Final = "gguf"
_FORMATS: Final[tuple[str, ...]] = (*FORMATS, GGUF)
_TITLES: Final = {name: LAYOUT_NAMES[layout] for name, layout in FORMATS.items()} | {GGUF: "GGUF"}
_BITS: Final = {"compressed-tensors": (4, 6, 8), "gptq": (4, 8), "awq": (4,), GGUF: (4, 8)}
_HALVES_ONLY: Final = ("gptq", "awq", GGUF)
"""Formats whose scales are float16."""
_NOWHERE: Final = (
    "No format of hearth convert has them: run the folder as it is, or quantize the original "
    "weights."
)
_NOT_HERE: Final = "Convert to compressed-tensors, which has them."


class _Packed(NamedTuple):
    """A packed matrix of the source whose codes, scales and order the format can hold."""

    tensor: QuantizedTensor
    params: CodeParams
    is_narrow: bool
    """All of its scales are representable in float16."""


class Conversion(FolderMethod):
    """Implements `hearth.quant.methods.Method` for folders whose matrices are packed."""

    def __init__(self) -> None:
        about = "Another format, the same weights: for other programs."
        kind = Option("format", "choice", "What the result is for other programs.", _FORMATS)
        super().__init__(NAME, "Convert", about, (kind, FILE_MB))

    def plan(self, source: Path, target: str, options: Mapping[str, Any]) -> Plan:
        """Plan the conversion. Scales, zero points and the order of inputs are read; codes are not.

        Raises:
            UnsupportedModel: `source` is not a folder of packed matrices, or of an unknown kind.
            CannotQuantize: the format cannot hold a matrix; it is named.
            CorruptFile, OSError: a file is damaged or cannot be read.
            UnknownOption, BadRecipe: as in `given_options`; or no format is given.
        """
        given = given_options(self, options)
        kind = given.get("format")
        if kind is None:
            raise BadRecipe("format is missing.", f"Formats are {', '.join(_FORMATS)}.")
        if kind == GGUF and "file-mb" in given:
            raise BadRecipe(
                f"file-mb is {given['file-mb']:,}, but a GGUF is one file.", "Leave --file-mb out."
            )
        folder = folder_of(source)
        fields = None if folder is None else read_fields(folder / CONFIG)
        checkpoint = None if fields is None else read_checkpoint(fields)
        if folder is None or fields is None or checkpoint is None:
            raise UnsupportedModel(
                f"{source} is no folder of safetensors with packed matrices (GPTQ, AWQ or "
                "compressed-tensors).",
                "hearth quantize makes one of the original weights.",
                path=str(source),
                field=KEY,
            )
        family, headers = family_of_hf(fields), read_folder(folder)
        with closing(SafetensorsTensors(headers, checkpoint)) as file:
            if kind == GGUF:
                return _gguf_plan(folder, file, given)
            config = as_stored(family.from_hf(fields), headers, file.stored)
            matrices = matrices_of(family, config, file.stored)
            stored = _storages(kind, matrices, file)
        ((most, _),) = Counter(stored.values()).most_common(1)
        for name, one in stored.items():
            if most.layout != "packed" and one != most:
                raise _refusal(
                    name,
                    f"{one.label} in {_groups(one)}, and others {most.label} in {_groups(most)}, "
                    f"but {_TITLES[kind]} has the same for all matrices",
                    "Convert to compressed-tensors, which has several kinds.",
                )
        return FolderPlan(
            self.name,
            folder,
            family,
            config,
            headers,
            matrices,
            most,
            stored,
            None,
            given,
            10**6 * given.get("file-mb", 5000),
            checkpoint,
        )

    def run(self, plan: Plan, path: Path, **how: Unpack[Running]) -> Quantized:
        """See `folders.write.write`, or for GGUF `quantize_run.run`. Raises `TypeError` if `plan`
        is of another method.
        """
        if isinstance(plan, QuantizePlan):
            from hearth.quant.gguf.quantize_run import run

            return run(plan, path, **how)
        if not isinstance(plan, FolderPlan) or plan.method != self.name:
            raise TypeError(f"a plan of {type(plan).__name__} is not one of {self.title}")

        def opened(file: SafetensorsTensors) -> EachAlone:
            return EachAlone(file, lambda matrix: _carried(plan, file, matrix))

        return write(plan, path, opened, **how)


def _gguf_plan(folder: Path, file: SafetensorsTensors, options: Mapping[str, Any]) -> QuantizePlan:
    """Plan packed matrices as Q4_0 and Q8_0, and plain ones as they are, or in F32 if their types
    differ.

    Raises:
        CannotQuantize: a matrix has features that these types lack.
    """
    for tensor, params, _ in _checked(GGUF, file):
        bits, groups = tensor.scheme.bits, params.scales.shape[1]
        if not _is_symmetric(bits, params):
            raise _refusal(tensor.name, "zero points, which Q4_0 and Q8_0 lack", _NOT_HERE)
        if tensor.shape[1] // groups % BLOCK:
            what = f"groups of {tensor.shape[1] // groups} inputs, no multiple of {BLOCK}"
            raise _refusal(tensor.name, what, _NOT_HERE)
    source = FolderSource(folder, keeps_packed=True)
    tensors = source.header.all_tensors
    architecture = source.header.architecture
    plain = {one.type for one in tensors if one.type in PLAIN and may_change(one, architecture)}
    packed = Counter(one.type for one in tensors if one.type in PACKED.values())
    ((most, _),) = packed.most_common(1)
    # The mix gives the file its type; nothing is rounded, since packed matrices stay as they are.
    base = plain.pop() if len(plain) == 1 else TensorType.F32
    recipe = Recipe(replace(read_recipe(most.name).mix, base=base))
    request = {"method": NAME, "source": str(folder), "type": NAME, "options": dict(options)}
    return replace(quantize.plan(source, recipe), request=request)


def _storages(kind: str, matrices: Matrices, file: SafetensorsTensors) -> dict[str, Storage]:
    """How each packed matrix will be stored, by name; settings that a format has once for all
    matrices are the same. Raises the errors of `_checked`, and `CannotQuantize` for matrices that
    cannot be stored that way.
    """
    inside = {one.name for one in matrices.of_blocks}
    outside = {matrices.embedding.name, matrices.head.name}
    storages: dict[str, Storage] = {}
    is_symmetric, has_order, is_wide = True, False, False
    for tensor, params, is_narrow in _checked(kind, file):
        name, (outputs, inputs) = tensor.name, tensor.shape
        if name not in inside | outside:
            raise _refusal(name, "a name that no matrix of this family has", "")
        if kind != "compressed-tensors" and name not in inside:
            what = f"packed weights outside of blocks, which {_TITLES[kind]} has no word for"
            raise _refusal(name, what, _NOT_HERE)
        groups = params.scales.shape[1]
        is_row = groups == 1 and not tensor.scheme.group
        storages[name] = Storage(
            FORMATS[kind],
            "int",
            tensor.scheme.bits,
            "row" if is_row else "group",
            None if is_row else inputs // groups,
        )
        storages[name].check(name, outputs, inputs)
        is_symmetric &= _is_symmetric(tensor.scheme.bits, params)
        has_order |= params.order is not None
        is_wide |= not is_narrow
    alike: dict[str, Any] = {
        "symmetric": is_symmetric,
        "has_order": has_order,
        "has_wide_scales": is_wide,
    }
    return {name: replace(one, **alike) for name, one in storages.items()}


def _checked(kind: str, file: SafetensorsTensors) -> Iterator[_Packed]:
    """The packed matrices.

    Raises:
        CannotQuantize: a matrix has codes, scales or an order of inputs that the format lacks.
        UnsupportedModel: there is no packed matrix.
    """
    packed = [one for one in file.stored.values() if isinstance(one, QuantizedTensor)]
    if not packed:
        raise UnsupportedModel(
            "The config names a format of packed matrices, and no matrix is packed.",
            "Download config.json and all safetensors files again.",
            field=KEY,
        )
    for tensor in packed:
        _check_codes(kind, tensor)
        params = read_params(tensor, file.read)
        exact = params.scales.to(torch.float32)
        if not torch.isfinite(exact).all():
            what = "a scale that is not a finite number"
            raise _refusal(tensor.name, what, "Download the folder again.")
        is_narrow = torch.equal(exact.to(torch.float16).to(torch.float32), exact)
        if kind in _HALVES_ONLY and not is_narrow:
            what = f"scales that are no numbers of float16, which {_TITLES[kind]} has"
            raise _refusal(tensor.name, what, _NOT_HERE)
        if kind != "gptq" and params.order is not None:
            what = f"inputs in activation order (g_idx), which {_TITLES[kind]} has no place for"
            raise _refusal(tensor.name, what, "Convert to gptq.")
        yield _Packed(tensor, params, is_narrow)


def _check_codes(kind: str, tensor: QuantizedTensor) -> None:
    """Raises `CannotQuantize` for codes that the format lacks."""
    bits = tensor.scheme.bits
    if tensor.packing not in MIDDLE:
        raise _refusal(tensor.name, f"weights in {tensor.packing}", _NOWHERE)
    takers = [name for name in FORMATS if bits in _BITS[name]]
    if not takers:
        raise _refusal(tensor.name, f"codes of {bits} bits", _NOWHERE)
    if bits not in _BITS[kind]:
        allowed = " or ".join(map(str, _BITS[kind]))
        what = f"codes of {bits} bits, and {_TITLES[kind]} has those of {allowed}"
        raise _refusal(tensor.name, what, f"Convert to {' or '.join(takers)}.")


def _is_symmetric(bits: int, params: CodeParams) -> bool:
    """Whether the middle code stands for zero everywhere."""
    return params.zeros is None or bool((params.zeros == 1 << bits - 1).all())


def _carried(plan: FolderPlan, file: SafetensorsTensors, matrix: Matrix) -> PackedWeight:
    """A matrix of the source in the new storage, with unchanged numbers."""
    tensor, storage = file.stored[matrix.name], plan.stored[matrix.name]
    assert isinstance(tensor, QuantizedTensor)
    weight = read_quantized(tensor, file.read)
    assert weight.scales is not None
    scales = weight.scales.to(DTYPES[storage.scale_kind])
    return replace(weight, scales=scales, zeros=None if storage.symmetric else weight.zeros)


def _groups(storage: Storage) -> str:
    return "rows" if storage.group is None else f"groups of {storage.group}"


def _refusal(name: str, has: str, hint: str) -> CannotQuantize:
    return CannotQuantize(f"{name} has {has}.", hint or _NOWHERE, tensor=name)
