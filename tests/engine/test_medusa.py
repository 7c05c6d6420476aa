"""Trees of the most likely guesses, and the choice of a drafter for a sequence."""

import itertools
import math
import random

import pytest

from fake_runner import FakeRunner
from hearth.backends.engine.drafts import Draft, Speculating
from hearth.backends.engine.medusa import HeadsDrafter, tree_of
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.engine.speculation import Drafter, Speculation
from speakers import generation


def guesses_at_random(rng, heads, choices):
    chances = [sorted((rng.random() for _ in range(choices)), reverse=True) for _ in range(heads)]
    return [
        [(math.log(chance / 4), 100 * head + rank) for rank, chance in enumerate(level)]
        for head, level in enumerate(chances)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_has_the_likeliest_ways(seed):
    rng = random.Random(seed)
    guesses = guesses_at_random(rng, rng.randint(1, 4), rng.randint(1, 3))
    every = {
        tuple(token for _, token in way): sum(chance for chance, _ in way)
        for depth in range(1, len(guesses) + 1)
        for way in itertools.product(*guesses[:depth])
    }
    most = rng.randint(1, 12)
    draft = tree_of(guesses, most)
    ways = []
    parents = draft.parents or range(len(draft.tokens))
    for token, parent in zip(draft.tokens, parents, strict=True):
        ways.append((*(ways[parent - 1] if parent else ()), token))
    assert len(set(ways)) == len(ways) == min(most, len(every))
    least = min(every[way] for way in ways)
    assert all(every[way] <= least for way in every.keys() - set(ways))


def test_the_likeliest_way_is_in_one_piece():
    """Then its accepted tokens need not be moved."""
    guesses = [[(-0.1, 1), (-2.0, 2)], [(-0.2, 3), (-0.4, 4)], [(-0.3, 5), (-9.0, 6)]]
    draft = tree_of(guesses, 5)
    assert (draft.tokens, draft.parents) == ([1, 3, 5, 4, 5], [0, 1, 2, 1, 4])
    row = Row(0, 7, [9, *draft.tokens], 6, drafts=5, parents=draft.parents)
    assert (row.path([1, 4, 5, 8]), row.path([1, 3, 3]), row.path([2])) == ([1, 4, 5], [1, 2], [])
    assert (row.depth, row.depths) == (3, [1, 2, 3, 2, 3])


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class FakeHeads:
    """Guess 50, 51, … whatever the state is."""

    nbytes = 0
    count = 3

    def __init__(self, clock=None, call_s=0.0):
        self._clock, self._call_s = clock or Clock(), call_s

    def guesses(self, hidden, heads, choices):
        self._clock.now_s += self._call_s
        level = [(-1.0 - rank, 50 + rank) for rank in range(choices)]
        return [[level for _ in range(heads)] for _ in hidden]


class FakeModel(Drafter):
    mode = "draft"
    nbytes = 0
    token_s = 0.0

    def __init__(self, clock, token_s):
        self._clock, self.token_s = clock, token_s

    def draft(self, lengths):
        self._clock.now_s += max(lengths.values()) * self.token_s
        return {sequence: Draft([7] * length) for sequence, length in lengths.items()}

    def forget(self, sequence):
        """Nothing to release."""


def drawn_last(drafter, sequence):
    """Mark the last token of `sequence` as drawn by a step."""
    total = sequence.total
    row = Row(sequence.slot, total - 2, sequence.tokens[-2:-1], 1)
    drafter.observe(StepPlan((row,)), ["state"])


def chosen(right, *, heads_s, model_s, steps=3000):
    """How often each kind of draft was chosen in the end, for a sequence whose drafts are right at
    the number of positions given by kind, where a step takes 10 ms; and its tokens per second
    relative to decoding without drafts.
    """
    clock = Clock()
    heads = HeadsDrafter(FakeHeads(clock, heads_s), trees=False, clock=clock)
    drafters = [heads, FakeModel(clock, model_s)]
    speculation = Speculation(drafters, possible=True, clock=clock)
    sequence, _ = generation(1, [5, 6, 7, 8], FakeRunner(), tokens=100_000)
    sequence.speculating = Speculating("auto", 3)
    sequence.slot = 0
    modes = []
    for _ in range(steps):
        drawn_last(heads, sequence)
        draft = speculation.draft([sequence], 32, lambda one, more: True).get(sequence)
        tokens = [] if draft is None else draft.tokens
        modes.append(None if draft is None else "medusa" if tokens[0] == 50 else "draft")
        brought = 0
        if tokens:
            brought = min(right[modes[-1]], len(tokens))
            row = Row(0, 0, tokens, 1, drafts=len(tokens))
            speculation.verified(sequence, row, brought)
        speculation.observe(1 + len(tokens), 0.010)
        clock.now_s += 0.010
        sequence.tokens += range(len(sequence.tokens), len(sequence.tokens) + brought + 1)
    shares = {mode: modes[-200:].count(mode) / 200 for mode in ("medusa", "draft")}
    return shares, (sequence.total - 4) / clock.now_s * 0.010


@pytest.mark.parametrize(
    ("right", "model_s", "mode"),
    [
        ({"medusa": 2, "draft": 1}, 0.001, "medusa"),
        ({"medusa": 0, "draft": 3}, 0.001, "draft"),
        ({"medusa": 2, "draft": 3}, 0.010, "medusa"),
    ],
)
def test_auto_takes_the_drafter_that_brings_the_most(right, model_s, mode):
    """The more accurate one, unless its extra cost exceeds its gain."""
    assert chosen(right, heads_s=0.001, model_s=model_s)[0][mode] > 0.9


@pytest.mark.parametrize("cost_s", [0.0001, 0.003, 0.05])
def test_where_no_drafter_is_right_auto_loses_a_part_of_the_time(cost_s):
    """The time that it may save up for trials is lost at most once."""
    _, speed = chosen({"medusa": 0, "draft": 0}, heads_s=cost_s, model_s=cost_s)
    assert speed > 0.985


def test_without_a_state_there_is_no_draft():
    """After a sequence lost its slot, or its last token was drawn elsewhere."""
    heads = HeadsDrafter(FakeHeads(), trees=True)
    speculation = Speculation([heads], possible=True)
    sequence, _ = generation(1, [5, 6], FakeRunner(), tokens=20)
    sequence.speculating = Speculating("medusa", 5)
    sequence.slot = 0
    drawn_last(heads, sequence)
    assert speculation.draft([sequence], 32, lambda one, more: True)[sequence].parents
    sequence.tokens.append(3)
    assert not speculation.draft([sequence], 32, lambda one, more: True)
    drawn_last(heads, sequence)
    sequence.slot = None
    assert not speculation.draft([sequence], 32, lambda one, more: True)
