"""Kept prefixes that are offloaded from the key-value memory while others run, and swapped in
again.
"""

import random

import pytest

from hearth.backends.engine.kv.tier import OffloadedPrefixes
from sequence_memory import Memory

OLD = [1] * 80
OTHER = [2] * 80


def memory(**changes):
    settings = {"slots": 2, "pool": 1000, "context": 500, "kept_tokens": 500, "allocated": 100}
    return Memory(**{**settings, "kept_while_running": 0, **changes})


def next_to_old(**changes):
    """A memory in which `OTHER` runs and `OLD` was kept before."""
    held = memory(**changes)
    held.keep(OLD)
    held.run(0, OTHER)
    return held


def test_a_kept_prefix_leaves_the_pool_when_another_sequence_begins():
    held = memory()
    held.keep(OLD)
    assert (held.stats.kept_tokens, held.stats.offloaded_tokens) == (80, 0)
    held.run(0, OTHER)
    assert (held.stats.kept_tokens, held.stats.offloaded_tokens) == (0, 80)
    assert held.stats.offloaded_prefixes == 1 and held.cache.cells == 80


def test_it_comes_back_when_it_is_asked_for():
    held = next_to_old()
    assert held.run(1, [*OLD, 7]) == 80
    assert held.held(1) == [*OLD, 7]


def test_what_is_common_comes_back_and_the_rest_can_still_be_found():
    held = memory()
    tail = [5] * 70
    held.keep([*OLD, *tail])
    held.run(0, OTHER)
    assert held.run(1, [*OLD, 7]) == 80
    assert held.held(1) == [*OLD, 7]
    assert held.cache.match([*OLD, *tail, 9]) == 150


def test_a_sequence_that_ends_while_others_run_leaves_the_pool():
    held = memory()
    held.run(0, OTHER)
    held.keep(OLD, slot=1)
    assert (held.stats.live_tokens, held.stats.kept_tokens) == (80, 0)
    assert held.stats.offloaded_tokens == 80


def test_nothing_is_moved_while_nobody_runs():
    held = memory()
    held.keep(OLD)
    held.keep(OTHER[:70])
    assert held.stats.kept_tokens == 70 and held.stats.offloaded_tokens == 80


@pytest.mark.parametrize(
    "changes",
    [
        {"kept_while_running": None},
        {"kept_while_running": 80},
        {"available_bytes": lambda: 8 * 100},
        {"can_save": False},
    ],
    ids=["not wanted", "few cells", "no memory", "not able"],
)
def test_it_may_stay_in_the_pool(changes):
    held = next_to_old(**changes)
    assert (held.stats.kept_tokens, held.stats.offloaded_tokens) == (80, 0)


def test_what_is_shared_with_a_running_one_stays():
    held = memory()
    held.keep(OLD)
    held.run(0, [*OLD, *OTHER])
    assert held.stats.offloaded_tokens == 0
    assert held.cache.match([*OLD, 9]) == 80


def test_a_pinned_prefix_stays():
    held = memory()
    held.run(0, OLD)
    assert held.cache.pin(0, 80, 60)
    held.cache.release(0, keep=True)
    held.run(0, OTHER)
    assert (held.stats.pinned_tokens, held.stats.offloaded_tokens) == (80, 0)


@pytest.mark.parametrize("kind", ["recurrent", "sliding"])
def test_memories_without_a_past_move_nothing(kind):
    held = next_to_old(kind=kind)
    assert held.stats.offloaded_tokens == 0 and held.cache.match([*OLD, 1]) == 80


def test_offloaded_prefixes_stay_within_their_budget():
    held = memory(most_offloaded=150)
    for token in range(3):
        held.keep([token] * 70)
        held.run(1, [9] * 10)
        held.cache.release(1, keep=False)
    assert held.stats.offloaded_tokens == 140
    assert [held.cache.match([token] * 71) for token in range(3)] == [0, 70, 70]
    held.store.most_offloaded = 30
    held.run(1, [9] * 10)
    assert held.stats.offloaded_tokens == 16 and held.cache.match([2] * 71) == 16
    held.store.most_offloaded = 0
    held.tend()
    assert held.stats.offloaded_tokens == 0


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory")])
def test_without_memory_for_a_copy_it_stays_in_the_pool(error):
    def fail(tokens):
        raise error

    held = memory()
    held.store.on_copy = fail
    held.keep(OLD)
    held.run(0, OTHER)
    assert (held.stats.kept_tokens, held.stats.offloaded_tokens) == (80, 0)


def test_what_cannot_be_brought_back_is_computed():
    held = next_to_old()
    held.store.refuses_restore = True
    assert held.cache.open(1, [*OLD, 7]) == 0
    assert held.cache.reserve(1, 81)
    held.compute(1, [*OLD, 7])
    assert held.held(1) == [*OLD, 7]


def test_clearing_forgets_offloaded_prefixes():
    held = next_to_old()
    held.cache.clear()
    assert held.stats.offloaded_prefixes == held.stats.offloaded_tokens == 0
    assert held.cache.match([*OLD, 1]) == 0


