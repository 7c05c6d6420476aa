"""Each step on cases worked out by hand, and all together compared with a plain reference."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.random_stream import DRAW, XTC, uniform
from hearth.backends.engine.sampler import Sampler
from hearth.backends.errors import InternalError, InvalidParameter

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def logits_of(*probabilities):
    return np.log(np.array(probabilities, dtype=np.float32))


def reachable(logits, **settings_):
    """Every token that can be drawn, found by drawing at many positions."""
    sampler = Sampler(SamplingParams(seed=5, **{**OFF, **settings_}))
    return {sampler.draw(logits, position).id for position in range(400)}


EIGHT = logits_of(0.3, 0.05, 0.25, 0.05, 0.2, 0.1, 0.03, 0.02)


def test_without_any_step_every_token_can_come():
    assert reachable(EIGHT) == set(range(8))


def test_greedy_takes_the_lowest_id_of_equals():
    sampler = Sampler(SamplingParams(temperature=0.0))
    assert sampler.draw(np.array([1, 3, 2, 3], dtype=np.float32), 0).id == 1


def test_top_k_keeps_the_k_likeliest_and_the_lowest_ids_of_equals():
    assert reachable(EIGHT, top_k=3) == {0, 2, 4}
    assert reachable(np.zeros(6, dtype=np.float32), top_k=2) == {0, 1}
    assert reachable(EIGHT, top_k=100) == set(range(8))


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    assert reachable(EIGHT, top_p=0.5) == {0, 2}
    assert reachable(EIGHT, top_p=0.6) == {0, 2, 4}
    assert reachable(EIGHT, top_p=1e-9) == {0}


def test_top_p_counts_what_top_k_left():
    assert reachable(EIGHT, top_k=3, top_p=0.7) == {0, 2}  # 0.55 / 0.75 = 0.73


def test_min_p_is_relative_to_the_likeliest():
    assert reachable(EIGHT, min_p=0.5) == {0, 2, 4}
    assert reachable(EIGHT, min_p=1.0) == {0}


def test_typical_p_prefers_usual_surprise_to_the_top():
    logits = logits_of(0.7, 0.1, 0.1, 0.1)
    # Entropy 0.94; surprises 0.36 (off by 0.58) and 2.30 (off by 1.36): the most likely comes
    # first.
    assert reachable(logits, typical_p=0.5) == {0}
    assert reachable(logits, typical_p=0.75) == {0, 1}
    flatter = logits_of(0.4, *([0.1] * 6))
    # Entropy 1.75; surprises 0.92 (off by 0.83) and 2.30 (off by 0.55): the most likely comes last.
    assert reachable(flatter, typical_p=0.25) == {1, 2, 3}
    assert reachable(flatter, typical_p=0.9) == {0, 1, 2, 3, 4, 5, 6}


def test_xtc_removes_all_top_choices_but_the_least_likely():
    assert reachable(EIGHT, xtc_probability=1.0, xtc_threshold=0.15) == {1, 3, 4, 5, 6, 7}
    assert reachable(EIGHT, xtc_probability=1.0, xtc_threshold=0.3) == set(range(8))
    assert reachable(EIGHT, xtc_probability=1.0, xtc_threshold=0.6) == set(range(8))
    assert reachable(EIGHT, xtc_probability=0.0, xtc_threshold=0.15) == set(range(8))


def test_xtc_never_brings_back_what_is_banned():
    everything = {"xtc_probability": 1.0, "xtc_threshold": 0.0}
    assert reachable(EIGHT, logit_bias={7: -100.0}, **everything) == {6}
    # Tokens whose probability rounds to zero are not top choices either.
    assert reachable(EIGHT - 1e9 * np.float32([0, 1, 1, 1, 0, 0, 1, 1]), **everything) == {5}


def test_a_tiny_temperature_is_greedy_and_stays_finite():
    for temperature in (1e-3, 1e-30, 5e-324):
        assert reachable(EIGHT, temperature=temperature) == {0}
        assert reachable(np.tile(EIGHT, 1000), temperature=temperature) <= set(range(0, 8000, 8))


def test_logit_bias_adds_and_bans():
    greedy = {"temperature": 0.0}
    assert Sampler(SamplingParams(logit_bias={1: 5.0}, **greedy)).draw(EIGHT, 0).id == 1
    assert Sampler(SamplingParams(logit_bias={0: -100.0}, **greedy)).draw(EIGHT, 0).id == 2
    huge = EIGHT + np.float32(1000) * (np.arange(8) == 0)
    assert Sampler(SamplingParams(logit_bias={0: -100.0}, **greedy)).draw(huge, 0).id == 2


def test_banned_tokens_never_come():
    sampler = Sampler(SamplingParams(temperature=0.0))
    assert sampler.draw(EIGHT, 0, banned=(0, 2)).id == 4
    assert sampler.draw(EIGHT, 0, banned=frozenset({0})).id == 2


def test_penalties_see_prompt_and_accepted_tokens():
    sampler = Sampler(
        SamplingParams(temperature=0.0, presence_penalty=2.0), prompt_ids=[0], breakers=frozenset()
    )
    assert sampler.draw(EIGHT, 0).id == 2
    sampler.accept(2)
    assert sampler.draw(EIGHT, 1).id == 4


def test_dry_refuses_to_continue_a_run():
    params = SamplingParams(temperature=0.0, dry_multiplier=5.0)
    assert Sampler(params, prompt_ids=[6, 7, 0, 5, 6, 7]).draw(EIGHT, 0).id == 2
    broken = Sampler(params, prompt_ids=[6, 7, 0, 5, 6, 7], breakers=frozenset({7}))
    assert broken.draw(EIGHT, 0).id == 0


def test_logprobs_are_the_models_own():
    params = SamplingParams(
        temperature=0.0, logprobs=3, logit_bias={7: 50.0}, presence_penalty=1.0, top_k=2
    )
    drawn = Sampler(params, prompt_ids=[0]).draw(EIGHT, 0)
    assert drawn.id == 7
    assert drawn.logprob == pytest.approx(math.log(0.02), abs=1e-5)
    assert [token for token, _ in drawn.top] == [0, 2, 4]
    assert [value for _, value in drawn.top] == pytest.approx(np.log([0.3, 0.25, 0.2]), abs=1e-5)


def test_logprobs_of_zero_gives_no_alternatives_and_none_gives_nothing():
    assert Sampler(SamplingParams(temperature=0.0, logprobs=0)).draw(EIGHT, 0).top == ()
    drawn = Sampler(SamplingParams(temperature=0.0)).draw(EIGHT, 0)
    assert drawn.logprob is None
    assert drawn.top == ()


def test_the_models_logits_are_left_alone():
    params = SamplingParams(
        repetition_penalty=1.5, dry_multiplier=1.0, logit_bias={1: 3.0}, xtc_probability=1.0,
        typical_p=0.9, logprobs=2,
    )  # fmt: skip
    logits = EIGHT.copy()
    logits.setflags(write=False)
    Sampler(params, prompt_ids=[1, 2, 1, 2]).draw(logits, 0, banned=(3,))
    np.testing.assert_array_equal(logits, EIGHT)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_possible_token_is_always_drawn(temperature):
    logits = np.full(9000, -np.inf, dtype=np.float32)
    logits[4321] = -7.0
    for params in (SamplingParams(temperature=temperature), SamplingParams(**OFF, typical_p=0.5)):
        assert Sampler(params).draw(logits, 0).id == 4321


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error(temperature, bad):
    logits = EIGHT.copy()
    logits[3] = bad
    with pytest.raises(InternalError, match="position 17"):
        Sampler(SamplingParams(temperature=temperature)).draw(logits, 17)
    with pytest.raises(InternalError):
        Sampler(SamplingParams(temperature=temperature)).draw(
            np.full(8, -np.inf, dtype=np.float32), 0
        )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_banning_everything_is_an_error_of_the_request(temperature):
    sampler = Sampler(SamplingParams(temperature=temperature))
    with pytest.raises(InvalidParameter) as caught:
        sampler.draw(EIGHT, 3, banned=range(8))
    assert caught.value.param == "logit_bias"


def test_draws_depend_on_seed_and_position_alone():
    logits = np.random.default_rng(0).normal(0, 2, (30, 500)).astype(np.float32)
    params = SamplingParams(seed=11, xtc_probability=0.5)
    alone = [Sampler(params).draw(row, place).id for place, row in enumerate(logits)]
    one, other = Sampler(params), Sampler(SamplingParams(seed=12))
    together = []
    for place, row in enumerate(logits):
        other.draw(row, place)
        together.append(one.draw(row, place).id)
    assert together == alone
    resumed = Sampler(params)
    assert [resumed.draw(logits[place], place).id for place in range(20, 30)] == alone[20:]


def test_without_a_seed_each_sampler_has_its_own():
    assert Sampler(SamplingParams()).seed != Sampler(SamplingParams()).seed
    assert Sampler(SamplingParams(seed=0)).seed == 0


# --- the plain reference -------------------------------------------------------------------------


def softmax(values):
    weights = [math.exp(value - max(values)) for value in values]
    return [weight / sum(weights) for weight in weights]


def shortest_prefix(order, probabilities, mass):
    kept, total = [], 0.0
    for index in order:
        kept.append(index)
        total += probabilities[index]
        assume(abs(total - mass) > 1e-4)  # rounding decides there
        if total >= mass:
            break
    return kept


def reference_draw(logits, params, position):
    """The steps of `SamplingParams`, each by its definition, over sorted lists."""
    pool = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if params.top_k:
        pool = pool[: params.top_k]

    def keep(places):
        return [pool[place] for place in places]

    def chances():
        return softmax([float(logits[token]) for token in pool])

    if params.typical_p < 1:
        chance = chances()
        entropy = -sum(p * math.log(p) for p in chance)
        off = [abs(-math.log(p) - entropy) for p in chance]
        gaps = np.diff(sorted(off))
        assume(gaps.size == 0 or gaps.min() > 1e-5)
        order = sorted(range(len(pool)), key=lambda place: off[place])
        pool = sorted(
            keep(shortest_prefix(order, chance, params.typical_p)),
            key=lambda token: (-logits[token], token),
        )
    if params.top_p < 1:
        pool = keep(shortest_prefix(range(len(pool)), chances(), params.top_p))
    if params.min_p > 0:
        chance = chances()
        assume(all(abs(p / chance[0] - params.min_p) > 1e-5 for p in chance))
        pool = keep([place for place, p in enumerate(chance) if p >= params.min_p * chance[0]])
    if uniform(params.seed, position, XTC) < params.xtc_probability:
        chance = chances()
        assume(all(abs(p - params.xtc_threshold) > 1e-5 for p in chance))
        top = [place for place, p in enumerate(chance) if p >= params.xtc_threshold]
        pool = keep([place for place in range(len(pool)) if place not in top[:-1]])
    pool.sort()
    chance = softmax([float(logits[token]) / params.temperature for token in pool])
    numbers = [race_number(params.seed, position, token) for token in pool]
    scores = sorted(
        (p / number, token) for p, number, token in zip(chance, numbers, pool, strict=True)
    )
    assume(len(scores) == 1 or scores[-1][0] > scores[-2][0] * (1 + 1e-6))
    return scores[-1][1]


def race_number(seed, position, token):
    """The exponential number of a token: the minimum of its block, or more if it is another's."""
    state = int(
        np.random.Philox(key=np.array([seed, DRAW], dtype=np.uint64), counter=position).random_raw()
    )

    def mix(state, at):
        z = (state + (at + 1) * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    def exponential(bits):
        return -math.log1p(-((bits >> 12) + 0.5) / 2**52)

    block = mix(2**64 - 1 - state, token // 64)
    further = 0.0 if block % 64 == token % 64 else exponential(mix(state, token))
    return exponential(block) / 64 + further


@settings(max_examples=150, deadline=None)
@given(
    size=st.sampled_from([2, 7, 50, 300]),
    spread=st.sampled_from([0.5, 2.0, 5.0]),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 40]),
    top_p=st.sampled_from([0.2, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.07]),
    typical_p=st.sampled_from([0.4, 0.9, 1.0]),
    xtc_probability=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 10**6),
)
def test_equal_to_the_reference(
    size, spread, temperature, top_k, top_p, min_p, typical_p, xtc_probability, seed, position
):
    logits = np.random.default_rng(seed).normal(0, spread, size).astype(np.float32)
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p,
        xtc_probability=xtc_probability, xtc_threshold=0.13, seed=seed,
    )  # fmt: skip
    expected = reference_draw(logits, params, position)
    assert Sampler(params).draw(logits, position).id == expected
