"""Rearranges groups of inputs that share a scale: in order, and all of the same length."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from hearth.quant.checkpoints.scheme import SHORTEST_GROUP
from hearth.quant.errors import CorruptFile, UnsupportedModel


@dataclass(frozen=True, slots=True)
class Groups:
    """How the inputs and scales of a matrix are rearranged."""

    order: Tensor | None
    """[inputs] int64: the input at each place; None: inputs keep their order."""
    repeats: Tensor | None
    """[groups] int64: how often the scale of each group is repeated; None: once."""

    def spread(self, scales: Tensor) -> Tensor:
        """[groups, rows] -> [rows, groups of equal length], contiguous."""
        if self.repeats is not None:
            scales = scales.repeat_interleave(self.repeats, 0)
        return scales.t().contiguous()


def even_groups(numbers: Tensor, count: int, name: str) -> Groups:
    """Groups of equal length, into which the given groups are divided.

    Args:
        numbers: [inputs] integers: the group of each input.
        count: number of groups.
        name: name of the tensor with the numbers, for errors.

    Raises:
        CorruptFile: a number is not that of a group.
        UnsupportedModel: the lengths have no sufficiently large common divisor.
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
