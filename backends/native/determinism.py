"""Products whose results do not depend on what else is in a step."""

from __future__ import annotations

from torch import Tensor, nn

from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.models.experts import ExpertMatrix, PackedExpertMatrix
from hearth.backends.native.models.packed import PackedLinear
from hearth.backends.native.models.parts import Matrix, OutputMatrix
from hearth.kernels.linear import in_tiles
from hearth.kernels.table import LOGITS, kernels


class Tiled(nn.Module):
    """A matrix, or those of experts, that always multiplies the same number of rows at a time."""

    def __init__(self, matrix: nn.Module) -> None:
        super().__init__()
        self.matrix = matrix

    def forward(self, rows: Tensor, *expert: int) -> Tensor:
        """[rows, inputs] -> [rows, outputs], through one expert where it is of experts."""
        return in_tiles(lambda tile: self.matrix(tile, *expert), rows)


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
    tiled = (Matrix, PackedLinear, WideOutput, ExpertMatrix, PackedExpertMatrix)
    for parent, leaf, module in places:
        if isinstance(module, PackedLinear) and module.matrix.is_row_invariant:
            continue
        # One expert of a packed matrix, in a list, is tiled with the others.
        if isinstance(module, tiled) and not isinstance(parent, nn.ModuleList):
            setattr(parent, leaf, Tiled(module))
