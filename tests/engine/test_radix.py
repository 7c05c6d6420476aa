"""The radix tree finds what plain lists of tokens have in common."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from hearth.backends.engine.radix import RadixIndex, common_prefix

HOLDERS = 5
holders = st.integers(0, HOLDERS - 1)
tokens = st.lists(st.integers(0, 2), max_size=8)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), holders, tokens),
        st.tuples(st.just("cut"), holders, st.integers(0, 12)),
        st.tuples(st.just("share"), st.permutations(range(HOLDERS)), st.integers(0, 12)),
        st.tuples(st.just("remove"), holders, st.none()),
    ),
    max_size=40,
)


def shared(left: list[int], right: list[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def index_of(*texts: list[int]) -> RadixIndex:
    index = RadixIndex()
    for holder, text in enumerate(texts):
        index.extend(holder, text)
    return index


@given(moves, st.lists(tokens, min_size=1, max_size=4))
def test_it_agrees_with_lists(script, questions):
    index = RadixIndex()
    held: dict[int, list[int]] = {holder: [] for holder in range(HOLDERS)}
    for move, where, what in script:
        if move == "extend":
            index.extend(where, what)
            held[where] = held[where] + what
        elif move == "cut":
            index.cut(where, what)
            held[where] = held[where][:what]
        elif move == "remove":
            index.remove(where)
            held[where] = []
        else:
            source, target = where[:2]
            index.remove(target)
            index.share(source, target, min(what, len(held[source])))
            held[target] = held[source][:what]
        index.check_integrity()
    known = {holder: text for holder, text in held.items() if text}
    assert set(index) == set(known)
    assert {holder: index.tokens(holder) for holder in held} == held
    assert {holder: index.length(holder) for holder in held} == {h: len(held[h]) for h in held}
    for holder, text in known.items():
        others = {other: known[other] for other in known if other != holder}
        above = {other for other, more in others.items() if more[: len(text)] == text}
        below = {other for other, less in others.items() if text[: len(less)] == less}
        assert set(index.covering(holder)) == above
        assert set(index.covered(holder)) == below
    for question in [*questions, *held.values()]:
        found = list(index.candidates(question))
        common = {holder: shared(question, text) for holder, text in known.items()}
        assert sorted(found) == sorted((n, holder) for holder, n in common.items() if n)
        assert [n for n, _ in found] == sorted((n for n, _ in found), reverse=True)


def test_the_longest_comes_first_and_then_who_ends_on_the_way():
    index = index_of([1, 2, 3, 4, 5], [1, 2], [1, 2, 3], [9, 9], [1, 2, 3, 4, 7])
    assert list(index.candidates([1, 2, 3, 4, 5, 6])) == [(5, 0), (4, 4), (3, 2), (2, 1)]
    assert list(index.candidates([9])) == [(1, 3)]
    assert list(index.candidates([7, 1, 2])) == []
    assert list(index.candidates([])) == []


def test_of_equal_ones_those_that_end_there_come_first():
    index = index_of([1, 2, 3, 4], [1, 2], [1, 2, 3])
    assert next(index.candidates([1, 2, 8])) == (2, 1)


def test_who_is_cut_or_removed_takes_nothing_along():
    index = index_of([1, 2, 3], [1, 2, 3])
    index.remove(0)
    assert index.tokens(0) == [] and index.tokens(1) == [1, 2, 3]
    index.cut(1, 1)
    assert list(index.candidates([1, 2, 3])) == [(1, 1)]
    index.remove(1)
    index.remove(1)
    assert list(index) == []
    index.check_integrity()


def test_two_that_compute_the_same_step_by_step_share_it_until_they_part():
    index = RadixIndex()
    for token in range(50):
        index.extend(0, [token])
        index.extend(1, [token])
    index.extend(0, [7])
    index.extend(1, [8])
    index.check_integrity()
    assert list(index.candidates([*range(50), 8])) == [(51, 1), (50, 0)]


def test_any_kind_of_sequence_can_be_looked_up():
    index = index_of([5, 6, 7])
    assert list(index.candidates((5, 6))) == [(2, 0)]
    assert list(index.candidates(range(5, 9))) == [(3, 0)]


@given(tokens, tokens, st.integers(0, 3), st.integers(0, 3))
def test_common_prefix_is_what_comparing_one_by_one_finds(left, right, left_at, right_at):
    left_at, right_at = min(left_at, len(left)), min(right_at, len(right))
    assert common_prefix(left, right, left_at, right_at) == shared(left[left_at:], right[right_at:])
