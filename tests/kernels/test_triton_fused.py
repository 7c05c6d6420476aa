"""Norms, positions, gates and storing keys on NVIDIA cards, which triton interprets here, compared
with PyTorch's results.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton", minversion="3.9")

from gpu_cases import HEADS, check_heads
from hearth.backends.native.kv_rows import FP8, LARGEST, Q8_0, row_elements, to_rows
from hearth.kernels.cuda.elementwise import (
    add_and_normalise,
    add_and_round,
    can_round,
    finish_and_store,
    finish_heads,
    round_rows,
    row_peaks,
    silu_up,
    silu_up_rounded,
    store_tokens,
)

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="there is a card, see test_cuda.py"
)
DTYPES = {torch.float32: 1e-6, torch.float16: 1e-3}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("size", "turned"), HEADS)
def test_heads_are_normed_and_turned(
    size: int, turned: int, normed: bool, dtype: torch.dtype
) -> None:
    check_heads(finish_heads, size, turned, dtype, normed=normed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 1100])
def test_norms_of_sums(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, added = (torch.randn(3, width, generator=generator).to(dtype) for _ in range(2))
    weight = torch.randn(width, generator=generator)
    for more in (None, added):
        if more is not None:
            wanted_hidden = hidden + more
            kept = hidden.clone()
        else:
            wanted_hidden = kept = hidden
        wide = functional.rms_norm(wanted_hidden.float(), (width,), weight, 1e-5)
        found = add_and_normalise(kept, more, weight, 1e-5)
        assert torch.equal(kept, wanted_hidden)
        torch.testing.assert_close(found, wide.to(dtype), rtol=2 * DTYPES[dtype], atol=1e-6)
    assert add_and_normalise(hidden[:0], None, weight, 1e-5).shape == (0, width)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [128, 640])
def test_norms_and_gates_round_at_once_as_they_would_afterwards(
    width: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, added = (torch.randn(5, width, generator=generator).to(dtype) for _ in range(2))
    both = 3 * torch.randn(5, 2 * width, generator=generator).to(dtype)
    hidden[2], added[2], both[2] = 0, 0, 0
    hidden[3, 7] = both[3, 7] = torch.inf
    weight = torch.randn(width, generator=generator)
    sum_of, kept = hidden.clone(), hidden.clone()
    plain = add_and_normalise(sum_of, added, weight, 1e-5), silu_up(both)
    rounded = add_and_round(kept, added, weight, 1e-5), silu_up_rounded(both)
    assert torch.equal(kept, sum_of)
    assert can_round(width) and not can_round(width + 16) and not can_round(1 << 16)
    for found, numbers in zip(rounded, plain, strict=True):
        wanted = round_rows(numbers, fp8=True)
        assert found.dtype == dtype and found.codes.dtype == torch.float8_e4m3fn
        assert found.scales[0, 3].isnan() and wanted.scales[0, 3].isnan()
        fine = [0, 1, 2, 4]
        torch.testing.assert_close(
            found.scales[:, fine], wanted.scales[:, fine], rtol=2 * DTYPES[dtype], atol=0
        )
        # A number that half precision rounds may then be on the other side of a boundary.
        codes, others = (one.codes[fine].float() for one in (found, wanted))
        assert ((codes - others).abs() <= others.abs() / 7 + 2**-9).all()
        assert (codes != others).float().mean() < (0.03 if dtype == torch.float16 else 1e-3)


@pytest.mark.parametrize("layout", ["heads", "pages"])
@pytest.mark.parametrize(
    ("kinds", "size"),
    [
        ((torch.float16, torch.float16), 40),
        ((Q8_0, Q8_0), 96),
        ((FP8, FP8), 40),
        ((Q8_0, torch.float32), 64),
        ((torch.float16, FP8), 64),
    ],
)
def test_what_is_kept_is_what_pytorch_keeps_and_finite(
    kinds: tuple[torch.dtype, torch.dtype], size: int, layout: str
) -> None:
    new = 3 * torch.randn(3, 9, size, generator=torch.Generator().manual_seed(0))
    key_value = new[:, 3:].view(3, 2, 3, size)
    key_value[0, 0, 1, 5], key_value[1, 1, 0, 0], key_value[2, 0, 0, 39] = (
        torch.nan,
        torch.inf,
        -torch.inf,
    )
    key_value[0, 1, 2, :4] = torch.tensor([2**-7, 2**-9, 2**-10, 1e-6])  # Subnormal in E4M3.
    key_value[0, 1, 1], key_value[1, 0, 2] = 0, 1e-4 * key_value[1, 0, 2]
    slots = torch.tensor([11, 0, 6])
    pool = []
    for kind in kinds:
        row = row_elements(size, kind)
        shape = (3, 12, row) if layout == "heads" else (12, 3, row)
        made = torch.full(shape, 7, dtype=torch.uint8).to(kind)
        pool.append(made.transpose(0, 1) if layout == "heads" else made)
    store_tokens(pool[0], pool[1], slots, key_value, LARGEST)
    for side, kind, numbers in zip(pool, kinds, key_value.unbind(1), strict=True):
        assert torch.equal(side[slots].float(), to_rows(numbers, kind).float())
        assert (side[[1, 2, 3, 4, 5, 7, 8, 9, 10]].float() == 7).all()


@pytest.mark.parametrize("tokens", [3, 67])
@pytest.mark.parametrize("kind", [torch.float16, Q8_0, FP8])
@pytest.mark.parametrize(("normed", "turned"), [(True, 64), (False, 32), (True, 0)])
def test_heads_are_finished_and_kept_in_one_launch_as_in_two(
    kind: torch.dtype, normed: bool, turned: int, tokens: int
) -> None:
    """Many tokens, several to a program, give the same as each alone."""
    generator = torch.Generator().manual_seed(0)
    size, slots = 64, torch.randperm(2 * tokens, generator=generator)[:tokens]
    # Four heads of queries, two of keys, two of values, and more numbers after each token.
    heads = torch.randn(tokens, 10, size, generator=generator).half()[:, :8]
    norms = (*torch.rand(2, size, generator=generator), 1e-5) if normed else None
    angles = torch.rand(tokens, 1, turned, generator=generator)
    rotary = (angles.cos(), angles.sin()) if turned else None
    shape = (2 * tokens, 2, row_elements(size, kind))
    pools = [torch.full(shape, 7, dtype=torch.uint8).to(kind) for _ in range(4)]
    together = heads.clone()
    finish_and_store(together, 4, norms, rotary, pools[0], pools[1], slots, LARGEST)
    alone = range(tokens) if tokens < 8 else (0, 6, 7, 8, 15, 63, 64, 66)
    for at in alone:
        one, place = heads[at : at + 1].clone(), slots[at : at + 1]
        turn = None if rotary is None else tuple(part[at : at + 1] for part in rotary)
        finish_heads(one[:, :6], 4, norms, turn)  # type: ignore[arg-type]
        assert torch.equal(one[0], together[at])
        store_tokens(pools[2], pools[3], place, one[:, 4:].reshape(1, 2, 2, size), LARGEST)
        for made, wanted in ((pools[0], pools[2]), (pools[1], pools[3])):
            assert torch.equal(made[place].float(), wanted[place].float())
    unused = [slot for slot in range(2 * tokens) if slot not in slots]
    assert all((pool[unused].float() == 7).all() for pool in pools[:2])


def test_every_number_becomes_the_nearest_of_e4m3() -> None:
    """Compared with PyTorch: all of bfloat16, and float32 on both sides of each boundary."""
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    every = every.view(torch.bfloat16).float()
    codes = torch.arange(0, 127, dtype=torch.uint8).view(FP8).float()
    middle = (codes[1:] + codes[:-1]) / 2
    near = torch.cat([middle, *(torch.nextafter(middle, x) for x in (codes[1:], codes[:-1]))])
    numbers = torch.cat((every, near, -near))
    numbers = numbers[numbers.isfinite()]
    numbers = numbers[: len(numbers) // 64 * 64].view(-1, 1, 1, 64).expand(-1, 2, -1, -1)
    pool = [torch.zeros(len(numbers), 1, 64, dtype=FP8) for _ in range(2)]
    store_tokens(pool[0], pool[1], torch.arange(len(numbers)), numbers.contiguous(), LARGEST)
    wanted = to_rows(numbers[:, 0], FP8)
    assert torch.equal(pool[0].view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gates(dtype: torch.dtype) -> None:
    both = (4 * torch.randn(3, 2 * 1100, generator=torch.Generator().manual_seed(0))).to(dtype)
    gate, up = both.float().chunk(2, -1)
    wanted = (functional.silu(gate) * up).to(dtype)
    torch.testing.assert_close(silu_up(both), wanted, rtol=2 * DTYPES[dtype], atol=1e-6)
    assert silu_up(both[:0]).shape == (0, 1100)


def test_peaks_of_rows() -> None:
    logits = 5 * torch.randn(4, 9000, generator=torch.Generator().manual_seed(0))
    logits[1, [8999, 40]] = 40.0  # The first of equal ones, in another part.
    logits[2, 100:] = -torch.inf
    logits[3, 5000] = torch.nan
    found = row_peaks(torch.cat([logits, logits], 1)[:, :9000])
    assert torch.equal(found[:3, 0], logits[:3].amax(1))
    assert found[:3, 2].tolist() == [*logits[:1].argmax(1).tolist(), 40, *logits[2:3].argmax(1)]
    wanted = (logits - logits.amax(1, keepdim=True)).exp().sum(1)
    torch.testing.assert_close(found[:3, 1], wanted[:3])
    assert found[3, 1].isnan()
    logits[0, 7] = torch.inf
    assert row_peaks(logits[:1])[0, 1].isnan()
    assert row_peaks(logits[:0]).shape == (0, 3)
