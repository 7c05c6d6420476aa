"""The engine over a runner without a model: which requests run, what they generate, and that none
harms another.
"""

import pytest

from fake_runner import FakeRunner
from hearth.backends.contract.events import Failed, Finished, Progress, Started, Token
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.runner import Interrupted, RunnerLost
from hearth.backends.errors import Busy
from speakers import ask, at_rest, drain, generation, piece


def test_a_stream_is_started_prefilled_spoken_and_finished_once():
    runner = FakeRunner(chunk=4)
    engine = Engine(runner)
    made, heard = generation(1, list(range(10)), runner)
    engine.submit(made)
    drain(engine)
    assert isinstance(heard.events[0], Started) and heard.events[0].prompt_tokens == 10
    assert [e.done for e in heard.events if isinstance(e, Progress)] == [4, 8, 10]
    assert heard.ids == runner.greedy(list(range(10)), 10)
    assert heard.text == b"".join(map(piece, heard.ids)).decode()
    ends = [e for e in heard.events if isinstance(e, (Finished, Failed))]
    assert len(ends) == 1 and ends[0] is heard.last
    assert heard.last.reason == "length"
    assert heard.last.usage.completion_tokens == 10
    assert at_rest(engine, runner)


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_greedy_text_does_not_depend_on_chunks_or_company(chunk, slots):
    runner = FakeRunner(chunk=max(chunk, slots), slots=slots, pool=512)
    engine = Engine(runner)
    prompts = [[(7 * n + k) % 97 for k in range(3 + 5 * n)] for n in range(8)]
    heard = ask(engine, runner, prompts, tokens=20)
    drain(engine)
    assert [h.ids for h in heard] == [runner.greedy(prompt, 20) for prompt in prompts]
    assert at_rest(engine, runner)


def test_decoding_rows_come_before_prefill():
    runner = FakeRunner(chunk=8, slots=2)
    engine = Engine(runner)
    first, _ = generation(1, [1, 2], runner, tokens=30)
    engine.submit(first)
    engine.run_once()
    second, _ = generation(2, list(range(40)), runner, tokens=5)
    engine.submit(second)
    engine.run_once()
    rows = runner.tape[-1].rows
    assert [len(row.tokens) for row in rows] == [1, 7]


def test_a_chunk_smaller_than_the_company_serves_everybody_in_turn():
    runner = FakeRunner(chunk=2, slots=5)
    engine = Engine(runner)
    heard = ask(engine, runner, [[i + 1] for i in range(5)], tokens=20)
    for _ in range(25):
        engine.run_once()
    said = [len(h.ids) for h in heard]
    assert sum(said) == 50 and max(said) - min(said) <= 1
    drain(engine)
    assert [h.ids for h in heard] == [runner.greedy([i + 1], 20) for i in range(5)]


def test_a_full_pool_queues_and_nobody_fails():
    runner = FakeRunner(pool=60, slots=8, context=60)
    engine = Engine(runner)
    heard = ask(engine, runner, [[i] * 20 for i in range(6)], tokens=20)
    drain(engine)
    assert all(isinstance(h.last, Finished) for h in heard)
    assert [h.ids for h in heard] == [runner.greedy([i] * 20, 20) for i in range(6)]


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_cancel_ends_it_before_the_next_step(turns):
    runner = FakeRunner(chunk=4)
    engine = Engine(runner)
    made, heard = generation(1, list(range(10)), runner, tokens=50)
    engine.submit(made)
    for _ in range(turns):
        engine.run_once()
    steps = len(runner.tape)
    engine.cancel(1)
    drain(engine)
    assert heard.last.reason == "cancelled"
    assert len(runner.tape) == steps
    assert heard.last.usage.completion_tokens == len(heard.ids)
    assert at_rest(engine, runner)


def test_cancelling_one_leaves_the_other_alone():
    runner = FakeRunner()
    engine = Engine(runner)
    one, heard_one = generation(1, [1, 2, 3], runner, tokens=40)
    two, heard_two = generation(2, [4, 5, 6], runner, tokens=40)
    engine.submit(one)
    engine.submit(two)
    for _ in range(5):
        engine.run_once()
    engine.cancel(1)
    engine.cancel(99)
    drain(engine)
    assert heard_one.last.reason == "cancelled"
    assert heard_two.ids == runner.greedy([4, 5, 6], 40)


