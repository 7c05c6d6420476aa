"""A layer of the decoder.

Its matrices are `nn.Linear`. If weights stay packed, loading replaces them by modules that also
take [tokens, inputs] and return [tokens, outputs] of the same dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hearth.backends.native.attention import Attend, FinishesHeads
from hearth.backends.native.models.experts import Experts, Router
from hearth.backends.native.models.packed import PackedLinear
from hearth.backends.native.models.parts import gated, linear, parameter
from hearth.backends.native.models.rope import apply_rope
from hearth.kernels.cuda.elementwise import (
    RoundedRows,
    add_and_normalise,
    add_and_round,
    finish_heads,
    silu_up_rounded,
)
from hearth.kernels.cuda.matrix import has_triton
from hearth.kernels.metal import shaders
from hearth.kernels.metal.shaders import has_metal
from hearth.kernels.table import RMS_NORM, pick
from hearth.quant.families.config import ModelConfig

Rotary = tuple[Tensor, Tensor]
"""Cosine and sine, see `cosine_and_sine`."""


class Norm(nn.Module):
    """RMSNorm (arXiv 1910.07467), computed in float32.

    Its weight is float32 for any dtype of the model, because Gemma's weights are near one with
    small differences.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = parameter((size,), torch.float32)

    def forward(self, hidden: Tensor, added: Tensor | None = None) -> Tensor:
        """Normalise the last dimension; the result has the same shape and dtype.

        Args:
            added: if given, is first added to `hidden` in place.
        """
        if has_triton(hidden.device.type) and hidden.is_contiguous():
            return add_and_normalise(hidden, added, self.weight, self.eps)
        if added is not None:
            hidden.add_(added)
        normalised = pick(RMS_NORM, hidden.device)(hidden.float(), self.eps)
        return normalised.mul_(self.weight).to(hidden.dtype)


