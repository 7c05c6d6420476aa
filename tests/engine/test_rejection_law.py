"""Text with rejection sampling has the model's distribution (G-tests at 1e-4, fixed seeds), and
each known error in the method is detected.
"""

import math
from collections import Counter
from copy import copy
from dataclasses import replace
from functools import cache
from itertools import product
from typing import get_args

import numpy as np
import pytest

from fake_runner import FakeRunner
from fake_store import Cell
from hearth.backends.contract.sampling import SamplingParams, SpeculateRule
from hearth.backends.engine import sampler as sampler_module
from hearth.backends.engine.draft_model import DraftModel
from hearth.backends.engine.drafts import Speculating
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.generation import Generation
from hearth.backends.engine.laws import Law
from hearth.backends.engine.runner import StepResult
from hearth.backends.engine.sampler import Sampler
from speakers import drain, generation

VOCAB = 32
SMALL = 6
LEAST_P = 1e-4
DRAWS, MANY_DRAWS = 2_500, 100_000
TEXT_TOKENS = 125
MANY = (pytest.mark.slow, pytest.mark.timeout(3600))

OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
SAMPLERS = {
    "temperature": replace(OFF, temperature=1.3),
    "top_k": replace(OFF, temperature=0.7, top_k=8),
    "top_p, min_p": replace(OFF, top_p=0.85, min_p=0.03),
    "typical_p": replace(OFF, typical_p=0.8),
    "xtc": replace(OFF, xtc_probability=0.5, xtc_threshold=0.1),
    "penalties": replace(
        OFF,
        repetition_penalty=1.6,
        frequency_penalty=0.5,
        presence_penalty=1.0,
        repetition_window=1,
        logit_bias={3: 1.5, 9: -100.0},
    ),
}

RANDOM = np.random.default_rng(21)
TABLE = RANDOM.normal(0, 1.8, (VOCAB, VOCAB)).astype(np.float32)
DRAFTED = (TABLE + RANDOM.normal(0, 0.8, TABLE.shape)).astype(np.float32)
MASK = RANDOM.random((VOCAB, VOCAB)) < 0.5
"""The tokens that a grammar allows after each token."""


class Chain(FakeRunner):
    """The next token depends on the last token alone: [V, V] logits. Steps are not checked."""

    def __init__(self, table):
        super().__init__(vocab=len(table), slots=8, pool=4096, context=512, chunk=256)
        self.table = table

    def step(self, plan):
        logits = {}
        for row in plan.rows:
            self.store._held[row.handle].cells += [
                Cell(next(self.store._numbers), token) for token in row.tokens
            ]
            if row.outputs:
                logits[row.slot] = self.table[list(row.tokens[-row.outputs :])]
        return StepResult(logits)


class GreedyDrafts(DraftModel):
    """Drafts the most likely tokens, so that no other draft was possible."""

    def _ahead(self, sequence):
        made = super()._ahead(sequence)
        made.draft.laws = None
        made._sampler.is_greedy = True
        return made


DRAFTERS = {"sampled": DraftModel, "greedy": GreedyDrafts, "ngram": DraftModel}


class Follows:
    """A `Matcher`: it allows the tokens that `MASK` allows after the last token."""

    notices = ()
    complete = False

    def __init__(self, last):
        self._last = last

    def copy(self):
        return Follows(self._last)

    def allows(self, token):
        return bool(MASK[self._last, token])

    def allowed(self):
        return MASK[self._last]

    def accept(self, token):
        assert self.allows(token)
        self._last = token


# ---- the law, as it is defined


def softmax(logits):
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def reaching(order, chances, mass):
    """The smallest number of first places of `order` that reach `mass`."""
    return order[: 1 + int(np.searchsorted(np.cumsum(chances[order]), mass))]


def truncated(logits, params, *, xtc):
    """[V] the distribution that is drawn from: each step as `SamplingParams` defines it."""
    pool = np.argsort(-logits, kind="stable")
    pool = pool[np.isfinite(logits[pool])]
    if params.top_k:
        pool = pool[: params.top_k]
    if params.typical_p < 1:
        chances = softmax(logits[pool])
        entropy = -(chances * np.log(chances)).sum()
        order = np.argsort(np.abs(-np.log(chances) - entropy), kind="stable")
        pool = pool[np.sort(reaching(order, chances, params.typical_p))]
    if params.top_p < 1:
        pool = pool[reaching(np.arange(pool.size), softmax(logits[pool]), params.top_p)]
    if params.min_p:
        chances = softmax(logits[pool])
        pool = pool[chances >= params.min_p * chances.max()]
    if xtc:
        top = np.flatnonzero(softmax(logits[pool]) >= params.xtc_threshold)
        pool = np.delete(pool, top[:-1])
    law = np.zeros(logits.size)
    law[pool] = softmax(logits[pool] / params.temperature)
    return law


def law_after(tokens, table, params, mask=None):
    """[V] the distribution of the token after `tokens`; with a `mask` the one of decision 0008."""
    logits = table[tokens[-1]].copy()
    for token, bias in params.logit_bias.items():
        logits[token] += bias if bias > -100 else -np.inf
    window = params.repetition_window
    for token, count in Counter(tokens[-window:] if window > 0 else ()).items():
        penalty = params.repetition_penalty
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        logits[token] -= params.frequency_penalty * count + params.presence_penalty
    mixed = np.zeros(logits.size)
    for xtc, share in ((True, params.xtc_probability), (False, 1 - params.xtc_probability)):
        if share:
            law = truncated(logits, params, xtc=xtc)
            if mask is not None:
                redraw = truncated(np.where(mask, logits, -np.inf), params, xtc=xtc)
                law = law * mask + law[~mask].sum() * redraw
            mixed += share * law
    return mixed


def p_value(counts, laws):
    """The p-value of the G-test of counts against distributions, both [contexts, cells]. Cells with
    fewer than five expected counts are merged. The tail of chi-square is Wilson and Hilferty's
    (1931).
    """
    if counts[laws == 0].any():
        return 0.0
    statistic, freedom = 0.0, 0
    for seen, law in zip(counts, laws, strict=True):
        expected = seen.sum() * law
        order = np.argsort(expected)
        few = max(
            int((expected < 5).sum()), int(np.searchsorted(np.cumsum(expected[order]), 5)) + 1
        )
        cells = np.append(seen[order[few:]], seen[order[:few]].sum())
        wanted = np.append(expected[order[few:]], expected[order[:few]].sum())
        some = cells > 0
        statistic += 2 * (cells[some] * np.log(cells[some] / wanted[some])).sum()
        freedom += cells.size - 1
    spread = 2 / (9 * freedom)
    return math.erfc(((statistic / freedom) ** (1 / 3) - 1 + spread) / math.sqrt(2 * spread)) / 2


# ---- text


def texts(
    table, drafted, drafter, params, prompts, tokens, *, grammar=False, most=2, rule="rejection"
):
    """Tokens after each of `prompts`, and the drafts that were made and accepted, by position."""
    runner = Chain(table)
    model = DRAFTERS[drafter](Chain(drafted), len(table))
    engine = Engine(runner, kv_clock=lambda: 0.0, drafters=[model])
    mode = "ngram" if drafter == "ngram" else "draft"
    said = []
    for ident, prompt in enumerate(prompts):
        made, listener = generation(
            ident,
            list(prompt),
            runner,
            tokens=tokens,
            params=replace(params, seed=ident),
            matcher=Follows(prompt[-1]) if grammar else None,
            reuse_prefix=True,
            speculating=Speculating(mode, most, rule),
        )
        engine.submit(made)
        said.append(listener)
        if len(said) % 8 == 0:
            drain(engine)
            engine.kv.clear()
    drain(engine)
    stats = engine.stats()
    return [one.ids for one in said], stats.drafted_tokens, stats.accepted_tokens