class Interruptible(FakeRunner):
    """Cancels `victims` while step number `at` runs, or closes the engine, as other threads do, and
    ends it if asked.
    """

    interrupted = closes = False

    def step(self, plan):
        if len(self.tape) != self.at:
            assert not self.interrupted
            return super().step(plan)
        members = {sequence.id for sequence in self.engine._scheduler.members(plan)}
        for ident in self.victims:
            self.engine.cancel(ident)
        if self.closes:
            self.engine.close()
        assert self.interrupted == (self.closes or members <= set(self.victims))
        if not self.interrupted:
            return super().step(plan)
        self.tape.append(plan)
        raise Interrupted


@pytest.mark.parametrize("victims", [(1, 2), (1,), (2, 2), (3,)])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_step_for_nobody_else_ends_early(victims, at):
    runner = Interruptible(chunk=8)
    runner.at, runner.victims = at, victims
    runner.engine = engine = Engine(runner)
    prompts = {1: list(range(30)), 2: list(range(50, 90))}
    made = {ident: generation(ident, ids, runner, tokens=9) for ident, ids in prompts.items()}
    engine.submit(*(one for one, _ in made.values()))
    drain(engine)
    for ident, (_, heard) in made.items():
        if ident in victims:
            assert heard.last.reason == "cancelled"
        else:
            assert heard.ids == runner.greedy(prompts[ident], 9)
    later, heard = generation(3, prompts[1], runner, tokens=9)
    engine.submit(later)
    drain(engine)
    assert heard.ids == runner.greedy(prompts[1], 9)
    assert at_rest(engine, runner) and not engine._cancelling


@pytest.mark.parametrize("at", [0, 1, 5])
def test_closing_ends_the_step_that_runs(at):
    runner = Interruptible(chunk=8)
    runner.at, runner.victims, runner.closes = at, (), True
    runner.engine = engine = Engine(runner)
    made, heard = generation(1, list(range(30)), runner, tokens=9)
    engine.submit(made)
    engine.run()
    assert heard.last.reason == "cancelled" and len(runner.tape) == at + 1
    assert not runner.interrupted and not engine.kv.stats().live_tokens


@pytest.mark.parametrize("end", [lambda engine: engine.cancel(1), Engine.close])
def test_what_was_cancelled_before_its_step_is_not_computed(end):
    runner = FakeRunner()
    engine = Engine(runner)
    made, heard = generation(1, [1, 2, 3], runner, tokens=5)
    engine._scheduler.add(made)
    plan = engine._plan()
    end(engine)
    engine._compute(plan)
    assert not runner.tape
    drain(engine)
    assert heard.last.reason == "cancelled" and not engine._cancelling


def test_an_end_token_ends_it_and_is_not_said():
    free = FakeRunner()
    said = free.greedy([1, 2, 3], 30)
    end = said[12]
    runner = FakeRunner(end_ids={end})
    engine = Engine(runner)
    made, heard = generation(1, [1, 2, 3], runner, tokens=30)
    engine.submit(made)
    drain(engine)
    assert heard.last.reason == "stop"
    assert heard.ids == said[: said.index(end)]


def test_min_tokens_and_ignore_eos_keep_the_end_away():
    end = FakeRunner().greedy([1, 2, 3], 1)[0]
    runner = FakeRunner(end_ids={end})
    engine = Engine(runner)
    made, heard = generation(1, [1, 2, 3], runner, tokens=30, min_tokens=5)
    ignoring, heard_ignoring = generation(2, [1, 2, 3], runner, tokens=30, ignore_eos=True)
    engine.submit(made)
    engine.submit(ignoring)
    drain(engine)
    assert len(heard.ids) >= 5
    assert len(heard_ignoring.ids) == 30 and end not in heard_ignoring.ids
    assert heard_ignoring.last.reason == "length"


def test_a_stop_string_is_never_said_and_text_before_it_is():
    runner = FakeRunner()
    ids = runner.greedy([9, 9], 40)
    text = b"".join(map(piece, ids)).decode()
    stop = text[17:20]
    engine = Engine(runner)
    made, heard = generation(1, [9, 9], runner, tokens=40, stops=(stop,))
    engine.submit(made)
    drain(engine)
    assert heard.text == text[: text.index(stop)]
    assert heard.last.reason == "stop" and heard.last.stop == stop


def test_a_stop_string_before_min_tokens_is_text():
    runner = FakeRunner()
    ids = runner.greedy([9, 9], 40)
    text = b"".join(map(piece, ids)).decode()
    early, late = text[3:5], text[20:26]
    assert late not in text[:20]
    engine = Engine(runner)
    made, heard = generation(1, [9, 9], runner, tokens=40, min_tokens=12, stops=(early, late))
    alone, heard_alone = generation(2, [9, 9], runner, tokens=12, min_tokens=12, stops=(early,))
    engine.submit(made, alone)
    drain(engine)
    assert heard.last.reason == "stop" and len(heard.ids) >= 12
    assert text.startswith(heard.text) and early in heard.text
    assert heard_alone.ids == ids[:12]


