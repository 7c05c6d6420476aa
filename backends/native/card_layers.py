"""Layers for few rows on NVIDIA cards.

Norms, residual additions and gates are computed by the matrix products before and after them
(`kernels/cuda/few_rows.cu`), which saves three launches per layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from hearth.backends.native.attention import Attend
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.models.layers import Layer, Norm, Rotary
from hearth.backends.native.models.packed import PackedLinear
from hearth.backends.native.models.parts import Matrix
from hearth.kernels.cuda import few_rows
from hearth.kernels.cuda.few_rows import Unnormalised
from hearth.kernels.cuda.matrix import TritonMatrix
from hearth.kernels.cuda.planes import Planes
from hearth.quant.families.config import Rope

Part = Planes | Tensor
"""Rows of a matrix, packed or in half precision."""


class CardLayers:
    """`Decoder.fused`: all layers of a decoder whose activations are bfloat16.

    Sums are rounded less often than by the layers themselves. The result of a row does not depend
    on the other rows.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._version = -1
        self._can_take = False
        """Whether the kernels can multiply by the decoder's matrices."""

    def __call__(
        self, hidden: Tensor, rotaries: Mapping[Rope, Rotary], attend: Attend
    ) -> Iterator[float] | None:
        """See `Decoder.fused`."""
        if not 0 < len(hidden) <= few_rows.MOST:
            return None
        if self._version != self._decoder.weights_version:
            self._can_take = all(_takes(cast(Layer, layer)) for layer in self._decoder.layers)
            self._version = self._decoder.weights_version
        return self._by_layer(hidden, rotaries, attend) if self._can_take else None

    def _by_layer(
        self, hidden: Tensor, rotaries: Mapping[Rope, Rotary], attend: Attend
    ) -> Iterator[float]:
        layers = [cast(Layer, layer) for layer in self._decoder.layers]
        first = layers[0].attention_norm
        normed: Unnormalised | None = Unnormalised(first(hidden))
        following: Sequence[Layer | None] = [*layers[1:], None]
        for layer, after, about in zip(layers, following, self._decoder.config.layers, strict=True):
            yield 1.0
            assert normed is not None
            rotary = rotaries[about.rope] if about.rope else None
            qkv = _product(layer.qkv, normed)
            attended = layer.attended(qkv, rotary, attend)
            (out,), (gate_up,), (down,) = map(_parts, (layer.out, layer.gate_up, layer.down))
            normed = few_rows.add_product(
                out, attended.flatten(1), hidden, _weights(layer.feed_forward_norm)
            )
            assert normed is not None
            norm = None if after is None else _weights(after.attention_norm)
            normed = few_rows.add_product(
                down, few_rows.gated_product(gate_up, normed), hidden, norm
            )


def card_layers(decoder: Decoder, device: torch.device) -> CardLayers | None:
    """`Decoder.fused` for a card; None if there are no kernels for the decoder's layers."""
    config = decoder.config
    is_plain = config.experts is None and not config.post_norms and not config.out_bias
    if not is_plain or decoder.layers[0].activation != "silu":
        return None
    if decoder.activations != torch.bfloat16 or not few_rows.is_there(device):
        return None
    return CardLayers(decoder)


def _takes(layer: Layer) -> bool:
    """Whether the kernels can multiply by all matrices of a layer."""
    matrices = layer.qkv, layer.out, layer.gate_up, layer.down
    parts = [_parts(one) for one in matrices]
    if not all(parts) or not all(len(some) == 1 for some in parts[1:]):
        return False
    is_aligned = all(_inputs(part) % few_rows.ALIGNED == 0 for some in parts for part in some)
    return is_aligned and few_rows.can_gate(parts[2][0])


def _parts(module: nn.Module) -> tuple[Part, ...]:
    """The parts of a matrix, stacked by rows; empty if the kernels cannot multiply by it."""
    if isinstance(module, PackedLinear) and isinstance(module.matrix, TritonMatrix):
        return module.matrix.parts
    if type(module) is Matrix and not module.is_wide:
        weight = module.weight
        is_aligned = weight.is_contiguous() and weight.data_ptr() % 16 == 0
        return (weight,) if weight.dtype == torch.bfloat16 and is_aligned else ()
    return ()


def _inputs(part: Part) -> int:
    return part.shape[1] if isinstance(part, Tensor) else part.inputs


def _product(module: nn.Module, x: Unnormalised) -> Tensor:
    """x · weightsᵀ + bias [rows, outputs]."""
    parts = _parts(module)
    sizes = [few_rows.outputs_of(part) for part in parts]
    product = x.rows.new_empty((len(x.rows), sum(sizes)))
    for part, out in zip(parts, torch.split(product, sizes, 1), strict=True):
        few_rows.multiply(part, x, out)
    bias = cast(Tensor | None, module.bias)
    return product if bias is None else product.add_(bias)


def _weights(norm: Norm) -> tuple[Tensor, float]:
    return norm.weight, norm.eps
