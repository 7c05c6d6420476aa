"""`torch.nn.attention.varlen.varlen_attn` over block tables in plain torch, for machines without
CUDA: by its documentation, and unforgiving where the kernel in PyTorch is.
"""

from __future__ import annotations

import torch
from torch import Tensor


def varlen_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """query: [tokens, heads, head_dim]; key and value: [pages, page, kv_heads, head_dim]."""
    assert return_aux is None
    assert num_splits == 1
    assert cu_seq_k is not None and seqused_k is not None and block_table is not None
    rows, page = len(block_table), key.shape[1]
    for numbers, shape in (
        (cu_seq_q, (rows + 1,)),
        (cu_seq_k, (rows + 1,)),
        (seqused_k, (rows,)),
        (block_table, (rows, block_table.shape[1])),
    ):
        assert numbers.dtype == torch.int32 and numbers.is_contiguous() and numbers.shape == shape
    assert block_table.ge(0).all() and block_table.lt(len(key)).all()
    assert cu_seq_k.diff().tolist() == seqused_k.tolist()
    assert (max_q, max_k) == (int(cu_seq_q.diff().max()), int(seqused_k.max()))
    assert query.dtype == key.dtype == value.dtype
    assert enable_gqa or query.shape[1] == key.shape[2]
    out = torch.empty_like(query)
    for row in range(rows):
        some = slice(int(cu_seq_q[row]), int(cu_seq_q[row + 1]))
        used = int(seqused_k[row])
        blocks = block_table[row, : -(-used // page)].long()
        keys, values = (
            of[blocks].flatten(0, 1)[:used].repeat_interleave(query.shape[1] // of.shape[2], 1)
            for of in (key, value)
        )
        scores = torch.einsum("qhd,khd->hqk", query[some].float(), keys.float())
        scores *= query.shape[2] ** -0.5 if scale is None else scale
        # The last query stands at the last key.
        behind = torch.arange(used - scores.shape[1], used)[:, None] - torch.arange(used)
        left, right = window_size
        hidden = behind > left if left >= 0 else torch.zeros_like(behind, dtype=torch.bool)
        if right >= 0:
            hidden |= behind < -right
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[some] = torch.einsum("hqk,khd->qhd", weights, values.float()).to(query.dtype)
    return out
