"""Long texts are embedded and ranked in slices; between slices streams continue and a cancel takes
effect.
"""

import math
from functools import partial

import numpy as np
import pytest

from fake_runner import FakeRunner, FakeSlicedText
from hearth.backends.contract.events import Embeddings, Failed, Finished, Ranks
from hearth.backends.engine.embedding import TextJob
from hearth.backends.engine.engine import Engine
from hearth.backends.errors import InternalError
from speakers import Listener, at_rest, drain, generation

LONG = [k % 97 for k in range(1000)]


class Clock:
    """Seconds: a millisecond for each token that the runner computes."""

    def __init__(self, runner: FakeRunner) -> None:
        self._runner = runner
        self._slices: list[FakeSlicedText] = []

    def __call__(self) -> float:
        if self._runner.sliced is not None and self._runner.sliced not in self._slices:
            self._slices.append(self._runner.sliced)
        sliced = sum(sum(one.slices) for one in self._slices)
        return (self._runner.computed_tokens + sliced) / 1000


def begun(**changes):
    """A runner, and an engine over it with a running stream."""
    runner = FakeRunner(chunk=64, context=2000, pool=4000, slices_texts=True, **changes)
    engine = Engine(runner, target_itl_s=0.02, clock=Clock(runner))
    stream, heard = generation(1, [1, 2, 3], runner, tokens=400)
    engine.submit(stream)
    engine.run_once()
    return runner, engine, stream, heard


@pytest.mark.parametrize("pooling", ["mean", None])
def test_a_stream_has_a_token_after_every_slice_of_a_long_text(pooling):
    runner, engine, stream, heard = begun()
    got = Listener()
    job = TextJob(2, [LONG], pooling, got)
    engine.submit(job)
    seen = []
    while not got.events:
        before, started = stream.new_tokens, engine._clock()
        engine.run_once()
        seen.append((stream.new_tokens - before, engine._clock() - started))
    assert {tokens for tokens, _ in seen} == {1}
    assert max(took for _, took in seen) <= 0.033, "one token, and the first slice is a guess"
    assert max(took for _, took in seen[5:]) <= 0.021
    assert max(runner.sliced.left_s[5:]) == pytest.approx(0.019), "what the stream leaves"
    [answer] = got.events
    assert answer.prompt_tokens == len(LONG)
    if pooling is None:
        assert isinstance(answer, Ranks)
        assert answer.scores == (float(runner.score(LONG)),)
    else:
        assert isinstance(answer, Embeddings)
        np.testing.assert_array_equal(answer.vectors, [runner.vector(LONG, pooling)])
    drain(engine)
    assert heard.ids == runner.greedy([1, 2, 3], 400)
    assert at_rest(engine, runner)


def test_alone_slices_are_as_large_as_a_step():
    runner = FakeRunner(chunk=48, slices_texts=True)
    engine = Engine(runner)
    got = Listener()
    engine.submit(TextJob(1, [LONG[:100]], "mean", got))
    drain(engine)
    assert runner.sliced.slices == [48, 48, 4]
    assert runner.sliced.left_s == [math.inf] * 3
    assert isinstance(got.last, Embeddings)


def test_a_slice_is_no_larger_than_the_runner_can_compute():
    runner = FakeRunner(chunk=80, slices_texts=True)
    engine = Engine(runner)
    engine.submit(TextJob(1, [LONG[:100]], "mean", Listener()))
    drain(engine)
    assert runner.sliced.slices == [64, 36]


def test_a_cancel_takes_effect_after_the_slice():
    runner, engine, _, _ = begun()
    got = Listener()
    engine.submit(TextJob(2, [LONG], "mean", got))
    engine.run_once()
    engine.run_once()
    [_, row] = engine._requests()
    assert (row.state, row.computed_tokens) == ("prefill", sum(runner.sliced.slices))
    computed = sum(runner.sliced.slices)
    assert 0 < computed < len(LONG)
    engine.cancel(2)
    engine.run_once()
    assert got.events == [Finished("cancelled")]
    assert sum(runner.sliced.slices) == computed
    assert runner.sliced.closed
    assert engine.stats().waiting == 0


def test_closing_frees_the_text_that_is_being_computed():
    runner, engine, _, _ = begun()
    got = Listener()
    engine.submit(TextJob(2, [LONG], "mean", got))
    engine.run_once()
    engine.close()
    engine.run_once()
    assert got.events == [Finished("cancelled")]
    assert runner.sliced.closed


def test_a_slice_that_fails_ends_its_job_alone():
    runner, engine, _, heard = begun()
    got, other = Listener(), Listener()
    engine.submit(TextJob(2, [LONG], "mean", got), TextJob(3, [[1, 2]], "mean", other))
    engine.run_once()

    def fail(tokens):
        raise InternalError("no")

    runner.sliced.compute = fail
    drain(engine)
    assert isinstance(got.last, Failed) and len(got.events) == 1
    assert runner.sliced.closed
    assert isinstance(other.last, Embeddings)
    assert heard.ids == runner.greedy([1, 2, 3], 400)


def test_short_texts_of_others_are_computed_between_the_slices():
    _, engine, _, _ = begun()
    order = []
    long = TextJob(2, [LONG], "mean", lambda answer: order.append("long"), session="a")
    short = TextJob(3, [[1, 2]], "mean", lambda answer: order.append("short"), session="b")
    engine.submit(long)
    engine.run_once()
    engine.submit(short)
    drain(engine)
    assert order == ["short", "long"]


