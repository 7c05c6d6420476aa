"""Products whose results do not depend on what else is in a step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.models.experts import ExpertMatrix
from hearth.backends.native.models.packed import PackedExperts, PackedLinear
from hearth.backends.native.models.parts import Matrix, OutputMatrix
from hearth.kernels.linear import in_groups, in_tiles
from hearth.kernels.table import LOGITS, kernels


class Tiled(nn.Module):
    """A matrix that always multiplies the same number of rows at a time."""

    def __init__(self, matrix: nn.Module) -> None:
        super().__init__()
        self.matrix = matrix

    def forward(self, rows: Tensor) -> Tensor:
        """[rows, inputs] -> [rows, outputs]."""
        return in_tiles(self.matrix, rows)


class TiledExperts(Tiled):
    """The same of experts: rows of one at a time."""

    stays_on_device = False

    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:  # type: ignore[override]
        """As `ExpertMatrix`."""

        def through(expert: int, part: Tensor) -> Tensor:
            is_behind = torch.arange(len(offsets)) > expert
            return in_tiles(lambda tile: self.matrix(tile, is_behind * len(tile)), part)

        return in_groups(through, rows, offsets)


class WideOutput(nn.Module):
    """The output matrix, or the embedding in its place, in float32 throughout: which logits other
    ways round depends on other rows.
    """

    def __init__(self, table: nn.Parameter) -> None:
        super().__init__()
        self.table = table

    def forward(self, rows: Tensor) -> Tensor:
        """[rows, width] -> [rows, vocabulary] float32."""
        return kernels().reference(LOGITS)(rows, self.table)


def make_deterministic(decoder: Decoder) -> None:
    """Put every matrix of a loaded decoder into tiles. Norms, gates and positions work row by row
    already, and attention has a mode of its own (`PagedAttention`).
    """
    if decoder.output is None:
        decoder.output = WideOutput(nn.Parameter(decoder.embedding.get_parameter("weight"), False))
    elif isinstance(decoder.output, OutputMatrix):
        decoder.output = WideOutput(decoder.output.get_parameter("weight"))
    places = [
        (decoder.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], module)
        for name, module in decoder.named_modules()
    ]
    for parent, leaf, module in places:
        is_packed = isinstance(module, PackedLinear | PackedExperts)
        if is_packed and module.matrix.is_row_invariant:
            continue
        if isinstance(module, Matrix | PackedLinear | WideOutput):
            setattr(parent, leaf, Tiled(module))
        elif isinstance(module, ExpertMatrix | PackedExperts):
            setattr(parent, leaf, TiledExperts(module))
