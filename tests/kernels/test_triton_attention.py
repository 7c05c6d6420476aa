"""Attention of single tokens over pages by the kernels for NVIDIA cards, which triton interprets
here, compared with sums in float64.
"""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton", minversion="3.9")

from gpu_cases import CASES, LIMITS, Kinds, check_case, exact, pages_of
from hearth.backends.native.kv_rows import FP8, Q8_0
from hearth.kernels.cuda.attention import Seen, attend_decode

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="there is a card, see test_cuda.py"
)
KINDS: tuple[Kinds, ...] = ((Q8_0, Q8_0), (FP8, FP8), (Q8_0, None), (None, FP8))


@pytest.mark.parametrize(("dtype", "chunk"), [*zip(LIMITS, (48, 256), strict=True)])
@pytest.mark.parametrize("case", CASES)
def test_attention_is_near(case: str, dtype: torch.dtype, chunk: int) -> None:
    check_case(attend_decode, case, dtype, chunk=chunk)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("case", ["sinks", "a window", "heads of 96", "shared pages"])
def test_packed_keys_and_values_are_read_as_what_they_stand_for(
    case: str, kinds: Kinds, dtype: torch.dtype
) -> None:
    check_case(attend_decode, case, dtype, kinds, chunk=48)


@pytest.mark.parametrize("kinds", [(None, None), *KINDS[:2]])
def test_any_number_of_splits_is_near_and_has_the_same_bits_every_time(kinds: Kinds) -> None:
    keys, values, seen = pages_of(
        *((17, 97, 250), (0, 0, 0)),
        page=16,
        kv_heads=2,
        size=32,
        dtype=torch.float32,
        shared=1,
        kinds=kinds,
    )
    query = torch.randn(3, 4, 32, generator=torch.Generator().manual_seed(0))
    wanted = exact(query, keys, values, seen, scale=0.2)
    for splits in (1, 2, 3, 5, 8, 16) if kinds == (None, None) else (1, 3, 16):
        chunk = -(-250 // splits)
        found = attend_decode(query, keys, values, seen, scale=0.2, chunk=chunk)
        assert float((found - wanted).abs().max()) < 1e-5, splits
    again = attend_decode(query, keys, values, seen, scale=0.2, chunk=chunk)
    assert torch.equal(found, again)  # The counters were reset.


@pytest.mark.parametrize("chunk", [1, 7])
def test_long_texts_have_longer_parts(chunk: int) -> None:
    """There are at most 32 parts, whatever the other texts are."""
    lengths = (1, 33, 97, 250)
    keys, values, seen = pages_of(
        lengths, (0, 0, 20, 3), page=16, kv_heads=2, size=32, dtype=torch.float32
    )
    query = torch.randn(4, 4, 32, generator=torch.Generator().manual_seed(0))
    wanted = exact(query, keys, values, seen, scale=0.2)
    found = attend_decode(query, keys, values, seen, scale=0.2, chunk=chunk)
    assert float((found - wanted).abs().max()) < 1e-5
    for row, length in enumerate(lengths):
        some = slice(row, row + 1)
        alone = Seen(seen.tables[some], seen.begins[some], seen.ends[some], length)
        one = attend_decode(query[some], keys, values, alone, scale=0.2, chunk=chunk)
        assert torch.equal(one[0], found[row])


def test_a_token_does_not_depend_on_others() -> None:
    """Nor on the lengths of the other texts, nor on the memory that is reserved for longer ones."""
    keys, values, seen = pages_of(
        (40, 300, 17), (0, 0, 0), page=16, kv_heads=1, size=32, dtype=torch.float32
    )
    query = torch.randn(3, 2, 32, generator=torch.Generator().manual_seed(0))
    whole = attend_decode(query, keys, values, seen, scale=0.2, chunk=64)
    for row, length in enumerate((40, 300, 17)):
        some = slice(row, row + 1)
        alone = Seen(seen.tables[some], seen.begins[some], seen.ends[some], length)
        found = attend_decode(query[some], keys, values, alone, scale=0.2, chunk=64)
        assert torch.equal(found[0], whole[row])
