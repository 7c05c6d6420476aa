"""Which prefixes the paged memory finds, shares, copies, keeps, pins, evicts and refuses. Tests
with a `kind` are of the memory of whole sequences, too.
"""

from __future__ import annotations

import pytest

from fake_pages import FakePages, PagedMemory
from hearth.backends.contract.loaded import CacheStats
from hearth.backends.engine.kv.manager import KvLimits, KvManager
from hearth.backends.errors import Busy, InternalError
from sequence_memory import Memory

PREFIX = list(range(100, 120))


def test_a_hit_ends_within_a_page():
    memory = PagedMemory(page=16)
    memory.run(0, [*PREFIX, 1])
    assert memory.run(1, [*PREFIX, 2, 3]) == 20
    assert memory.pages.copies == 1, "one page is shared, four tokens are copied"
    assert memory.cache.handle(0)[0][0] == memory.cache.handle(1)[0][0]
    assert memory.blocks() == 3
    memory.compute(0, [5])
    memory.cache.release(0, keep=False)
    assert memory.holds(1, [*PREFIX, 2, 3])
    assert memory.stats.live_tokens == len(PREFIX) + 2


def test_at_least_one_token_is_left_to_compute(kind):
    memory = kind()
    memory.keep(PREFIX)
    assert memory.cache.match(PREFIX) == len(PREFIX) - 1
    assert memory.cache.match([*PREFIX, 1]) == len(PREFIX)
    assert memory.cache.match(PREFIX[:1]) == memory.cache.match([]) == 0


def test_the_best_of_several_pages_is_copied():
    memory = PagedMemory(page=8)
    for rest in ([1, 2], [1, 2, 3, 4, 5, 6], [1, 2, 3, 9]):
        memory.keep([*PREFIX[:8], *rest])
    assert memory.run(0, [*PREFIX[:8], 1, 2, 3, 4, 7]) == 12


def test_choices_of_a_request_share_all_but_one_page():
    memory = PagedMemory(page=4, slots=4)
    prompt = PREFIX[:10]
    memory.run(0, prompt)
    for slot in (1, 2, 3):
        assert memory.run(slot, prompt) == 9
    assert memory.pages.copies == 3
    assert memory.blocks() == 2 + 4, "two full pages, and a tail for each"
    for slot in range(4):
        memory.compute(slot, [slot, slot, slot])
    for slot in range(4):
        assert memory.holds(slot, [*prompt, slot, slot, slot])


def test_pages_that_two_have_computed_become_one():
    memory = PagedMemory(page=4)
    for slot in (0, 1):
        memory.cache.open(slot, PREFIX)
        memory.cache.reserve(slot, 20)
    memory.compute(0, PREFIX[:10])
    memory.compute(1, PREFIX[:6])
    assert memory.blocks() == 3 + 1
    memory.compute(1, PREFIX[6:12])
    memory.compute(0, PREFIX[10:12])
    assert memory.blocks() == 3
    assert list(memory.cache.handle(0)[0]) == list(memory.cache.handle(1)[0])
    memory.cache.release(0, keep=False)
    assert memory.holds(1, PREFIX[:12])


def test_a_released_sequence_is_found_and_its_pages_are_used_again():
    memory = PagedMemory(page=4)
    memory.keep(PREFIX)
    assert memory.stats == CacheStats(200, 0, len(PREFIX), 1)
    assert memory.run(1, [*PREFIX, 7]) == len(PREFIX)
    assert memory.stats == CacheStats(200, len(PREFIX) + 1, 0, 1)
    memory.cache.release(1, keep=False)
    assert memory.stats == CacheStats(200, 0, len(PREFIX), 1), "what was kept before still is"


def test_a_longer_prefix_takes_the_place_of_those_it_covers():
    memory = PagedMemory(page=8)
    for length in (10, 13, 20):
        memory.keep(PREFIX[:length])
    assert memory.stats == CacheStats(200, 0, 20, 1)
    memory.keep(PREFIX[:12])
    assert memory.stats == CacheStats(200, 0, 20, 1)
    assert memory.blocks() == 3


