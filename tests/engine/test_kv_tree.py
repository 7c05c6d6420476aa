"""The prefix tree finds the common prefixes of lists of tokens, however they were computed."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from fake_store import FakeStore
from hearth.backends.engine.kv.manager import KvLimits, KvManager
from hearth.backends.engine.kv.tree import PrefixTree, common_prefix

HOLDERS = 5
tokens = st.lists(st.integers(0, 2), max_size=8)
holders = st.integers(0, HOLDERS - 1)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("append"), holders, tokens),
        st.tuples(st.just("cut"), holders, st.integers(0, 12)),
        st.tuples(st.just("enter"), st.permutations(range(HOLDERS)), st.integers(1, 12)),
    ),
    max_size=40,
)


def shared(left: list[int], right: list[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


@given(moves, st.lists(tokens, min_size=1, max_size=4))
def test_it_agrees_with_lists(script, questions):
    tree = PrefixTree(1, 0, None, lambda blocks: None)
    prefixes = [tree.new(b"", "live", 1) for _ in range(HOLDERS)]
    held: list[list[int]] = [[] for _ in prefixes]
    for move, where, what in script:
        if move == "append":
            tree.append(prefixes[where], what)
            held[where] = held[where] + what
        elif move == "cut":
            if what < len(held[where]):
                tree.cut(prefixes[where], what)
            held[where] = held[where][:what]
        else:
            source, target = where[:2]
            tree.cut(prefixes[target], 0)
            length = min(what, len(held[source]))
            if length:
                tree.enter(prefixes[target], tree.upto(prefixes[source].node, length), length)
            held[target] = held[source][:length]
        tree.check_integrity()
    assert [tree.tokens(prefix).tolist() for prefix in prefixes] == held
    for at, prefix in enumerate(prefixes):
        if not held[at]:
            continue
        others = {n: text for n, text in enumerate(held) if n != at and text}
        above = {n for n, text in others.items() if text[: len(held[at])] == held[at]}
        below = {n for n, text in others.items() if held[at][: len(text)] == text}
        assert {prefixes.index(other) for other in tree.covering(prefix)} == above
        assert {prefixes.index(other) for other in tree.covered(prefix)} == below
    for question in [*questions, *held]:
        best = max((shared(question, text) for text in held), default=0)
        matches = [matched for _, matched in tree.walk(tree.root(), question)]
        assert max(matches, default=0) == best


def test_what_two_compute_step_by_step_stays_apart_until_one_of_them_is_gone():
    tree = PrefixTree(1, 0, None, lambda blocks: None)
    one, other = tree.new(b"", "live", 1), tree.new(b"", "live", 1)
    for token in range(50):
        tree.append(one, [token])
        tree.append(other, [token])
    assert len(list(tree)) == 2
    tree.append(other, [8])
    assert max(matched for _, matched in tree.walk(tree.root(), [*range(50), 8, 9])) == 51
    tree.cut(one, 0)
    assert len(list(tree)) == 1 and tree.tokens(other).tolist() == [*range(50), 8]


def test_namespaces_that_hold_nothing_are_forgotten():
    kv = KvManager(FakeStore(4, 100), KvLimits(2, pool_tokens=100, context=50, kept_tokens=50))
    for number in range(40):
        kv.open(0, [1, 2, 3], bytes([number]))
        kv.release(0, keep=False)
    assert len(kv._tree._roots) <= 2


@given(tokens, tokens, st.integers(0, 3), st.integers(0, 3))
def test_common_prefix_is_what_comparing_one_by_one_finds(left, right, left_at, right_at):
    left_at, right_at = min(left_at, len(left)), min(right_at, len(right))
    assert common_prefix(left, right, left_at, right_at) == shared(left[left_at:], right[right_at:])
