"""With or without drafts, and whatever else runs, every request generates the same text."""

import itertools
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from drafting import assert_only_verified, drafting_engine
from fake_pages import FakePagedRunner
from fake_runner import FakeRunner
from hearth.backends.contract.events import Token
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.choices import ChoiceGroup
from hearth.backends.engine.draft_model import DraftModel
from hearth.backends.engine.drafts import (
    SEQUENCE_WINDOW,
    WORKER_WINDOW,
    Chances,
    Draft,
    Speculating,
)
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.ngram import LONGEST, NgramIndex, draft_from
from hearth.backends.engine.past_texts import (
    HALF_TOKENS,
    SHORTEST_OF_OTHERS,
    Follower,
    PastTexts,
)
from hearth.backends.engine.runner import Row
from hearth.backends.engine.speculation import Drafter, Speculation
from hearth.backends.errors import Busy, InternalError
from oracles import OddAfterEven
from speakers import GREEDY, Listener, at_rest, drain, generation

SEEDED = SamplingParams(seed=5, temperature=0.9)


class ByLastThree(FakeRunner):
    """The next token depends on the last three tokens, so that texts with the same end continue
    alike.
    """

    def logits(self, tokens):
        return super().logits(tokens[-3:])


class Markov(FakeRunner):
    """The next token depends on the last token alone, so that texts repeat themselves."""

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