def test_one_long_text_is_computed_after_the_other():
    _, engine, _, _ = begun()
    order = []

    def note(name, answer):
        assert isinstance(answer, Embeddings)
        order.append(name)

    jobs = [TextJob(ident, [LONG, LONG], "mean", partial(note, ident)) for ident in (2, 3)]
    engine.submit(jobs[0])
    engine.run_once()
    engine.submit(jobs[1])
    drain(engine)  # The fake runner asserts that only one is begun.
    assert sorted(order) == [2, 3]


def test_texts_that_cannot_be_sliced_are_computed_whole():
    runner = FakeRunner(chunk=16)
    engine = Engine(runner)
    got = Listener()
    engine.submit(TextJob(1, [[1] * 16, [2] * 16], "mean", got))
    drain(engine)
    assert isinstance(got.last, Embeddings)
    assert runner.sliced is None


def test_while_memory_for_a_long_text_is_made_others_go_on_and_it_is_not_asked_again(monkeypatch):
    monkeypatch.setattr(FakeSlicedText, "is_ready", False)
    runner = FakeRunner(chunk=16, slices_texts=True)
    engine = Engine(runner)
    long, second, short = Listener(), Listener(), Listener()
    engine.submit(TextJob(1, [LONG[:100]], "mean", long))
    assert engine.run_once(), "it was begun"
    assert not engine.run_once(), "nothing can be computed"
    engine.submit(TextJob(2, [LONG[:90]], "mean", second), TextJob(3, [[1, 2]], "mean", short))
    assert engine.run_once()
    assert isinstance(short.last, Embeddings)
    assert not engine.run_once()
    assert (long.events, second.events) == ([], [])
    monkeypatch.setattr(FakeSlicedText, "is_ready", True)
    runner.sliced.ready()
    assert not engine._inbox.empty(), "which wakes the engine"
    drain(engine)
    assert isinstance(long.last, Embeddings) and isinstance(second.last, Embeddings)


def test_while_a_slice_is_computed_concurrently_others_go_on(monkeypatch):
    def refuse(*args):
        raise AssertionError("its time is none of the engine's")

    runner, engine, stream, heard = begun(concurrent_text_tokens=500)
    long, short = Listener(), Listener()
    engine.submit(TextJob(2, [LONG], "mean", long))
    engine.run_once()
    engine.submit(TextJob(3, [[1, 2]], "mean", short))
    before = stream.new_tokens
    for _ in range(3):
        engine.run_once()
    assert stream.new_tokens == before + 3
    assert isinstance(short.last, Embeddings)
    [_, row] = engine._requests()
    assert row.computed_tokens == 0
    monkeypatch.setattr(engine._budget, "observe_texts", refuse)
    while not long.events:
        runner.concurrent.end_slice()
        assert not engine._inbox.empty(), "which wakes the engine"
        engine.run_once()
    np.testing.assert_array_equal(long.last.vectors, [runner.vector(LONG, "mean")])
    drain(engine)
    assert heard.ids == runner.greedy([1, 2, 3], 400)
    assert engine.stats().computed_tokens == runner.computed_tokens + len(LONG) + 2
    assert at_rest(engine, runner)


def test_next_to_a_text_that_is_computed_concurrently_another_is_computed_in_slices():
    runner, engine, stream, heard = begun(concurrent_text_tokens=500)
    order = []
    jobs = [
        TextJob(ident, [text], "mean", lambda _, ident=ident: order.append(ident), session=session)
        for ident, text, session in [
            (2, LONG, "a"),
            (3, LONG[:400], "b"),
            (4, LONG[:300], "c"),
            (5, LONG[:600], "d"),
        ]
    ]
    engine.submit(*jobs)
    while len(order) < 2:
        before = stream.new_tokens
        engine.run_once()
        assert stream.new_tokens == before + 1
    assert sorted(order) == [3, 4]
    assert runner.concurrent.computed == 0
    while len(order) < 4:  # The fake runner asserts that only one is begun.
        if not runner.concurrent.is_ready:
            runner.concurrent.end_slice()
        engine.run_once()
    assert order[2:] == [2, 5]
    drain(engine)
    assert heard.ids == runner.greedy([1, 2, 3], 400)
    assert at_rest(engine, runner)


def test_a_text_whose_slice_is_computed_concurrently_can_be_cancelled():
    runner, engine, _, _ = begun(concurrent_text_tokens=500)
    got = Listener()
    engine.submit(TextJob(2, [LONG], "mean", got))
    engine.run_once()
    engine.cancel(2)
    engine.run_once()
    assert got.events == [Finished("cancelled")]
    assert runner.concurrent.closed
    runner.concurrent.end_slice()
    assert engine.run_once() and engine.stats().waiting == 0


def test_a_text_whose_memory_is_being_made_can_be_cancelled(monkeypatch):
    monkeypatch.setattr(FakeSlicedText, "is_ready", False)
    runner = FakeRunner(chunk=16, slices_texts=True)
    engine = Engine(runner)
    got = Listener()
    engine.submit(TextJob(1, [LONG[:100]], "mean", got))
    engine.run_once()
    engine.cancel(1)
    assert not engine.run_once()
    assert got.events == [Finished("cancelled")]
    assert runner.sliced.closed and runner.sliced.slices == []