def test_text_held_for_a_stop_string_comes_out_at_the_end():
    runner = FakeRunner()
    ids = runner.greedy([3], 10)
    text = b"".join(map(piece, ids)).decode()
    engine = Engine(runner)
    made, heard = generation(1, [3], runner, tokens=10, stops=(text[-3:] + "never",))
    engine.submit(made)
    drain(engine)
    assert heard.text == text and heard.ids == ids


def test_logprobs_come_with_their_tokens():
    runner = FakeRunner()
    engine = Engine(runner)
    made, heard = generation(
        1, [3], runner, tokens=6, params=SamplingParams(temperature=0.0, logprobs=3)
    )
    engine.submit(made)
    drain(engine)
    said = [entry for e in heard.events if isinstance(e, Token) for entry in e.logprobs]
    assert [entry.id for entry in said] == heard.ids
    assert all(entry.top[0][0] == entry.id and len(entry.top) == 3 for entry in said)


def test_a_failing_step_hurts_only_who_is_at_fault():
    class Picky(FakeRunner):
        def step(self, plan):
            if any(13 in row.tokens for row in plan.rows):
                raise RuntimeError("thirteen")
            return super().step(plan)

    runner = Picky(slots=4)
    engine = Engine(runner)
    bad, heard_bad = generation(1, [1, 13, 2], runner)
    engine.submit(bad)
    others = []
    for ident in range(2, 5):
        made, heard = generation(ident, [ident] * 9, runner)
        engine.submit(made)
        others.append(heard)
    drain(engine)
    assert isinstance(heard_bad.last, Failed) and heard_bad.last.error.code == "internal_error"
    for ident, heard in enumerate(others, 2):
        said = runner.greedy([ident] * 9, 10)
        if 13 in said:
            assert isinstance(heard.last, Failed)
        else:
            assert heard.ids == said
    assert at_rest(engine, runner)


def test_want_of_memory_that_was_promised_puts_somebody_aside_and_hurts_nobody():
    runner = FakeRunner(busy_at=6)
    engine = Engine(runner)
    one, heard_one = generation(1, [1, 2], runner, tokens=15)
    two, heard_two = generation(2, list(range(20)), runner, tokens=30)
    engine.submit(one)
    engine.submit(two)
    drain(engine)
    assert heard_one.ids == runner.greedy([1, 2], 15)
    assert heard_two.ids == runner.greedy(list(range(20)), 30)
    assert engine.stats().preemptions == 1
    assert at_rest(engine, runner)


def test_want_of_memory_for_the_only_one_that_stays_is_its_end():
    class Full(FakeRunner):
        def step(self, plan):
            if len(self.tape) == 3:
                raise Busy("There is no memory.", retry_after_s=1.0)
            return super().step(plan)

    runner = Full()
    engine = Engine(runner)
    made, heard = generation(1, [1, 2], runner)
    engine.submit(made)
    drain(engine)
    assert isinstance(heard.last, Failed) and heard.last.error.code == Busy.code
    assert at_rest(engine, runner)


def test_a_lost_runner_ends_the_loop():
    class Lost(FakeRunner):
        def step(self, plan):
            raise RunnerLost("gone")

    runner = Lost()
    engine = Engine(runner)
    made, _ = generation(1, [1], runner)
    engine.submit(made)
    with pytest.raises(RunnerLost):
        engine.run()


def test_broken_logits_fail_one_sequence_alone():
    class Broken(FakeRunner):
        def logits(self, tokens):
            made = super().logits(tokens)
            if tokens[0] == 66:
                made[3] = float("nan")
            return made

    runner = Broken()
    engine = Engine(runner)
    good, heard_good = generation(1, [1, 2], runner)
    bad, heard_bad = generation(2, [66, 2], runner)
    engine.submit(good)
    engine.submit(bad)
    drain(engine)
    assert isinstance(heard_bad.last, Failed)
    assert heard_good.ids == runner.greedy([1, 2], 10)


def test_seeded_sampling_does_not_depend_on_company():
    params = SamplingParams(seed=7, temperature=1.0)

    def said(companions):
        runner = FakeRunner(slots=4, pool=512)
        engine = Engine(runner)
        made, heard = generation(1, [5, 6], runner, tokens=25, params=params)
        engine.submit(made)
        for n in range(companions):
            other, _ = generation(10 + n, [n, n], runner, tokens=25, params=params)
            engine.submit(other)
        drain(engine)
        return heard.ids

    assert said(0) == said(3)
