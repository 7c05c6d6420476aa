"""How prefill is divided into steps while others stream."""

import math

import pytest

from hearth.backends.engine.prefill_budget import AIM, FIRST_LOOK, LEAST, PrefillBudget


def machine(decode_s, token_s):
    """Seconds of a step on a machine with linear costs."""

    def step(decoding, prefill):
        return (decode_s if decoding else 0.0) + prefill * token_s

    return step


def settle(budget, step, decoding, rounds=60):
    """Let the budget observe `rounds` mixed steps; returns the seconds of the last one."""
    took = 0.0
    for _ in range(rounds):
        tokens = budget.allowance(decoding)
        took = step(decoding, tokens)
        budget.observe(decoding, tokens, took)
    return took


def settled():
    """A budget that knows a machine, the machine, and its allowance next to one stream."""
    budget = PrefillBudget(0.05, 4096)
    step = machine(0.01, 0.0005)
    budget.observe(1, 0, step(1, 0))
    settle(budget, step, 1)
    usual = budget.allowance(1)
    return budget, step, usual


def test_alone_a_step_is_whole():
    assert PrefillBudget(0.05, 512).allowance(0) == 512


def test_the_first_mixed_step_is_a_careful_one():
    assert PrefillBudget(0.05, 512).allowance(3) == FIRST_LOOK
    assert PrefillBudget(0.05, 16).allowance(3) == 16


@pytest.mark.parametrize(("decode_s", "token_s"), [(0.005, 0.0002), (0.02, 0.001), (0.04, 0.0005)])
def test_a_step_comes_to_take_about_the_target(decode_s, token_s):
    budget = PrefillBudget(0.05, 4096)
    step = machine(decode_s, token_s)
    budget.observe(2, 0, step(2, 0))
    took = settle(budget, step, 2)
    aim = max(AIM * 0.05, 2 * decode_s)
    assert 0.9 * aim <= took <= 1.05 * aim


def test_where_decoding_alone_is_slower_than_the_target_prefill_gets_as_much_time_as_it():
    budget = PrefillBudget(0.05, 4096)
    step = machine(0.2, 0.001)
    budget.observe(8, 0, step(8, 0))
    assert 0.3 <= settle(budget, step, 8) <= 0.41


def test_prefill_never_starves():
    budget = PrefillBudget(0.05, 512)
    step = machine(0.01, 1.0)
    budget.observe(1, 0, step(1, 0))
    settle(budget, step, 1)
    assert budget.allowance(1) == LEAST


def test_a_machine_that_becomes_slower_is_noticed_in_a_few_steps():
    budget = PrefillBudget(0.05, 4096)
    budget.observe(1, 0, 0.01)
    settle(budget, machine(0.01, 0.0002), 1)
    slow = machine(0.01, 0.001)
    took = [settle(budget, slow, 1, rounds=1) for _ in range(5)]
    assert took[0] > 0.1
    assert took[-1] < 0.07


def test_one_lucky_timing_at_most_doubles_the_next_step():
    budget = PrefillBudget(0.05, 4096)
    budget.observe(1, 0, 0.01)
    largest = 0
    for _ in range(60):
        largest = max(largest, budget.allowance(1))
        budget.observe(1, budget.allowance(1), machine(0.01, 0.0005)(1, budget.allowance(1)))
    for _ in range(3):
        budget.observe(1, 80, 0.0101)
    assert 80 < budget.allowance(1) <= 2 * largest


def test_a_short_prefill_does_not_make_the_next_one_begin_anew():
    budget, step, usual = settled()
    budget.observe(1, 3, step(1, 3))
    assert budget.allowance(1) == usual


def test_it_learns_where_no_step_without_prefill_was_ever_seen():
    budget = PrefillBudget(0.05, 4096)
    step = machine(0.01, 0.0001)
    took = settle(budget, step, 1, rounds=60)
    assert 0.03 < took < 0.055


def test_a_clock_that_stands_still_is_no_division_by_zero():
    budget = PrefillBudget(0.05, 512)
    budget.observe(1, 32, 0.0)
    assert LEAST <= budget.allowance(1) <= 512


def test_one_slow_step_does_not_hold_prefill_up_for_ever():
    budget, step, usual = settled()
    budget.observe(1, usual, 60.0)
    settle(budget, step, 1, rounds=100)
    assert budget.allowance(1) >= 0.8 * usual


