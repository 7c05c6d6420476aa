"""Prefixes that are pinned in the paged memory for a while."""

from __future__ import annotations

from fake_pages import PagedMemory

PREFIX = list(range(100, 120))


def test_a_pinned_prefix_outlives_those_that_were_used_after_it():
    memory = PagedMemory(page=4, kept_tokens=60, pool=200)
    memory.run(0, PREFIX)
    assert memory.cache.pin(0, 18, 60.0)
    assert memory.pages.copies == 0
    memory.cache.release(0, keep=False)
    assert memory.stats.pinned_tokens == memory.stats.kept_tokens == 18
    for token in range(1, 7):
        memory.keep([token] * 20)
    assert memory.cache.match([*PREFIX[:18], 99]) == 18
    memory.now = 60.0
    assert memory.stats.pinned_tokens == 0
    assert memory.cache.match([*PREFIX[:18], 99]) == 18, "kept as any other now"
    for token in range(1, 7):
        memory.keep([token] * 20)
    assert memory.cache.match([*PREFIX[:18], 99]) == 0


def test_a_hit_renews_a_pin_and_less_than_a_hit_does_not():
    memory = PagedMemory(page=4)
    memory.run(0, PREFIX)
    memory.cache.pin(0, 18, 10.0)
    memory.cache.release(0, keep=False)
    for memory.now in (9.0, 18.0):
        memory.keep([*PREFIX[:18], 1])
    memory.now = 27.0
    memory.keep([*PREFIX[:17], 1])
    assert memory.stats.pinned_tokens == 18
    memory.now = 28.0
    assert memory.stats.pinned_tokens == 0


def test_pinning_again_keeps_the_longer_time_wherever_the_tokens_are():
    memory = PagedMemory(page=8)
    memory.run(0, PREFIX)
    assert memory.cache.pin(0, 18, 100.0)
    memory.run(1, [*PREFIX[:19], 1])
    assert memory.cache.pin(1, 18, 10.0)
    memory.cache.release(0, keep=False)
    memory.cache.release(1, keep=False)
    assert memory.stats.pinned_tokens == 18 and memory.blocks() == 3
    memory.now = 99.0
    assert memory.stats.pinned_tokens == 18
    memory.now = 100.0
    assert memory.stats.pinned_tokens == 0


def test_nested_pins_hold_their_tokens_once_and_move_to_the_page_that_stays():
    memory = PagedMemory(page=8, slots=3)
    for slot in (0, 1):
        memory.cache.open(slot, PREFIX)
        memory.cache.reserve(slot, 20)
    memory.compute(0, PREFIX[:6])
    assert memory.cache.pin(0, 6, 5.0) and memory.cache.pin(0, 3, 5.0)
    memory.compute(1, PREFIX[:8])
    memory.compute(0, PREFIX[6:8])
    memory.cache.release(1, keep=False)
    memory.cache.release(0, keep=False)
    assert memory.stats.pinned_tokens == 6 and memory.blocks() == 1
    assert memory.cache.match([*PREFIX[:6], 1]) == 6


def test_pins_hold_half_of_the_pool_at_most():
    memory = PagedMemory(page=4, pool=64, kept_tokens=64)
    memory.run(0, list(range(40)))
    assert memory.cache.pin(0, 32, 5.0) and not memory.cache.pin(0, 33, 5.0)
    few = PagedMemory(page=4, pool=64, kept_tokens=10)
    few.run(0, list(range(40)))
    assert not few.cache.pin(0, 9, 5.0) and few.cache.pin(0, 8, 5.0)


def test_others_find_no_room_beside_pins_but_one_alone_does():
    memory = PagedMemory(page=4, pool=100, kept_tokens=100)
    memory.run(0, list(range(40)))
    memory.cache.pin(0, 40, 5.0)
    memory.cache.release(0, keep=True)
    assert memory.cache.free_tokens() == 100
    memory.run(0, [1] * 20)
    assert memory.cache.free_tokens() == 40
    assert not memory.cache.reserve(1, 41) and memory.cache.reserve(1, 40)
    assert not memory.cache.reserve(0, 21)
    memory.cache.release(1, keep=False)
    assert memory.cache.reserve(0, 60) and memory.stats.pinned_tokens == 40
    assert memory.cache.reserve(0, 61) and memory.stats.pinned_tokens == 0
    memory.check()
