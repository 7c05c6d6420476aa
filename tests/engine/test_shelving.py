"""Kept prefixes that leave the key-value memory while others run, and come back."""

import random

import pytest

from hearth.backends.engine.shelf import Shelf
from sequence_memory import Memory

OLD = [1] * 80
OTHER = [2] * 80


def memory(**changes):
    settings = {"slots": 2, "pool": 1000, "context": 500, "kept_tokens": 500, "allocated": 100}
    return Memory(**{**settings, "beside": 0, **changes})


def test_a_kept_prefix_leaves_the_pool_when_another_sequence_begins():
    held = memory()
    held.keep(OLD)
    assert (held.stats.kept_tokens, held.stats.shelved_tokens) == (80, 0)
    held.run(0, OTHER)
    assert (held.stats.kept_tokens, held.stats.shelved_tokens) == (0, 80)
    assert held.stats.shelved_prefixes == 1 and held.cache.cells == 80


def test_it_comes_back_when_it_is_asked_for():
    held = memory()
    held.keep(OLD)
    held.run(0, OTHER)
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
    assert held.stats.shelved_tokens == 80


def test_nothing_is_moved_while_nobody_runs_or_where_it_is_not_wanted():
    held = memory()
    held.keep(OLD)
    held.keep(OTHER[:70])
    assert held.stats.kept_tokens == 70 and held.stats.shelved_tokens == 80
    held = memory(beside=None)
    held.keep(OLD)
    held.run(0, OTHER)
    assert (held.stats.kept_tokens, held.stats.shelved_tokens) == (80, 0)


def test_few_cells_may_stay():
    held = memory(beside=80)
    held.keep(OLD)
    held.run(0, OTHER)
    assert (held.stats.kept_tokens, held.stats.shelved_tokens) == (80, 0)


def test_what_is_shared_with_a_running_one_stays():
    held = memory()
    held.keep(OLD)
    held.run(0, [*OLD, *OTHER])
    assert held.stats.shelved_tokens == 0
    assert held.cache.match([*OLD, 9]) == 80


def test_a_pinned_prefix_stays():
    held = memory()
    held.run(0, OLD)
    assert held.cache.pin(0, 80, 60)
    held.cache.release(0, keep=True)
    held.run(0, OTHER)
    assert (held.stats.pinned_tokens, held.stats.shelved_tokens) == (80, 0)


@pytest.mark.parametrize("kind", ["recurrent", "sliding"])
def test_memories_without_a_past_move_nothing(kind):
    held = memory(kind=kind)
    held.keep(OLD)
    held.run(0, OTHER)
    assert held.stats.shelved_tokens == 0 and held.cache.match([*OLD, 1]) == 80


def test_the_shelf_has_what_the_pool_leaves():
    held = memory(allocated=850)
    for token in range(3):
        held.keep([token] * 70)
        held.run(1, [9] * 10)
        held.cache.release(1, keep=False)
    assert held.stats.shelved_tokens == 140
    assert [held.cache.match([token] * 71) for token in range(3)] == [0, 70, 70]
    held.store.allocated_tokens = 1000
    held.run(1, [9] * 10)
    assert held.stats.shelved_tokens == 0


def test_without_memory_for_a_copy_it_stays_in_the_pool():
    held = memory(can_save=False)
    held.keep(OLD)
    held.run(0, OTHER)
    assert (held.stats.kept_tokens, held.stats.shelved_tokens) == (80, 0)


def test_what_cannot_be_brought_back_is_computed():
    held = memory()
    held.keep(OLD)
    held.run(0, OTHER)
    held.store.refuses_restore = True
    assert held.cache.open(1, [*OLD, 7]) == 0
    assert held.cache.reserve(1, 81)
    held.compute(1, [*OLD, 7])
    assert held.held(1) == [*OLD, 7]


def test_clearing_forgets_the_shelf():
    held = memory()
    held.keep(OLD)
    held.run(0, OTHER)
    held.cache.clear()
    assert held.stats.shelved_prefixes == held.stats.shelved_tokens == 0
    assert held.cache.match([*OLD, 1]) == 0


def test_the_longest_match_wins_and_the_least_recently_used_goes():
    class State:
        nbytes = 1

    shelf = Shelf()
    shelf.add([1, 2, 3], State())
    shelf.add([1, 2, 4, 5], State())
    shelf.add([9], State())
    assert shelf.match([1, 2, 4, 6]) == 3 and shelf.match([7]) == 0
    found = shelf.find([1, 2, 3])
    assert (found.tokens, found.common) == ([1, 2, 3], 3)
    shelf.shrink(4)
    assert len(shelf) == 2 and shelf.match([1, 2, 4, 5]) == 2
    shelf.add([1, 2, 3, 4], State())
    assert shelf.tokens == 5, "what it covers is gone"
    shelf.check_integrity()


def test_anything_in_any_order():
    random_ = random.Random(1)
    held = memory(slots=3, kept=6, pool=900, kept_tokens=400)
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
        assert stats.shelved_tokens <= 900 - stats.allocated_tokens


@pytest.mark.parametrize(("tokens", "moved"), [(15, 0), (16, 16)])
def test_only_a_handful_of_cells_stays(tokens, moved):
    held = memory()
    held.keep(OLD[:tokens])
    held.run(0, OTHER)
    assert held.stats.shelved_tokens == moved
    assert held.cache.cells == 80 + tokens - moved
    assert held.run(1, [*OLD[:tokens], 7]) == tokens
