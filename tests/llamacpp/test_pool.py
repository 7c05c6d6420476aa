"""The account of shared cells agrees with sets of cells."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hearth.backends.llamacpp.pool import CellPool

SLOTS = 4
slots = st.integers(0, SLOTS - 1)
lengths = st.integers(0, 30)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("append"), slots, lengths),
        st.tuples(st.just("trim"), slots, lengths),
        st.tuples(st.just("release"), slots, lengths),
        st.tuples(st.just("fork"), st.permutations(range(SLOTS)), lengths),
    ),
    max_size=40,
)


@given(moves)
def test_cells_are_counted_as_llama_cpp_holds_them(script: list[tuple[str, object, int]]) -> None:
    pool = CellPool(SLOTS)
    held: list[list[int]] = [[] for _ in range(SLOTS)]
    fresh = iter(range(10**6))
    for move, where, count in script:
        if isinstance(where, int):
            slot = where
            if move == "append":
                pool.append(slot, count)
                held[slot] += [next(fresh) for _ in range(count)]
            elif move == "trim":
                pool.trim(slot, count)
                del held[slot][count:]
            else:
                pool.release(slot)
                held[slot] = []
        else:
            source, target = list(where)[:2]  # type: ignore[call-overload]
            shared = min(count, len(held[source]))
            pool.release(target)
            pool.fork(source, target, shared)
            held[target] = held[source][:shared]
        assert pool.cells == len(set().union(*held))
        assert pool.tokens == sum(map(len, held))
        assert [pool.length(slot) for slot in range(SLOTS)] == list(map(len, held))


def test_promises_count_what_is_shared_once() -> None:
    pool = CellPool(2)
    pool.append(0, 100)
    pool.fork(0, 1, 100)
    pool.promise(0, 120)
    pool.promise(1, 150)
    assert pool.promised_cells == 100 + 20 + 50
    pool.append(1, 60)
    assert pool.promised_cells == 160 + 20
