"""The set of bytes that are there, against a plain set of numbers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hearth.app.library.download_part import Ranges, pieces

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=20)


@given(SPANS, st.integers(0, 60))
def test_ranges_are_a_set_of_bytes(spans: list[tuple[int, int]], size: int) -> None:
    ranges = Ranges(spans)
    there = {byte for start, end in spans for byte in range(start, end)}
    assert {byte for start, end in ranges for byte in range(start, end)} == there
    assert ranges.total == len(there) and bool(ranges) == bool(there)
    missing = {byte for start, end in ranges.missing(size) for byte in range(start, end)}
    assert missing == set(range(size)) - there
    assert set(range(ranges.prefix)) <= there and ranges.prefix not in there


@given(SPANS)
def test_ranges_never_touch(spans: list[tuple[int, int]]) -> None:
    kept = list(Ranges(spans))
    assert all(start < end for start, end in kept)
    assert all(before[1] < after[0] for before, after in pairwise(kept))


@given(SPANS, st.integers(1, 20))
def test_pieces_are_the_same_bytes(spans: list[tuple[int, int]], most: int) -> None:
    ranges = Ranges(spans)
    cut = pieces(ranges, most)
    assert list(Ranges(cut)) == list(ranges)
    assert all(0 < end - start <= most for start, end in cut)
