"""Layers and attention over the paged KV pool, with the kernels for processors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from hearth.backends.native.attention import Attend
from hearth.backends.native.determinism import Tiled
from hearth.backends.native.kv_pool import KvPool
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.models.experts import Router
from hearth.backends.native.models.layers import Layer, Norm, Rotary
from hearth.backends.native.models.packed import PackedExperts, PackedLinear
from hearth.backends.native.paged_attention import PagedAttention
from hearth.kernels.cpu.layers import (
    Attention,
    ExpertWeights,
    HalfLayers,
    HalfMatrix,
    HeadShape,
    LayerWeights,
)
from hearth.kernels.cpu.library import CpuLibrary, cpu_library
from hearth.kernels.packed import GroupedLinear, TiledMatrix
from hearth.quant.families.config import ModelConfig, Rope


def attends_runs(decoder: Decoder) -> bool:
    """Whether the library's attention takes runs of many tokens of a sequence.

    It does with AMX, in bfloat16, unless results have to be exact.
    """
    library = cpu_library()
    if library is None or library.instructions != "amx":
        return False
    if isinstance(decoder.fused, LayersInC):
        return not decoder.fused.is_exact
    return decoder.activations == torch.bfloat16


def attention_kernels(decoder: Decoder, pool: KvPool) -> tuple[Attention, ...]:
    """Attention of every layer over pools like `pool`; empty if there are no kernels for it."""
    library = _library(pool)
    if library is None:
        return ()
    try:
        return tuple(
            Attention(library, _shape(decoder, index), pool.layer(index), layer.sinks)
            for index, layer in enumerate(_layers(decoder))
        )
    except ValueError:
        return ()


class LayersInC:
    """`Decoder.fused`: all layers of a decoder, in two calls per layer, and one more for each head
    of keys if it stops between them.

    Args:
        pool: has the page size and the dtypes of all pools that are attended over.

    Raises:
        ValueError: there are no kernels for the decoder's shape, or its matrices are not packed for
            the kernels.
    """

    def __init__(self, library: CpuLibrary, decoder: Decoder, pool: KvPool) -> None:
        config = decoder.config
        self._layers = _layers(decoder)
        kinds = {(about.window, about.rope): index for index, about in enumerate(config.layers)}
        self._kinds = [(index, rope) for (_, rope), index in kinds.items()]
        """For each kind of layer (window and rope): the index of one such layer, and its rope."""
        self._kind_of = [list(kinds).index((one.window, one.rope)) for one in config.layers]
        self._config = config
        self._heads, self._kv_heads = config.heads, config.kv_heads
        self._head_dim = config.head_dim
        self._calls = [
            _half(library, decoder, index, layer, pool) for index, layer in enumerate(self._layers)
        ]
        self.is_exact = all(call.is_exact for call in self._calls)
        limits = [
            module.matrix.most_rows
            for module in decoder.layers.modules()
            if isinstance(module, PackedLinear | PackedExperts)
            and isinstance(module.matrix, TiledMatrix | GroupedLinear)
        ]
        self._most_rows = min((limit for limit in limits if limit is not None), default=None)

    def __call__(
        self, hidden: Tensor, rotaries: Mapping[Rope, Rotary], attend: Attend
    ) -> Iterator[float] | None:
        """See `Decoder.fused`; only for steps over the paged KV pool."""
        if not isinstance(attend, PagedAttention):
            return None
        if self._most_rows is not None and len(hidden) > self._most_rows:
            return None
        return self._by_layer(hidden, rotaries, attend)

    def _by_layer(
        self, hidden: Tensor, rotaries: Mapping[Rope, Rotary], attend: PagedAttention
    ) -> Iterator[float]:
        tokens, heads = len(hidden), self._heads
        qkv = hidden.new_empty((tokens, heads + 2 * self._kv_heads, self._head_dim))
        attended = hidden.new_empty((tokens, heads, self._head_dim))
        parts = [self._parts(attend, tokens, layer) for layer, _ in self._kinds]
        steps = [
            attend.step(layer, None if rope is None else rotaries[rope], attends=not part.head)
            for (layer, rope), part in zip(self._kinds, parts, strict=True)
        ]
        for index, (layer, call) in enumerate(zip(self._layers, self._calls, strict=True)):
            kind = self._kind_of[index]
            yield parts[kind].before
            call.attend(attend.pool.layer(index), steps[kind], hidden, qkv, attended)
            if parts[kind].head:
                for head in range(self._kv_heads):
                    yield parts[kind].head
                    attend.attend_one_head(index, head, qkv[:, :heads], attended)
            if parts[kind].after:
                yield parts[kind].after
            call.feed(attended, hidden)
            if not call.feeds:
                layer.add_feed_forward(hidden)

    def _parts(self, attend: PagedAttention, tokens: int, layer: int) -> _Parts:
        """Where `layer` may stop: nowhere, between its two calls, or, if most of its
        multiplications are attention, also between the heads of keys.
        """
        if not attend.stops:
            return _Parts(1.0)
        config = self._config
        experts, width = config.experts, config.width
        heads, hidden = config.heads * config.head_dim, config.feed_forward
        if experts is not None:
            hidden = experts.active * experts.width
        before = tokens * width * (heads + 2 * self._kv_heads * config.head_dim)
        after = tokens * width * (heads + 3 * hidden)
        attention = 2 * heads * attend.seen(layer)
        every = before + attention + after
        if attention < before + after:
            return _Parts((before + attention) / every, after=after / every)
        return _Parts(before / every, attention / self._kv_heads / every, after / every)


class _Parts(NamedTuple):
    """The shares of the multiplications of a layer that its parts have."""

    before: float
    """Up to the first stop: the projections of queries, keys and values, and attention unless heads
    have shares of their own."""
    head: float = 0.0
    """The attention of one head of keys; 0: it does not stop between them."""
    after: float = 0.0
    """What follows attention; 0: the layer does not stop."""


def layers_in_c(decoder: Decoder, pool: KvPool) -> LayersInC | None:
    """`Decoder.fused` for steps over pools like `pool`; None if there are no kernels for it."""
    library = _library(pool)
    if library is None or decoder.activations != torch.float32:
        return None
    try:
        return LayersInC(library, decoder, pool)
    except ValueError:
        return None


def _library(pool: KvPool) -> CpuLibrary | None:
    return cpu_library() if pool.layer(0)[0].device.type == "cpu" else None


def _layers(decoder: Decoder) -> Sequence[Layer]:
    return [cast(Layer, layer) for layer in decoder.layers]


def _shape(decoder: Decoder, index: int) -> HeadShape:
    config = decoder.config
    return HeadShape(
        config.heads,
        config.kv_heads,
        config.head_dim,
        config.scale,
        config.layers[index].window,
        config.attention_softcap,
    )


def _half(
    library: CpuLibrary, decoder: Decoder, index: int, layer: Layer, pool: KvPool
) -> HalfLayers:
    config = decoder.config
    is_dense = layer.experts is None
    qkv, exact = _matrix(layer.qkv)
    weights = LayerWeights(
        width=config.width,
        feed_forward=config.feed_forward,
        eps=config.norm_eps,
        gate=config.activation,
        attention_norm=layer.attention_norm.weight,
        feed_forward_norm=layer.feed_forward_norm.weight,
        qkv=qkv,
        out=_matrix(layer.out)[0],
        gate_up=_matrix(layer.gate_up)[0] if is_dense else None,
        down=_matrix(layer.down)[0] if is_dense else None,
        experts=_experts(config, layer),
        query_norm=_weight(layer.query_norm),
        key_norm=_weight(layer.key_norm),
        attention_post_norm=_weight(layer.attention_post_norm),
        feed_forward_post_norm=_weight(layer.feed_forward_post_norm),
        sinks=layer.sinks,
    )
    return HalfLayers(library, _shape(decoder, index), weights, pool.layer(index), exact=exact)


def _experts(config: ModelConfig, layer: Layer) -> ExpertWeights | None:
    """None if the layer has no experts, or they are not packed for the kernels."""
    about = config.experts
    if about is None or layer.experts is None:
        return None
    router = layer.router.matrix if isinstance(layer.router, Tiled) else layer.router
    gate_up, down = _grouped(layer.experts.gate_up), _grouped(layer.experts.down)
    if not isinstance(router, Router) or gate_up is None or down is None:
        return None
    return ExpertWeights(
        router=router.weight,
        active=about.active,
        hidden=about.width,
        gate_up=gate_up,
        down=down,
        weighs_all=about.routing == "softmax_then_topk" and not about.renormalise,
        router_bias=router.bias,
    )


def _grouped(module: Tensor | nn.Module) -> HalfMatrix | None:
    if not isinstance(module, PackedExperts) or module.matrix.tiled is None:
        return None
    return HalfMatrix(module.matrix.parts, module.matrix.outputs, _bias(module))


def _weight(norm: Norm | None) -> Tensor | None:
    return None if norm is None else norm.weight


def _matrix(module: nn.Module) -> tuple[HalfMatrix, bool]:
    """The matrix of a module, and whether its products are exact.

    Raises:
        ValueError: the matrix is not packed for the kernels.
    """
    if not isinstance(module, PackedLinear) or not isinstance(module.matrix, TiledMatrix):
        raise ValueError(f"a matrix for the kernels, not {module}")
    matrix = module.matrix
    return HalfMatrix(matrix.parts, matrix.outputs, _bias(module)), matrix.is_exact


def _bias(module: PackedLinear | PackedExperts) -> Tensor | None:
    return None if module.bias is None else module.bias.float().contiguous()
