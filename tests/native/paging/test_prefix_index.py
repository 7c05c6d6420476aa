"""Pages found by what they begin with, whatever the digests say."""

from __future__ import annotations

import random

import pytest

from hearth.backends.native.paging.prefix_index import PrefixIndex, chain_digest

DIGESTS = {
    "blake2b": chain_digest,
    "collides": lambda before, tokens: b"same",
    "ignores the past": lambda before, tokens: tokens[:4],
}


@pytest.fixture(params=DIGESTS, name="index")
def any_index(request):
    return PrefixIndex(4, b"model", DIGESTS[request.param])


def put(index, tokens):
    """Pages of `tokens`, made where there are none; the last one."""
    node = index.root
    for at in range(0, len(tokens), index.page):
        piece = tokens[at : at + index.page]
        made = index.add(node, piece, [0])
        if len(piece) == index.page:
            found = index.seal(made)
            if found is not made:
                index.remove(made)
            made = found
        node = made
    index.check_integrity()
    return node


def spelt(node):
    return [token for page in reversed(list(node.upwards())) for token in page.tokens]


def test_full_pages_are_found_by_all_that_comes_before(index):
    put(index, [1, 2, 3, 4, 5, 6, 7, 8])
    put(index, [9, 9, 9, 9, 5, 6, 7, 8])
    for prompt, length in (
        ([1, 2, 3, 4, 5, 6, 7, 8, 1], 8),
        ([1, 2, 3, 4, 5, 6, 7], 4),
        ([9, 9, 9, 9, 5, 6, 7, 8], 8),
        ([1, 2, 3, 5, 5, 6, 7, 8], 0),
        ([5, 6, 7, 8], 0),
        ([], 0),
    ):
        _, path = index.walk(prompt)
        assert [token for node in path for token in node.tokens] == prompt[:length]


def test_the_same_page_is_there_once(index):
    first = put(index, [1, 2, 3, 4, 5, 6, 7, 8])
    assert put(index, [1, 2, 3, 4, 5, 6, 7, 8]) is first
    assert len(index) == 2


def test_branches_are_found_by_token_the_longest_first(index):
    before = put(index, [1, 2, 3, 4])
    put(index, [1, 2, 3, 4, 5, 6])
    put(index, [1, 2, 3, 4, 5, 6, 7, 8])
    put(index, [1, 2, 3, 4, 6])
    wanted, path = index.walk([1, 2, 3, 4, 5, 6, 7, 9])
    assert path == [before]
    found = index.branches(before, wanted, 4)
    assert [(common, list(node.tokens)) for common, node in found] == [
        (3, [5, 6, 7, 8]),
        (2, [5, 6]),
    ]
    assert index.branches(before, wanted, 8) == []


def test_a_page_that_grows_is_found_as_far_as_it_is(index):
    node = index.add(index.root, [1], [0])
    for token in (2, 3):
        node.tokens.append(token)
    wanted, _ = index.walk([1, 2, 3, 4])
    assert index.branches(index.root, wanted, 0) == [(3, node)]
    node.tokens.append(4)
    assert index.seal(node) is node and index.walk([1, 2, 3, 4])[1] == [node]
    index.shorten(node, 2)
    assert index.walk([1, 2, 3, 4])[1] == []
    assert index.branches(index.root, wanted, 0) == [(2, node)]
    index.check_integrity()
    index.remove(node)
    assert len(index) == 0 and not index.root.children
    index.check_integrity()


def test_chains_of_another_model_have_other_digests():
    one, other = PrefixIndex(4, b"model"), PrefixIndex(4, b"other")
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    digests = {node.digest for index in (one, other) for node in put(index, tokens).upwards()}
    assert len(digests) == 4
    assert {len(digest) for digest in digests} == {16}
    assert put(one, tokens).digest == put(PrefixIndex(4, b"model"), tokens).digest


def test_it_finds_what_looking_at_everything_finds(index):
    draw = random.Random(7)
    ends = {}
    for _ in range(60):
        tokens = [draw.randrange(2) for _ in range(draw.randrange(1, 14))]
        ends[tuple(tokens)] = put(index, tokens)
    for tokens, node in ends.items():
        assert spelt(node) == list(tokens)
    for _ in range(200):
        prompt = [draw.randrange(2) for _ in range(draw.randrange(14))]
        best = max((same(tokens, prompt) for tokens in ends), default=0)
        wanted, path = index.walk(prompt)
        before = path[-1] if path else index.root
        branches = index.branches(before, wanted, 4 * len(path))
        assert 4 * len(path) + max((common for common, _ in branches), default=0) == best


def same(left, right):
    """Tokens at the beginning of both."""
    for at, pair in enumerate(zip(left, right, strict=False)):
        if pair[0] != pair[1]:
            return at
    return min(len(left), len(right))
