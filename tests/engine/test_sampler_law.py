"""Frequencies of draws compared with their expected distribution (chi-square, fixed seeds)."""

import numpy as np
import pytest

from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.sampler import Sampler

DRAWS = 6000
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
CHI_SQUARE_AT_ONE_IN_A_THOUSAND = {2: 13.8, 4: 18.5, 7: 24.3, 9: 27.9}
LOGITS = np.random.default_rng(3).normal(0, 1, 10).astype(np.float32)


def frequencies(logits, **changes):
    sampler = Sampler(SamplingParams(seed=2024, **{**OFF, **changes}))
    drawn = [sampler.draw(logits, position).id for position in range(DRAWS)]
    return np.bincount(drawn, minlength=logits.size)


def assert_follows(counts, law):
    law = np.asarray(law) / np.sum(law)
    assert counts[law == 0].sum() == 0
    possible = law > 0
    expected = DRAWS * law[possible]
    chi_square = ((counts[possible] - expected) ** 2 / expected).sum()
    assert chi_square < CHI_SQUARE_AT_ONE_IN_A_THOUSAND[possible.sum() - 1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature(temperature):
    assert_follows(
        frequencies(LOGITS, temperature=temperature), np.exp(LOGITS / np.float64(temperature))
    )


def test_top_k_keeps_proportions():
    law = np.exp(LOGITS.astype(np.float64))
    law[np.argsort(law)[:5]] = 0
    assert_follows(frequencies(LOGITS, top_k=5), law)


def test_xtc_acts_as_often_as_it_says():
    law = np.array([0.5, 0.3, 0.2])
    without_first_two = np.array([0.0, 0.0, 1.0])
    mixed = 0.25 * without_first_two + 0.75 * law
    counts = frequencies(np.log(law).astype(np.float32), xtc_probability=0.25, xtc_threshold=0.15)
    assert_follows(counts, mixed)


def test_a_large_vocabulary_is_drawn_from_in_proportion():
    chances = np.repeat([8.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0, 6.0], 1000)
    counts = frequencies(np.log(chances).astype(np.float32))
    assert_follows(counts.reshape(8, 1000).sum(axis=1), chances.reshape(8, 1000).sum(axis=1))