def test_the_end_of_what_was_used_least_recently_goes_first():
    memory = PagedMemory(page=4, pool=60, kept_tokens=60)
    old, new = [1] * 20, [2] * 20
    memory.keep(old)
    memory.keep(new)
    memory.run(0, [3] * 30)
    assert memory.cache.match([*old, 9]) == 8, "its beginning stays"
    assert memory.cache.match([*new, 9]) == 20
    memory.cache.release(0, keep=False)
    memory.keep([*old[:8], 5])
    memory.run(0, [3] * 36)
    assert [memory.cache.match([*tokens, 9]) for tokens in (old, new)] == [8, 12]


def test_the_beginning_that_conversations_share_outlives_their_ends():
    memory = PagedMemory(page=4, pool=100, kept_tokens=100)
    for turn in range(6):
        memory.keep([*PREFIX, *[turn] * 20])
    assert memory.blocks() <= 25
    memory.run(0, [99] * 76)
    assert memory.cache.match([*PREFIX, 1]) == 20


def test_a_hit_counts_as_use():
    memory = PagedMemory(page=4, pool=48, kept_tokens=48)
    for token in (1, 2, 3):
        memory.keep([token] * 12)
    memory.run(0, [1] * 13)
    memory.cache.release(0, keep=False)
    memory.run(0, [4] * 24)
    assert [memory.cache.match([token] * 13) for token in (1, 2, 3)] == [12, 0, 12]


def test_kept_prefixes_stay_within_their_budget():
    memory = PagedMemory(page=4, kept_tokens=50)
    for token in range(4):
        memory.keep([token] * 20)
    assert memory.stats.kept_tokens == 48
    assert [memory.cache.match([token] * 21) for token in range(4)] == [0, 8, 20, 20]
    memory.keep([9] * 60)
    assert memory.cache.match([9] * 61) == 48, "of what alone exceeds it, the beginning stays"


def test_a_reservation_evicts_until_it_fits():
    memory = PagedMemory(page=4, pool=96, kept_tokens=96)
    for token in range(3):
        memory.keep([token] * 28)
    assert memory.cache.free_tokens() == 96
    memory.cache.open(0, [9])
    assert memory.cache.reserve(0, 37)
    assert memory.cache.free_tokens() == 56
    assert [memory.cache.match([token] * 29) for token in range(3)] == [0, 28, 28]


@pytest.mark.parametrize(("kind", "most"), [(Memory, 59), (PagedMemory, 56)])
def test_a_refused_reservation_changes_nothing(kind, most):
    memory = kind(pool=100, kept_tokens=100)
    memory.keep([1] * 30)
    memory.run(0, [2] * 40)
    before = memory.stats
    assert not memory.cache.reserve(1, 61)
    assert not memory.cache.reserve(0, 201)
    assert not memory.cache.reserve(0, 101)
    assert memory.stats == before and memory.cache.match([1] * 31) == 30
    assert memory.cache.free_tokens() == 60
    assert memory.cache.reserve(1, 60)
    assert memory.cache.free_tokens() == 0
    assert not memory.cache.reserve(0, 41)
    assert memory.cache.reserve(1, most) and memory.cache.reserve(0, 41)


def test_promises_are_counted_in_whole_pages():
    memory = PagedMemory(page=16, pool=96, context=96)
    assert memory.cache.reserve(0, 1) and memory.cache.reserve(1, 17)
    assert memory.cache.free_tokens() == 48
    assert memory.cache.reserve(0, 16) and memory.cache.free_tokens() == 48
    assert memory.cache.reserve(2, 48) and not memory.cache.reserve(0, 17)
    for slot, tokens in ((2, 48), (1, 17), (0, 16)):
        memory.cache.prepare({slot: tokens})
    assert memory.blocks() == 6


def test_a_sequence_of_the_whole_context_always_fits_alone():
    memory = PagedMemory(page=16, pool=100, context=100)
    memory.keep([1] * 50)
    memory.run(0, [2] * 100)
    assert memory.cache.free_tokens() == 0


def test_what_was_found_needs_no_room_of_its_own(kind):
    memory = kind(pool=100, kept_tokens=100)
    memory.keep([1] * 80)
    assert memory.cache.open(0, [1] * 81) == 80
    assert memory.cache.reserve(0, 96)
    assert memory.cache.free_tokens() == 4
    memory.compute(0, [1] * 16)


