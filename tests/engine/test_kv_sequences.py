"""Which prefixes the memory manager of whole sequences finds, keeps, evicts and refuses."""

from __future__ import annotations

import pytest

from fake_store import FakeStore
from hearth.backends.contract.loaded import CacheStats
from hearth.backends.engine.kv.manager import KvLimits, KvManager
from hearth.backends.errors import InternalError
from sequence_memory import Memory

KINDS = ["full", "recurrent", "sliding"]
PREFIX = list(range(100, 120))


def test_a_live_donor_shares_while_it_generates():
    memory = Memory()
    memory.run(0, [*PREFIX, 1])
    assert memory.run(1, [*PREFIX, 2, 3]) == len(PREFIX)
    memory.compute(0, [5])
    assert memory.held(0) == [*PREFIX, 1, 5] and memory.held(1) == [*PREFIX, 2, 3]
    assert memory.cache.cells == len(PREFIX) + 2 + 2
    memory.cache.release(0, keep=False)
    assert memory.held(1) == [*PREFIX, 2, 3]
    assert memory.stats.live_tokens == len(PREFIX) + 2


def test_a_released_sequence_is_kept_under_its_own_id_and_found():
    memory = Memory()
    memory.run(0, PREFIX)
    sequence = memory.cache.handle(0)
    memory.cache.release(0, keep=True)
    assert memory.store.tokens(sequence) == PREFIX
    assert memory.stats == CacheStats(200, 0, len(PREFIX), 1)
    assert memory.run(1, [*PREFIX, 7]) == len(PREFIX)
    assert memory.stats == CacheStats(200, len(PREFIX) + 1, 0, 1)


def test_the_least_recently_used_goes_when_ids_run_out():
    memory = Memory(slots=1, kept=2)
    a, b, c = [1] * 9, [2] * 9, [3] * 9
    for tokens in (a, b, c):
        memory.keep(tokens)
    memory.keep(a)  # Used again, so b is now the oldest.
    memory.keep([4] * 9)
    assert [memory.cache.match([*tokens, 0]) for tokens in (a, b, c)] == [9, 0, 9]


def test_a_hit_counts_as_use():
    memory = Memory(slots=1, kept=1)
    memory.keep([1] * 9)
    memory.keep([2] * 9)
    memory.run(0, [1] * 5)
    memory.cache.release(0, keep=False)
    memory.keep([3] * 9)
    assert memory.cache.match([1] * 10) == 9
    assert memory.cache.match([2] * 10) == 0


def test_kept_prefixes_stay_within_their_budget():
    memory = Memory(kept_tokens=50)
    for token in range(4):
        memory.keep([token] * 20)
    assert (memory.stats.kept_tokens, memory.stats.kept_prefixes) == (40, 2)
    assert [memory.cache.match([token] * 21) for token in range(4)] == [0, 0, 20, 20]


def test_what_alone_exceeds_the_budget_is_not_kept_and_evicts_nobody():
    memory = Memory(kept_tokens=50)
    memory.keep([1] * 20)
    memory.keep([2] * 60)
    assert memory.cache.match([1] * 21) == 20
    assert memory.cache.match([2] * 61) == 0


def test_cells_that_a_running_sequence_holds_too_are_not_counted_against_the_budget():
    memory = Memory(kept_tokens=10)
    memory.run(0, PREFIX)
    memory.cache.checkpoint(0)
    assert (memory.stats.kept_prefixes, memory.stats.kept_tokens) == (1, 0)
    memory.run(1, [*PREFIX, 1])
    memory.cache.release(1, keep=True)
    assert (memory.stats.kept_prefixes, memory.stats.kept_tokens) == (1, 1)
    memory.cache.release(0, keep=False)
    assert (memory.stats.kept_prefixes, memory.stats.kept_tokens) == (0, 0)


def test_a_reservation_evicts_one_by_one_until_it_fits():
    memory = Memory(pool=100, kept_tokens=100)
    for token in range(3):
        memory.keep([token] * 30)
    assert memory.cache.free_tokens() == 100
    memory.cache.open(0, [9])
    assert memory.cache.reserve(0, 40)
    assert [memory.cache.match([token] * 31) for token in range(3)] == [0, 30, 30]
    assert memory.cache.free_tokens() == 60