def said_by_eight(kind, case, mode=None, rule="match"):
    """The events of eight requests at once, and of eight later ones that begin with other tokens
    and continue alike, and the engine.
    """
    runner = runner_of(kind)
    engine = drafting_engine(runner, lambda: 0.0, wrong_at=3)
    heard = []
    for ident in range(16):
        if ident == 8:
            drain(engine)
        first = 40 + 10 * (ident // 8)
        prompt = [*range(first, first + 3 * (ident % 3)), *range(ident % 8, ident % 8 + 9)]
        how = dict(case)
        count, has_grammar = how.pop("count", 1), how.pop("grammar", False)
        params = how.pop("params")
        listener = Listener()
        group = ChoiceGroup(listener, count)
        for index in range(count):
            seed = 100 * (ident % 8) + index
            own = params if params.seed is None else replace(params, seed=seed)
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
            made.speculating = None if mode is None else Speculating(mode, 4, rule)
            engine.submit(made)
        heard.append(listener)
    drain(engine)
    assert at_rest(engine, runner)
    return heard, runner


def told(listener, *, counts_cached=True):
    """The events that a client sees, without timings.

    Args:
        counts_cached: include how much of the prompt was cached. With `auto`, which measures steps,
            timing decides which requests have ended when another begins.
    """
    last = listener.last
    usage = last.usage if counts_cached else replace(last.usage, cached_tokens=0)
    tokens = [event for event in listener.events if isinstance(event, Token)]
    choices = sorted({event.index for event in tokens})
    return (
        [[i for event in tokens if event.index == index for i in event.ids] for index in choices],
        ["".join(e.text for e in tokens if e.index == index) for index in choices],
        [
            [one for event in tokens if event.index == index for one in event.logprobs or ()]
            for index in choices
        ],
        (last.reason, usage, last.stop, last.notices),
    )


@pytest.mark.parametrize("mode", ["draft", "ngram", "auto"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["sequences", "windows", "markov"])
def test_drafts_change_nothing_that_is_said(kind, name, mode):
    case = CASES[name]
    without, plain = said_by_eight(kind, case)
    heard, runner = said_by_eight(kind, case, mode)
    sides = [[told(one, counts_cached=mode != "auto") for one in of] for of in (heard, without)]
    assert sides[0] == sides[1]
    if name == "greedy" and (mode == "draft" or kind == "markov"):
        assert len(runner.tape) < len(plain.tape)


@pytest.mark.parametrize("mode", ["draft", "ngram"])
@pytest.mark.parametrize("name", CASES)
def test_rejection_goes_with_all_that_an_answer_can_ask_for(name, mode):
    """The distribution is tested in `test_rejection_law.py`; greedy text is the same."""
    case = CASES[name]
    heard, runner = said_by_eight("markov", case, mode, "rejection")
    has_drafts = any(row.drafts for plan in runner.tape for row in plan.rows)
    assert has_drafts or (name, mode) == ("penalties", "ngram")
    if case["params"] is GREEDY:
        assert [told(one) for one in heard] == [
            told(one) for one in said_by_eight("markov", case)[0]
        ]
    for ident, listener in enumerate(heard):
        ids, texts, logprobs, (reason, usage, stop, _) = told(listener)
        assert len(ids) == case.get("count", 1)
        assert usage.completion_tokens == sum(map(len, ids))
        assert (reason == "length") == (max(map(len, ids)) == 30)
        if name == "stops" and stop:
            assert not any(each in texts[0] for each in case["stops"])
        if name == "logprobs":
            tokens = [*range(ident % 8, ident % 8 + 9), *ids[0]]
            for last, one in zip(tokens[8:], logprobs[0], strict=False):
                logits = runner.logits([last]).astype(np.float64)
                expected = logits[one.id] - np.log(np.exp(logits).sum())
                assert one.logprob == pytest.approx(expected, abs=1e-4)
                assert len(one.top) == 3


@pytest.mark.parametrize(
    ("how", "finds"),
    [
        ({}, True),
        ({"shares": False}, False),
        ({"clears": True}, False),
    ],
    ids=["same", "by itself", "cleared"],
)
@pytest.mark.parametrize("first_shares", [True, False])
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_other_chats_are_guessed_from(how, finds, first_shares, is_cancelled):
    runner = ByLastThree(slots=2, context=300, pool=900)
    engine = drafting_engine(runner, lambda: 0.0)
    said = []
    for ident, start in enumerate((40, 50)):
        changes = how if ident else {"shares": first_shares}
        made, listener = generation(
            ident,
            [start, *range(12)],
            runner,
            tokens=200 if is_cancelled and not ident else 60,
            speculating=Speculating("ngram", 4, shares=changes.get("shares", True)),
        )
        if changes.get("clears"):
            engine.clear_cache(lambda stats: None)
        engine.submit(made)
        if is_cancelled and not ident:
            while made.new_tokens < 60:
                engine.run_once()
            engine.cancel(0)
        drain(engine)
        said.append(listener.ids[:60])
    assert said[0] == said[1] == runner.greedy([50, *range(12)], 60)
    drafted, right = engine.stats().drafts_by.get("chats", (0, 0))
    assert (drafted == right > 40) if finds and first_shares else not drafted


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
    engine.run_once()
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
    """The longest match of the end of `tokens` (3 to `LONGEST`), the most recent of equally long
    ones.
    """
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
            place, matched = index.find(tokens[:size])
            found = draft_from(tokens[:size], place, 6) if matched else []
            assert (found, matched) == naive(tokens[:size], 6)
            size += int(random.integers(1, 6))


@pytest.mark.parametrize("vocab", [2, 40, 1000])
def test_what_followed_in_other_texts_is_found(vocab):
    """A continuation is found where the last tokens of a text occurred in another text, and only
    there.
    """
    random = np.random.default_rng(vocab)
    past, texts = PastTexts(), []
    for _ in range(30):
        text = random.integers(0, vocab, random.integers(0, 80)).tolist()
        if texts and random.random() < 0.7:  # Some contain a part of another text.
            other = texts[int(random.integers(len(texts)))]
            start = int(random.integers(len(other) + 1))
            text[10:10] = other[start : start + 40]
        follower = Follower()
        for size in range(len(text) + 1):
            known = text[:size]
            tokens, matched = follower.find(known, past, 5)
            ends = [
                (other, at)
                for other in texts
                for at in range(SHORTEST_OF_OTHERS, len(other))
                if other[at - SHORTEST_OF_OTHERS : at] == known[-SHORTEST_OF_OTHERS:]
            ]
            assert bool(tokens) == bool(ends and size >= SHORTEST_OF_OTHERS)
            if tokens:
                assert SHORTEST_OF_OTHERS <= matched <= LONGEST
                assert any(
                    other[at : at + 5] == tokens
                    and other[at - matched : at] == known[size - matched :]
                    for other, at in ends
                )
        past.add(text, 0)
        texts.append(text)


def test_texts_that_were_added_long_ago_are_forgotten():
    past = PastTexts()
    long = list(range(HALF_TOKENS // 4))
    for at in range(20):
        past.add([at, *long[at:], at], 0)
        if at % 3 == 0:
            assert past.find(long[-10:-1]) is not None
        assert past.nbytes < 2 * 4 * (HALF_TOKENS + 2 * HALF_TOKENS) + 4 * HALF_TOKENS
    past = PastTexts()
    past.add(list(range(10, 90)), 0)
    assert past.find(range(10, 50)) is not None
    for _ in range(9):
        past.add(long[100:], 0)
        assert past.find(long[200:300]) is not None
    assert past.find(range(10, 50)) is None
    past.add(list(range(10, 90)), 60)  # The other tokens are already there.
    assert past.find(range(10, 50)) is None
    assert past.find(range(40, 75)) is not None


class Lone:
    """A sequence that decodes alone."""

    most_drafts = 100
    cached = 0

    def __init__(self, tokens, mode, most=6):
        self.tokens = list(tokens)
        self.speculating = Speculating(mode, most)


def text_of(chance, count, vocab=8):
    """Tokens that repeat the ten tokens before them with this probability, and are random
    otherwise.
    """
    random = np.random.default_rng(5)
    tokens = list(range(10)) * 3
    for _ in range(count):
        repeats = random.random() < chance
        tokens.append(tokens[-10] if repeats else int(random.integers(vocab)))
    return tokens


def lengths(step_s, text, steps=400, mode="auto", drafters=(), clock=lambda: 0.0):
    """The draft lengths of a sequence that generates `text`, where steps of n tokens take
    `step_s(n)` seconds, and the number of tokens it generated.
    """
    speculation = Speculation(drafters, possible=True, clock=clock)
    sequence, made = Lone(text[:30], mode), []
    for _ in range(steps):
        draft = speculation.draft([sequence], 32, lambda one, more: True).get(sequence)
        drafts = [] if draft is None else draft.tokens
        made.append(len(drafts))
        after = text[len(sequence.tokens) :]
        right = next((at for at, one in enumerate(drafts) if one != after[at]), len(drafts))
        if drafts:
            speculation.verified(sequence, Row(0, 0, drafts, 1, drafts=len(drafts)), right)
        speculation.observe(1 + len(drafts), step_s(1 + len(drafts)))
        sequence.tokens += after[: right + 1]
    return made, len(sequence.tokens) - 30


def test_auto_drafts_where_rows_are_cheap_and_right():
    made, _ = lengths(lambda rows: 0.010 + 0.0005 * rows, text_of(1.0, 3000))
    assert made[20:].count(6) > 0.95 * len(made[20:])


def test_auto_compares_where_nothing_is_right_and_drafts_nothing():
    text = text_of(0.0, 1000, vocab=40)
    made, _ = lengths(lambda rows: 0.010 + 0.0005 * rows, text, steps=1000)
    assert sum(made) <= 10


def test_between_two_trials_few_steps_are_learned_from():
    """By this clock, each look-up takes a tenth of a step: nine of ten steps may not look up
    n-grams.
    """
    now = itertools.count(0.0, 0.001)
    speculation = Speculation((), possible=True, clock=lambda: next(now))
    learned = []
    learn = speculation.costs.observe
    speculation.costs.observe = lambda *step: (learned.append(step), learn(*step))
    sequence = Lone(text_of(0.0, 30, vocab=40), "auto")
    for _ in range(800):
        assert not speculation.draft([sequence], 32, lambda one, more: True)
        speculation.observe(1, 0.010)
    assert 100 <= len(learned) <= 200
    assert speculation.costs.seconds(1) == 0.010


def test_auto_stops_where_rows_cost_as_much_as_steps():
    made, _ = lengths(lambda rows: 0.010 * rows, text_of(1.0, 3000))
    assert sum(made[40:]) == 0


@pytest.mark.parametrize("chance", [0.3, 0.6, 0.8, 0.95])
def test_auto_is_never_slower_than_no_drafts_and_mostly_the_best_length(chance):
    def step_s(rows):
        return 0.010 + 0.0012 * rows

    def tok_per_s(mode, most):
        made, said = lengths(step_s, text_of(chance, 3000), mode=mode)
        return said / sum(step_s(1 + min(most, length)) for length in made)

    assert tok_per_s("auto", 6) > 0.98 * max(1 / step_s(1), 0.95 * tok_per_s("ngram", 6))


def test_other_modes_always_draft():
    made, _ = lengths(lambda rows: 0.010 * rows, text_of(0.9, 3000), mode="ngram")
    assert set(made) <= {0, 6}
    assert made.count(6) > 100


class Costly(Drafter):
    """A drafter that takes `first_s` to catch up with a sequence, then `token_s` per token; the
    first token of every third draft is wrong, or all tokens are.
    """

    mode = "draft"
    nbytes = 0
    token_s = 0.0

    def __init__(self, text, right, token_s, first_s=0.0):
        self.now_s, self.calls, self.token_s = 0.0, 0, 0.0
        self._text, self._right, self._costs = text, right, (token_s, first_s)

    def draft(self, lengths):
        ((sequence, count),) = lengths.items()
        self.token_s, first_s = self._costs
        self.now_s += self.token_s * count + (0 if self.calls else first_s)
        self.calls += 1
        size = len(sequence.tokens)
        if not self._right or self.calls % 3 == 0:
            return {sequence: Draft([9999] * count)}
        return {sequence: Draft(self._text[size : size + count])}

    def forget(self, sequence):
        """Nothing to release."""


NO_MATCH = text_of(0.0, 4000, vocab=10**6)
"""A text in which no n-gram is ever found."""


@pytest.mark.parametrize(
    ("right", "token_s", "first_s", "calls"),
    [
        (True, 0.001, 0.1, (300, 400)),
        (True, 0.001, 10.0, (300, 400)),
        (False, 0.001, 0.01, (1, 12)),
        (False, 0.001, 1.0, (1, 6)),
        (True, 0.02, 0.01, (1, 1)),
    ],
    ids=["pays", "pays late", "is never right", "is slow to begin", "takes longer than a step"],
)
def test_auto_tries_a_drafter_within_a_part_of_the_time(right, token_s, first_s, calls):
    drafter = Costly(NO_MATCH, right, token_s, first_s)
    lengths(
        lambda rows: 0.010 + 0.0005 * rows,
        NO_MATCH,
        drafters=[drafter],
        clock=lambda: drafter.now_s,
    )
    assert calls[0] <= drafter.calls <= calls[1]


def test_of_several_drafters_the_better_one_drafts():
    drafters = [Costly(NO_MATCH, right, 0.0005) for right in (False, True, False)]
    lengths(lambda rows: 0.010 + 0.0005 * rows, NO_MATCH, drafters=drafters)
    assert [one.calls > 200 for one in drafters] == [False, True, False]


def test_what_others_see_counts_for_a_sequence_that_began_before():
    worker = Chances(WORKER_WINDOW)
    early = Chances(SEQUENCE_WINDOW, worker)
    early.learn(-1, right=1, wrong=0)
    at_first = early.of(-1)
    for _ in range(40):
        Chances(SEQUENCE_WINDOW, worker).learn(-1, right=0, wrong=1)
    assert early.of(-1) < at_first / 2


class Clock:
    """Seconds on a machine that does nothing but the counted work."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


class Guesser(Drafter):
    """A drafter that drafts each token of a text's continuation correctly with this probability."""

    mode = ""
    nbytes = 0
    token_s = call_s = 0.0
    catches_up = False

    def __init__(self, clock, random, texts, mode, right, token_s, call_s, first_s):
        self.mode, self.call_s = mode, 0.0
        self.token_s = token_s if mode == "draft" else 0.0  # For a model it is measured at once.
        self._clock, self._random, self._texts, self._right = clock, random, texts, right
        self._costs, self._held = (call_s, first_s), set()
        self.catches_up = mode == "draft"

    def holds(self, sequence):
        return self.mode == "medusa" or sequence in self._held

    def draft(self, lengths):
        self.call_s, first_s = self._costs
        news = len(lengths.keys() - self._held)
        self._held |= lengths.keys()
        depth = max(lengths.values())
        self._clock.now_s += self.call_s + depth * self.token_s + first_s * news
        return {one: Draft(self._guesses(one, most)) for one, most in lengths.items()}

    def _guesses(self, sequence, most):
        coming = self._texts[sequence][len(sequence.tokens) :]
        are_right = self._random.random(most) < self._right
        return [coming[at] if is_right else -1 for at, is_right in enumerate(are_right)]

    def forget(self, sequence):
        """Nothing to release."""


def step(speculation, clock, texts, decoding, row_s):
    """One step of 10 ms and `row_s` per token; returns the number of drafted tokens."""
    drafts = speculation.draft(decoding, 32, lambda one, more: True)
    drafted = sum(len(draft.tokens) for draft in drafts.values())
    for one in decoding:
        coming = texts[one][len(one.tokens) :]
        tokens = drafts[one].tokens if one in drafts else []
        right = next((at for at, one_id in enumerate(tokens) if one_id != coming[at]), len(tokens))
        if tokens:
            speculation.verified(one, Row(0, 0, tokens, 1, drafts=len(tokens)), right)
        one.tokens += coming[: right + 1]
    speculation.observe(len(decoding) + drafted, 0.010 + row_s * (len(decoding) + drafted))
    clock.now_s += 0.010 + row_s * (len(decoding) + drafted)
    return drafted


def answer(speculation, clock, texts, random, *, row_s, repeats, vocab, sessions, groups):
    """Answer groups of texts, with steps of 10 ms and `row_s` per token; returns the seconds that
    they take without drafts.

    Args:
        repeats: share of the tokens that repeat the one ten places before.
    """
    plain_s = 0.0
    for _ in range(groups):
        group = {}
        for _ in range(sessions):
            text = random.integers(vocab, size=170).tolist()
            for at in np.flatnonzero(random.random(170) < repeats):
                text[at] = text[max(0, at - 10)]
            one = Lone(text[:30], "auto", most=4)
            texts[one], group[one] = text, random.integers(80, 131)
        for at in range(101):  # Without drafts: one token for each text that has not ended.
            decoding = sum(size - 30 > at for size in group.values())
            plain_s += decoding and 0.010 + row_s * decoding
        while decoding := [one for one, size in group.items() if len(one.tokens) < size]:
            step(speculation, clock, texts, decoding, row_s)
        for one in group:
            speculation.ended(one)
    return plain_s


DEAREST: Final = (3391, 3901, 4652, 7119, 8915)
"""Seeds where trials lost more than 3 %: draft models caught up with texts that soon ended, first
drafts were long."""


@pytest.mark.parametrize("seed", [*range(55), *DEAREST])
def test_from_a_cold_start_auto_loses_less_than_three_percent(seed):
    """Two to eight groups of answers, with steps and drafters of random cost and accuracy, and
    texts that repeat themselves more or less often.
    """
    random = np.random.default_rng(seed)
    clock, texts = Clock(), {}
    row_s = 0.010 * random.choice([0.01, 0.05, 0.1, 0.2, 0.4, 0.8])
    drafters = []
    for index in range(random.integers(4)):
        costs = 0.010 * random.choice([0.02, 0.1, 0.3, 1.0]), 0.010 * random.choice([0, 0.5, 2])
        kinds = [("draft", costs[0], 0.0, costs[1]), ("medusa", 0.0, costs[0], 0.0)]
        mode, *seconds = kinds[index > 0]
        right = random.choice([0.0, 0.1, 0.3, 0.5, 0.7, 0.9])
        drafters.append(Guesser(clock, random, texts, mode, right, *seconds))
    speculation = Speculation(drafters, possible=True, clock=clock)
    repeats, vocab = random.choice([0, 0.1, 0.3, 0.6, 0.9]), random.choice([20, 1000, 10**6])
    sessions, groups = random.choice([1, 2, 4, 8]), random.choice([2, 4, 8])
    many = {"repeats": repeats, "vocab": vocab, "sessions": sessions, "groups": groups}
    plain_s = answer(speculation, clock, texts, random, row_s=row_s, **many)
    assert plain_s > 0.97 * clock.now_s


def test_a_drafter_that_pays_for_many_and_for_one_drafts_at_once_for_some():
    random, clock, texts = np.random.default_rng(5), Clock(), {}
    drafter = Guesser(clock, random, texts, "medusa", 0.9, 0.0, 0.001, 0.0)
    speculation = Speculation([drafter], possible=True, clock=clock)

    def drafted(count, steps):
        group = [Lone(list(range(30)), "auto", most=4) for _ in range(count)]
        texts.update((one, random.integers(10**6, size=5 * steps + 40).tolist()) for one in group)
        return [step(speculation, clock, texts, group, 0.0002) for _ in range(steps)]

    assert drafted(8, 200)[-1] and drafted(1, 200)[-1]
    assert all(drafted(5, 4))


@pytest.mark.parametrize("repeating", [0, 1, 3, 5, 8])
def test_no_text_is_slowed_for_the_n_grams_of_others(repeating):
    """Steps of 18 ms with one token for each of eight texts, and of 22 ms with four drafted tokens.
    That pays for a text that repeats itself, and makes those of the others slower.
    """
    random, clock, texts, steps = np.random.default_rng(5), Clock(), {}, 1_000
    speculation = Speculation([], possible=True, clock=clock)
    for number in range(8):
        known = list(range(100 * number, 100 * number + 10))
        new = known * (steps // 2) if number < repeating else random.integers(10**6, size=steps)
        texts[Lone(known * 3, "auto", most=4)] = [*known * 3, *map(int, new)]
    for _ in range(steps):
        step(speculation, clock, texts, list(texts), 0.001)
    slowed = clock.now_s / (0.018 * steps)
    assert slowed < 1.02 if repeating < 8 else slowed > 1.2
    gained = [len(one.tokens) - 30 - steps for one in texts]
    assert all(gained[:repeating]) and not any(gained[repeating:])


def test_heads_that_pay_for_longer_drafts_only_are_found():
    """Drafting takes more than a third of a step, so drafts of half a token per sequence, which are
    the first ones, bring less than they take.
    """
    found = 0
    for seed in range(8):
        random = np.random.default_rng(seed)
        clock, texts = Clock(), {}
        heads = Guesser(clock, random, texts, "medusa", 0.8, 0.0, 0.005, 0.0)
        speculation = Speculation([heads], possible=True, clock=clock)
        many = {"repeats": 0, "vocab": 10**6, "sessions": 8, "groups": 4}
        plain_s = answer(speculation, clock, texts, random, row_s=0.0004, **many)
        found += plain_s > 1.15 * clock.now_s
    assert found >= 6


# ---- a draft model


def drafted_by(drafts, kind, case, rule="match", grammar=False):
    """Outputs of eight requests with a draft model over the runner `drafts`, and their engine."""
    runner = runner_of(kind)
    engine = Engine(runner, kv_clock=lambda: 0.0, drafters=[DraftModel(drafts, 97)])
    made = [
        generation(
            ident,
            list(range(ident, ident + 9 + 30 * (ident % 2))),
            runner,
            tokens=30,
            speculating=Speculating("draft", 4, rule),
            matcher=OddAfterEven(97) if grammar else None,
            **case,
        )
        for ident in range(8)
    ]
    engine.submit(*(one for one, _ in made))
    drain(engine)
    assert at_rest(engine, runner)
    return [listener for _, listener in made], runner, engine


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("grammar", [False, True], ids=["free", "grammar"])
@pytest.mark.parametrize("name", ["greedy", "seeded", "penalties"])
@pytest.mark.parametrize("kind", ["sequences", "windows"])
def test_a_model_that_is_its_own_draft_is_always_right(kind, name, grammar, rule):
    """This shows that drafts use the same penalties, grammar and temperature."""
    case = {"params": replace(CASES[name]["params"], top_p=0.9)}
    drafts = runner_of(kind)
    heard, runner, engine = drafted_by(drafts, kind, case, rule, grammar)
    stats = engine.stats()
    assert stats.accepted_tokens == stats.drafted_tokens
    assert stats.drafted_tokens[3] > 0
    if rule == "rejection" and name != "greedy":
        return
    runner = runner_of(kind)
    plain = [
        generation(
            0,
            list(range(i, i + 9 + 30 * (i % 2))),
            runner,
            tokens=30,
            matcher=OddAfterEven(97) if grammar else None,
            **case,
        )
        for i in range(8)
    ]
    alone = Engine(runner, kv_clock=lambda: 0.0)
    alone.submit(*(one for one, _ in plain))
    drain(alone)
    assert [one.ids for one in heard] == [one.ids for _, one in plain]
    assert stats.generated_tokens == 8 * (24 if grammar else 30)


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
    engine = Engine(runner, kv_clock=lambda: 0.0, drafters=[model])
    made, listener = generation(
        1, list(range(9)), runner, tokens=30, params=SEEDED, speculating=Speculating("draft", 3)
    )
    engine.submit(made)
    drain(engine)
    assert len(listener.ids) == 30
    assert at_rest(engine, runner)
    assert not model._slots
    model._cached.kv.check_integrity()


@pytest.mark.parametrize("shares", [True, False])
def test_a_draft_model_keeps_what_may_be_shared_until_the_cache_is_cleared(shares):
    drafts, runner = runner_of("sequences"), runner_of("sequences")
    model = DraftModel(drafts, 97)
    engine = Engine(runner, kv_clock=lambda: 0.0, drafters=[model])
    prompt = list(range(60))
    others, _ = generation(1, prompt, runner, speculating=Speculating("draft", 3))
    engine.submit(others)
    drain(engine)
    computed = drafts.computed_tokens
    how = Speculating("draft", 3, shares=shares)
    made, listener = generation(2, [*prompt, 1], runner, speculating=how, reuse_prefix=shares)
    engine.submit(made)
    drain(engine)
    assert listener.ids == runner.greedy([*prompt, 1], 10)
    assert (drafts.computed_tokens - computed >= 60) == (not shares)
    assert model._cached.kv.match([*prompt, 1, *listener.ids]) == (69 if shares else 60)
    engine.clear_cache(lambda stats: None)
    drain(engine)
    assert model._cached.kv.stats().kept_tokens == 0


def test_a_draft_whose_step_was_put_off_is_made_again():
    drafts, runner = runner_of("sequences"), runner_of("sequences")
    model = DraftModel(drafts, 97)
    engine = Engine(runner, kv_clock=lambda: 0.0, drafters=[model])
    made, listener = generation(
        1, list(range(9)), runner, tokens=30, speculating=Speculating("draft", 4)
    )
    engine.submit(made)
    engine.run_once()
    engine.run_once()
    first, again = model.draft({made: 4}), model.draft({made: 4})
    assert first == again and len(again[made].tokens) == 4
    drain(engine)
    assert listener.ids == runner.greedy(list(range(9)), 30)


@pytest.mark.parametrize("error", [InternalError("no"), Busy("no"), RuntimeError("no memory")])
def test_without_a_draft_model_that_works_the_text_goes_on(error):
    drafts = runner_of("sequences")
    compute, numbers = drafts.step, itertools.count(1)

    def step(plan):
        if next(numbers) == 4:
            raise error
        return compute(plan)

    drafts.step = step
    heard, runner, _ = drafted_by(drafts, "sequences", {})
    for ident, listener in enumerate(heard):
        prompt = list(range(ident, ident + 9 + 30 * (ident % 2)))
        assert listener.ids == runner.greedy(prompt, 30)
    assert len(drafts.tape) > 4
