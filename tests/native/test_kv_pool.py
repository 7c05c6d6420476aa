"""Pages of keys and values take memory when they are written to, and release it."""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from collections.abc import Iterable
from typing import Any

import pytest
import torch

from hearth.backends.native import kv_pool
from hearth.backends.native.kv_pool import KvPool, by_token
from hearth.backends.native.kv_rows import Q8_0, from_rows, to_rows
from hearth.backends.native.lazy_zeros import LazyZeros
from hearth.backends.native.models.rope import (
    apply_rope,
    cosine_and_sine,
    inverse_frequencies,
    moved,
)
from hearth.quant.families.config import LayerConfig, ModelConfig, Rope

PAGE, KV_HEADS, WIDTH = 16, 2, 64
BLOCK_BYTES = 2 * KV_HEADS * PAGE * WIDTH * 4
linux = pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel")


def pool_of(
    most: int,
    start: int = 0,
    *,
    device: str = "cpu",
    window: int | None = 8,
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32),
    frequencies: tuple[torch.Tensor | None, ...] = (),
) -> KvPool:
    """Three layers, two of which are in the first group."""
    rope = Rope(1e4, WIDTH)
    layers = (LayerConfig(rope), LayerConfig(rope, window), LayerConfig(rope))
    config = ModelConfig(
        "test",
        vocab_size=1,
        width=1,
        heads=KV_HEADS,
        kv_heads=KV_HEADS,
        head_dim=WIDTH,
        feed_forward=1,
        layers=layers,
        context=64,
        norm_eps=1e-5,
        tied=True,
    )
    return KvPool(
        config,
        page=PAGE,
        dtypes=dtypes,
        device=torch.device(device),
        most=(most, most),
        start=(start, start),
        frequencies=frequencies,
    )


def fill(pool: KvPool, blocks: int, device: str = "cpu") -> None:
    """Fill the first blocks of every layer with 1, 2, 3 ... in their first tokens."""
    tokens = torch.arange(blocks * PAGE, device=device)
    values = (tokens + 1.0).view(-1, 1, 1, 1).expand(-1, 2, KV_HEADS, WIDTH)
    for layer in range(3):
        pool.write(layer, tokens, values)


def block(pool: KvPool, layer: int, number: int) -> torch.Tensor:
    """[2, kv_heads, page, width]"""
    return torch.stack([side[:, number] for side in pool.layer(layer)])


