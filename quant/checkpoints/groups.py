"""Groups of inputs that share a scale: in order of their inputs, and all of one length."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from hearth.quant.checkpoints.scheme import SHORTEST_GROUP
from hearth.quant.errors import CorruptFile, UnsupportedModel


@dataclass(frozen=True, slots=True)
class Groups:
    """What becomes of the inputs and scales of a matrix."""

    order: Tensor | None
    """[inputs] int64: which input comes where; None: they stay."""
    repeats: Tensor | None
    """[groups] int64: how often the scale of each is repeated; None: once."""

    def spread(self, scales: Tensor) -> Tensor:
        """[groups, rows] -> [rows, groups of one length], contiguous."""
        if self.repeats is not None:
            scales = scales.repeat_interleave(self.repeats, 0)
        return scales.t().contiguous()


def even_groups(numbers: Tensor, count: int, name: str) -> Groups:
    """Groups of one length.

    Args:
        numbers: [inputs] of whole numbers: the group of each input.
        count: of the groups.
        name: of the tensor that says so.

    Raises:
        CorruptFile: a number is none of a group.
        UnsupportedModel: lengths have no common divisor of some size.
    """
    numbers = numbers.to(torch.int64)
    least, most = int(numbers.min()), int(numbers.max())
    if least < 0 or most >= count:
        raise CorruptFile(
            f"Tensor '{name}' assigns an input to group {least if least < 0 else most} of {count}.",
            "The file is damaged, or was converted badly: download it again.",
            field=name,
        )
    is_sorted = bool((numbers.diff() >= 0).all())
    lengths = numbers.bincount(minlength=count)
    length = gcd(*lengths.tolist())
    if length < min(SHORTEST_GROUP, len(numbers)):
        raise UnsupportedModel(
            f"Tensor '{name}' has groups of {int(lengths.min())} to {int(lengths.max())} inputs, "
            f"which have no common length of at least {SHORTEST_GROUP}.",
            "Choose another quantization of this model, or a GGUF of it.",
            field=name,
        )
    order = None if is_sorted else numbers.argsort(stable=True)
    repeats = lengths // length
    return Groups(order, None if bool((repeats == 1).all()) else repeats)
