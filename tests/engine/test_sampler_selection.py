"""Selecting the best tokens without sorting gives the same result as sorting."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.backends.engine.selection import largest, smallest_cover

shapes = st.tuples(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 40, 1000, 5000, 20000]),
    st.sampled_from(["normal", "flat", "few values", "masked"]),
)


def numbers(shape):
    seed, size, kind = shape
    random = np.random.default_rng(seed)
    if kind == "flat":
        return np.zeros(size, dtype=np.float32)
    if kind == "few values":
        return random.integers(0, 5, size).astype(np.float32)
    values = random.normal(0, 3, size).astype(np.float32)
    if kind == "masked":
        values[random.random(size) < 0.9] = -np.inf
    return values


@settings(max_examples=60, deadline=None)
@given(shape=shapes, count=st.integers(0, 3000))
def test_largest_equals_a_stable_sort(shape, count):
    values = numbers(shape)
    expected = np.argsort(-values, kind="stable")[:count]
    np.testing.assert_array_equal(largest(values, count), expected)


@settings(max_examples=60, deadline=None)
@given(shape=shapes, share=st.floats(0.001, 0.9999))
def test_cover_equals_a_sorted_prefix(shape, share):
    keys = numbers(shape)
    if not np.isfinite(keys.max()):
        keys[0] = 0.0
    weights = np.round(np.exp(keys - keys.max()) * 2**20).astype(np.float64)  # sums are exact
    target = share * weights.sum()
    order = np.argsort(-keys, kind="stable")
    needed = int(np.searchsorted(np.cumsum(weights[order]), target)) + 1
    np.testing.assert_array_equal(smallest_cover(keys, weights, target), np.sort(order[:needed]))
