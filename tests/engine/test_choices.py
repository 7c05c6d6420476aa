"""Several answers to one prompt."""

from fake_runner import FakeRunner
from hearth.backends.contract.events import (
    ChoiceFinished,
    Failed,
    Finished,
    Progress,
    Started,
    Token,
)
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.choices import ChoiceGroup
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.random_stream import choice_seed
from speakers import Listener, at_rest, drain, generation

PROMPT = [(k * 5) % 97 for k in range(120)]


def ask(runner, count, seed=3, tokens=12, **how):
    heard = Listener()
    group = ChoiceGroup(heard, count)
    work = []
    for index in range(count):
        params = SamplingParams(temperature=1.0, seed=choice_seed(seed, index))
        made, _ = generation(
            1,
            PROMPT,
            runner,
            tokens=tokens,
            params=params,
            emit=group.emitter(index),
            index=index,
            **how,
        )
        work.append(made)
    return heard, work


def choice(heard, index):
    return [i for e in heard.events if isinstance(e, Token) and e.index == index for i in e.ids]


def test_the_prompt_is_computed_once_and_each_choice_speaks_for_itself():
    runner = FakeRunner(context=400, pool=1000, slots=4, chunk=32)
    engine = Engine(runner)
    heard, work = ask(runner, 4)
    engine.submit(*work)
    drain(engine)
    assert len([e for e in heard.events if isinstance(e, Started)]) == 1
    assert [e.done for e in heard.events if isinstance(e, Progress)] == [32, 64, 96, 120]
    finished = [e for e in heard.events if isinstance(e, ChoiceFinished)]
    assert sorted(e.index for e in finished) == [0, 1, 2, 3]
    assert isinstance(heard.last, Finished)
    assert heard.last.usage.prompt_tokens == 120
    assert heard.last.usage.completion_tokens == 4 * 12
    said = [choice(heard, index) for index in range(4)]
    assert len({tuple(ids) for ids in said}) == 4
    assert runner.computed_tokens == 120 + 3 * 1 + 4 * 11
    assert at_rest(engine, runner)


def test_choices_that_reuse_nothing_of_others_still_share_the_prompt_among_themselves():
    runner = FakeRunner(context=400, pool=1000, slots=4, chunk=32)
    engine = Engine(runner)
    _, work = ask(runner, 1, tokens=1)
    engine.submit(*work)
    drain(engine)
    before = runner.computed_tokens
    heard, work = ask(runner, 4, reuse_prefix=False)
    engine.submit(*work)
    while not any(isinstance(e, Token) and e.index == 3 for e in heard.events):
        engine.run_once()
    running = engine._scheduler._running.values()
    said = sum(sequence.computed - len(PROMPT) for sequence in running)
    held = engine.kv.stats().live_tokens
    # Both the kept prompt and the first choice's tokens lack only the last token that the others
    # share.
    assert held <= 2 * len(PROMPT) + said + len(work)
    drain(engine)
    assert heard.last.usage.cached_tokens == 0
    assert runner.computed_tokens - before == 120 + 3 * 1 + 4 * 11
    assert at_rest(engine, runner)


def test_four_choices_hold_the_prompt_once():
    runner = FakeRunner(context=400, pool=1000, slots=4, chunk=32)
    engine = Engine(runner)
    heard, work = ask(runner, 4)
    engine.submit(*work)
    while not any(isinstance(e, Token) and e.index == 3 for e in heard.events):
        engine.run_once()
    said = sum(sequence.computed - len(PROMPT) for sequence in work)
    assert engine.kv.stats().live_tokens == len(PROMPT) + 3 * 1 + said
    drain(engine)


def test_the_first_choice_is_what_one_alone_would_be():
    runner = FakeRunner(context=400, pool=1000, slots=4)
    engine = Engine(runner)
    alone, work = ask(runner, 1)
    engine.submit(*work)
    drain(engine)
    several, work = ask(runner, 3)
    engine.submit(*work)
    drain(engine)
    assert choice(several, 0) == choice(alone, 0)


def test_more_choices_than_slots_take_turns():
    runner = FakeRunner(context=400, pool=1000, slots=2)
    engine = Engine(runner)
    heard, work = ask(runner, 5)
    engine.submit(*work)
    drain(engine)
    assert all(len(choice(heard, index)) == 12 for index in range(5))


def test_cancelling_the_request_ends_every_choice_and_the_stream_once():
    runner = FakeRunner(context=400, pool=1000, slots=4)
    engine = Engine(runner)
    heard, work = ask(runner, 3, tokens=100)
    engine.submit(*work)
    for _ in range(20):
        engine.run_once()
    engine.cancel(1)
    drain(engine)
    assert [type(e) for e in heard.events].count(Finished) == 1
    assert heard.last.reason == "cancelled"
    assert at_rest(engine, runner)


def test_one_that_fails_ends_the_request_and_the_others_with_it():
    class Broken(FakeRunner):
        broken = None

        def logits(self, tokens):
            made = super().logits(tokens)
            if len(tokens) == 125:
                made[0] = float("nan")
            return made

    runner = Broken(context=400, pool=1000, slots=4)
    engine = Engine(runner)
    heard, work = ask(runner, 3)
    engine.submit(*work)
    drain(engine)
    assert [type(e) for e in heard.events].count(Failed) == 1
    assert isinstance(heard.last, Failed)
    assert at_rest(engine, runner)


def test_seeds_of_choices_differ_and_are_reproducible():
    seeds = [choice_seed(42, index) for index in range(16)]
    assert seeds[0] == 42 and len(set(seeds)) == 16
    assert seeds == [choice_seed(42, index) for index in range(16)]
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert choice_seed(43, 1) != choice_seed(42, 1)
