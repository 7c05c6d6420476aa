"""Attention of given queries over given keys and values, with the variants that models need."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

_SCORES: Final = 1 << 24
"""Scores that are written out at a time: 64 MB, of which two copies exist."""


def additive(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """An additive mask: 0 where a query sees a key (`sees` is bool), minus infinity elsewhere."""
    return torch.zeros_like(sees, dtype=dtype).masked_fill_(~sees, float("-inf"))


def causal_mask(
    queries: range, keys: range, window: int | None, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """An additive mask [1, 1, queries, keys].

    Each query sees the keys up to its own position; with a window, only the last `window` of them.
    """
    asking = torch.arange(queries.start, queries.stop, device=device).unsqueeze(1)
    seen = torch.arange(keys.start, keys.stop, device=device)
    sees = seen <= asking
    if window is not None:
        sees &= seen > asking - window
    return additive(sees, dtype)[None, None]


def attend_to(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    fused: bool = True,
) -> Tensor:
    """softmax(scale · query · keyᵀ) · value, separately for each index of the first two dimensions.

    Args:
        query: [kv_heads, texts, queries, head_dim].
        key: [kv_heads, texts, keys, head_dim], of the query's dtype; or 1 instead of texts, if all
            texts have the same keys.
        value: as `key`.
        mask: added to the scores, of the query's dtype (`additive`); broadcastable to
            [kv_heads, texts, queries, keys].
        causal: used instead of a mask, with as many keys as queries: each query sees its own key
            and those before it.
        softcap: scores become softcap·tanh(score / softcap); 0 leaves them unchanged.
        sinks: a score for each query that takes part in the softmax and has no value;
            broadcastable to [kv_heads, texts, queries, 1].
        fused: a fused kernel may be used if there is one.

    Returns:
        [kv_heads, texts, queries, head_dim], of the query's dtype.
    """
    if fused and not softcap and sinks is None:
        shape = (-1, query.shape[1], -1, -1)
        return scaled_dot_product_attention(
            query,
            key.expand(shape),
            value.expand(shape),
            attn_mask=mask,
            is_causal=causal,
            scale=scale,
        )
    if causal:
        sees = torch.ones(query.shape[-2:-1] * 2, dtype=torch.bool, device=query.device).tril()
        mask = additive(sees, query.dtype)[None, None]
    queries, keys = query.shape[2], key.shape[2]
    wide_key, wide_value = key.float(), value.float()
    step = max(_SCORES // (query.shape[0] * query.shape[1] * keys), 1)
    attended = torch.empty_like(query)
    for start in range(0, queries, step):
        some = slice(start, start + step)
        scores = _products(query[:, :, some].float() * scale, wide_key.transpose(-1, -2))
        if softcap:
            scores.div_(softcap).tanh_().mul_(softcap)
        if mask is not None:
            scores += _of(mask, some)
        _softmax(scores, None if sinks is None else _of(sinks, some).float())
        attended[:, :, some] = _products(scores, wide_value)
    return attended


def _products(rows: Tensor, matrices: Tensor) -> Tensor:
    """[heads, texts, n, a] · [heads, texts or 1, a, b] -> [heads, texts, n, b].

    Matrices that all texts share are not copied.
    """
    if matrices.shape[1] == 1:
        product = torch.bmm(rows.flatten(1, 2), matrices[:, 0])
        return product.view(*rows.shape[:3], matrices.shape[-1])
    return torch.matmul(rows, matrices)


def _of(scores: Tensor, queries: slice) -> Tensor:
    """The part of `scores` for some queries; `scores` may be the same for all queries."""
    return scores if scores.shape[2] == 1 else scores[:, :, queries]


def _softmax(scores: Tensor, sinks: Tensor | None) -> None:
    """Softmax over the last dimension, in place.

    `sinks` [..., 1] float32 count in the sum only.
    """
    peak = scores.amax(dim=-1, keepdim=True)
    if sinks is not None:
        peak = torch.maximum(peak, sinks)
    total = scores.sub_(peak).exp_().sum(dim=-1, keepdim=True)
    if sinks is not None:
        total += (sinks - peak).exp()
    scores.div_(total)
