"""AWQ's scales in a model: they are searched for each block before any of its matrices is rounded,
and folded into the weights that precede the scaled matrices, so that the block computes the same
function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hearth.quant.families.config import ModelConfig
from hearth.quant.folders.calibrated import CalibratedBlock
from hearth.quant.folders.matrices import Block, Matrix, Vector
from hearth.quant.rounding.awq import (
    Activations,
    Scales,
    fold_into_rows,
    of_kv_heads,
    search_scales,
    tied_heads,
)
from hearth.quant.rounding.grid import Grid, rounded

_LEAST_GAIN = 0.01
"""Scales are used only if they reduce the error on held-out activations by more than this share."""


@dataclass(frozen=True, slots=True)
class Folded:
    """The effects of folding on a block."""

    changed: Mapping[str, Tensor]
    """The new values of stored norms and biases that changed, by name."""
    facts: Mapping[str, Any]
    """What scales gained, as JSON values, by the name of the first matrix of each stage."""


def fold_scales(
    block: CalibratedBlock,
    about: Block,
    config: ModelConfig,
    grid: Grid,
    hidden: Sequence[Tensor],
    held_out: set[int],
    read: Callable[[str], Tensor],
    check: Callable[[float], None],
) -> Folded:
    """Change the weights of `block`, which are float32, and its norms and biases.

    Args:
        hidden: [tokens, width] of each window: the input of the block.
        held_out: indices of windows that are used to check scales rather than to search them; if
            empty, scales are not checked.
        read: returns a stored tensor.
        check: called with the share of the windows that is done.
    """
    seen = {False: _activations(about), True: _activations(about)}
    for window, one in enumerate(hidden):

        def look(module: str, expert: int | None, x: Tensor, window: int = window) -> None:
            if module in seen[False]:
                seen[window in held_out][module].add(x)

        block.run(one, look)
        check(window / len(hidden))
    folding = _Folding(block, about, config, read)
    for module in ("out", "down", "qkv", "gate_up"):
        if module not in seen[False] or not folding.can(module):
            continue
        matrices = folding.matrices(module)
        weights = [block.weight(one) for one in matrices]
        activations, others = seen[False][module], seen[True][module]
        scales = search_scales(
            weights,
            activations.sample,
            grid,
            mean_abs=activations.mean_abs,
            tie=folding.tie if module == "out" else None,
        )
        gain = 1 - scales.error / scales.plain_error if scales.plain_error else 0.0
        if held_out and scales.ratio:
            gain = _gain(weights, others.sample, grid, scales)
        is_used = gain > (_LEAST_GAIN if held_out else 0.0)
        folding.facts[matrices[0].name] = {"gain": round(gain, 4), "used": is_used}
        if is_used:
            folding.fold(module, scales.values)
    return Folded(folding.changed, folding.facts)


def _activations(about: Block) -> dict[str, Activations]:
    """Empty statistics for each stage without experts, by module."""
    return {
        stage.module: Activations(stage.groups[None][0].inputs)
        for stage in about.stages
        if None in stage.groups
    }


def _gain(weights: Sequence[Tensor], x: Tensor, grid: Grid, scales: Scales) -> float:
    """The share of the squared error of outputs that scales remove."""

    def error(values: Tensor) -> float:
        changes = (rounded(one * values, grid).div_(values).sub_(one) for one in weights)
        return sum(float((x @ change.t()).square().sum()) for change in changes)

    plain = error(torch.ones_like(scales.values))
    return 1 - error(scales.values) / plain if plain else 0.0


class _Folding:
    """The folds of one block."""

    def __init__(
        self,
        block: CalibratedBlock,
        about: Block,
        config: ModelConfig,
        read: Callable[[str], Tensor],
    ) -> None:
        self._block = block
        self._about = about
        self._config = config
        self._read = read
        self.changed: dict[str, Tensor] = {}
        self.facts: dict[str, Any] = {}

    def matrices(self, module: str) -> tuple[Matrix, ...]:
        (group,) = (stage.groups[None] for stage in self._about.stages if stage.module == module)
        return group

    def can(self, module: str) -> bool:
        """Whether scales of the inputs of `module` can be folded. For down, these must be
        proportional to up, which is not so if the activation adds one to it.
        """
        return module != "down" or self._config.activation != "swiglu_clamped"

    def tie(self, values: Tensor) -> Tensor:
        return tied_heads(values, self._config.heads, self._config.kv_heads)

    def fold(self, module: str, scales: Tensor) -> None:
        match module:
            case "qkv":
                scales = self._into_norm("attention_norm.weight", scales)
            case "gate_up":
                scales = self._into_norm("feed_forward_norm.weight", scales)
            case "out":
                of_values = of_kv_heads(scales, self._config.heads, self._config.kv_heads)
                self._into_rows("qkv", of_values)
            case "down":
                self._into_rows("gate_up", scales)
        for matrix in self.matrices(module):
            self._block.weight(matrix).mul_(scales)

    def _into_norm(self, parameter: str, scales: Tensor) -> Tensor:
        """Divide a norm by `scales`. Returns the factors for the matrices, which are exactly the
        divisors of the norm as it is stored, after rounding.
        """
        (vector,) = self._vectors(parameter)
        norm, kind = self._block.plain(parameter), self._read(vector.name).dtype
        wanted = (norm / scales - vector.offset).to(kind)
        exact = norm / (wanted.to(torch.float32) + vector.offset)
        is_good = torch.isfinite(exact) & (exact > 0)
        stored = torch.where(is_good, wanted, (norm - vector.offset).to(kind))
        norm.copy_(torch.where(is_good, stored.to(torch.float32) + vector.offset, norm))
        self.changed[vector.name] = stored
        return torch.where(is_good, exact, 1.0)

    def _into_rows(self, module: str, scales: Tensor) -> None:
        """Divide the last rows of a stage's last matrix (values, or up), and their biases."""
        rows = self._block.weight(self.matrices(module)[-1])
        rows.copy_(fold_into_rows(rows, scales))
        vectors = self._vectors(f"{module}.bias")
        if vectors:
            last = vectors[-1]
            bias = self._block.plain(last.parameter)
            divided = bias[last.first + last.count - len(scales) :] / scales
            stored = self._read(last.name).clone()
            stored[len(stored) - len(scales) :] = divided.to(stored.dtype)
            bias[last.first : last.first + last.count] = stored.to(torch.float32)
            self.changed[last.name] = stored

    def _vectors(self, parameter: str) -> list[Vector]:
        return [one for one in self._about.vectors if one.parameter == parameter]