def test_the_donor_is_not_evicted_for_the_id_of_who_wants_it():
    memory = Memory(slots=2, kept=1)
    memory.keep([1] * 9)
    memory.keep([2] * 9)
    memory.run(1, [3] * 9)
    # Every id is in use, and the least recently used one is exactly the one that is wanted.
    assert memory.cache.open(0, [1] * 10) == 9
    assert memory.held(0) == [1] * 9
    assert memory.cache.match([2] * 10) == 0
    memory.check()


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_id_is_the_donor_itself(kind):
    memory = Memory(slots=2, kept=0, kind=kind)
    memory.keep(PREFIX)
    memory.run(1, [5])
    assert memory.run(0, [*PREFIX, 9]) == len(PREFIX)
    assert memory.held(0) == [*PREFIX, 9]
    memory.cache.release(0, keep=True)
    found = {"full": 10, "recurrent": 0, "sliding": 0}[kind]
    assert memory.run(0, [*PREFIX[:10], 7]) == found
    assert memory.held(0) == [*PREFIX[:10], 7]


def test_a_recurrent_memory_is_found_as_a_whole_only():
    memory = Memory(kind="recurrent")
    memory.run(0, PREFIX)
    assert memory.cache.match([*PREFIX[:10], 1]) == 0
    assert memory.cache.match(PREFIX) == 0
    assert memory.cache.match([*PREFIX, 1]) == len(PREFIX)


def test_checkpoints_of_a_recurrent_memory_stay_beside_longer_ones():
    memory = Memory(kind="recurrent")
    memory.run(0, PREFIX)
    memory.cache.checkpoint(0)
    memory.cache.checkpoint(0)
    assert memory.stats.kept_prefixes == 1
    memory.compute(0, [1, 2])
    memory.cache.checkpoint(0)
    memory.compute(0, [3])
    memory.cache.release(0, keep=True)
    assert memory.stats.kept_prefixes == 3
    assert memory.cache.match([*PREFIX, 9, 9, 9, 9]) == len(PREFIX)
    assert memory.cache.match([*PREFIX, 1, 2, 9, 9]) == len(PREFIX) + 2
    assert memory.cache.match([*PREFIX, 1, 2, 3, 9]) == len(PREFIX) + 3
    memory.keep([*PREFIX, 1, 2, 3])
    assert memory.stats.kept_prefixes == 3


def test_a_sliding_window_is_found_where_nothing_is_missing():
    memory = Memory(kind="sliding", window=8)
    memory.run(0, PREFIX)
    assert memory.cache.match([*PREFIX, 1]) == 20
    assert memory.cache.match([*PREFIX[:19], 1]) == 0, "the window before 19 is not whole any more"
    whole = Memory(kind="sliding", window=8, overwrites=False)
    whole.run(0, PREFIX)
    assert whole.cache.match([*PREFIX[:12], 1]) == 12


def test_a_shorter_hit_is_taken_where_the_longer_is_not_intact():
    memory = Memory(kind="sliding", window=4)
    memory.run(0, PREFIX[:10])
    memory.cache.checkpoint(0)
    memory.compute(0, PREFIX[10:])
    assert memory.run(1, [*PREFIX[:15], 1]) == 10


def test_one_that_is_covered_only_refreshes_the_longer():
    memory = Memory(slots=1, kept=2)
    memory.keep([1] * 20)
    memory.keep([2] * 20)
    memory.keep([1] * 10)
    assert memory.stats.kept_prefixes == 2
    memory.keep([3] * 20)
    memory.keep([4] * 20)
    assert memory.cache.match([1] * 21) == 20, "it was used after the second"
    assert memory.cache.match([2] * 21) == 0


def test_a_longer_one_takes_the_place_of_those_it_covers():
    memory = Memory()
    memory.keep([1] * 10)
    memory.keep([1] * 15)
    memory.keep([1] * 20)
    assert memory.stats.kept_prefixes == 1
    assert memory.stats.kept_tokens == 20


def test_a_checkpoint_without_an_id_to_spare_is_none():
    memory = Memory(slots=2, kept=0)
    memory.run(0, PREFIX)
    memory.run(1, [1] * 5)
    memory.cache.checkpoint(0)
    assert memory.stats.kept_prefixes == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_comes_back_and_is_found(kind):
    memory = Memory(kind=kind)
    memory.run(0, PREFIX)
    state = memory.cache.save(0)
    memory.store.can_save = False
    assert memory.cache.save(0) is None
    memory.cache.release(0, keep=False)
    assert memory.cache.match([*PREFIX, 1]) == 0
    assert memory.cache.restore(1, state, PREFIX)
    assert memory.held(1) == PREFIX
    assert memory.cache.match([*PREFIX, 1]) == len(PREFIX)
    assert memory.stats.live_tokens == len(PREFIX)
    assert memory.cache.free_tokens() == 200 - len(PREFIX)


