"""The account of shared cells agrees with sets of cells."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from hearth.backends.engine.cells import CellPool

SEQUENCES = 4
sequences = st.integers(0, SEQUENCES - 1)
lengths = st.integers(0, 30)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("append"), sequences, lengths),
        st.tuples(st.just("trim"), sequences, lengths),
        st.tuples(st.just("release"), sequences, lengths),
        st.tuples(st.just("promise"), sequences, lengths),
        st.tuples(st.just("fork"), st.permutations(range(SEQUENCES)), lengths),
    ),
    max_size=40,
)


@given(moves)
def test_cells_are_counted_as_llama_cpp_holds_them(script):
    pool = CellPool(SEQUENCES)
    held: list[list[int]] = [[] for _ in range(SEQUENCES)]
    promises = [0] * SEQUENCES
    fresh = iter(range(10**6))
    for move, where, count in script:
        if move == "append":
            pool.append(where, count)
            held[where] = held[where] + [next(fresh) for _ in range(count)]
        elif move == "trim":
            pool.trim(where, count)
            held[where] = held[where][:count]
        elif move == "release":
            pool.release(where)
            held[where], promises[where] = [], 0
        elif move == "promise":
            pool.promise(where, count)
            promises[where] = count
        else:
            source, target = where[:2]
            shared = min(count, len(held[source]))
            pool.release(target)
            pool.fork(source, target, shared)
            held[target], promises[target] = held[source][:shared], 0
        pool.check_integrity()
        assert pool.cells == len(set().union(*held))
        assert pool.tokens == sum(map(len, held))
        assert [pool.length(one) for one in range(SEQUENCES)] == list(map(len, held))
        growth = sum(max(0, promises[one] - len(held[one])) for one in range(SEQUENCES))
        assert pool.growth == growth
        assert pool.promised_cells == pool.cells + growth
        for one in range(SEQUENCES):
            assert pool.promised(one) == promises[one]
            assert pool.cells_of([one, 0]) == len({*held[one], *held[0]})
            assert pool.shared(one, 0) == len(set(held[one]) & set(held[0]))
        assert pool.cells_of(range(SEQUENCES)) == pool.cells
        assert pool.cells_of([]) == 0


def test_promises_count_what_is_shared_once():
    pool = CellPool(2)
    pool.append(0, 100)
    pool.fork(0, 1, 100)
    pool.promise(0, 120)
    pool.promise(1, 150)
    assert pool.promised_cells == 100 + 20 + 50
    pool.append(1, 60)
    assert pool.promised_cells == 160 + 20


def test_what_others_hold_stays_when_one_goes():
    pool = CellPool(3)
    pool.append(0, 100)
    pool.fork(0, 1, 60)
    pool.append(1, 10)
    pool.fork(1, 2, 70)
    pool.release(0)
    assert pool.cells == 70 and pool.cells_of([1]) == pool.cells_of([1, 2]) == 70
    pool.release(1)
    assert pool.cells == 70
    pool.release(2)
    assert pool.cells == 0
    pool.check_integrity()
