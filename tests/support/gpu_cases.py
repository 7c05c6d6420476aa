"""Cases for GPU kernels other than products: attention of single tokens over texts in pages,
compared with sums in float64, and norms and positions of heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from hearth.backends.native.kv_rows import from_rows, to_rows
from hearth.backends.native.models.rope import apply_rope, cosine_and_sine
from hearth.kernels.cuda.attention import Seen

Kinds = tuple[torch.dtype | None, torch.dtype | None]
"""Dtypes of the rows of keys and of values (`kv_rows`); None: the query's."""
LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3}


def pages_of(
    lengths: Sequence[int],
    begins: Sequence[int],
    *,
    page: int,
    kv_heads: int,
    size: int,
    dtype: torch.dtype,
    layout: str = "pages",
    shared: int = 0,
    kinds: Kinds = (None, None),
) -> tuple[torch.Tensor, torch.Tensor, Seen]:
    """Keys and values of texts in pages in random order, of which the first `shared` pages are
    common to all texts. Everything that does not belong to a text or lies before its window is NaN,
    including the scales of codes.
    """
    generator = torch.Generator().manual_seed(sum(lengths))
    counts = [-(-length // page) for length in lengths]
    total = sum(counts) + 3
    order = torch.randperm(total, generator=generator).tolist()
    tables, used = torch.full((len(lengths), max(counts)), -1, dtype=torch.int32), 0
    pool = torch.full((2, total, page, kv_heads, size), torch.nan, dtype=dtype)
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        own = order[used : used + count]
        own[:shared] = order[:shared] if row == 0 else tables[0, :shared].tolist()
        used += count
        tables[row, :count] = torch.tensor(own)
        for place in range(length):
            if row == 0 or place >= shared * page:
                some = torch.randn(2, kv_heads, size, generator=generator)
                pool[:, own[place // page], place % page] = some.to(dtype)
    for row, begin in enumerate(begins):
        for place in range(begin):
            pool[:, tables[row, place // page], place % page] = torch.nan
    unused, sides = pool[..., 0].isnan(), []
    for side, kind, is_unused in zip(pool, kinds, unused, strict=True):
        rows = side if kind is None else to_rows(side, kind)
        if kind is not None:  # NaN in E4M3, and as a scale in float16.
            rows.view(torch.uint8)[is_unused] = 0x7F
        if layout == "heads":
            rows = rows.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
        sides.append(rows)
    seen = Seen(
        tables,
        torch.tensor(begins, dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        max(end - begin for begin, end in zip(begins, lengths, strict=True)),
    )
    return sides[0], sides[1], seen


def exact(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seen: Seen,
    *,
    scale: float,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same attention in float64, token by token."""
    shared, outputs = query.shape[1] // keys.shape[2], []
    pools = [from_rows(one, torch.float64) for one in (keys, values)]
    for row, table in enumerate(seen.tables.long()):
        some = slice(int(seen.begins[row]), int(seen.ends[row]))
        key, value = (
            one[table.clamp(min=0)].flatten(0, 1)[some].repeat_interleave(shared, 1)
            for one in pools
        )
        scores = torch.einsum("hd,khd->hk", query[row].double(), key) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks is not None:
            scores = torch.cat((scores, sinks.double()[:, None]), 1)
        share = scores.softmax(1)[:, : key.shape[0]]
        outputs.append(torch.einsum("hk,khd->hd", share, value))
    return torch.stack(outputs)


CASES: dict[str, dict[str, Any]] = {
    "one head for all": {"heads": 4, "kv_heads": 1},
    "a head for each": {"heads": 3, "kv_heads": 3, "page": 32},
    "groups, capped": {"heads": 8, "kv_heads": 2, "softcap": 20.0},
    "sinks": {"heads": 8, "kv_heads": 4, "sinks": True, "page": 256},
    "a window": {"heads": 4, "kv_heads": 2, "begins": (0, 5, 15, 3)},
    "a window in large pages": {"heads": 4, "kv_heads": 2, "begins": (0, 2, 100, 60), "page": 256},
    "heads that are no power of two": {"heads": 5, "kv_heads": 1, "size": 80},
    "small heads together": {"heads": 4, "kv_heads": 2, "size": 16, "layout": "heads"},
    "heads of 96": {"heads": 4, "kv_heads": 2, "size": 96, "layout": "heads"},
    "shared pages": {"heads": 4, "kv_heads": 2, "shared": 1, "lengths": (40, 17, 130, 61)},
}


def check_case(
    attend: Callable[..., torch.Tensor],
    case: str,
    dtype: torch.dtype,
    kinds: Kinds = (None, None),
    **changes: Any,
) -> None:
    """Check that `attend(query, keys, values, seen, ...)` is close to the float64 result of one of
    `CASES`.
    """
    options = {
        "lengths": (1, 16, 130, 61),
        "begins": (0, 0, 0, 0),
        "page": 16,
        "size": 32,
        **CASES[case],
    }
    heads, size = options.pop("heads"), options["size"]
    more: dict[str, Any] = {"scale": size**-0.5, "softcap": options.pop("softcap", 0.0)}
    if options.pop("sinks", False):
        more["sinks"] = torch.randn(heads, generator=torch.Generator().manual_seed(3))
    keys, values, seen = pages_of(**options, dtype=dtype, kinds=kinds)
    generator = torch.Generator().manual_seed(1)
    # As in the model: a slice of the output of one product for queries, keys and values.
    query = 2 * torch.randn(4, heads + 3, size, generator=generator)
    query = query.to(dtype)[:, :heads]
    found = attend(query, keys, values, seen, **more, **changes)
    assert found.dtype == dtype and found.shape == query.shape
    wanted = exact(query, keys, values, seen, **more)
    assert float((found.double() - wanted).abs().max()) < LIMITS[dtype]


HEADS = ((64, 64), (80, 80), (96, 48), (64, 0))
"""Sizes of heads, and how many of their dimensions have positions."""


def check_heads(
    finish: Callable[..., None], size: int, turned: int, dtype: torch.dtype, *, normed: bool
) -> None:
    """Check `finish` against the layers' separate steps; the values after the keys must stay
    unchanged.
    """
    limit = 1e-6 if dtype == torch.float32 else 1e-3
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(3, 7, size, generator=generator).to(dtype)
    weights = [1 + torch.randn(size, generator=generator) / 4 for _ in range(2)]
    rotary = None
    if turned:
        frequencies = 1e4 ** -(torch.arange(0, turned, 2) / turned)
        rotary = cosine_and_sine(torch.tensor([0, 5, 900]), frequencies, 1.2)
    wanted = qkv.clone()
    wide = wanted[:, :6].float()
    if normed:
        wide = functional.rms_norm(wide, (size,), None, 1e-5)
        wide[:, :4] *= weights[0]
        wide[:, 4:] *= weights[1]
    if rotary is not None:
        apply_rope(wide.clone(), *rotary, out=wide)
    wanted[:, :6] = wide.to(dtype)
    finish(qkv[:, :6], 4, (weights[0], weights[1], 1e-5) if normed else None, rotary)
    torch.testing.assert_close(qkv, wanted, rtol=limit, atol=2 * limit)
    assert torch.equal(qkv[:, 6:], wanted[:, 6:])
