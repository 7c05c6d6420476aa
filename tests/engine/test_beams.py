"""Beam search: the hypotheses of an exhaustive search, with any amount of memory."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from beam_reference import brute_force
from fake_runner import FakeRunner
from hearth.backends.contract.events import (
    ChoiceFinished,
    Failed,
    Finished,
    FinishReason,
    Progress,
    Started,
    Token,
)
from hearth.backends.contract.requests import BeamSearch
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.beams import Beam, Search
from hearth.backends.engine.choices import ChoiceGroup
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.runner import Row, StepResult
from speakers import Listener, at_rest, drain, generation

PROMPT = [(k * 5) % 97 for k in range(120)]


def searched(
    runner: FakeRunner, beams: BeamSearch, prompt: list[int] = PROMPT, count: int = 1, **how: Any
) -> tuple[Listener, Search]:
    heard = Listener()
    group = ChoiceGroup(heard, count)
    answers = [
        generation(7, prompt, runner, emit=group.emitter(index), index=index, **how)[0]
        for index in range(count)
    ]
    return heard, Search(beams, answers)


def choice(heard: Listener, index: int = 0) -> list[int]:
    return [i for e in heard.events if isinstance(e, Token) and e.index == index for i in e.ids]


def expected(runner: FakeRunner, prompt: list[int], params: BeamSearch, most: int) -> Any:
    return brute_force(
        lambda texts: [runner.logits(text) for text in texts],
        prompt,
        params.width,
        most,
        ends=runner.info.end_ids,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
    )


CASES = list(itertools.product((1, 2, 4), (0.0, 1.0, 2.0), (False, True, "never")))


@pytest.mark.parametrize(("width", "penalty", "early"), CASES)
def test_answers_are_those_of_an_exhaustive_search(width: int, penalty: float, early: Any) -> None:
    runner = FakeRunner(context=400, pool=1000, slots=4, chunk=64, end_ids={3, 5, 8, 50, 77})
    params = BeamSearch(width, penalty, early)
    engine = Engine(runner)
    for first in range(6):
        prompt = PROMPT[first : first + 30]
        heard, search = searched(runner, params, prompt, width, tokens=9)
        engine.submit(*search.beams)
        drain(engine)
        found = [choice(heard, index) for index in range(width)]
        assert found == expected(runner, prompt, params, 9)
        assert isinstance(heard.last, Finished)
        assert at_rest(engine, runner)


def test_the_events_are_those_of_any_answer() -> None:
    runner = FakeRunner(context=400, pool=1000, slots=4, chunk=32)
    engine = Engine(runner)
    heard, search = searched(
        runner, BeamSearch(4), count=2, tokens=6, params=SamplingParams(temperature=0, logprobs=2)
    )
    engine.submit(*search.beams)
    drain(engine)
    assert [e.done for e in heard.events if isinstance(e, Progress)] == [32, 64, 96, 120]
    assert sum(isinstance(e, Started) for e in heard.events) == 1
    ended = [(e.index, e.reason) for e in heard.events if isinstance(e, ChoiceFinished)]
    assert ended == [(0, "length"), (1, "length")]
    assert isinstance(heard.last, Finished)
    assert heard.last.usage.completion_tokens == 12
    logprobs = [p for e in heard.events if isinstance(e, Token) for p in e.logprobs]
    assert len(logprobs) == 12
    assert all(p.logprob < 0 and len(p.top) == 2 for p in logprobs)


def test_beams_hold_the_prompt_once_and_what_they_share_once() -> None:
    runner = FakeRunner(context=400, pool=1000, slots=4, chunk=32)
    engine = Engine(runner)
    _, search = searched(runner, BeamSearch(4), tokens=8)
    engine.submit(*search.beams)
    while search.beams[3].slot is None:
        engine.run_once()
    assert engine.kv.stats().live_tokens <= len(PROMPT) + 8
    drain(engine)
    assert runner.computed_tokens == len(PROMPT) + 3 + 7 * 4
    again, _ = generation(8, PROMPT, runner)
    engine.submit(again)
    drain(engine)
    assert again.cached == len(PROMPT) - 1 and at_rest(engine, runner)


def test_a_row_that_another_report_made_old_is_not_reported() -> None:
    """Beams that were preempted are computed again in one step; the last report of a round gives
    the others another token.
    """
    runner = FakeRunner(context=400, pool=1000, slots=2, chunk=64)
    params = BeamSearch(2)
    heard, search = searched(runner, params, count=2, tokens=4)
    first, second = search.beams

    def report(beam: Beam, text: list[int]) -> FinishReason | None:
        row = Row(0, text, 0, 1)
        return beam.take(row, StepResult({0: runner.logits(text)[None]}))

    for _ in range(4):
        old = [*first.tokens]
        for beam in search.beams:
            beam.computed = beam.total
        report(first, old)
        reason = report(second, [*second.tokens])
        if reason is None:
            assert first.pending == 1 and report(first, old) is None
    search.finish(reason)
    found = [choice(heard, index) for index in range(2)]
    assert found == expected(runner, PROMPT, params, 4)


@pytest.mark.parametrize("pool", [140, 150, 170])
def test_beams_that_do_not_fit_together_take_turns(pool: int) -> None:
    runner = FakeRunner(context=140, pool=pool, slots=4, chunk=32, end_ids={5})
    engine = Engine(runner)
    params = BeamSearch(4, 1.0, "never")
    heard, search = searched(runner, params, count=4, tokens=16)
    other, others = generation(8, PROMPT[5:40], runner, tokens=20)
    engine.submit(*search.beams)
    engine.submit(other)
    drain(engine)
    assert [choice(heard, i) for i in range(4)] == expected(runner, PROMPT, params, 16)
    assert isinstance(others.last, Finished)
    assert at_rest(engine, runner)


def test_bans_and_biases_are_honoured_and_a_stop_string_cuts() -> None:
    runner = FakeRunner(context=400, pool=1000, slots=4, chunk=32, end_ids={3, 5})
    plain, search = searched(runner, BeamSearch(3), tokens=8, ignore_eos=True)
    engine = Engine(runner)
    engine.submit(*search.beams)
    drain(engine)
    free = choice(plain)
    assert len(free) == 8
    banned = SamplingParams(temperature=0, logit_bias={free[0]: -100.0})
    heard, search = searched(runner, BeamSearch(3), tokens=8, ignore_eos=True, params=banned)
    engine.submit(*search.beams)
    drain(engine)
    assert free[0] not in choice(heard)
    everything = SamplingParams(temperature=0, logit_bias=dict.fromkeys(range(97), -100.0))
    heard, search = searched(runner, BeamSearch(3), params=everything)
    engine.submit(*search.beams)
    drain(engine)
    assert isinstance(heard.last, Failed)
    assert "logit_bias" in str(heard.last.error)


def test_a_cancelled_search_says_nothing_and_frees_what_it_held() -> None:
    runner = FakeRunner(context=400, pool=1000, slots=4, chunk=32)
    engine = Engine(runner)
    heard, search = searched(runner, BeamSearch(4), tokens=50)
    engine.submit(*search.beams)
    for _ in range(12):
        engine.run_once()
    engine.cancel(7)
    drain(engine)
    assert isinstance(heard.last, Finished)
    assert heard.last.reason == "cancelled"
    assert not choice(heard)
    assert at_rest(engine, runner)


def test_a_failed_step_ends_one_search_alone() -> None:
    runner = FakeRunner(context=400, pool=1000, slots=4, chunk=32, fail_at=7)
    engine = Engine(runner)
    heard, search = searched(runner, BeamSearch(2), tokens=12)
    engine.submit(*search.beams)
    drain(engine)
    assert isinstance(heard.last, (Failed, Finished))
    again, search = searched(runner, BeamSearch(2), tokens=5)
    engine.submit(*search.beams)
    drain(engine)
    assert [choice(again)] == expected(runner, PROMPT, BeamSearch(2), 5)[:1]