def chain_p(drafter, params, *, grammar, draws):
    """The p-value of `draws` successive tokens, given the one before each, and the share of drafts
    that were accepted.
    """
    prompts = [(at % VOCAB,) for at in range(draws // TEXT_TOKENS)]
    said, drafted, accepted = texts(
        TABLE, DRAFTED, drafter, params, prompts, TEXT_TOKENS, grammar=grammar
    )
    counts = np.zeros((VOCAB, VOCAB))
    for prompt, ids in zip(prompts, said, strict=True):
        assert len(ids) == TEXT_TOKENS
        np.add.at(counts, ([*prompt, *ids[:-1]], ids), 1)
    laws = [
        law_after([last], TABLE, params, MASK[last] if grammar else None) for last in range(VOCAB)
    ]
    return p_value(counts, np.array(laws)), sum(accepted) / sum(drafted)


@pytest.mark.parametrize(
    "draws", [DRAWS, pytest.param(MANY_DRAWS, marks=MANY)], ids=["few", "many"]
)
@pytest.mark.parametrize("grammar", [False, True], ids=["free", "grammar"])
@pytest.mark.parametrize("drafter", ["sampled", "greedy"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_tokens_have_the_law_of_the_model(name, drafter, grammar, draws):
    p, accepted = chain_p(drafter, SAMPLERS[name], grammar=grammar, draws=draws)
    assert p > LEAST_P
    assert 0.1 < accepted < 0.95


JOINT = replace(
    OFF,
    temperature=0.9,
    repetition_penalty=1.5,
    frequency_penalty=0.4,
    presence_penalty=0.3,
    repetition_window=8,
)
SMALL_TABLE = np.random.default_rng(3).normal(0, 1.2, (SMALL, SMALL)).astype(np.float32)
SMALL_DRAFTED = SMALL_TABLE + np.random.default_rng(4).normal(0, 0.7, (SMALL, SMALL)).astype(
    np.float32
)
PROMPT = np.random.default_rng(5).integers(0, SMALL, 150).tolist()


@cache
def joint_law():
    """[6, 6, 6] distribution of the second to fourth token after `PROMPT`."""
    law = np.zeros((SMALL,) * 3)

    def go(tokens, chance):
        if len(tokens) == 4:
            law[tuple(tokens[1:])] += chance
            return
        for token, own in enumerate(law_after([*PROMPT, *tokens], SMALL_TABLE, JOINT)):
            go([*tokens, token], chance * own)

    go([], 1.0)
    return law


def joint_p(drafter, draws):
    """The p-value of three successive tokens, all from one draft."""
    prompts = [PROMPT] * draws
    said, drafted, accepted = texts(SMALL_TABLE, SMALL_DRAFTED, drafter, JOINT, prompts, 5, most=3)
    assert draws / 2 < sum(drafted)
    assert 0.1 < sum(accepted) / sum(drafted) < 0.95
    counts = np.zeros((SMALL,) * 3)
    for ids in said:
        counts[tuple(ids[1:4])] += 1
    return p_value(counts.reshape(1, -1), joint_law().reshape(1, -1))


@pytest.mark.parametrize(
    "draws", [1_000, pytest.param(MANY_DRAWS, marks=MANY)], ids=["few", "many"]
)
@pytest.mark.parametrize("drafter", ["sampled", "greedy", "ngram"])
def test_three_successive_tokens_have_the_joint_law_with_penalties(drafter, draws):
    assert joint_p(drafter, draws) > LEAST_P


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_rejection_accepts_what_two_laws_share(temperature):
    """The acceptance of a sampled draft is 1 - TV, where match has (1 - TV) / (1 + TV) or more; for
    a greedy draft it is its probability with both rules.
    """
    params = replace(OFF, temperature=temperature)
    laws = [[law_after([a], table, params) for a in range(VOCAB)] for table in (TABLE, DRAFTED)]
    apart = 0.5 * np.abs(np.subtract(*laws)).sum(axis=1).mean()
    accepted = {}
    for drafter, rule in product(("sampled", "greedy"), get_args(SpeculateRule)):
        prompts = [(at % VOCAB,) for at in range(24)]
        _, tried, right = texts(
            TABLE, DRAFTED, drafter, params, prompts, TEXT_TOKENS, most=4, rule=rule
        )
        first, a_step = right[0] / tried[0], 1 + sum(right) / tried[0]
        accepted[drafter, rule] = first
        print(f"| {temperature} | {apart:.2f} | {drafter} | {rule} | {first:.2f} | {a_step:.2f} |")
    assert accepted["sampled", "rejection"] == pytest.approx(1 - apart, abs=0.06)
    assert accepted["sampled", "match"] > (1 - apart) / (1 + apart) - 0.03
    assert accepted["sampled", "match"] < accepted["sampled", "rejection"]
    assert accepted["greedy", "match"] == pytest.approx(accepted["greedy", "rejection"], abs=0.05)


# ---- mutants


def other_q(monkeypatch):
    """q is stored before temperature and truncation."""
    guess = Sampler.guess

    def mutant(self, logits, position, **how):
        plain = copy(self)
        plain.params = OFF
        return guess(self, logits, position, **how)[0], plain.law(logits, position, **how)

    monkeypatch.setattr(Sampler, "guess", mutant)


def residual_after_match(monkeypatch):
    """The draft is compared with a separate draw; if they differ, another token comes from the
    residual.
    """
    verify = Sampler.verify

    def mutant(self, logits, position, draft, guess, **how):
        drawn = self.draw(logits, position, **how)
        if drawn.id == draft:
            return drawn
        monkeypatch.setattr(Law, "chance", lambda law, token: 0.0)  # Never accepted.
        with_residual = verify(self, logits, position, draft, guess, **how)
        monkeypatch.setattr(Law, "chance", chance)
        return with_residual

    chance = Law.chance
    monkeypatch.setattr(Sampler, "verify", mutant)


def greedy_with_soft_q(monkeypatch):
    def mutant(self, logits, position, **how):
        law = self.law(logits, position, **how)
        return int(law.ids[law.chances.argmax()]), law

    monkeypatch.setattr(Sampler, "guess", mutant)


def one_uniform(monkeypatch):
    monkeypatch.setattr(sampler_module, "RECOVER", sampler_module.ACCEPT)


def bonus_of_another_row(monkeypatch):
    take = Generation.take

    def mutant(self, row, result):
        if row.drafts:
            logits = result.logits[row.slot].copy()
            logits[-1] = logits[-2]
            result = StepResult({row.slot: logits})
        return take(self, row, result)

    monkeypatch.setattr(Generation, "take", mutant)


def penalties_ignore_drafts(monkeypatch):
    """At every position of a row they are the penalties before the row."""
    take = Generation.take

    def mutant(self, row, result):
        accepted = []
        self.sampler.accept = accepted.append
        reason = take(self, row, result)
        del self.sampler.accept
        for token in accepted:
            self.sampler.accept(token)
        return reason

    monkeypatch.setattr(Generation, "take", mutant)


def residual_as_it_is(monkeypatch):
    """The residual is not renormalised."""

    def mutant(law, guess):
        left = np.maximum(law.chances - np.array([guess.chance(t) for t in law.ids]), 0.0)
        return Law(law.ids, left)

    monkeypatch.setattr(sampler_module, "residual", mutant)


MUTANTS = {
    other_q: ("top_k", "sampled"),
    residual_after_match: ("temperature", "sampled"),
    greedy_with_soft_q: ("temperature", "sampled"),
    one_uniform: ("temperature", "sampled"),
    bonus_of_another_row: ("temperature", "sampled"),
    penalties_ignore_drafts: ("penalties", "sampled"),
    residual_as_it_is: ("temperature", "greedy"),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.__name__)
def test_a_mutant_is_noticed(monkeypatch, mutant):
    name, drafter = MUTANTS[mutant]
    mutant(monkeypatch)
    p, _ = chain_p(drafter, SAMPLERS[name], grammar=False, draws=2 * DRAWS)
    assert p < LEAST_P
