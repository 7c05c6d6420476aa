"""`hearth.kernels.cuda.attention.attend_decode` in PyTorch, without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from hearth.kernels.cuda.attention import Seen
from hearth.kernels.cuda.packings import CHUNK


def reference_decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: Seen,
    *,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Like `attend_decode`. Keys after the last part of `seen.most` are ignored, as there."""
    tokens, heads, size = query.shape
    kv_heads = keys.shape[2]
    both = [one[seen.tables.long()].flatten(1, 2).transpose(1, 2) for one in (keys, values)]
    grouped = query.view(tokens, kv_heads, heads // kv_heads, size)
    scores = grouped @ both[0].transpose(2, 3) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    places, begins = torch.arange(scores.shape[-1]), seen.begins[:, None]
    last = torch.minimum(seen.ends[:, None], begins + -(-seen.most // CHUNK) * CHUNK)
    sees = (places >= begins) & (places < last)
    scores = scores.masked_fill(~sees[:, None, None], -torch.inf)
    if sinks is not None:
        sunk = sinks.view(1, kv_heads, -1, 1).expand(tokens, -1, -1, 1)
        scores = torch.cat([scores, sunk], -1)
    weights = scores.softmax(-1)[..., : len(places)]
    return (weights @ both[1].nan_to_num()).view(tokens, heads, size)
