"""Kernels on an NVIDIA card give the same as on a processor, where other tests check them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from drawn_codes import drawn
from hearth.backends.native.kv_rows import FP8, Q8_0
from hearth.kernels.blocks import block_of, packings
from hearth.kernels.cuda.attention import Seen, attend_decode
from hearth.kernels.cuda.matrix import TritonMatrix, has_triton
from hearth.kernels.cuda.packings import PACKINGS
from hearth.kernels.dequantize import dequantize
from hearth.kernels.packed import BlockMatrix, prepare
from hearth.kernels.packed_weight import PackedWeight
from hearth.kernels.table import LINEAR, RMS_NORM, pick
from hearth.quant.stored import CODES, STAYS_PACKED
from prompt_cases import CASES, Prompts
from random_weights import random_weight

pytestmark = pytest.mark.cuda

CUDA = torch.device("cuda")


def needs_grids(packing: str) -> None:
    """Grids of IQ types are those of gguf-py, which may be missing on a machine with a card."""
    if packing.startswith(("IQ1", "IQ2", "IQ3")):
        pytest.importorskip("gguf")


def random_blocks(packing: str, rows: int, blocks: int) -> torch.Tensor:
    """[rows, bytes] with finite values, on the processor."""
    size = rows, blocks * block_of(packing)[1]
    drawn = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    found = torch.from_numpy(drawn)
    is_sane = dequantize(packing, found).abs().amax(dim=-1) < 1e4
    return found[is_sane]


@pytest.mark.parametrize("packing", packings())
def test_random_bytes_stand_for_the_same_bits(packing: str) -> None:
    needs_grids(packing)
    size = (64, 40 * block_of(packing)[1])
    rows = torch.from_numpy(np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8))
    wanted, found = dequantize(packing, rows), dequantize(packing, rows.to(CUDA)).cpu()
    assert torch.equal(found.isnan(), wanted.isnan())
    bits = [numbers.nan_to_num(0.0).view(torch.int32) for numbers in (found, wanted)]
    assert torch.equal(*bits)


@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("packing", sorted(STAYS_PACKED - CODES))
def test_products_with_packed_matrices_are_near(packing: str, tokens: int) -> None:
    needs_grids(packing)
    blocks = random_blocks(packing, 4096, 1)
    assert len(blocks) > 100
    x = torch.randn(tokens, block_of(packing)[0], generator=torch.Generator().manual_seed(0))
    part = PackedWeight(blocks, packing)
    wanted = BlockMatrix(part).matmul(x)
    found = BlockMatrix(part.to(CUDA)).matmul(x.to(CUDA)).cpu()
    scale = float(wanted.abs().amax())
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("packing", sorted(CODES))
def test_codes_stand_for_the_same_numbers(packing: str) -> None:
    order = torch.randperm(512, generator=torch.Generator().manual_seed(0))
    plain, ordered = (drawn(packing, 300, 512, 4, seed=seed) for seed in (0, 1))
    parts = [plain, replace(ordered, order=order)]
    for part in parts:
        assert torch.equal(
            part.to(CUDA).unpacked(torch.float32).cpu(), part.unpacked(torch.float32)
        )
    x = torch.randn(40, 512, generator=torch.Generator().manual_seed(0))
    wanted = prepare(parts, exact=True).matmul(x)
    found = prepare([part.to(CUDA) for part in parts], exact=True).matmul(x.to(CUDA)).cpu()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().amax()))


TRITON = pytest.mark.skipif(not has_triton("cuda"), reason="triton does not work on this card")


ROUNDED = {"INT8": 5e-4, "FP8": 1e-3}
"""Errors with 8-bit activations, as given in docs/cuda.md."""


@TRITON
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("packing", sorted(PACKINGS))
def test_products_in_triton_are_near_and_the_same_every_time(
    packing: str, dtype: torch.dtype
) -> None:
    part = random_weight(packing, 333, 1024, group=128)
    matrix, rounding = (TritonMatrix([part.to(CUDA)], exact=exact) for exact in (True, False))
    plain, x = part.unpacked(torch.float64), torch.randn(300, 1024).to(dtype)
    ids = torch.tensor([332, 0, 7], device=CUDA)
    assert torch.equal(matrix.rows(ids, dtype).cpu(), part.unpacked(dtype)[[332, 0, 7]])
    few = matrix.matmul(x[:16].to(CUDA))
    for rows in (1, 5, 16):
        assert torch.equal(matrix.matmul(x[:rows].to(CUDA)), few[:rows])
    for rows in (1, 16, 17, 64, 65, 300):
        wanted = x[:rows].double() @ plain.T
        # Activations of many rows may be rounded to eight bits.
        rounded = ROUNDED.get(packing, 2e-5) if rows > 64 else 2e-5
        for one, most in ((matrix, 2e-5), (rounding, rounded)):
            off = (one.matmul(x[:rows].to(CUDA)).cpu() - wanted).square().sum()
            assert float(off / wanted.square().sum()) < most


@TRITON
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_attention_in_triton_is_near_and_the_same_every_time(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    pool = torch.randn(2, 40, 16, 2, 128, generator=generator).to(dtype)
    query = torch.randn(3, 8, 128, generator=generator).to(dtype)
    tables = torch.randperm(40, generator=generator)[:39].view(3, 13).to(torch.int32)
    begins, ends = (torch.tensor(some, dtype=torch.int32) for some in ([0, 0, 9], [1, 200, 207]))
    wanted = []
    for row in range(3):
        some = slice(int(begins[row]), int(ends[row]))
        keys, values = (
            one[tables[row].long()].flatten(0, 1)[some].repeat_interleave(4, 1).double()
            for one in pool
        )
        scores = torch.einsum("hd,khd->hk", query[row].double(), keys) * 0.1
        wanted.append(torch.einsum("hk,khd->hd", scores.softmax(1), values))
    on_card = pool.to(CUDA)
    seen = Seen(tables.to(CUDA), begins.to(CUDA), ends.to(CUDA), 200)
    for chunk in (32, 64, 256):
        found, again = (
            attend_decode(query.to(CUDA), *on_card, seen, scale=0.1, chunk=chunk) for _ in range(2)
        )
        assert torch.equal(found, again)
        limit = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(found.cpu().double(), torch.stack(wanted), rtol=0, atol=limit)


@TRITON
@pytest.mark.parametrize("kind", [None, Q8_0, FP8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("case", CASES)
def test_prompts_see_their_texts(case: str, dtype: torch.dtype, kind: torch.dtype | None) -> None:
    options = {"lengths": (1, 16, 300, 161), "counts": (1, 16, 157, 40), **CASES[case]}
    if "lengths" in CASES[case]:
        del options["counts"]
    if options.get("size", 32) % 32 and kind == Q8_0:
        pytest.skip("rows of Q8_0 are whole runs")
    prompts = Prompts(dtype=dtype, kinds=(kind, kind), device="cuda", **options)
    limit = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    found = prompts.found()
    assert float((found.double() - prompts.wanted()).abs().max()) < limit
    assert torch.equal(found, prompts.found())


@TRITON
def test_a_token_has_the_same_bits_next_to_few_others_and_to_many() -> None:
    """Kernels are compiled differently for more programs than a card runs at once."""
    pages = torch.randn(2, 300, 16, 2, 128, device=CUDA, dtype=torch.bfloat16)
    tables = torch.randint(300, (200, 250), device=CUDA, dtype=torch.int32)
    ends = torch.randint(1, 4000, (200,), device=CUDA, dtype=torch.int32)
    ends[0] = 4000
    query = torch.randn(200, 8, 128, device=CUDA, dtype=torch.bfloat16)
    found = []
    for count in (1, 200):
        seen = Seen(tables[:count], torch.zeros_like(ends[:count]), ends[:count], 4000)
        found.append(attend_decode(query[:count], pages[0], pages[1], seen, scale=0.1)[0])
    assert torch.equal(*found)


def test_what_is_picked_for_a_card_is_near_the_reference() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=generator) for size in ((40, 512), (300, 512)))
    for found, wanted in (
        (
            pick(LINEAR, CUDA)(x.to(CUDA), weight.to(CUDA), None),
            LINEAR.reference(x, weight, None),
        ),
        (pick(RMS_NORM, CUDA)(x.to(CUDA), 1e-5), RMS_NORM.reference(x, 1e-5)),
    ):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-4)
