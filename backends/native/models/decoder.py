"""The decoder of all families: tokens to hidden states to logits; see `ModelConfig`.

Its parameters are on `meta` until weights are loaded. With V tokens, width W, H query heads and K
key heads, each of length D, hidden layers of F, and E experts with hidden layers of G:

    embedding.weight [V, W], norm.weight [W], output.weight [V, W] unless tied, and in `layers.i.`
    attention_norm.weight [W], qkv.weight [(H + 2K)·D, W], out.weight [W, H·D],
    feed_forward_norm.weight [W], gate_up.weight [2F, W], down.weight [W, F];
    some families: qkv.bias, out.bias, query_norm.weight [D], key_norm.weight [D], sinks [H],
    attention_post_norm.weight [W], feed_forward_post_norm.weight [W];
    with experts instead of gate_up and down: router.weight [E, W], experts.gate_up.weight
    [E, 2G, W], experts.down.weight [E, W, G], and perhaps a `bias` for each of them.

Norms, sinks and routers are float32; the other parameters have the model's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hearth.backends.native.attention import Attend
from hearth.backends.native.models.layers import Layer, Norm, Rotary
from hearth.backends.native.models.parts import Output, OutputMatrix, Table, parameter
from hearth.backends.native.models.rope import (
    attention_factor,
    cosine_and_sine,
    inverse_frequencies,
)
from hearth.quant.families.config import ModelConfig, Rope

FusedLayers = Callable[[Tensor, Mapping[Rope, Rotary], Attend], Iterator[float] | None]
"""Applies all layers to hidden states [tokens, width] in place, one after the other. The iterator
yields how much it computes next, in layers, before it does. Returns None if it cannot, in which
case the layers have to be called.
"""


class Embedding(Table, nn.Module):
    """weight: [tokens, width]. Loading may replace the module by one that keeps its rows packed."""

    def __init__(self, tokens: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = parameter((tokens, width), dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        """[n] int64 -> [n, width]."""
        return F.embedding(tokens, self.weight)


class Decoder(nn.Module):
    """A language model without its KV cache, which is passed to each call as an `Attend`."""

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        dtype: torch.dtype,
        *,
        activations: torch.dtype | None = None,
        context: int | None = None,
    ) -> None:
        """
        Args:
            device: where the weights will be.
            dtype: of weights that are not packed.
            activations: dtype of activations; `dtype` by default.
            context: most tokens of a sequence; the model's own limit by default.
        """
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.activations = activations or dtype
        self.weights_version = 0
        """Changes when weights are replaced."""
        self.embedding: nn.Module = Embedding(config.vocab_size, config.width, dtype)
        self.layers = nn.ModuleList(
            Layer(config, index, dtype) for index in range(len(config.layers))
        )
        self.norm = Norm(config.width, config.norm_eps)
        self.output: Output = self.embedding
        """A separate module if the output matrix is not tied, or stays packed."""
        if not config.tied:
            self.output = OutputMatrix(
                config.width, config.vocab_size, False, device="meta", dtype=dtype
            ).requires_grad_(False)
        # Gemma was trained with a scale rounded to the embedding's dtype.
        self.embedding_scale = float(torch.tensor(config.embedding_scale, dtype=dtype))
        self.fused: FusedLayers | None = None
        """Tried before the layers are called."""
        ropes = {layer.rope for layer in config.layers if layer.rope is not None}
        self._frequencies = {
            rope: inverse_frequencies(rope, context or config.context).to(device) for rope in ropes
        }

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The hidden states after the last norm.

        Args:
            tokens: [tokens] int64, of all sequences one after the other.
            positions: [tokens] int64, each token's place in its sequence.
            attend: attention, which knows which token belongs to which sequence.

        Returns:
            [tokens, width].
        """
        *_, hidden = self.by_layer(tokens, positions, attend)
        assert isinstance(hidden, Tensor)
        return hidden

    def by_layer(
        self, tokens: Tensor, positions: Tensor, attend: Attend
    ) -> Iterator[float | Tensor]:
        """`forward` layer by layer: yields how much it computes next, in layers, before it does,
        and then the hidden states.

        Other forward passes may run in between.
        """
        hidden: Tensor = self.embedding(tokens).to(self.activations)
        if self.embedding_scale != 1.0:
            hidden = hidden * self.embedding_scale
        rotaries = self.rotaries(positions)
        pending: Tensor | None = None
        fused = None if self.fused is None else self.fused(hidden, rotaries, attend)
        if fused is not None:
            yield from fused
        else:
            for layer, about in zip(self.layers, self.config.layers, strict=True):
                yield 1.0
                rotary = rotaries[about.rope] if about.rope else None
                pending = cast(Layer, layer).found(hidden, pending, rotary, attend)
        yield self.norm(hidden, pending)

    def frequencies(self) -> list[Tensor | None]:
        """Rotary frequencies of each layer: [dimensions / 2] float32 radians per position.

        None for layers without positions.
        """
        return [
            self._frequencies[layer.rope] if layer.rope else None for layer in self.config.layers
        ]

    def rotaries(self, positions: Tensor) -> dict[Rope, Rotary]:
        """The rotations of queries and keys at `positions` [tokens] int64, for each `Rope`."""
        return {
            rope: cosine_and_sine(positions, frequencies, attention_factor(rope))
            for rope, frequencies in self._frequencies.items()
        }

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, width], as returned by `forward` -> [rows, vocabulary] float32.

        Logits are not rounded to the dtype of weights or activations (see `processor_logits`).
        """
        logits = self.output.wide(hidden)
        cap = self.config.logit_softcap
        return logits if not cap else torch.tanh(logits / cap) * cap
