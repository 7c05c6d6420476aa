"""Numbers depend on (seed, position, stream) alone, and look random."""

import numpy as np

from hearth.backends.engine.random_stream import DRAW, XTC, fresh_seed, uniform


def test_known_values_hold_on_every_machine():
    assert uniform(0, 0) == 0.011546754286331562
    assert uniform(2**64 - 1, 12345, XTC) == 0.3441987959325733


def test_a_number_does_not_depend_on_what_was_drawn_before():
    forward = [uniform(7, position) for position in range(20)]
    backward = [uniform(7, position) for position in reversed(range(20))]
    assert forward == backward[::-1]
    assert len(set(forward)) == 20


def test_neighbouring_seeds_and_positions_and_streams_are_unrelated():
    size = 2000
    base = np.array([uniform(1, position) for position in range(size)])
    others = {
        "next seed": [uniform(2, position) for position in range(size)],
        "next position": [uniform(1, position + 1) for position in range(size)],
        "xtc stream": [uniform(1, position, XTC) for position in range(size)],
    }
    for name, other in others.items():
        assert abs(np.corrcoef(base, other)[0, 1]) < 4 / np.sqrt(size), name
    assert uniform(3, 5, DRAW) != uniform(5, 3, DRAW)


def test_numbers_fill_the_unit_interval_evenly():
    counts, _ = np.histogram([uniform(99, position) for position in range(8000)], 16, (0, 1))
    chi_square = ((counts - 500.0) ** 2 / 500.0).sum()
    assert chi_square < 37.7  # 15 degrees of freedom, p = 0.001


def test_fresh_seeds_differ_and_are_in_range():
    seeds = {fresh_seed() for _ in range(50)}
    assert len(seeds) == 50
    assert all(0 <= seed < 2**64 for seed in seeds)
