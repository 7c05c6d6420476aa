"""When nothing runs, the memory of unused blocks is released."""

from __future__ import annotations

from fake_pages import PagedMemory


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