def test_without_a_block_for_a_copy_a_hit_ends_with_a_page():
    memory = PagedMemory(page=4, pool=16, kept_tokens=16, context=16)
    memory.run(0, [1, 2, 3, 4, 5, 6, 7])
    assert memory.cache.reserve(0, 16)
    assert memory.find(1, [1, 2, 3, 4, 5, 6, 9]) == 4
    assert memory.pages.copies == 0
    assert not memory.cache.reserve(1, 7)
    memory.compute(0, [8] * 9)


def test_what_was_promised_outlives_a_hit_of_others():
    memory = PagedMemory(page=4, pool=40, kept_tokens=40)
    memory.keep([1] * 24)
    memory.run(0, [2] * 4)
    assert memory.cache.reserve(0, 16)
    assert memory.cache.open(1, [1] * 25) == 24
    memory.compute(0, [3] * 12)
    assert memory.blocks() == 10


def test_a_store_that_cannot_grow_limits_the_pool():
    memory = PagedMemory(page=4, pool=100, memory=40, kept_tokens=100, start=2)
    memory.keep([3] * 8)
    memory.run(0, [1] * 20)
    assert memory.cache.reserve(0, 60)
    with pytest.raises(Busy, match="40"):
        memory.cache.prepare({0: 40})
    memory.check()
    assert memory.cache.pool_tokens == 40
    assert memory.cache.match([3] * 9) == 0, "what is kept made way first"
    assert not memory.cache.reserve(0, 41) and memory.cache.reserve(0, 40)
    memory.compute(0, [1] * 20)


def test_memory_grows_with_what_is_held():
    memory = PagedMemory(page=4, pool=100, start=2)
    assert memory.stats.allocated_tokens == 8
    memory.run(0, [1] * 20)
    assert memory.stats.allocated_tokens == 20
    memory.cache.release(0, keep=False)
    memory.run(0, [2] * 20)
    assert memory.stats.allocated_tokens == 20


def test_a_lower_limit_evicts_and_lets_those_who_run_reserve_again(kind):
    memory = kind(pool=100, kept_tokens=100)
    memory.keep([3] * 28)
    memory.run(0, [1] * 20)
    memory.run(1, [2] * 20)
    assert memory.cache.reserve(0, 30) and memory.cache.reserve(1, 40)
    memory.cache.limit(60)
    assert memory.cache.pool_tokens == 60
    assert memory.stats.kept_tokens == memory.stats.kept_prefixes == 0
    assert memory.cache.free_tokens() == 20
    assert memory.cache.reserve(0, 40) and not memory.cache.reserve(1, 21)
    memory.cache.limit(1000)
    assert memory.cache.pool_tokens == 60
    memory.cache.limit(28)
    assert memory.cache.free_tokens() == 0 and not memory.cache.reserve(1, 21)
    memory.cache.release(0, keep=True)
    assert memory.cache.reserve(1, 28)
    memory.check()


def test_blocks_that_could_not_be_had_are_asked_for_again():
    memory = PagedMemory(page=4, pool=100, windows=(None, 8), start=5)
    most, memory.pages.most = memory.pages.most, [10, 25]
    with pytest.raises(Busy):
        memory.run(0, [1] * 60)
    assert memory.cache.pool_tokens < 60
    memory.cache.release(0, keep=False)
    memory.pages.most = most
    assert memory.cache.lift_limits() and not memory.cache.lift_limits()
    memory.run(0, [1] * 60)
    memory.check()


def test_what_was_not_wanted_of_a_step_is_written_over():
    memory = PagedMemory(page=4)
    memory.run(0, PREFIX[:6])
    memory.cache.reserve(0, 12)
    memory.cache.prepare({0: 6})
    memory.write(0, [1, 2, 3, 4, 5, 6])
    assert memory.blocks() == 3
    memory.cache.commit(0, [1], computed=6)
    assert memory.blocks() == 2 and memory.cache.free_tokens() == 188
    assert memory.cache.match([*PREFIX[:6], 1, 2, 3]) == 7
    memory.compute(0, [7, 8])
    assert memory.holds(0, [*PREFIX[:6], 1, 7, 8])