def test_one_slow_step_without_prefill_allows_no_long_one():
    budget, _, usual = settled()
    budget.observe(1, 0, 3.0)
    assert budget.allowance(1) <= 1.1 * usual


@pytest.mark.parametrize("row_s", [0.0, 0.02])
def test_steps_of_more_sequences_than_were_seen_are_estimated_from_those_that_were(row_s):
    budget = PrefillBudget(0.05, 4096)
    for decoding in (1, 2):
        budget.observe(decoding, 0, 0.05 + decoding * row_s)
    for _ in range(60):
        tokens = budget.allowance(8)
        budget.observe(8, tokens, 0.05 + 8 * row_s + tokens * 0.005)
    assert budget.allowance(8) == pytest.approx((0.05 + 8 * row_s) / 0.005, rel=0.1)


@pytest.mark.parametrize("cell_s", [0.0, 1e-6, 4e-6])
def test_tokens_behind_a_long_context_count_as_what_they_take(cell_s):
    budget = PrefillBudget(0.05, 4096)
    budget.observe(1, 0, 0.01)
    for start in [0, 20_000, 500, 5_000] * 60:
        tokens = max(int(budget.allowance(1) / budget.weight(1, start)), 1)
        budget.observe(1, tokens, 0.01 + tokens * (0.0005 + start * cell_s), tokens * start)
    assert budget.weight(1, 20_000) == pytest.approx(1 + 40e6 * cell_s, rel=0.3)
    assert budget.weight(1, 0) == 1
    assert 45 <= budget.allowance(1) <= 70
    assert budget.allowance(1, 20_000) >= 1


def test_what_attention_costs_alone_says_nothing_of_steps_with_few_rows():
    budget = PrefillBudget(0.05, 512)
    for start in range(0, 20_000, 512):
        budget.observe(0, 512, 512 * (0.0005 + start * 1e-8), 512 * start)
    budget.observe(1, 0, 0.01)
    assert budget.weight(0, 20_000) < 5, "where there are tiles"
    assert budget.weight(1, 20_000) > budget.allowance(1), "a row behind it is tried by itself"


def test_texts_take_what_prefill_has_left_of_its_share():
    budget = PrefillBudget(0.05, 4096)
    budget.observe(1, 0, 0.01)
    settle(budget, machine(0.01, 0.001), 1)
    assert budget.allowance_of_texts(1, 0) == budget.allowance(1), (
        "what prefill takes is a first guess"
    )
    for _ in range(20):
        tokens = budget.allowance_of_texts(1, 0)
        budget.observe_texts(1, tokens, tokens * 0.002)
    assert budget.allowance_of_texts(1, 0) == pytest.approx(15, abs=1)
    assert budget.allowance_of_texts(1, 20) == pytest.approx(5, abs=1)
    assert budget.allowance_of_texts(1, 40) == pytest.approx(5, abs=1), "they never starve"
    assert budget.most_s_of_texts(1, 0) == pytest.approx(0.04)
    assert budget.most_s_of_texts(1, 20) == pytest.approx(0.02, abs=0.001)
    assert budget.most_s_of_texts(1, 40) == pytest.approx(0.01)
    assert budget.allowance(1) == pytest.approx(30, abs=1), (
        "what a text costs is no matter of prefill"
    )


def test_texts_behind_many_tokens_take_as_long_as_others():
    budget = PrefillBudget(0.05, 4096)
    budget.observe(1, 0, 0.01)
    took = {}
    for start in [0, 20_000, 500, 5_000] * 100:
        tokens = budget.allowance_of_texts(1, 0, 0, start)
        took[start] = tokens * (0.0005 + start * 4e-8)
        budget.observe_texts(1, tokens, took[start], tokens * start)
    assert max(took.values()) < 0.045
    assert min(took.values()) > 0.02
    assert budget.weight(1, 20_000) > 50, "what a text costs is no matter of prefill"


def test_alone_texts_take_what_a_step_has_left():
    budget = PrefillBudget(0.05, 512)
    assert budget.allowance_of_texts(0, 0) == 512
    assert budget.allowance_of_texts(0, 300) == 212
    assert budget.allowance_of_texts(0, 512) == 128
    assert PrefillBudget(0.05, 2).allowance_of_texts(0, 2) == 1
    assert budget.most_s_of_texts(0, 300) == math.inf
