"""Random numbers depend on (seed, position, stream) alone, and look random."""

import numpy as np
import pytest

from hearth.backends.engine.random_stream import DRAW, XTC, fresh_seed, race, uniform


def test_known_values_hold_on_every_machine():
    assert uniform(0, 0) == 0.011546754286331562
    assert uniform(2**64 - 1, 12345, XTC) == 0.3441987959325733


def test_known_winners_hold_on_every_machine():
    weights = np.arange(1.0, 101.0) / 100
    assert [race(weights, 0, position) for position in range(6)] == [75, 76, 91, 87, 89, 82]


@pytest.mark.parametrize("size", [3, 5000])
def test_a_weight_of_zero_never_wins(size):
    weights = np.zeros(size)
    weights[1] = 1.0
    assert all(race(weights, 4, position) == 1 for position in range(50))


@pytest.mark.parametrize("kind", ["peaked", "flat"])
def test_a_token_wins_among_few_if_it_wins_among_many(kind):
    """A token's number does not depend on how many others there are, nor on whether they are in
    their own blocks or all together.
    """
    random = np.random.default_rng(8)
    ids = np.sort(random.choice(50_000, 6000, replace=False))
    for position in range(40):
        weights = np.full(50_000, 1.0)
        if kind == "peaked":
            weights = np.exp(random.gumbel(size=50_000) * 2)
            weights = (weights / weights.max()).astype(np.float32)
        winner = race(weights, 3, position)
        among = np.union1d(ids, [winner])
        assert among[race(weights[among], 3, position, ids=among)] == winner
        few = np.union1d(ids[:20], [winner])
        assert few[race(weights[few], 3, position, ids=few)] == winner


def test_races_follow_their_weights_within_a_block_and_beyond():
    weights = np.tile([0.25, 1.0, 0.5, 0.125], 40)
    counts = np.bincount([race(weights, 11, position) for position in range(20_000)], minlength=160)
    expected = 20_000 * weights / weights.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 219  # 159 degrees of freedom, p = 0.001


def test_neighbouring_laws_mostly_agree():
    """At least with probability (1 - d) / (1 + d), where d is their total variation distance."""
    random = np.random.default_rng(2)
    first, other = (random.dirichlet(np.full(30, 0.5)) for _ in range(2))
    other = 0.7 * first + 0.3 * other
    distance = np.abs(first - other).sum() / 2
    agreed = np.mean([race(first, 1, at) == race(other, 1, at) for at in range(4000)])
    assert agreed > (1 - distance) / (1 + distance) - 0.02


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
