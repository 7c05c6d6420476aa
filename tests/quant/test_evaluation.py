"""Perplexity in both protocols, divergences and standard errors compared with known values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hearth.quant.evaluation import estimates
from hearth.quant.evaluation.divergence import TokenScores
from hearth.quant.evaluation.errors import BadLogits, NotComparable, TextTooShort
from hearth.quant.evaluation.estimates import Estimate
from hearth.quant.evaluation.protocols import windows


def scored(logits: list[list[float]], targets: list[int], reference: object = None) -> TokenScores:
    scores = TokenScores()
    theirs = None if reference is None else np.array(reference, np.float32)
    scores.add(np.array(logits, np.float32), np.array(targets), theirs)
    return scores


# ---- windows


def test_all_tokens_of_windows_are_scored_but_the_first_which_has_nothing_before_it() -> None:
    cut = windows(range(100), [], 32, "windows", "text")
    assert [(one.tokens, one.first) for one in cut] == [
        (tuple(range(at, at + 32)), 1) for at in (0, 32, 64)
    ]


def test_with_a_beginning_every_token_of_the_text_is_scored() -> None:
    cut = windows(range(1, 101), [0], 26, "windows", "text")
    assert [one.tokens[0] for one in cut] == [0] * 4
    kept = [token for one in cut for token in one.tokens[one.first :]]
    assert kept == list(range(1, 101)) and sum(one.scored for one in cut) == 100


def test_the_second_half_is_cut_and_begun_as_llama_perplexity_does_it() -> None:
    cut = windows(range(1, 100), [500], 32, "second-half", "text")
    # [500, 1 .. 99] in pieces of 32 whose first token is replaced; tokens 17 to 31 are scored.
    assert [one.tokens[:2] for one in cut] == [(500, 1), (500, 33), (500, 65)]
    assert [one.tokens[one.first :] for one in cut] == [
        tuple(range(at + 17, at + 32)) for at in (0, 32, 64)
    ]


def test_a_text_or_window_without_anything_to_score_is_refused() -> None:
    assert len(windows(range(40), [], 512, "windows", "text")[0].tokens) == 40
    with pytest.raises(TextTooShort, match="text has 31 tokens"):
        windows(range(31), [], 512, "windows", "text")
    with pytest.raises(TextTooShort, match="Windows of 2 tokens"):
        windows(range(40), [], 2, "second-half", "text")


# ---- divergence


def test_uniform_logits_give_the_size_of_the_vocabulary_exactly() -> None:
    scores = scored([[0.5] * 64] * 40, [7] * 40)
    found = estimates.perplexity(scores.losses, estimates.blocks_of([20, 20]))
    assert found == Estimate(pytest.approx(64, rel=1e-15), 0.0)


def test_a_model_does_not_diverge_from_itself() -> None:
    logits = np.random.default_rng(0).normal(0, 9, (50, 1000)).astype(np.float32)
    scores = TokenScores()
    scores.add(logits, np.arange(50), logits)
    assert scores.divergences == [0.0] * 50 == scores.shifts
    assert scores.same_top == [1.0] * 50


def test_divergence_same_top_and_shift_of_a_toy() -> None:
    ours, theirs = [0.2, 0.3, 0.5], [0.5, 0.25, 0.25]
    scores = scored([np.log(ours)], [2], [np.log(theirs)])
    expected = 0.5 * math.log(0.5 / 0.2) + 0.25 * math.log(0.25 / 0.3) + 0.25 * math.log(0.5)
    assert scores.divergences == [pytest.approx(expected, rel=1e-6)]
    assert scores.losses == [pytest.approx(-math.log(0.5), rel=1e-6)]
    assert scores.shifts == [pytest.approx(0.25, rel=1e-6)]
    assert scores.same_top == [0.0]


def test_what_the_reference_excludes_does_not_count_and_what_the_model_excludes_is_infinite() -> (
    None
):
    out = [0.0, -math.inf]
    assert scored([[0.0, 0.0]], [0], [out]).divergences == [pytest.approx(math.log(2))]
    assert scored([out], [0], [[0.0, 0.0]]).divergences == [math.inf]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(BadLogits):
        scored([[0.0, bad]], [0])


def test_models_of_other_vocabularies_are_not_compared() -> None:
    with pytest.raises(NotComparable, match="3 tokens, that of the reference 2"):
        scored([[0.0, 0.0, 0.0]], [0], [[0.0, 0.0]])


# ---- estimates


def test_blocks_do_not_cross_windows_and_there_are_enough_of_them() -> None:
    assert estimates.blocks_of([300, 730]) == [64, 64, 64, 64, 44, *[64] * 11, 26]
    assert len(estimates.blocks_of([15])) == 15


def test_an_error_over_blocks_of_one_token_is_the_usual_one() -> None:
    values = [1.0, 2.0, 4.0, 9.0]
    found = estimates.mean(values, [1] * 4)
    assert found.value == 4.0
    assert found.error == pytest.approx(np.std(values, ddof=1) / 2)


def test_correlated_tokens_make_an_estimate_less_certain() -> None:
    stream = np.random.default_rng(1)
    alike = np.repeat(stream.normal(size=64), 64).tolist()  # 4,096 tokens, 64 facts
    blocks = estimates.blocks_of([4096])
    assert estimates.mean(alike, blocks).error == pytest.approx(np.std(alike[::64], ddof=1) / 8)
    assert estimates.mean(alike, [1] * 4096).error < 0.2 * estimates.mean(alike, blocks).error


def test_errors_cover_what_they_say() -> None:
    """For means of correlated values, two standard errors contain the true mean about 19 times of
    20.
    """
    stream, misses = np.random.default_rng(2), 0
    for _ in range(400):
        noise = stream.normal(size=1024 + 8)
        values = np.convolve(noise, np.ones(8) / 8, "valid")[:1024].tolist()
        found = estimates.mean(values, estimates.blocks_of([512, 512]))
        misses += abs(found.value) > 2 * found.error
    assert 8 <= misses <= 44


def test_a_difference_is_paired_and_certain_beyond_three_errors() -> None:
    hard = np.random.default_rng(3).normal(5, 3, 1024)
    blocks = estimates.blocks_of([512, 512])
    found = estimates.difference(hard.tolist(), (hard - 0.01).tolist(), blocks)
    assert found.value == pytest.approx(-0.01) and found.error < 1e-12 and found.is_below_zero
    assert not Estimate(-0.03, 0.01).is_below_zero and Estimate(-0.031, 0.01).is_below_zero
    with pytest.raises(ValueError, match="shorter"):
        estimates.difference([1.0, 2.0], [1.0], [2])


def test_a_root_mean_square_by_hand() -> None:
    found = estimates.root_mean_square([0.3, -0.4], [1, 1])
    assert found.value == pytest.approx(math.sqrt(0.125))
    assert found.error == pytest.approx(0.035 / (2 * math.sqrt(0.125)))
    assert estimates.root_mean_square([0.0, 0.0], [1, 1]) == Estimate(0.0, 0.0)


def test_facts_are_json_and_read_again() -> None:
    assert Estimate(1.5, 0.25).facts() == {"value": 1.5, "error": 0.25}
    assert Estimate(math.inf, math.nan).facts() == {"value": None, "error": None}
    assert Estimate.read({"value": 1.5, "error": 0.25}) == Estimate(1.5, 0.25)
    assert Estimate.read({"value": None, "error": None}).value == math.inf
