"""Attention of given queries over given keys and values, with everything that models add to it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def additive(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as scores take it: 0 where a query sees a key (`sees` is bool), minus infinity
    elsewhere.
    """
    return torch.zeros_like(sees, dtype=dtype).masked_fill_(~sees, float("-inf"))


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
    """softmax(scale · query · keyᵀ) · value, for each of the two first dimensions by itself.

    Args:
        query: [kv_heads, texts, queries, head_dim].
        key: [kv_heads, texts, keys, head_dim], of the query's dtype.
        value: as `key`.
        mask: what is added to the scores, of the query's dtype (`additive`); broadcastable to
            [kv_heads, texts, queries, keys].
        causal: instead of a mask, as many keys as queries: each sees itself and those before it.
        softcap: scores become softcap·tanh(score / softcap); 0: they stay.
        sinks: a score for each query that takes part in the softmax and has no value;
            broadcastable to [kv_heads, texts, queries, 1].
        fused: a fused kernel may be used where there is one.

    Returns:
        [kv_heads, texts, queries, head_dim], of the query's dtype.
    """
    if fused and not softcap and sinks is None:
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=scale
        )
    if causal:
        sees = torch.ones(query.shape[-2:-1] * 2, dtype=torch.bool, device=query.device).tril()
        mask = additive(sees, query.dtype)
    scores = torch.matmul(query.float(), key.float().transpose(-1, -2)) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores += mask
    if sinks is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        sinks = sinks.float().expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
    return torch.matmul(weights.to(value.dtype), value).to(query.dtype)
