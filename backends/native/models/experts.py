"""A mixture of experts: each token goes through the few that the router chooses for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hearth.backends.native.models.parts import Matrix, gated, multiply, parameter
from hearth.kernels.linear import in_groups
from hearth.quant.families.config import Activation, ExpertsConfig


class Router(Matrix):
    """Scores of experts, in float32 whatever the model is: they decide what is computed."""

    def __init__(self, width: int, count: int, bias: bool) -> None:
        super().__init__(width, count, bias, device="meta", dtype=torch.float32)
        self.requires_grad_(False)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """[tokens, width] -> [tokens, experts] float32."""
        return super().forward(input.float())


class ExpertMatrix(nn.Module):
    """The same matrix of every expert, stacked. `stays_on_device`: offsets may.

    weight: [experts, outputs, inputs]; bias: [experts, outputs] or None.

    Args:
        is_wide: as of a `Matrix`.
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
        """Each row through its expert: [rows, inputs] -> [rows, outputs], as of `in_groups`."""

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
            is_wide: what experts give may be greater than `dtype` can say.
        """
        super().__init__()
        self.config = config
        self.activation = activation
        count, hidden, biases = config.count, config.width, config.biases
        self.gate_up: nn.Module = ExpertMatrix(count, width, 2 * hidden, biases, dtype)
        self.down: nn.Module = ExpertMatrix(count, hidden, width, biases, dtype, is_wide=is_wide)

    @property
    def stays_on_device(self) -> bool:
        """No number of the step is needed on the processor."""
        return bool(self.gate_up.stays_on_device and self.down.stays_on_device)

    def forward(self, hidden: Tensor, scores: Tensor) -> Tensor:
        """Tokens are sorted by expert, so that each expert's matrices are read once. How many go to
        which is asked of the device, once a layer, unless one call multiplies all groups there.

        Args:
            hidden: [tokens, width].
            scores: [tokens, experts] float32, of the router.

        Returns:
            [tokens, width], of the same dtype.
        """
        weights, chosen = self.route(scores)
        numbers, order = chosen.flatten().sort(stable=True)
        ends = torch.arange(self.config.count + 1, device=numbers.device)
        offsets = torch.searchsorted(numbers, ends)
        if not self.stays_on_device:
            offsets = offsets.cpu()
        both = self.gate_up(hidden[order // self.config.active], offsets)
        # Back in the order of the choices: added up by token in the same order every time.
        by_choice = hidden.new_empty((len(order), hidden.shape[-1]))
        by_choice[order] = self.down(gated(both, self.activation), offsets)
        by_token = by_choice.view(*weights.shape, hidden.shape[-1])
        return (by_token * weights[..., None]).sum(1).to(hidden.dtype)

    def route(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (float32) and numbers of the chosen experts, both [tokens, active]."""
        if self.config.routing == "topk_then_softmax":
            best, chosen = scores.topk(self.config.active, dim=-1)
            return best.softmax(-1), chosen
        weights, chosen = scores.softmax(-1).topk(self.config.active, dim=-1)
        if self.config.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen
