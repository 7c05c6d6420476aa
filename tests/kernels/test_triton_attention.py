"""Attention of single tokens over pages by the kernels for NVIDIA cards, which triton interprets
here without one, next to sums in float64.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch

pytest.importorskip("triton", minversion="3.9")

from hearth.kernels.cuda.attention import Seen, attend_decode

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="there is a card, see test_cuda.py"
)
LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3}


def pages_of(
    lengths: Sequence[int],
    begins: Sequence[int],
    *,
    page: int,
    kv_heads: int,
    size: int,
    dtype: torch.dtype,
    layout: str,
    shared: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, Seen]:
    """Keys and values of texts in pages in no order, of which the first `shared` are those of all;
    whatever is not of a text is NaN, and so is what lies before its window.
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
    if layout == "heads":
        pool = pool.permute(0, 3, 1, 2, 4).contiguous().permute(0, 2, 3, 1, 4)
    seen = Seen(
        tables,
        torch.tensor(begins, dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        max(end - begin for begin, end in zip(begins, lengths, strict=True)),
    )
    return pool[0], pool[1], seen


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
    """The same in float64, token by token."""
    found = []
    shared = query.shape[1] // keys.shape[2]
    for row, table in enumerate(seen.tables.long()):
        some = slice(int(seen.begins[row]), int(seen.ends[row]))
        pages = table.clamp(min=0)
        key, value = (
            one[pages].flatten(0, 1)[some].repeat_interleave(shared, 1).double()
            for one in (keys, values)
        )
        scores = torch.einsum("hd,khd->hk", query[row].double(), key) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks is not None:
            scores = torch.cat((scores, sinks.double()[:, None]), 1)
        share = scores.softmax(1)[:, : key.shape[0]]
        found.append(torch.einsum("hk,khd->hd", share, value))
    return torch.stack(found)


CASES: dict[str, dict[str, Any]] = {
    "one head for all": {"heads": 4, "kv_heads": 1},
    "a head for each": {"heads": 3, "kv_heads": 3, "page": 32},
    "groups, capped": {"heads": 8, "kv_heads": 2, "softcap": 20.0},
    "sinks": {"heads": 8, "kv_heads": 4, "sinks": True, "page": 256},
    "a window": {"heads": 4, "kv_heads": 2, "begins": (0, 5, 15, 3)},
    "a window in large pages": {"heads": 4, "kv_heads": 2, "begins": (0, 2, 100, 60), "page": 256},
    "heads that are no power of two": {"heads": 5, "kv_heads": 1, "size": 80},
    "small heads together": {"heads": 4, "kv_heads": 2, "size": 16, "layout": "heads"},
    "shared pages": {"heads": 4, "kv_heads": 2, "shared": 1, "lengths": (40, 17, 130, 61)},
}


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("case", CASES)
def test_attention_is_near(case: str, dtype: torch.dtype) -> None:
    options = {
        "lengths": (1, 16, 130, 61),
        "begins": (0, 0, 0, 0),
        "page": 16,
        "size": 32,
        "layout": "pages",
        **CASES[case],
    }
    heads, size = options.pop("heads"), options["size"]
    more: dict[str, Any] = {"scale": size**-0.5, "softcap": options.pop("softcap", 0.0)}
    if options.pop("sinks", False):
        more["sinks"] = torch.randn(heads, generator=torch.Generator().manual_seed(3))
    keys, values, seen = pages_of(**options, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    # As they come: a slice of what one product gives for queries, keys and values.
    query = 2 * torch.randn(4, heads + 3, size, generator=generator)
    query = query.to(dtype)[:, :heads]
    wanted = exact(query, keys, values, seen, **more)
    for chunk in (48, 256):
        found = attend_decode(query, keys, values, seen, **more, chunk=chunk)
        assert found.dtype == dtype and found.shape == query.shape
        assert float((found.double() - wanted).abs().max()) < LIMITS[dtype]


def test_any_number_of_splits_is_near_and_has_the_same_bits_every_time() -> None:
    keys, values, seen = pages_of(
        (1, 97, 250), (0, 7, 0), page=16, kv_heads=2, size=32, dtype=torch.float32, layout="pages"
    )
    query = torch.randn(3, 4, 32, generator=torch.Generator().manual_seed(0))
    wanted = exact(query, keys, values, seen, scale=0.2)
    for splits in range(1, 17):
        chunk = -(-250 // splits)
        found = attend_decode(query, keys, values, seen, scale=0.2, chunk=chunk)
        assert float((found - wanted).abs().max()) < 1e-5, splits
        again = attend_decode(query, keys, values, seen, scale=0.2, chunk=chunk)
        assert torch.equal(found, again)


def test_a_token_does_not_depend_on_others() -> None:
    """Nor on how long the others' texts are, or how much is set aside for longer ones."""
    keys, values, seen = pages_of(
        (40, 300, 17), (0, 0, 0), page=16, kv_heads=1, size=32, dtype=torch.float32, layout="heads"
    )
    query = torch.randn(3, 2, 32, generator=torch.Generator().manual_seed(0))
    whole = attend_decode(query, keys, values, seen, scale=0.2, chunk=64)
    for row, length in enumerate((40, 300, 17)):
        some = slice(row, row + 1)
        alone = Seen(seen.tables[some], seen.begins[some], seen.ends[some], length)
        found = attend_decode(query[some], keys, values, alone, scale=0.2, chunk=64)
        assert torch.equal(found[0], whole[row])