class Layer(nn.Module):
    """Attention and feed-forward, each added to the residual stream."""

    def __init__(self, config: ModelConfig, index: int, dtype: torch.dtype) -> None:
        super().__init__()
        width, eps = config.width, config.norm_eps
        # Whether outputs that are added to the residual stream may exceed float16.
        is_wide = config.overflows_f16 and dtype == torch.float16
        self.index = index
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.attention_norm = Norm(width, eps)
        rows = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.qkv = linear(width, rows, config.qkv_bias, dtype)
        self.query_norm = Norm(config.head_dim, eps) if config.head_norms else None
        self.key_norm = Norm(config.head_dim, eps) if config.head_norms else None
        self.sinks = parameter((config.heads,), torch.float32) if config.sinks else None
        heads = config.heads * config.head_dim
        self.out = linear(heads, width, config.out_bias, dtype, is_wide=is_wide)
        self.attention_post_norm = Norm(width, eps) if config.post_norms else None
        self.feed_forward_norm = Norm(width, eps)
        self.feed_forward_post_norm = Norm(width, eps) if config.post_norms else None
        self.activation = config.activation
        self.router: nn.Module | None = None
        self.experts: nn.Module | None = None
        if config.experts is None:
            self.gate_up: nn.Module = linear(width, 2 * config.feed_forward, False, dtype)
            self.down: nn.Module = linear(config.feed_forward, width, False, dtype, is_wide=is_wide)
        else:
            self.router = Router(width, config.experts.count, config.experts.biases)
            self.experts = Experts(config.experts, width, config.activation, dtype, is_wide=is_wide)

    def forward(self, hidden: Tensor, rotary: Rotary | None, attend: Attend) -> Tensor:
        """
        Args:
            hidden: [tokens, width]; the layer's result is added to it.
            rotary: None if the layer has no positions.

        Returns:
            `hidden`.
        """
        return hidden.add_(self.found(hidden, None, rotary, attend))

    def found(
        self, hidden: Tensor, before: Tensor | None, rotary: Rotary | None, attend: Attend
    ) -> Tensor:
        """The feed-forward result, which is still to be added to `hidden`.

        Args:
            hidden: [tokens, width]; `before` and the attention result are added to it.
            before: result of `found` of the previous layer, or None.
        """
        qkv = self.projected(hidden, before)
        return self.after_attention(hidden, self.attended(qkv, rotary, attend))

    def projected(self, hidden: Tensor, before: Tensor | None) -> Tensor:
        """Queries, keys and values of hidden + before, [tokens, (heads + 2 · kv_heads) · head_dim].

        `before` is added to `hidden` in place.
        """
        qkv: Tensor = self.qkv(_normed(self.attention_norm, hidden, before, self.qkv))
        return qkv

    def after_attention(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Add the attention result to `hidden`; return what is still to be added to it.

        Args:
            attended: [tokens, heads, head_dim], as returned by `attended`.
        """
        added: Tensor = self.out(attended.flatten(1))
        if self.attention_post_norm is not None:
            added = self.attention_post_norm(added)
        return self._fed(hidden, added)

    def add_feed_forward(self, hidden: Tensor) -> Tensor:
        """Compute the second half of the layer and add it to `hidden` [tokens, width]."""
        return hidden.add_(self._fed(hidden, None))

    def _fed(self, hidden: Tensor, attended: Tensor | None) -> Tensor:
        """The second half of the layer for hidden + attended; `attended` is added to `hidden`."""
        wants = self.gate_up if self.experts is None else self.router
        fed = self._feed_forward(_normed(self.feed_forward_norm, hidden, attended, wants))
        return fed if self.feed_forward_post_norm is None else self.feed_forward_post_norm(fed)

    def attended(self, qkv: Tensor, rotary: Rotary | None, attend: Attend) -> Tensor:
        """The attention result [tokens, heads, head_dim] for queries, keys and values.

        Args:
            qkv: as returned by `projected`; overwritten.
        """
        heads = qkv.view(len(qkv), -1, self.head_dim)
        if has_triton(heads.device.type) and isinstance(attend, FinishesHeads):
            return attend.finished(self.index, heads, self._head_norms, rotary, self.sinks)
        self._finish_heads(heads[:, : self.heads + self.kv_heads], rotary)
        query = heads[:, : self.heads]
        key_value = heads[:, self.heads :].view(len(qkv), 2, self.kv_heads, self.head_dim)
        return attend(self.index, query, key_value, self.sinks)

    def _finish_heads(self, heads: Tensor, rotary: Rotary | None) -> None:
        """Apply norms and positions to queries and keys [tokens, heads, head_dim], in place."""
        norms = self._head_norms
        on_card = has_triton(heads.device.type)
        if on_card or has_metal(heads.device.type):
            finish = finish_heads if on_card else shaders.finish_heads
            finish(heads, self.heads, norms, rotary)
            return
        wide = heads.float()
        if norms is not None:
            query_norm, key_norm, eps = norms
            wide = pick(RMS_NORM, heads.device)(wide, eps)
            wide[:, : self.heads].mul_(query_norm)
            wide[:, self.heads :].mul_(key_norm)
        if rotary is not None:
            apply_rope(wide, *rotary, out=heads)
        elif wide is not heads:
            heads.copy_(wide)

    @property
    def _head_norms(self) -> tuple[Tensor, Tensor, float] | None:
        """Norm weights of queries and of keys, and epsilon; None if the model has no head norms."""
        if self.query_norm is None or self.key_norm is None:
            return None
        return self.query_norm.weight, self.key_norm.weight, self.query_norm.eps

    def _feed_forward(self, hidden: Tensor | RoundedRows) -> Tensor:
        result: Tensor
        if self.experts is not None and self.router is not None:
            result = self.experts(hidden, self.router(hidden))
        else:
            both: Tensor = self.gate_up(hidden)
            if self.activation == "silu" and _takes_rounded(self.down, both):
                result = self.down(silu_up_rounded(both))
            else:
                result = self.down(gated(both, self.activation))
        return result


def _normed(
    norm: Norm, hidden: Tensor, added: Tensor | None, wants: nn.Module | None
) -> Tensor | RoundedRows:
    """Apply `norm` to hidden + added, as input of the module `wants`.

    The result is already rounded to codes if `wants` would do that in any case.
    """
    if _takes_rounded(wants, hidden) and hidden.is_contiguous():
        return add_and_round(hidden, added, norm.weight, norm.eps)
    result: Tensor = norm(hidden, added)
    return result


def _takes_rounded(matrix: nn.Module | None, x: Tensor) -> bool:
    """Whether `matrix` takes rounded rows in place of `x`."""
    if not isinstance(matrix, PackedLinear) or not has_triton(x.device.type):
        return False
    # Hooks have to see the plain input.
    return not matrix._forward_pre_hooks and matrix.takes_rounded(len(x), x.dtype)