def resident_bytes(pool: KvPool) -> int:
    """Bytes of the pool that are in memory, whatever else this process does."""
    pages = 0
    for lazy in pool._lazy:
        found = (ctypes.c_ubyte * (-(-lazy.tensor.nbytes // mmap.PAGESIZE)))()
        start, size = ctypes.c_void_p(lazy.tensor.data_ptr()), ctypes.c_size_t(lazy.tensor.nbytes)
        assert ctypes.CDLL(None).mincore(start, size, found) == 0
        pages += sum(page & 1 for page in found)
    return pages * mmap.PAGESIZE


def test_a_processor_has_memory_for_what_was_asked_for_and_no_more() -> None:
    pool = pool_of(100)
    assert pool.capacity(0) == pool.nbytes(0) == pool.nbytes(1) == 0
    assert pool.grow(0, 7) and pool.capacity(0) == 7 and pool.capacity(1) == 0
    assert pool.nbytes(0) == 2 * 7 * BLOCK_BYTES and pool.nbytes(1) == 0
    assert pool.grow(0, 3) and pool.capacity(0) == 7
    assert not pool.grow(0, 101) and pool.grow(0, 100)


def test_what_stays_is_as_it_was_and_the_rest_is_finite() -> None:
    pool = pool_of(50)
    for group in (0, 1):
        pool.grow(group, 50)
    fill(pool, 50)
    before = [[block(pool, layer, at).clone() for at in range(50)] for layer in range(3)]
    pool.shrink(0, 13)
    assert (pool.capacity(0), pool.capacity(1)) == (13, 50)
    for layer in range(3):
        kept = 50 if layer == 1 else 13
        for at in range(kept):
            assert torch.equal(block(pool, layer, at), before[layer][at])
        for at in range(kept, 50):
            found = block(pool, layer, at)
            assert bool(((found == 0) | (found == before[layer][at])).all())
    assert pool.grow(0, 50)
    fill(pool, 50)
    assert all(torch.equal(block(pool, 0, at), before[0][at]) for at in range(50))


@linux
def test_the_system_has_its_memory_back() -> None:
    pool = pool_of(1500)
    for group in (0, 1):
        pool.grow(group, 1500)
    for layer in range(3):
        for side in pool.layer(layer):
            side.fill_(1)
    size = 3 * 1500 * BLOCK_BYTES
    assert resident_bytes(pool) > 0.9 * size
    for group in (0, 1):
        pool.shrink(group, 500)
    assert 0.3 * size < resident_bytes(pool) < 0.4 * size
    for group in (0, 1):
        pool.shrink(group, 0)
    assert resident_bytes(pool) < 0.05 * size


@linux
def test_packed_pages_take_what_the_formula_says() -> None:
    """32,768 tokens, a scale of two bytes per 32 numbers."""
    blocks = 32_768 // PAGE
    pool = pool_of(blocks, dtypes=(Q8_0, torch.float16))
    for group in (0, 1):
        pool.grow(group, blocks)
    formula = 3 * 32_768 * KV_HEADS * (WIDTH * 34 // 32 + WIDTH * 2)
    assert pool.nbytes(0) + pool.nbytes(1) == formula
    new = torch.ones(PAGE, 2, KV_HEADS, WIDTH)
    for layer in range(3):
        for at in range(0, 32_768, PAGE):
            pool.write(layer, slice(at, at + PAGE), new)
    assert resident_bytes(pool) == formula


def test_pages_of_two_types_are_copied_saved_and_restored() -> None:
    pool = pool_of(6, 6, dtypes=(torch.float32, Q8_0))
    generator = torch.Generator().manual_seed(1)
    new = torch.randn(PAGE * 6, 2, KV_HEADS, WIDTH, generator=generator)
    for layer in range(3):
        pool.write(layer, slice(0, PAGE * 6), new)
    saved = pool.save_part([4, 1], 5, 20)
    assert saved is not None
    assert saved.nbytes == 15 * 3 * KV_HEADS * (4 * WIDTH + WIDTH * 34 // 32)
    pool.write(0, slice(0, PAGE * 6), torch.zeros_like(new))
    assert pool.restore_part([2, 3], saved, 7, 20)
    pool.copy(0, 3, 5, 4)
    keys, values = map(by_token, pool.layer(0))
    back = torch.cat((keys[2, 7:], keys[3, :4])), torch.cat((values[2, 7:], values[5, :4]))
    wanted = torch.cat((new[4 * PAGE + 7 : 5 * PAGE], new[PAGE : PAGE + 4]))
    assert torch.equal(back[0], wanted[:, 0])
    assert torch.equal(back[1], to_rows(wanted[:, 1], Q8_0))
    assert not keys[3, 4:].any() and not keys[5, :4, :, 0].eq(0).any()


@pytest.mark.parametrize(
    ("dtype", "most"),
    [(torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 4e-2), (Q8_0, 8e-2)],
)
def test_moved_keys_are_those_of_their_new_positions(
    dtype: torch.dtype, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for blocks in any order, for heads that are rotated in part, and after several moves.
    Only a few keys at a time exist twice.
    """
    sizes: list[int] = []

    def rows(keys: torch.Tensor, to: torch.dtype) -> torch.Tensor:
        sizes.append(len(keys))
        return from_rows(keys, to)

    monkeypatch.setattr(kv_pool, "from_rows", rows)
    monkeypatch.setattr(kv_pool, "MOVED_AT_ONCE", 5)
    frequencies = inverse_frequencies(Rope(1e4, WIDTH // 2), 64)
    turns = (frequencies, None, inverse_frequencies(Rope(1e6, WIDTH), 64))
    pool = pool_of(8, 8, window=None, dtypes=(dtype, dtype), frequencies=turns)
    table, first, count, by = [5, 2, 3], 4, 40, 16
    slots = torch.tensor([table[at // PAGE] * PAGE + at % PAGE for at in range(count)])
    plain = torch.randn(count, 2, KV_HEADS, WIDTH, generator=torch.Generator().manual_seed(1))

    def at_positions(more: int) -> list[torch.Tensor]:
        positions = torch.arange(count) + more * (torch.arange(count) >= first)
        made = []
        for one in turns:
            rows = plain.clone()
            if one is not None:
                cosine, sine = cosine_and_sine(positions, one, 1.0)
                apply_rope(plain[:, 0].contiguous(), cosine, sine, rows[:, 0])
            made.append(rows)
        return made

    with torch.inference_mode():
        for layer, rows in enumerate(at_positions(3 * by)):
            pool.write(layer, slots, rows)
        values = pool.layer(0)[1].clone()
        for _ in range(3):
            pool.move(table, first, count, by)
    assert max(sizes) == 5
    assert torch.equal(pool.layer(0)[1], values)
    for layer, rows in enumerate(at_positions(0)):
        blocks = torch.cat([block(pool, layer, one)[:1] for one in table], dim=2)[0, :, :count]
        stored = from_rows(blocks, torch.float32)
        assert (stored - rows[:, 0].transpose(0, 1)).abs().max() < most, layer


class OfApple(torch.Tensor):
    """A tensor on an Apple GPU, which has no float64."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.double:
            raise TypeError("no float64")
        made = super().__torch_function__(function, types, args, kwargs)
        return made.as_subclass(torch.Tensor) if function is torch.Tensor.cpu else made


def test_keys_are_moved_where_there_is_no_float64() -> None:
    positions, frequencies = torch.arange(9), inverse_frequencies(Rope(1e4, WIDTH), 64)
    there = positions.as_subclass(OfApple), 16, frequencies.as_subclass(OfApple)
    for found, wanted in zip(moved(*there), moved(positions, 16, frequencies), strict=True):
        assert torch.equal(found, wanted)


def test_rows_of_q8_0_are_ggmls() -> None:
    from gguf import GGMLQuantizationType  # Absent where only the tests for cards run.
    from gguf.quants import quantize

    numbers = torch.randn(500, WIDTH, generator=torch.Generator().manual_seed(2))
    numbers[3] = 0
    numbers[4] *= 1e4
    blocks = quantize(numbers.numpy(), GGMLQuantizationType.Q8_0).reshape(500, 2, 34)
    rows = to_rows(numbers, Q8_0)
    assert torch.equal(
        rows[:, :WIDTH].view(500, 2, 32), torch.from_numpy(blocks[:, :, 2:]).view(Q8_0)
    )
    assert torch.equal(
        rows[:, WIDTH:].view(500, 2, 2), torch.from_numpy(blocks[:, :, :2]).view(Q8_0)
    )
    back = from_rows(rows, torch.float64)
    largest = numbers.view(500, 2, 32).abs().amax(-1, keepdim=True)
    off = (back - numbers).view(500, 2, 32).abs()
    assert (off <= largest * (0.5 / 127 + 2**-10)).all()
    ruined = torch.tensor([[float("nan"), float("inf")] * 16])
    assert from_rows(to_rows(ruined, Q8_0), torch.float32).isfinite().all()


@linux
def test_expected_blocks_have_memory_before_anything_is_written() -> None:
    pool = pool_of(2000)
    fill(pool, 1)
    before = resident_bytes(pool)
    pool.expect(0, 1500)
    assert pool.capacity(0) == 1500
    until = time.monotonic() + 20
    while resident_bytes(pool) - before < 1450 * 2 * BLOCK_BYTES and time.monotonic() < until:
        time.sleep(0.01)
    assert 1450 * 2 * BLOCK_BYTES <= resident_bytes(pool) - before < 1600 * 2 * BLOCK_BYTES
    assert block(pool, 0, 0)[0, 0, :2, 0].tolist() == [1.0, 2.0]
    pool.shrink(0, 2)
    assert pool.capacity(0) == 2 and resident_bytes(pool) - before < 100 * 2 * BLOCK_BYTES


def test_more_than_half_of_the_free_memory_is_not_taken_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = pool_of(2000)
    monkeypatch.setattr(KvPool, "available_bytes", lambda _: 100 * 2 * BLOCK_BYTES)
    pool.expect(0, 51)
    assert pool.capacity(0) < 51


def test_without_memory_for_twice_as_many_there_are_a_few_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = pool_of(100, 16, device="meta", window=None)
    made, most = KvPool._zeros, [31 * 16]

    def zeros(pool: KvPool, side: int, blocks: int) -> torch.Tensor:
        if sum(tensor.shape[1] for tensor in pool._tensors) + blocks > most[0]:
            raise torch.OutOfMemoryError("no memory")
        return made(pool, side, blocks)

    monkeypatch.setattr(KvPool, "_zeros", zeros)
    tensors = len(pool._tensors)
    most[0] = tensors * 20 + 20
    assert not pool.grow(0, 24) and pool.capacity(0) == 16
    assert [tensor.shape[1] for tensor in pool._tensors] == [16] * tensors
    assert pool.grow(0, 17) and pool.capacity(0) == 19
    most[0] = 1 << 20
    assert pool.grow(0, 20) and pool.capacity(0) == 38


@linux
def test_a_static_pool_is_there_from_the_start_and_stays() -> None:
    size = 3 * 1000 * BLOCK_BYTES
    pool = pool_of(1000, 1000)
    assert resident_bytes(pool) > 0.9 * size
    assert pool.capacity(0) == 1000
    pool.shrink(0, 0)
    assert pool.capacity(0) == 1000 and resident_bytes(pool) > 0.9 * size


def test_where_the_system_takes_nothing_back_nothing_is_said_to_be_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LazyZeros, "give_back", lambda *_: False)
    pool = pool_of(10)
    pool.grow(0, 10)
    pool.shrink(0, 2)
    assert pool.capacity(0) == 10


@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_elsewhere_it_is_doubled_and_made_small_again(device: str) -> None:
    pool = pool_of(100, 4, device=device)
    with torch.inference_mode():  # As within a step.
        assert pool.grow(0, 5) and pool.capacity(0) == 8 and pool.capacity(1) == 4
        assert pool.grow(0, 30) and pool.grow(0, 31) and pool.capacity(0) == 60
        assert pool.grow(0, 61) and pool.capacity(0) == 100 and not pool.grow(0, 101)
        assert pool.grow(1, 100)
        fill(pool, 100, device)
    pool.copy(0, 99, 0, 5)  # Outside of a step.
    pool.shrink(0, 30)
    assert pool.capacity(0) == pool.layer(0)[0].shape[1] == pool.layer(2)[1].shape[1] == 30
    assert pool.layer(1)[0].shape[1] == 100
    if device != "meta":
        assert block(pool, 0, 0)[0, 0, :6, 0].tolist() == [*range(1585, 1590), 6.0]
        assert block(pool, 2, 29)[1, 1, :, 3].tolist() == list(range(465, 481))
    pool.shrink(0, 0)
    assert pool.capacity(0) == pool.layer(0)[1].shape[1] == 4, "as at the start"


class Kept:
    """Implements `hearth.backends.engine.kv.store.StoredBytes` in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.nbytes = len(data)

    def read(self, places: Iterable[memoryview]) -> None:
        at = 0
        for place in places:
            place.cast("B")[:] = self.data[at : at + place.nbytes]
            at += place.nbytes
        assert at == self.nbytes


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (Q8_0, torch.float16)])
@pytest.mark.parametrize("is_whole", [False, True])
def test_saved_tokens_come_back_through_bytes_in_other_blocks(
    device: str,
    dtypes: tuple[torch.dtype, torch.dtype],
    is_whole: bool,
) -> None:
    torch.manual_seed(0)
    source, target = (pool_of(8, 8, device=device, window=None, dtypes=dtypes) for _ in range(2))
    tables = [5, 1, 2, 3], [0, 1, 7, 4]
    new = torch.randn(60, 2, KV_HEADS, WIDTH, device=device)
    slots = [
        torch.tensor([table[at // PAGE] * PAGE + at % PAGE for at in range(60)]) for table in tables
    ]
    with torch.inference_mode():
        for layer in range(3):
            source.write(layer, slots[0].to(device), new + layer)
    for start, end in ((0, 25), (25, 26), (26, 60)):
        state = source.save_part(tables[0], start, end)
        assert state is not None
        meta, data = source.pack(state)
        unpacked = target.unpack(meta, Kept(bytes(data)))
        assert unpacked is not None and unpacked.nbytes == len(data) == state.nbytes
        middle = end if is_whole else (start + end) // 2
        for first, last in ((start, middle), (middle, end)):
            assert first == last or target.restore_part(tables[1], unpacked, first, last)
        assert target.unpack(meta, Kept(bytes(data[:-1]))) is None
        assert target.unpack(meta[:-1] + bytes(1), Kept(bytes(data))) is None  # In another order.
    for index in range(6):
        kept, saved = (
            pool._by_head(index)[:, where.to(device)]
            for pool, where in zip((target, source), (slots[1], slots[0]), strict=True)
        )
        assert torch.equal(kept, saved) and saved.any()