class State:
    nbytes = 1


def matched(prefixes, tokens):
    """The length of the prefix of `tokens` that is in parts."""
    return sum(common for _, common in prefixes.path(tokens))


def test_prefixes_share_parts_and_the_least_recently_used_part_goes_first():
    held = OffloadedPrefixes(2)
    first = held.add([], [1, 2], State())
    held.add([first], [3], State())
    held.add([first], [4, 5], State())
    held.add([], [9], State())
    assert (len(held), held.tokens, held.nbytes) == (3, 6, 4)
    found = [matched(held, tokens) for tokens in ([1, 2, 4, 6], [1, 7], [7], [1, 2, 3, 4])]
    assert found == [3, 1, 0, 3]
    held.use([part for part, _ in held.path([1, 2, 3])])
    held.shrink(2)
    held.check_integrity()
    assert [matched(held, tokens) for tokens in ([1, 2, 3], [1, 2, 4, 5], [9])] == [3, 2, 0]
    held.add([first], [3, 4], State())
    assert (len(held), held.tokens) == (1, 4), "the shorter part that it covers is gone"
    held.check_integrity()
    held.clear()
    held.check_integrity()
    assert len(held) == held.tokens == held.nbytes == 0


def test_only_the_parts_that_a_prompt_begins_with_come_back():
    held = memory(part_tokens=16)
    held.keep([*OLD, *OTHER])
    held.run(0, [3] * 40)
    assert held.stats.offloaded_tokens == 160
    held.copied.clear()
    assert held.run(1, [*OLD[:40], 7, 7]) == 40
    assert held.copied == [16, 16, 16], "two whole parts, and half of one is needed"


def test_nothing_comes_back_for_less_than_half_of_what_is_copied():
    held = next_to_old(part_tokens=64)
    held.copied.clear()
    assert held.cache.match([*OLD[:20], 7]) == 0
    assert held.run(1, [*OLD[:20], 7]) == 0
    held.cache.release(1, keep=False)
    assert held.run(1, [*OLD[:70], 7]) == 64
    assert held.copied == [64], "the second part has 16 tokens, of which 6 are the same"


def test_sixteen_shared_tokens_evict_nobody_and_grow_nothing():
    held = memory(pool=300, context=300, kept_tokens=300, part_tokens=256, most_offloaded=300)
    held.keep([1] * 250)
    held.run(0, [2] * 20)
    assert held.stats.offloaded_tokens == 250
    held.store.allocated_tokens = 60
    held.cache.pin(0, 20, 60)
    assert held.run(1, [*[1] * 16, 7]) == 0
    assert held.store.allocated_tokens == 60 and held.stats.pinned_tokens == 20


def test_without_cells_for_a_part_the_rest_is_computed():
    held = memory(pool=175, kept_tokens=175, part_tokens=64, most_offloaded=200)
    held.keep([1] * 100)
    held.run(0, [2] * 60)
    assert held.stats.offloaded_tokens == 100
    held.cache.release(0, keep=False)
    held.run(0, [3] * 80)
    held.cache.open(1, [*[1] * 90, 7])
    assert held.cache.arriving(1) == 90
    assert held.cache.reserve(1, 91)
    assert held.tend() == {1: 64}, "all 36 tokens of the second part need cells for a moment"
    assert held.cache.arriving(1) == 0


def test_what_came_back_and_went_on_is_copied_out_from_where_it_went_on():
    held = next_to_old(part_tokens=16)
    held.run(1, [*OLD, *[5] * 20])
    held.copied.clear()
    held.cache.release(1, keep=True)
    held.tend()
    assert held.copied == [16, 4]
    assert held.stats.offloaded_tokens == 100 and held.stats.offloaded_prefixes == 1


def test_anything_in_any_order():
    random_ = random.Random(1)
    held = memory(slots=3, kept=6, pool=900, kept_tokens=400, most_offloaded=500)
    texts = [[random_.randrange(2) for _ in range(150)] for _ in range(6)]
    opened = set()
    for _ in range(600):
        slot = random_.randrange(3)
        if slot in opened:
            held.cache.release(slot, keep=random_.random() < 0.9)
            opened.discard(slot)
        else:
            text = [*random_.choice(texts)[: random_.randrange(1, 150)], random_.randrange(3)]
            held.run(slot, text)
            assert held.held(slot) == text
            opened.add(slot)
        stats = held.stats
        assert stats.offloaded_tokens <= 500


@pytest.mark.parametrize(("tokens", "moved"), [(15, 0), (16, 16)])
def test_only_a_handful_of_cells_stays(tokens, moved):
    held = memory()
    held.keep(OLD[:tokens])
    held.run(0, OTHER)
    assert held.stats.offloaded_tokens == moved
    assert held.cache.cells == 80 + tokens - moved
    assert held.run(1, [*OLD[:tokens], 7]) == tokens


