"""Steps of many tokens (prompts and drafts) as piecewise CUDA graphs.

Attention depends on the texts, so it runs between graphs; all operations from the attention of one
layer to that of the next are one graph. A layer takes one graph launch plus attention, so the card
does not wait for the host.

A graph is recorded for a number of tokens. Padding tokens are computed, but their results are
ignored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, cast

import torch
from torch import Tensor

from hearth.backends.native.attention import Attend
from hearth.backends.native.graphs import Graph, GraphCache, GraphDevice, why_not
from hearth.backends.native.models.decoder import Decoder, FusedLayers
from hearth.backends.native.models.layers import Layer, Rotary
from hearth.backends.native.split_attention import SingleTokens
from hearth.backends.native.workspace import MOST_PROMPT_GRAPHS, prompt_tokens
from hearth.quant.families.config import Rope

_LEAST_TOKENS: Final = 8
"""Least tokens of a step: smaller steps use the graphs for single tokens, or have no padding."""
_MOST_PADDING: Final = 1 / 8
"""Most padding, as a share of the tokens of a graph for more than `_FREE` tokens."""
_FREE: Final = 128
"""Products of up to this many tokens take about as long as those of one token."""


class PromptGraphs:
    """`Decoder.fused`: all layers of a decoder.

    Args:
        device: records the graphs.
        most_tokens: most tokens of a step.
        others: other fused layers, which are tried first.
    """

    def __init__(
        self,
        device: GraphDevice,
        decoder: Decoder,
        *,
        most_tokens: int,
        others: FusedLayers | None = None,
    ) -> None:
        self._device = device
        self._decoder = decoder
        self._others = others
        self._layers = [cast(Layer, layer) for layer in decoder.layers]
        self._sizes = prompt_tokens(decoder.config, most_tokens)
        self._buffers: _Buffers | None = None
        self._graphs: GraphCache[int, Sequence[Graph]] = GraphCache(
            MOST_PROMPT_GRAPHS, why_not(decoder)
        )
        self._version = decoder.weights_version
        self._is_busy = False

    def __call__(
        self, hidden: Tensor, rotaries: Mapping[Rope, Rotary], attend: Attend
    ) -> Iterator[float] | None:
        """See `Decoder.fused`."""
        by_others = None if self._others is None else self._others(hidden, rotaries, attend)
        size = self._size(len(hidden))
        # Decode steps are recorded as whole graphs.
        if by_others is not None or size is None or isinstance(attend, SingleTokens):
            return by_others
        if self._version != self._decoder.weights_version:
            self._graphs.clear()
            self._version = self._decoder.weights_version
        if self._is_busy:  # Another text is between two of its layers.
            return None
        graphs = self._graphs.get(size, lambda: self._recorded(size))
        return None if graphs is None else self._by_layer(graphs, size, hidden, rotaries, attend)

    def _size(self, tokens: int) -> int | None:
        """Size of the graph for `tokens` tokens; None if there is no graph for them."""
        at = bisect_left(self._sizes, tokens)
        if tokens < _LEAST_TOKENS or at == len(self._sizes):
            return None
        size = self._sizes[at]
        return size if size <= _FREE or size - tokens <= _MOST_PADDING * size else None

    def _by_layer(
        self,
        graphs: Sequence[Graph],
        size: int,
        hidden: Tensor,
        rotaries: Mapping[Rope, Rotary],
        attend: Attend,
    ) -> Iterator[float]:
        assert self._buffers is not None
        tokens, buffers = len(hidden), self._buffers
        self._is_busy = True
        try:
            buffers.hidden[:tokens] = hidden
            buffers.hidden[tokens:size] = 0
            for graph, layer, about in zip(
                graphs, self._layers, self._decoder.config.layers, strict=False
            ):
                yield 1.0
                graph.replay()
                rotary = rotaries[about.rope] if about.rope else None
                buffers.attended[:tokens] = layer.attended(buffers.qkv[:tokens], rotary, attend)
            graphs[-1].replay()
            hidden.copy_(buffers.hidden[:tokens])
        finally:
            self._is_busy = False

    def _recorded(self, size: int) -> Sequence[Graph]:
        """Record one graph before the attention of each layer, and one after the last."""
        if self._buffers is None:
            self._buffers = _Buffers(self._decoder, self._sizes[-1])
        hidden, qkv, attended = self._buffers.of(size)
        layers = self._layers

        def first() -> None:
            qkv.copy_(layers[0].projected(hidden, None))

        def between(before: Layer, layer: Layer) -> Callable[[], None]:
            def part() -> None:
                qkv.copy_(layer.projected(hidden, before.after_attention(hidden, attended)))

            return part

        def last() -> None:
            hidden.add_(layers[-1].after_attention(hidden, attended))

        parts = [first, *map(between, layers[:-1], layers[1:]), last]
        return self._device.capture(parts)


class _Buffers:
    """The tensors that all graphs read and write; each graph uses their first rows.

    Attributes:
        hidden: [tokens, width].
        qkv: [tokens, (heads + 2 · kv_heads) · head_dim]: queries, keys and values.
        attended: [tokens, heads, head_dim].
    """

    def __init__(self, decoder: Decoder, tokens: int) -> None:
        config = decoder.config
        size, rows = config.head_dim, config.heads + 2 * config.kv_heads
        like = decoder.norm.weight

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=decoder.activations, device=like.device)

        self.hidden = zeros(tokens, config.width)
        self.qkv = zeros(tokens, rows * size)
        self.attended = zeros(tokens, config.heads, size)

    def of(self, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """The first `tokens` rows of all three."""
        return self.hidden[:tokens], self.qkv[:tokens], self.attended[:tokens]
