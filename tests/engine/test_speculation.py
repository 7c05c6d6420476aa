"""With drafts or without, in whatever company, everybody says the same."""

from dataclasses import replace

import numpy as np
import pytest

from drafting import assert_only_verified, drafting_engine
from fake_pages import FakePagedRunner
from fake_runner import FakeRunner
from hearth.backends.contract.events import Token
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.choices import ChoiceGroup
from hearth.backends.engine.draft_model import DraftModel
from hearth.backends.engine.drafts import Speculating
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.ngram import LONGEST, NgramIndex
from hearth.backends.engine.speculation import Speculation
from oracles import OddAfterEven
from speakers import GREEDY, Listener, at_rest, drain, generation

SEEDED = SamplingParams(seed=5, temperature=0.9)


class Markov(FakeRunner):
    """What follows depends on the last token alone, so that texts repeat themselves."""

    def logits(self, tokens):
        return 3 * super().logits(tokens[-1:])


CASES = {
    "greedy": {"params": GREEDY},
    "seeded": {"params": SEEDED},
    "penalties": {
        "params": replace(
            SEEDED,
            repetition_penalty=1.3,
            frequency_penalty=0.4,
            presence_penalty=0.3,
            dry_multiplier=0.8,
            logit_bias={3: 2.0, 9: -100},
        )
    },
    "logprobs": {"params": replace(SEEDED, logprobs=3)},
    "stops": {"params": SEEDED, "stops": ("K", "ab", "7")},
    "min_tokens": {"params": SEEDED, "stops": ("K",), "min_tokens": 11, "end_ids": {1, 2, 3, 4}},
    "end": {"params": SEEDED, "end_ids": {token for token in range(97) if token % 10 == 0}},
    "grammar": {"params": SEEDED, "grammar": True},
    "greedy grammar": {"params": GREEDY, "grammar": True},
    "choices": {"params": SEEDED, "count": 3},
}


def runner_of(kind):
    sizes = {"slots": 8, "pool": 600, "context": 128, "chunk": 48}
    if kind == "sequences":
        return FakeRunner(**sizes)
    if kind == "markov":
        return Markov(**sizes)
    return FakePagedRunner(page=4, windows=(None, 6), **sizes)


def said_by_eight(kind, case, mode=None):
    """The events of eight requests at once, and the engine."""
    runner = runner_of(kind)
    engine = drafting_engine(runner, lambda: 0.0, wrong_at=3)
    heard = []
    for ident in range(8):
        prompt = [*range(40, 40 + 3 * (ident % 3)), *range(ident, ident + 9)]
        how = dict(case)
        count, has_grammar = how.pop("count", 1), how.pop("grammar", False)
        params = how.pop("params")
        listener = Listener()
        group = ChoiceGroup(listener, count)
        for index in range(count):
            own = params if params.seed is None else replace(params, seed=100 * ident + index)
            made, _ = generation(
                ident,
                prompt,
                runner,
                tokens=30,
                params=own,
                emit=group.emitter(index) if count > 1 else listener,
                index=index,
                matcher=OddAfterEven(97) if has_grammar else None,
                **how,
            )
            made.speculating = None if mode is None else Speculating(mode, 4)
            engine.submit(made)
        heard.append(listener)
    drain(engine)
    assert at_rest(engine, runner)
    return heard, runner


def told(listener):
    """What a client sees, apart from how long it took."""
    last = listener.last
    tokens = [event for event in listener.events if isinstance(event, Token)]
    choices = sorted({event.index for event in tokens})
    return (
        [[i for event in tokens if event.index == index for i in event.ids] for index in choices],
        ["".join(e.text for e in tokens if e.index == index) for index in choices],
        [
            [one for event in tokens if event.index == index for one in event.logprobs or ()]
            for index in choices
        ],
        (last.reason, last.usage, last.stop, last.notices),
    )