def test_a_checkpoint_stays_when_the_sequence_goes_on_and_away(kind):
    memory = kind()
    memory.run(0, PREFIX)
    memory.cache.checkpoint(0)
    memory.cache.checkpoint(0)
    assert (memory.stats.kept_prefixes, memory.stats.kept_tokens) == (1, 0)
    memory.compute(0, [1, 2])
    memory.cache.release(0, keep=False)
    assert memory.stats == CacheStats(200, 0, len(PREFIX), 1)
    assert memory.cache.match([*PREFIX, 1, 2, 3]) == len(PREFIX)


def test_clear_forgets_what_is_kept_and_nothing_that_runs(kind):
    memory = kind()
    memory.keep([1] * 10)
    memory.run(0, PREFIX)
    memory.cache.checkpoint(0)
    memory.cache.clear()
    assert memory.stats == CacheStats(200, len(PREFIX), 0, 0)
    memory.cache.release(0, keep=False)
    assert memory.stats == CacheStats(200, 0, 0, 0)


def test_a_lost_slot_holds_nothing_and_reserves_nothing():
    memory = PagedMemory()
    memory.run(0, PREFIX)
    memory.cache.reserve(0, 100)
    memory.cache.release(0, keep=False)
    assert memory.cache.length(0) == 0 and memory.cache.free_tokens() == 200
    assert memory.stats == CacheStats(200, 0, 0, 0)


def test_what_leaves_the_blocks_comes_back_from_plain_memory():
    memory = PagedMemory(page=4, kept_while_running=0, most_offloaded=200)
    memory.keep(PREFIX)
    memory.cache.open(0, [1])
    memory.cache.tend()
    assert (memory.stats.kept_tokens, memory.stats.offloaded_tokens) == (0, 20)
    assert memory.cache.match([*PREFIX, 1]) == 20
    assert memory.cache.open(1, [*PREFIX, 1]) == 0
    assert memory.cache.reserve(1, 21)
    assert memory.cache.tend() == {1: 20}
    assert memory.holds(1, PREFIX)
    memory.compute(1, [1])
    assert memory.holds(1, [*PREFIX, 1])


def test_what_was_saved_of_a_slot_comes_back():
    memory = PagedMemory(page=8)
    memory.run(0, PREFIX)
    state = memory.cache.save(0)
    memory.cache.release(0, keep=False)
    assert memory.cache.restore(1, state, PREFIX)
    assert memory.holds(1, PREFIX) and memory.cache.free_tokens() == 176
    windows = PagedMemory(page=4, windows=(None, 8))
    windows.run(0, PREFIX)
    assert windows.cache.save(0) is None, "windows have passed what a copy would need"


def test_a_slot_in_the_wrong_state_is_refused():
    memory = PagedMemory()
    with pytest.raises(InternalError, match="not opened"):
        memory.cache.handle(0)
    with pytest.raises(InternalError, match="does not exist"):
        memory.cache.open(3, [1])
    memory.run(0, PREFIX)
    with pytest.raises(InternalError, match="20 tokens"):
        memory.cache.open(0, [1])
    with pytest.raises(InternalError, match="21 cannot be pinned"):
        memory.cache.pin(0, 21, 5.0)
    with pytest.raises(InternalError, match="5 pages"):
        memory.cache.commit(0, [1])
    with pytest.raises(InternalError, match="without any group"):
        KvManager(FakePages((), 4, ()), KvLimits(1, pool_tokens=8, context=8, kept_tokens=0))


# ---- pins


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


# ---- how much of it is of use


@pytest.mark.parametrize("shared", [0, 256])
def test_memory_in_use_is_within_four_percent_of_the_tokens_held(shared):
    lengths = [120, 180, 250, 300, 333, 390, 401, 433, 512, 555, 640, 801]
    assert len(lengths) == 12 and sum(lengths) / 12 >= 400
    memory = PagedMemory(page=16, slots=12, pool=8192, context=1024, kept_tokens=4096, start=1)
    held = sum(lengths) - min(shared, 112) * 11
    for slot, length in enumerate(lengths):
        begin = list(range(min(shared, 112)))
        memory.run(slot, [*begin, *[1000 + slot] * (length - len(begin))])
    assert memory.stats.live_tokens == held
    assert held <= memory.blocks() * 16 <= held * 1.04
    assert memory.stats.allocated_tokens <= held * 1.04
