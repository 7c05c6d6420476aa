"""When nothing runs, memory of blocks that nobody uses is given back."""

from __future__ import annotations

from fake_pages import PagedMemory
from hearth.backends.native.paging.block_pool import BlockPool


def test_free_blocks_at_the_end_are_forgotten() -> None:
    pool = BlockPool(limit=9, capacity=9)
    blocks = [pool.take() for _ in range(8)]
    for block in (blocks[1], *blocks[5:]):
        assert block is not None and pool.drop(block)
        pool.free(block)
    assert pool.forget_free_end() == 5 and pool.forget_free_end() == 5
    pool.check_integrity()
    assert [pool.take() for _ in range(6)] == [1, 5, 6, 7, 8, None]
    pool.check_integrity()


def test_idle_and_pinned_blocks_are_in_use() -> None:
    pool = BlockPool(limit=9, capacity=9)
    first, second, third = pool.take(), pool.take(), pool.take()
    assert first is not None and second is not None and third is not None
    pool.pin(third)
    assert not pool.drop(third) and pool.drop(second)
    pool.rest(second)
    assert pool.forget_free_end() == 3
    assert pool.unpin(third)
    pool.free(third)
    assert pool.forget_free_end() == 2
    pool.check_integrity()


def test_when_the_last_one_leaves_and_keeps_nothing_all_goes_back() -> None:
    memory = PagedMemory(page=4, pool=200, windows=(None, 8), start=2)
    memory.run(0, list(range(60)))
    memory.run(1, list(range(100, 160)))
    memory.cache.release(0, keep=False)
    assert memory.pages.shrunk == 0, "somebody runs"
    assert memory.stats.allocated_tokens == 120
    memory.cache.release(1, keep=False)
    assert memory.stats.allocated_tokens == 8 and memory.stats.window_bytes == 8
    memory.run(0, list(range(60)))


def test_what_is_kept_stays_and_a_long_tail_goes_back() -> None:
    memory = PagedMemory(page=4, pool=200, start=1)
    memory.keep(list(range(20)))
    memory.run(0, list(range(100, 180)))
    memory.cache.release(0, keep=False)
    assert memory.stats.allocated_tokens == memory.stats.kept_tokens == 20
    assert memory.run(0, [*range(20), 1]) == 20


def test_a_short_tail_stays() -> None:
    memory = PagedMemory(page=4, pool=200, start=1)
    memory.keep(list(range(60)))
    memory.run(0, list(range(100, 120)))
    memory.cache.release(0, keep=False)
    assert memory.stats.allocated_tokens == 80 and memory.pages.shrunk == 0


def test_clearing_gives_all_back() -> None:
    memory = PagedMemory(page=4, pool=200, start=1)
    memory.keep(list(range(60)))
    assert memory.stats.allocated_tokens == 60
    memory.cache.clear()
    assert memory.stats.allocated_tokens == 4
    memory.run(0, list(range(20)))
    memory.cache.clear()
    assert memory.stats.allocated_tokens == 20 and memory.holds(0, list(range(20)))


def test_a_memory_that_is_there_from_the_start_stays() -> None:
    memory = PagedMemory(page=4, pool=200)
    memory.keep(list(range(60)))
    memory.cache.clear()
    assert memory.stats.allocated_tokens == 200 and memory.pages.shrunk == 0
