"""A mixture of experts: each token goes through the few experts that the router chooses for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hearth.backends.native.models.parts import Matrix, gated, multiply, parameter
from hearth.kernels.linear import in_groups
from hearth.quant.families.config import Activation, ExpertsConfig


class Router(Matrix):
    """Scores experts, always in float32, because the scores decide which experts run."""

    def __init__(self, width: int, count: int, bias: bool) -> None:
        super().__init__(width, count, bias, device="meta", dtype=torch.float32)
        self.requires_grad_(False)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """[tokens, width] -> [tokens, experts] float32."""
        return super().forward(input.float())


class ExpertMatrix(nn.Module):
    """The same matrix of every expert, stacked.

    weight: [experts, outputs, inputs]; bias: [experts, outputs] or None. `stays_on_device`: whether
    `forward` takes offsets on the device.

    Args:
        is_wide: see `Matrix`.
    """

    stays_on_device = False

    def __init__(
        self,
        count: int,
        inputs: int,
        outputs: int,
        bias: bool,
        dtype: torch.dtype,
        *,
        is_wide: bool = False,
    ) -> None:
        super().__init__()
        self.is_wide = is_wide
        self.weight = parameter((count, outputs, inputs), dtype)
        self.bias = parameter((count, outputs), dtype) if bias else None

    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """Multiply each row by its expert: [rows, inputs] -> [rows, outputs]; see `in_groups`."""

        def through(expert: int, part: Tensor) -> Tensor:
            bias = None if self.bias is None else self.bias[expert]
            return multiply(part, self.weight[expert], bias, is_wide=self.is_wide)

        return in_groups(through, rows, offsets)


class Experts(nn.Module):
    """The experts of a layer."""

    def __init__(
        self,
        config: ExpertsConfig,
        width: int,
        activation: Activation,
        dtype: torch.dtype,
        *,
        is_wide: bool,
    ) -> None:
        """
        Args:
            is_wide: the outputs of experts may exceed the range of `dtype`.
        """
        super().__init__()
        self.config = config
        self.activation = activation
        count, hidden, biases = config.count, config.width, config.biases
        self.gate_up: nn.Module = ExpertMatrix(count, width, 2 * hidden, biases, dtype)
        self.down: nn.Module = ExpertMatrix(count, hidden, width, biases, dtype, is_wide=is_wide)

    @property
    def stays_on_device(self) -> bool:
        """Whether no number has to be copied to the processor during a step."""
        return bool(self.gate_up.stays_on_device and self.down.stays_on_device)

    def forward(self, hidden: Tensor, scores: Tensor) -> Tensor:
        """Sort tokens by expert, so that each expert's matrices are read once, and apply them.

        The number of tokens per expert is copied from the device once per layer, unless a single
        call multiplies all groups there.

        Args:
            hidden: [tokens, width].
            scores: [tokens, experts] float32, from the router.

        Returns:
            [tokens, width], of the dtype of `hidden`.
        """
        weights, chosen = self.route(scores)
        numbers, order = chosen.flatten().sort(stable=True)
        ends = torch.arange(self.config.count + 1, device=numbers.device)
        offsets = torch.searchsorted(numbers, ends)
        if not self.stays_on_device:
            offsets = offsets.cpu()
        both = self.gate_up(hidden[order // self.config.active], offsets)
        # Back in the order of the choices, so that a token's sum always has the same order.
        by_choice = hidden.new_empty((len(order), hidden.shape[-1]))
        by_choice[order] = self.down(gated(both, self.activation), offsets)
        by_token = by_choice.view(*weights.shape, hidden.shape[-1])
        return (by_token * weights[..., None]).sum(1).to(hidden.dtype)

    def route(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (float32) and indices of the chosen experts, both [tokens, active]."""
        if self.config.routing == "topk_then_softmax":
            best, chosen = scores.topk(self.config.active, dim=-1)
            return best.softmax(-1), chosen
        weights, chosen = scores.softmax(-1).topk(self.config.active, dim=-1)
        if self.config.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen
