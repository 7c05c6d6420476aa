"""Matrix products whose results do not depend on the other rows of a step."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from hearth.backends.native.models.decoder import Decoder, Embedding
from hearth.backends.native.models.experts import ExpertMatrix
from hearth.backends.native.models.packed import PackedExperts, PackedLinear
from hearth.backends.native.models.parts import Matrix, Output, Table
from hearth.kernels.linear import in_groups, in_tiles


class Tiled(nn.Module):
    """A matrix that is always multiplied by the same number of rows at a time."""

    def __init__(self, matrix: nn.Module) -> None:
        super().__init__()
        self.matrix = matrix

    def forward(self, rows: Tensor) -> Tensor:
        """[rows, inputs] -> [rows, outputs]."""
        return in_tiles(self.matrix, rows)

    def wide(self, x: Tensor) -> Tensor:
        """As `Output`, for an output matrix."""
        return in_tiles(cast(Output, self.matrix).wide, x)

    def rows(self, ids: Tensor) -> Tensor:
        """As `Output`, for an output matrix."""
        return cast(Output, self.matrix).rows(ids)


class TiledExperts(Tiled):
    """Like `Tiled`, for the matrices of experts: the rows of one expert at a time."""

    stays_on_device = False

    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:  # type: ignore[override]
        """As `ExpertMatrix`."""

        def through(expert: int, part: Tensor) -> Tensor:
            is_behind = torch.arange(len(offsets)) > expert
            return in_tiles(lambda tile: self.matrix(tile, is_behind * len(tile)), part)

        return in_groups(through, rows, offsets)


def make_deterministic(decoder: Decoder) -> None:
    """Multiply by every matrix of a loaded decoder in tiles of a fixed number of rows.

    Norms, gates and positions work row by row anyway, and attention has its own deterministic mode
    (`PagedAttention`).
    """
    if isinstance(decoder.output, Table):
        decoder.output.is_exact = True
    places = [
        (decoder.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], module)
        for name, module in decoder.named_modules()
    ]
    for parent, leaf, module in places:
        is_packed = isinstance(module, PackedLinear | PackedExperts)
        if is_packed and module.matrix.is_row_invariant:
            continue
        if isinstance(module, Matrix | PackedLinear):
            setattr(parent, leaf, Tiled(module))
        elif isinstance(module, ExpertMatrix | PackedExperts):
            setattr(parent, leaf, TiledExperts(module))
    if isinstance(decoder.output, Embedding):
        decoder.output = Tiled(decoder.output)
