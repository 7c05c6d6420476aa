"""Loads weights from a file into a decoder, in place if they can be used as stored.

Weights that do not change stay mapped: plain tensors of the right dtype that are a parameter on
their own, and packed rows, fused or not. The others are written once into their parameters, and the
pages they were read from are released, so that nothing is in memory twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hearth.backends.native.models.decoder import Decoder, Embedding
from hearth.backends.native.models.experts import ExpertMatrix, Router
from hearth.backends.native.models.packed import PackedEmbedding, PackedExperts, PackedLinear
from hearth.kernels.large_memory import large_empty
from hearth.kernels.packed import GroupedLinear, Prepared, prepare
from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.checkpoints.reading import read_quantized
from hearth.quant.checkpoints.scheme import QuantizedTensor
from hearth.quant.errors import CorruptFile
from hearth.quant.families.family import Family
from hearth.quant.families.inventory import Wanted, take_inventory
from hearth.quant.families.source import Part, rows_of
from hearth.quant.gguf.tensor_file import GgufTensorFile
from hearth.quant.safetensors import SafetensorsTensors
from hearth.quant.stored import LOADED, STAYS_PACKED
from hearth.quant.verify import finite_weights

TensorFile = SafetensorsTensors | GgufTensorFile
"""A file of weights: mapped, not copied, and read-only."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Which tensors of a file were not loaded, and the size of those that were."""

    skipped: tuple[str, ...]
    """Tensors that are known but not needed: vision parts, rotary frequencies, a tied head, biases
    of zeros."""
    unknown: tuple[str, ...]
    """Unknown tensors: the model may not be what its config says."""
    weight_bytes: int
    """Size of all weights as they are held now, mapped or not."""


def load_weights(
    decoder: Decoder,
    family: Family,
    file: TensorFile,
    device: torch.device,
    *,
    packed: Set[str] = STAYS_PACKED,
    exact: bool = False,
    tiled: bool = False,
    mapped: bool = True,
) -> LoadReport:
    """Put the weights of `file` into `decoder`, whose parameters are on `meta`.

    Args:
        family: knows where each parameter is stored.
        file: a GGUF or safetensors; it may be closed afterwards.
        device: where to put the weights.
        packed: types whose matrices stay packed; others get the decoder's dtype.
        tiled: the decoder's dtype is half precision, and the processor's kernels multiply by its
            plain matrices too.
        exact: how packed matrices are multiplied, see `kernels.packed.prepare`.
        mapped: tensors that need no change stay mapped on a processor; otherwise they are read into
            allocated memory, which has large pages.

    Raises:
        CorruptFile: a tensor is missing or has the wrong shape, or its first or last row has
            numbers that are NaN or infinite.
        UnsupportedModel: a tensor has an unsupported type.
    """
    is_gguf = isinstance(file, GgufTensorFile)
    inventory = take_inventory(family, decoder.config, file.stored, is_gguf=is_gguf, kinds=LOADED)
    loader = WeightLoader(
        decoder, file, device, packed=packed, exact=exact, tiled=tiled, mapped=mapped
    )
    for place, module in list(decoder.named_modules()):
        wanted = {
            leaf: inventory.wanted[f"{place}.{leaf}".lstrip(".")]
            for leaf, _ in module.named_parameters(recurse=False)
        }
        if wanted:
            loader.fill(place, module, wanted)
    if decoder.config.tied and isinstance(decoder.embedding, PackedEmbedding):
        decoder.output = PackedLinear(decoder.embedding.matrix)
    weights = {one.data_ptr(): one.nbytes for one in [*decoder.parameters(), *decoder.buffers()]}
    zeros = {name for name in inventory.unknown if _is_zero_bias(file, name)}
    unknown = tuple(name for name in inventory.unknown if name not in zeros)
    skipped = tuple(sorted({*inventory.skipped, *zeros}))
    return LoadReport(skipped, unknown, sum(weights.values()))