def test_copies_out_are_spread_over_steps():
    held = memory(part_tokens=16)
    held.part_s = 0.008
    held.run(0, OTHER)
    held.run(1, OLD)
    held.cache.release(1, keep=True)
    steps = []
    while held.cache.match([*OLD, 1]) and held.stats.kept_tokens:
        held.copied.clear()
        held.tend()
        steps.append(held.copied.copy())
    assert steps == [[16, 16], [16, 16], [16]], "no more than a fiftieth of a second each"
    assert held.cache.match([*OLD, 1]) == 80 and held.cache.cells == 80


def test_copies_in_are_spread_over_steps():
    held = next_to_old(part_tokens=16)
    held.part_s = 0.03
    assert held.cache.open(1, [*OLD, 7]) == 0
    assert held.cache.reserve(1, 81)
    for tokens in range(16, 81, 16):
        assert held.cache.arriving(1) == 96 - tokens
        assert held.tend() == {1: 16}
        assert held.held(1) == OLD[:tokens]
    assert held.cache.arriving(1) == 0 and held.tend() == {}


def test_what_is_dropped_while_it_is_copied_in_is_computed():
    held = next_to_old(part_tokens=16)
    held.part_s = 0.03
    held.cache.open(1, [*OLD, 7])
    assert held.cache.reserve(1, 81)
    assert held.tend() == {1: 16}
    held.cache.clear()
    assert held.tend() == {} and held.cache.arriving(1) == 0
    held.compute(1, [*OLD[16:], 7])
    assert held.held(1) == [*OLD, 7]


def test_a_slot_that_is_released_gets_no_more_copies():
    held = next_to_old(part_tokens=16)
    held.part_s = 0.03
    held.cache.open(1, [*OLD, 7])
    assert held.tend() == {1: 16}
    held.cache.release(1, keep=False)
    assert held.tend() == {} and held.cache.arriving(1) == 0
    assert held.run(1, [*OLD, 7]) == 80


def test_what_runs_is_copied_once_and_without_the_end_that_still_grows():
    held = memory(part_tokens=16)
    held.run(0, OLD[:40])
    held.cache.copy_out(0, grows=True)
    assert held.copied == [16, 16]
    assert held.cache.reserve(0, 80)
    held.compute(0, OLD[40:50])
    held.cache.copy_out(0, grows=True)
    assert held.copied == [16, 16, 16]
    held.cache.copy_out(0, grows=False)
    held.cache.release(0, keep=False)
    assert held.copied == [16, 16, 16, 2]
    assert held.cache.match([*OLD[:50], 7]) == 50


def test_offloaded_prefixes_leave_as_much_memory_free_as_they_take():
    free = [10_000]
    held = memory(available_bytes=lambda: free[0])
    for token in range(3):
        held.keep([token] * 80)
    held.run(0, [9] * 20)
    assert held.stats.offloaded_bytes == 3 * 80 * 8
    free[0] = 100
    held.now += 0.5
    held.tend()
    assert held.stats.offloaded_bytes == 3 * 80 * 8, "it looks once a second"
    held.now += 0.6
    held.tend()
    assert 800 < held.stats.offloaded_bytes <= (100 + 3 * 80 * 8) // 2
    free[0] = 0
    for _ in range(12):
        held.now += 1
        held.tend()
    assert held.stats.offloaded_bytes == 0
    assert held.run(1, [*[2] * 80, 7]) == 0


def test_offloaded_prefixes_can_be_dropped():
    held = next_to_old()
    assert held.cache.drop_offloaded()
    assert held.stats.offloaded_bytes == 0
    assert not held.cache.drop_offloaded()


def test_a_pool_that_was_full_once_does_not_keep_prefixes_in_the_way_for_good():
    held = memory(slots=3, pool=400, budget=400, allocated=100)
    held.run(0, [7] * 350)
    held.run(1, OTHER[:50])
    held.cache.release(0, keep=False)
    held.cache.release(1, keep=False)
    held.keep(OLD)
    held.run(0, OTHER)
    assert (held.stats.kept_tokens, held.stats.offloaded_tokens) == (0, 80)


def test_a_pool_gives_nothing_back_while_somebody_runs():
    held = memory(slots=3, pool=400, budget=400, allocated=100)
    held.run(0, [7] * 350)
    held.run(1, OTHER[:50])
    held.cache.release(0, keep=False)
    held.run(0, OLD)
    held.cache.release(0, keep=True)
    held.tend()
    assert held.stats.allocated_tokens == 400
    assert (held.stats.kept_tokens, held.stats.offloaded_tokens) == (80, 0)


def test_a_part_that_is_used_in_part_grows_no_pool():
    held = memory(pool=400, allocated=100, kept_tokens=400, part_tokens=64)
    held.keep([1] * 90)
    held.run(0, [2] * 20)
    assert held.stats.offloaded_tokens == 90
    held.copied.clear()
    # 20 and 80 fit, but not the 26 of the second part after the 64 of the first.
    assert held.run(1, [*[1] * 79, 7]) == 64
    assert held.copied == [64] and held.stats.allocated_tokens == 100
    held.cache.release(1, keep=False)
    assert held.run(1, [*[1] * 79, *[7] * 11]) == 79, "it would grow without that, too"