def test_what_cannot_come_back_leaves_the_slot_as_it_was():
    memory = Memory(pool=100)
    memory.run(0, PREFIX)
    state = memory.cache.save(0)
    memory.run(1, [1] * 80)
    memory.cache.release(0, keep=False)
    memory.cache.reserve(1, 81)
    assert not memory.cache.restore(0, state, PREFIX), "no room"
    memory.cache.reserve(1, 80)
    memory.store.refuses_restore = True
    assert not memory.cache.restore(0, state, PREFIX)
    assert memory.cache.length(0) == 0 and memory.cache.free_tokens() == 20
    assert memory.cache.reserve(0, 20)
    assert not memory.cache.restore(0, state, PREFIX)
    assert memory.cache.free_tokens() == 0
    memory.store.refuses_restore = False
    assert memory.cache.restore(0, state, PREFIX)
    memory.check()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_step_computed_and_nobody_accepts_is_not_held(kind):
    memory = Memory(kind=kind, overwrites=False)
    memory.run(0, PREFIX)
    memory.cache.checkpoint(0)
    memory.cache.reserve(0, 60)
    memory.store.compute(memory.cache.handle(0), [7, 8, 9])
    is_kept = memory.cache.commit(0, [7], computed=3)
    assert is_kept == (kind != "recurrent"), "a recurrent state cannot go back"
    assert memory.cache.length(0) == (len(PREFIX) + 1 if is_kept else 0)
    memory.check()
    assert memory.cache.match([*PREFIX, 7, 8, 9]) == len(PREFIX) + is_kept
    assert memory.cache.free_tokens() == (140 if is_kept else 200)


def test_a_slot_that_cannot_go_back_reserves_nothing_and_leaves_what_was_kept():
    memory = Memory(kind="sliding", window=4)
    memory.run(0, PREFIX)
    memory.cache.checkpoint(0)
    memory.cache.reserve(0, 60)
    memory.store.compute(memory.cache.handle(0), [7] * 9)
    assert not memory.cache.commit(0, [7], computed=9)
    assert memory.cache.length(0) == 0 and memory.cache.free_tokens() == 200
    assert memory.cache.match([*PREFIX, 7, 7]) == len(PREFIX)


def test_prefixes_of_other_namespaces_are_not_found():
    memory = Memory(slots=3)
    memory.run(0, PREFIX)
    assert memory.cache.match([*PREFIX, 1], b"adapter") == 0
    assert memory.cache.open(1, [*PREFIX, 1], b"adapter") == 0
    memory.cache.reserve(1, 21)
    memory.compute(1, [*PREFIX, 1])
    assert memory.cache.cells == 41
    memory.cache.release(1, keep=True)
    assert memory.cache.match([*PREFIX, 1, 2], b"adapter") == 21
    assert memory.cache.match([*PREFIX, 1, 2]) == 20
    assert memory.cache.open(2, [*PREFIX, 1, 2], b"adapter") == 21
    memory.check()


def test_a_lost_slot_holds_nothing_and_reserves_nothing():
    memory = Memory(kind="recurrent")
    memory.run(0, PREFIX)
    memory.cache.reserve(0, 100)
    memory.store.cut(memory.cache.handle(0), 0)
    memory.cache.release(0, keep=False)
    assert memory.cache.length(0) == 0 and memory.cache.free_tokens() == 200
    assert memory.cache.match([*PREFIX, 1]) == 0
    memory.cache.release(0, keep=True)
    assert memory.stats == CacheStats(200, 0, 0, 0)


def test_a_slot_in_the_wrong_state_is_refused():
    memory = Memory()
    with pytest.raises(InternalError, match="not opened"):
        memory.cache.handle(0)
    with pytest.raises(InternalError, match="does not exist"):
        memory.cache.open(2, [1])
    memory.run(0, PREFIX)
    with pytest.raises(InternalError, match="20 tokens"):
        memory.cache.open(0, [1])
    with pytest.raises(InternalError, match="slots"):
        KvManager(FakeStore(2, 10), KvLimits(3, pool_tokens=10, context=10, kept_tokens=0))
