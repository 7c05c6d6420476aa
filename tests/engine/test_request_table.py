"""The engine's report on each request: which run, their progress, and which wait."""

import numpy as np
import pytest

from fake_runner import FakeRunner
from hearth.backends.engine.embedding import TextJob
from hearth.backends.engine.engine import MOST_REQUESTS, Engine
from speakers import drain, generation


def turned(engine, turns):
    """`engine` after `turns` steps, with its counts refreshed."""
    for _ in range(turns):
        engine._stats_at = 0.0
        engine.run_once()
    return engine


def test_a_request_is_prefilled_then_decodes_then_is_gone():
    runner = FakeRunner(chunk=4)
    engine = Engine(runner)
    made, _ = generation(7, list(range(10)), runner, tokens=5, session="me")
    engine.submit(made)
    [row] = turned(engine, 1).stats().requests
    assert (row.id, row.session, row.state) == (7, "me", "prefill")
    assert (row.prompt_tokens, row.computed_tokens, row.generated_tokens) == (10, 4, 0)
    [row] = turned(engine, 4).stats().requests
    assert row.state == "decoding"
    assert (row.prompt_tokens, row.generated_tokens) == (10, 3)
    assert row.tok_per_s > 0
    drain(engine)
    assert engine.stats().requests == ()


def test_who_finds_no_slot_is_queued_behind_those_who_run():
    runner = FakeRunner(slots=1)
    engine = Engine(runner)
    for ident in (1, 2):
        engine.submit(generation(ident, [ident, 3], runner)[0])
    running, waiting = turned(engine, 1).stats().requests
    assert (running.id, running.state) == (1, "decoding")
    assert (waiting.id, waiting.state, waiting.computed_tokens) == (2, "queued", 0)


def test_a_prefix_that_was_found_is_told():
    runner = FakeRunner(chunk=64)
    engine = Engine(runner)
    engine.submit(generation(1, list(range(40)), runner, tokens=1)[0])
    drain(engine)
    engine.submit(generation(2, list(range(40)), runner)[0])
    [row] = turned(engine, 1).stats().requests
    assert row.cached_tokens > 0


def test_choices_of_one_request_are_one_row():
    runner = FakeRunner(slots=4, pool=256)
    engine = Engine(runner)
    choices = [generation(3, [1, 2, 3], runner, index=index)[0] for index in range(3)]
    engine.submit(*choices)
    [row] = turned(engine, 4).stats().requests
    assert row.prompt_tokens == 3
    assert row.generated_tokens == sum(choice.new_tokens for choice in choices)


def test_texts_that_become_vectors_are_requests_too():
    runner = FakeRunner()
    runner.embed = lambda texts: np.ones((len(texts), 2), np.float32)
    engine = Engine(runner)
    engine.submit(TextJob(5, [[1, 2], [3]], "mean", lambda answer: None, session="me"))
    engine._inbox.get()()
    engine._stats = engine._count()
    [row] = engine.stats().requests
    assert (row.id, row.session, row.state, row.prompt_tokens) == (5, "me", "queued", 3)


@pytest.mark.parametrize("waiting", [3, MOST_REQUESTS + 20])
def test_the_table_has_an_end(waiting):
    runner = FakeRunner(slots=1)
    engine = Engine(runner)
    engine.submit(*(generation(ident, [ident, 3], runner)[0] for ident in range(waiting)))
    stats = turned(engine, 1).stats()
    assert len(stats.requests) == min(waiting, MOST_REQUESTS)
    assert stats.running + stats.waiting == waiting