class WeightLoader:
    """Fills modules of a decoder, one after the other.

    Its arguments are those of `load_weights`; by default every number is copied into a plain
    parameter.
    """

    def __init__(
        self,
        decoder: Decoder,
        file: TensorFile,
        device: torch.device,
        *,
        packed: Set[str] = frozenset(),
        exact: bool = False,
        tiled: bool = False,
        mapped: bool = False,
    ) -> None:
        self._decoder = decoder
        self._file = file
        self._device = device
        self._packed = packed
        self._exact = exact
        self._tiled = tiled
        self._mapped = mapped
        self._tensors: dict[str, Tensor] = {}
        """The tensors read for the module that is being filled."""

    def fill(self, place: str, module: nn.Module, wanted: dict[str, Wanted]) -> None:
        """Load the parameters of `module`, or replace it by a module that keeps them packed."""
        if self._stays_packed(module, wanted):
            bias = self._whole(module, "bias", wanted["bias"]) if "bias" in wanted else None
            module = self._packed_module(module, wanted["weight"], bias)
            parent, _, leaf = place.rpartition(".")
            setattr(self._decoder.get_submodule(parent), leaf, module)
        else:
            for leaf, one in wanted.items():
                value = self._whole(module, leaf, one)
                setattr(module, leaf, nn.Parameter(value, requires_grad=False))
        self._decoder.weights_version += 1
        self._release_copied([*module.parameters(), *module.buffers()])

    def _stays_packed(self, module: nn.Module, wanted: dict[str, Wanted]) -> bool:
        if not isinstance(module, nn.Linear | ExpertMatrix | Embedding):
            return False
        if isinstance(module, Router):
            return False
        kinds = (self._packing(part, None) for part in wanted["weight"].choice)
        return self._tiled or any(kind in self._packed for kind in kinds)

    def _packed_module(self, module: nn.Module, weight: Wanted, bias: Tensor | None) -> nn.Module:
        if isinstance(module, ExpertMatrix):
            matrices = [self._prepared(weight, expert) for expert in range(weight.shape[0])]
            return PackedExperts(GroupedLinear(matrices), bias)
        matrix = self._prepared(weight, None)
        if isinstance(module, Embedding):
            return PackedEmbedding(matrix, self._decoder.activations)
        return PackedLinear(matrix, bias)

    def _prepared(self, weight: Wanted, expert: int | None) -> Prepared:
        parts = [self._held(rows) for rows in self._parts(weight, expert)]
        return prepare(parts, exact=self._exact)

    def _held(self, rows: PackedWeight) -> PackedWeight:
        """`rows` on the device: packed if their type stays packed, else in the decoder's dtype."""
        held = rows.to(self._device)
        if rows.packing in self._packed:
            return held
        return PackedWeight(held.unpacked(self._decoder.dtype))

    def _whole(self, module: nn.Module, leaf: str, wanted: Wanted) -> Tensor:
        """A parameter as one plain tensor of its dtype; mapped if it is stored in this form."""
        dtype = module.get_parameter(leaf).dtype
        is_one = _is_one_tensor(wanted) and not self._packing(wanted.choice[0], None)
        if self._mapped and self._device.type == "cpu" and is_one:
            (rows,) = self._parts(wanted, None)
            weight = rows.weight
            if weight.dtype == dtype and weight.is_contiguous():
                return weight
        if self._device.type == "cpu":
            value = large_empty(wanted.shape, dtype)
        else:
            value = torch.empty(wanted.shape, dtype=dtype, device=self._device)
        if wanted.axis == 0:
            self._fill_rows(value, self._parts(wanted, None))
        else:
            for expert, target in enumerate(value):
                self._fill_rows(target, self._parts(wanted, expert))
        return value

    def _fill_rows(self, target: Tensor, parts: Iterator[PackedWeight]) -> None:
        """Fill `target` from its first row on."""
        start = 0
        for part in parts:
            place = target[start : start + len(part.weight)]
            (part.to(self._device) if part.packing else part).unpack_into(place)
            start += len(place)

    def _parts(self, wanted: Wanted, expert: int | None) -> Iterator[PackedWeight]:
        """The parts of a parameter in the form that the decoder needs, mapped if possible.

        Args:
            expert: the expert whose rows to return, of a stacked parameter; None for all rows.
        """
        for part in wanted.choice:
            weight = self._part(part, expert)
            if expert in (None, 0, wanted.shape[0] - 1):
                _check_numbers(part, weight)
            yield weight

    def _part(self, part: Part, expert: int | None) -> PackedWeight:
        tensor = self._file.stored[_name_of(part, expert)]
        if isinstance(tensor, QuantizedTensor):
            return read_quantized(tensor, self._read)
        rows = rows_of(part, self._stored(part, expert))
        return PackedWeight(rows if expert is None else rows[0], self._packing(part, expert))

    def _stored(self, part: Part, expert: int | None) -> list[Tensor]:
        """The stored tensors of `part`; for one expert, with a leading axis of length 1."""
        if expert is None:
            return [self._read(name) for name in part.names]
        if _is_by_expert(part):
            return [self._read(part.names[expert])[None]]
        return [self._read(name)[expert : expert + 1] for name in part.names]

    def _read(self, name: str) -> Tensor:
        if name not in self._tensors:
            self._tensors[name] = self._file.read(name)
        return self._tensors[name]

    def _packing(self, part: Part, expert: int | None) -> str:
        if part.is_mxfp4:
            return "MXFP4"
        return self._file.stored[_name_of(part, expert)].packing

    def _release_copied(self, used: list[Tensor]) -> None:
        """Release the pages of stored tensors that no tensor in `used` is a view of."""
        addresses = sorted(tensor.data_ptr() for tensor in used)
        for name, stored in self._tensors.items():
            begin = bisect_left(addresses, stored.data_ptr())
            if begin == bisect_left(addresses, stored.data_ptr() + stored.nbytes):
                self._file.release(name)
        self._tensors.clear()


def _check_numbers(part: Part, found: PackedWeight) -> None:
    """Raise `CorruptFile` if the first or the last row has a number that is not finite."""
    weight = found.weight.reshape(-1, found.weight.shape[-1])
    rows = replace(found, weight=weight)
    for at in {0, len(weight) - 1}:
        if not bool(finite_weights(rows.rows(slice(at, at + 1))).all()):
            raise CorruptFile(
                f"Tensor '{part.names[0]}' has numbers that are NaN or infinite.",
                "The file is damaged, or was converted badly: download it again.",
                field=part.names[0],
            )


def _name_of(part: Part, expert: int | None) -> str:
    """Name of a tensor of `part`: of the expert's own tensor, if each expert has one."""
    return part.names[expert or 0] if _is_by_expert(part) else part.names[0]


def _is_by_expert(part: Part) -> bool:
    """Whether each expert is a tensor of its own."""
    return len(part.names) > 1 and not part.is_mxfp4


def _is_zero_bias(file: TensorFile, name: str) -> bool:
    """Whether a tensor is a bias of zeros, which AutoGPTQ wrote for matrices without a bias."""
    return name.endswith(".bias") and not bool(file.read(name).any())


def _is_one_tensor(wanted: Wanted) -> bool:
    """Whether a parameter is a single tensor that might be used as it is stored."""
    part = wanted.choice[0]
    if len(wanted.choice) > 1 or len(part.names) > 1:
        return False
    return wanted.axis == 0 or part == Part(part.names)