@pytest.mark.parametrize("mode", ["draft", "ngram", "auto"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["sequences", "windows", "markov"])
def test_drafts_change_nothing_that_is_said(kind, name, mode):
    case = CASES[name]
    without, plain = said_by_eight(kind, case)
    heard, runner = said_by_eight(kind, case, mode)
    assert [told(one) for one in heard] == [told(one) for one in without]
    if name == "greedy" and (mode == "draft" or kind == "markov"):
        assert len(runner.tape) < len(plain.tape)


def test_right_drafts_bring_several_tokens_a_step():
    runner = FakeRunner(slots=1, chunk=16)
    engine = drafting_engine(runner, lambda: 0.0, wrong_at=10**9)
    made, listener = generation(
        1, [1, 2, 3], runner, tokens=21, speculating=Speculating("draft", 4)
    )
    engine.submit(made)
    drain(engine)
    assert listener.ids == runner.greedy([1, 2, 3], 21)
    assert [len(plan.rows[0].tokens) for plan in runner.tape] == [3, 5, 5, 5, 5]
    assert made.speculating.drafted == made.speculating.accepted == [4, 4, 4, 4]
    stats = engine.stats()
    assert stats.drafted_tokens == stats.accepted_tokens == (4, 4, 4, 4)


def test_drafts_take_at_most_half_of_a_step():
    runner = FakeRunner(slots=4, chunk=10)
    engine = drafting_engine(runner, lambda: 0.0)
    for ident in range(4):
        prompt = list(range(ident, ident + 12))
        made, _ = generation(ident, prompt, runner, tokens=20, speculating=Speculating("draft", 8))
        engine.submit(made)
    drain(engine)
    drafts = [sum(row.drafts for row in plan.rows) for plan in runner.tape]
    assert max(drafts) == 5
    assert max(plan.tokens for plan in runner.tape) <= 10


@pytest.mark.parametrize("kind", ["recurrent", "sliding"])
def test_a_memory_that_cannot_roll_back_gets_no_drafts(kind):
    runner = FakeRunner(kind=kind)
    engine = drafting_engine(runner, lambda: 0.0)
    made, listener = generation(1, [1, 2, 3], runner, speculating=Speculating("draft", 4))
    engine.submit(made)
    drain(engine)
    assert listener.ids == runner.greedy([1, 2, 3], 10)
    assert not any(row.drafts for plan in runner.tape for row in plan.rows)


def test_what_a_failing_draw_leaves_is_not_held(monkeypatch):
    runner = FakeRunner()
    engine = drafting_engine(runner, lambda: 0.0)
    made, listener = generation(1, [1, 2, 3], runner, speculating=Speculating("draft", 4))
    engine.submit(made)
    engine.turn()
    draw, calls = made.sampler.draw, []

    def fail(*args, **how):
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("in the middle of a row")
        return draw(*args, **how)

    monkeypatch.setattr(made.sampler, "draw", fail)
    drain(engine)
    assert len(calls) == 2
    assert listener.over
    assert_only_verified(engine)
    assert at_rest(engine, runner)


# ---- which drafts, and how long


def naive(tokens, most):
    """The longest match of the end of `tokens` (3 to `LONGEST`), the most recent of equals."""
    for length in range(min(LONGEST, len(tokens) - 1), 2, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                after = tokens[end:]
                return [after[at % len(after)] for at in range(most)], length
    return [], 0


@pytest.mark.parametrize("vocab", [2, 4, 30])
def test_ngrams_find_the_longest_match_and_the_most_recent_of_equals(vocab):
    random = np.random.default_rng(vocab)
    for _ in range(20):
        tokens = random.integers(0, vocab, 120).tolist()
        index, size = NgramIndex(), 1
        while size < len(tokens):
            assert index.draft(tokens[:size], 6) == naive(tokens[:size], 6)
            size += int(random.integers(1, 6))


class Lone:
    """A sequence that says `tokens` over and over."""

    def __init__(self, mode, most=6):
        self.tokens = list(range(10)) * 3
        self.most_drafts = 100
        self.speculating = Speculating(mode, most)

    @property
    def total(self):
        return len(self.tokens)


def lengths(step_s, right, steps=400, mode="auto"):
    """How long the drafts of a sequence become where steps of n tokens take `step_s(n)` seconds,
    and every draft is right up to `right` tokens.
    """
    speculation = Speculation(None, possible=True)
    sequence, made = Lone(mode), []
    for _ in range(steps):
        draft = speculation.draft([sequence], 32, lambda one, more: True).get(sequence)
        drafts = [] if draft is None else draft.tokens
        made.append(len(drafts))
        if drafts:
            sequence.speculating.verified(len(drafts), min(right, len(drafts)))
        speculation.costs.observe(1 + len(drafts), step_s(1 + len(drafts)))
        sequence.tokens.append(sequence.tokens[-10])
    return made


def test_auto_drafts_where_rows_are_cheap_and_right():
    made = lengths(lambda rows: 0.010 + 0.0005 * rows, right=6)[20:]
    assert made.count(6) > 0.95 * len(made)


def test_auto_stops_where_nothing_is_right_and_hardly_probes():
    made = lengths(lambda rows: 0.010 + 0.0005 * rows, right=0, steps=1000)
    assert sum(made[:40]) > 0
    assert sum(length > 0 for length in made[40:]) <= 8
    assert set(made[40:]) <= {0, 2}


def test_auto_stops_where_rows_cost_as_much_as_steps():
    made = lengths(lambda rows: 0.010 * rows, right=6)
    assert sum(length > 0 for length in made[40:]) <= 400 // 16


def test_other_modes_always_draft():
    assert set(lengths(lambda rows: 0.010 * rows, right=0, mode="ngram")) == {6}


# ---- a draft model


def drafted_by(drafts, kind, case):
    """What eight requests say with a draft model over the runner `drafts`, and their engine."""
    runner = runner_of(kind)
    engine = Engine(runner, kv_clock=lambda: 0.0, drafter=DraftModel(drafts, 97))
    made = [
        generation(
            ident,
            list(range(ident, ident + 9 + 30 * (ident % 2))),
            runner,
            tokens=30,
            speculating=Speculating("draft", 4),
            **case,
        )
        for ident in range(8)
    ]
    engine.submit(*(one for one, _ in made))
    drain(engine)
    assert at_rest(engine, runner)
    return [listener for _, listener in made], runner, engine


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("kind", ["sequences", "windows"])
def test_a_model_that_is_its_own_draft_is_always_right(kind, params):
    drafts = runner_of(kind)
    heard, runner, engine = drafted_by(drafts, kind, {"params": params})
    runner = runner_of(kind)
    plain = [
        generation(0, list(range(i, i + 9 + 30 * (i % 2))), runner, tokens=30, params=params)
        for i in range(8)
    ]
    alone = Engine(runner, kv_clock=lambda: 0.0)
    alone.submit(*(one for one, _ in plain))
    drain(alone)
    assert [one.ids for one in heard] == [one.ids for _, one in plain]
    stats = engine.stats()
    assert stats.accepted_tokens == stats.drafted_tokens
    assert stats.drafted_tokens[3] > 0
    assert stats.generated_tokens == 240


def test_a_draft_model_holds_only_what_is_known():
    drafts = runner_of("windows")
    compute, model = drafts.step, None

    def step(plan):
        result = compute(plan)
        for sequence, slot in model._slots.items():
            prefix = model._cached.kv._slots[slot]
            nodes = [] if prefix is None else [*prefix.node.upwards()][::-1]
            held = [token for node in nodes for token in node.tokens]
            assert held == sequence.tokens[: len(held)]
        return result

    drafts.step = step
    runner = runner_of("windows")
    model = DraftModel(drafts, 97)
    engine = Engine(runner, kv_clock=lambda: 0.0, drafter=model)
    made, listener = generation(
        1, list(range(9)), runner, tokens=30, params=SEEDED, speculating=Speculating("draft", 3)
    )
    engine.submit(made)
    drain(engine)
    assert len(listener.ids) == 30
    assert at_rest(engine, runner)
    assert not model._slots
    model._cached.kv.check_integrity()


@pytest.mark.parametrize("trouble", ["fail_at", "busy_at"])
def test_without_a_draft_model_that_works_the_text_goes_on(trouble):
    drafts = runner_of("sequences")
    setattr(drafts, trouble, 4)
    heard, runner, _ = drafted_by(drafts, "sequences", {})
    for ident, listener in enumerate(heard):
        prompt = list(range(ident, ident + 9 + 30 * (ident % 2)))
        assert listener.ids == runner.greedy(prompt, 30)
    assert len(drafts.tape) > 4
