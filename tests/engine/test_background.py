"""Long prompts that are computed as background prefill, while others stream."""

import threading

import pytest

from fake_runner import FakeBackgroundPrompt, FakeRunner
from hearth.backends.contract.events import Finished, Progress
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.kv.disk import DiskTier
from hearth.backends.engine.kv.disk_files import KvFolder, read_part
from speakers import Listener, at_rest, drain, generation

SYSTEM = [96, *range(30, 59)]
"""Tokens that a chat template puts before every conversation."""
CHAT = [*SYSTEM, 1, 2, 3]
LONG = [*SYSTEM, *((k * 11) % 97 for k in range(2970))]


def streaming(beside, prompt=CHAT, pool=9000, tokens=200, **how):
    """A runner, its engine, and a request that streams on it."""
    runner = FakeRunner(context=4000, pool=pool, chunk=64, beside=beside, **how)
    engine = Engine(runner)
    made, heard = generation(1, prompt, runner, tokens=tokens)
    engine.submit(made)
    for _ in range(3):
        engine.run_once()
    return runner, engine, heard


@pytest.mark.parametrize("grown", [{}, {"allocated": 64, "grows_after": 5}])
@pytest.mark.parametrize("shared", [0, 1, 30])
def test_steps_go_on_without_it_and_it_comes_back_as_it_should_be(shared, grown):
    """Also while the pool grows for it."""
    chat = [*LONG[:shared], 60, 61, 62]
    runner, engine, heard = streaming(beside=20, prompt=chat, **grown)
    before = runner.computed_tokens
    made, long = generation(2, LONG, runner)
    engine.submit(made)
    steps = len(runner.tape)
    while not long.ids:
        engine.run_once()
    assert max(plan.tokens for plan in runner.tape[steps:]) <= 4
    drain(engine)
    assert long.ids == runner.greedy(LONG, 10)
    assert heard.ids == runner.greedy(chat, 200)
    told = [e.done for e in long.events if isinstance(e, Progress)]
    assert told == sorted(told) and told[-1] == 3000 and len(told) > 5
    assert told[0] >= shared and long.last.usage.cached_tokens == shared
    assert runner.side.held == shared
    assert runner.computed_tokens - before == 3000 - shared + 9 + 197
    assert at_rest(engine, runner)
    assert engine.stats().computed_tokens == runner.computed_tokens


@pytest.mark.parametrize("shared", [0, 30])
def test_it_is_written_to_disk_like_any_other(tmp_path, shared):
    folder = KvFolder(tmp_path, 1 << 26)
    runner = FakeRunner(context=4000, pool=9000, chunk=64, beside=20)
    engine = Engine(runner, disk=DiskTier(folder, b"model", "fake", 1 << 26))
    chat, _ = generation(1, [*LONG[:shared], 60, 61, 62], runner, tokens=200)
    engine.submit(chat)
    for _ in range(3):
        engine.run_once()
    made, _ = generation(2, LONG, runner, session="chat")
    engine.submit(made)
    drain(engine)
    assert runner.side.held == shared
    engine.close()
    engine.run()
    assert max(read_part(path).end for path in tmp_path.glob("*/*/*.kv")) >= len(LONG)


def test_what_is_left_decides_not_how_long_the_prompt_is():
    runner, engine, _ = streaming(beside=20)
    first, _ = generation(2, LONG[:2900], runner, tokens=60)
    engine.submit(first)
    drain(engine)
    side = runner.side
    streams, _ = generation(3, CHAT, runner, tokens=200)
    engine.submit(streams)
    for _ in range(3):
        engine.run_once()
    second, heard = generation(4, LONG, runner)
    engine.submit(second)
    drain(engine)
    assert runner.side is side, "a hundred tokens behind a long conversation are mixed in"
    assert heard.ids == runner.greedy(LONG, 10)


def test_a_prompt_that_was_begun_by_steps_goes_on_in_the_background():
    runner = FakeRunner(context=4000, pool=9000, chunk=64, beside=20)
    engine = Engine(runner)
    made, long = generation(2, LONG, runner)
    engine.submit(made)
    for _ in range(5):
        engine.run_once()
    chat, heard = generation(1, CHAT, runner, tokens=60)
    engine.submit(chat)
    drain(engine)
    assert runner.side is not None and runner.side.held >= 5 * 64
    assert long.ids == runner.greedy(LONG, 10)
    assert heard.ids == runner.greedy(CHAT, 60)
    assert runner.computed_tokens == 3000 + 9 + (33 - 30) + 59
    assert at_rest(engine, runner)


@pytest.mark.parametrize("pool", [3070, 3200])
def test_where_there_is_no_room_for_what_it_shares_it_is_computed_by_steps(pool):
    runner, engine, heard = streaming(beside=20, pool=pool, tokens=40)
    made, long = generation(2, LONG, runner)
    engine.submit(made)
    drain(engine)
    assert (runner.side is not None) is (pool == 3200)
    assert long.ids == runner.greedy(LONG, 10)
    assert heard.ids == runner.greedy(CHAT, 40)
    assert engine.stats().preemptions == 0
    assert at_rest(engine, runner)


def test_alone_it_is_computed_by_steps():
    runner = FakeRunner(context=4000, pool=9000, chunk=512, beside=5)
    engine = Engine(runner)
    made, long = generation(1, LONG, runner)
    engine.submit(made)
    drain(engine)
    assert runner.side is None
    assert long.ids == runner.greedy(LONG, 10)


def test_short_prompts_are_mixed_in():
    runner, engine, _ = streaming(beside=5)
    made, heard = generation(2, LONG[:100], runner)
    engine.submit(made)
    drain(engine)
    assert runner.side is None
    assert heard.ids == runner.greedy(LONG[:100], 10)


def test_what_comes_to_nothing_is_computed_by_steps():
    runner, engine, _ = streaming(beside=5, beside_fails=True)
    before = runner.computed_tokens
    made, long = generation(2, LONG, runner)
    engine.submit(made)
    drain(engine)
    assert runner.side is not None
    assert long.ids == runner.greedy(LONG, 10)
    assert runner.computed_tokens - before == 2970 + 9 + 197, "what it shared is found again"
    assert at_rest(engine, runner)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_what_cannot_be_begun_is_computed_by_steps(monkeypatch, error):
    runner, engine, heard = streaming(beside=5)
    begins = []

    def begin(*args):
        begins.append(args)
        raise error

    monkeypatch.setattr(runner, "begin", begin)
    made, long = generation(2, LONG, runner)
    engine.submit(made)
    drain(engine)
    assert len(begins) == 1, "it is not tried again"
    assert long.ids == runner.greedy(LONG, 10)
    assert heard.ids == runner.greedy(CHAT, 200)
    assert at_rest(engine, runner)


def test_what_cannot_be_brought_back_is_computed_by_steps():
    runner, engine, heard = streaming(beside=5)
    runner.store.refuses_restore = True
    made, long = generation(2, LONG, runner)
    engine.submit(made)
    drain(engine)
    assert long.ids == runner.greedy(LONG, 10)
    assert heard.ids == runner.greedy(CHAT, 200)
    assert at_rest(engine, runner)


@pytest.mark.parametrize("turns", [1, 3, 30])
def test_cancelled_meanwhile(turns):
    runner, engine, heard = streaming(beside=20)
    made, long = generation(2, LONG, runner)
    engine.submit(made)
    for _ in range(turns):
        engine.run_once()
    engine.cancel(2)
    drain(engine)
    assert isinstance(long.last, Finished) and long.last.reason == "cancelled"
    assert heard.ids == runner.greedy(CHAT, 200)
    assert at_rest(engine, runner)


def test_who_shares_its_prompt_waits_for_it_and_computes_nothing_twice():
    runner, engine, _ = streaming(beside=20)
    asked = []
    for ident in range(2, 5):
        made, heard = generation(ident, [*LONG, ident], runner)
        engine.submit(made)
        asked.append(heard)
    before = runner.computed_tokens
    drain(engine)
    for ident, heard in enumerate(asked, 2):
        assert heard.ids == runner.greedy([*LONG, ident], 10)
    assert runner.computed_tokens - before < 3000 + 300


@pytest.mark.parametrize("own", [1, 100])
def test_who_shares_little_with_it_goes_on_alone(own):
    runner, engine, _ = streaming(beside=400)
    long, heard_long = generation(2, LONG, runner)
    engine.submit(long)
    engine.run_once()
    assert runner.side is not None
    prompt = [*LONG[:100], *[7] * own]
    short, heard = generation(3, prompt, runner, tokens=3)
    engine.submit(short)
    while not heard.over:
        engine.run_once()
    assert not heard_long.ids, "it does not wait for thousands of tokens to save seventy"
    assert heard.ids == runner.greedy(prompt, 3)
    drain(engine)
    assert heard_long.ids == runner.greedy(LONG, 10)
    assert at_rest(engine, runner)


def test_who_waited_for_it_in_the_steps_goes_on_when_it_leaves_them():
    runner, engine, _ = streaming(beside=400)
    prompt = [*LONG[:100], 7]
    long, heard_long = generation(2, LONG, runner)
    short, heard = generation(3, prompt, runner, tokens=3)
    engine.submit(long)
    engine.submit(short)
    while not heard.over:
        engine.run_once()
    assert not heard_long.ids
    assert heard.ids == runner.greedy(prompt, 3)
    drain(engine)
    assert at_rest(engine, runner)


def test_who_shares_little_waits_for_it_when_little_is_left():
    runner, engine, _ = streaming(beside=100)
    long, heard_long = generation(2, LONG, runner)
    engine.submit(long)
    while runner.side is None or runner.side.computed < 2900:
        engine.run_once()
    prompt = [*LONG[:130], 7]
    short, heard = generation(3, prompt, runner, tokens=3)
    engine.submit(short)
    drain(engine)
    assert heard.ids == runner.greedy(prompt, 3)
    assert heard.last.usage.cached_tokens == 130
    assert heard_long.ids == runner.greedy(LONG, 10)
    assert at_rest(engine, runner)


def test_when_nobody_streams_any_more_it_takes_the_whole_machine():
    runner, engine, _ = streaming(beside=10_000)
    made, long = generation(2, LONG, runner)
    engine.submit(made)
    engine.run_once()
    engine.cancel(1)
    drain(engine)
    assert long.ids == runner.greedy(LONG, 10)


def test_without_any_steps_it_goes_on_to_tell_how_far_it_is(monkeypatch):
    """If no number changes, the host ends the worker."""
    monkeypatch.setattr(FakeBackgroundPrompt, "hurry", lambda self, *, alone: None)
    monkeypatch.setattr("hearth.backends.engine.engine._LOOK_EVERY_S", 0.001)
    runner, engine, _ = streaming(beside=40)
    long, counts = Listener(), []

    def hear(event):
        long(event)
        counts.append(engine.stats().computed_tokens)
        if isinstance(event, Finished):
            engine.close()

    made, _ = generation(2, LONG, runner, emit=hear)
    engine.submit(made)
    engine.run_once()
    engine.cancel(1)
    threading.Thread(target=engine.run, daemon=True).start()
    assert engine.ended.wait(20)
    assert long.ids == runner.greedy(LONG, 10)
    assert sum(isinstance(event, Progress) for event in long.events) > 20
    assert counts == sorted(counts) and len(set(counts)) > 20


def test_put_aside_by_somebody_urgent_it_begins_again():
    runner = FakeRunner(context=4000, pool=9000, chunk=64, slots=2, beside=30)
    engine = Engine(runner)
    first, heard = generation(1, CHAT, runner, tokens=100)
    long, heard_long = generation(2, LONG, runner)
    engine.submit(first)
    for _ in range(3):
        engine.run_once()
    engine.submit(long)
    for _ in range(5):
        engine.run_once()
    urgent, heard_urgent = generation(3, [9, 9], runner, tokens=5, priority=5)
    engine.submit(urgent)
    drain(engine)
    assert heard_urgent.ids == runner.greedy([9, 9], 5)
    assert heard_long.ids == runner.greedy(LONG, 10)
    assert heard.ids == runner.greedy(CHAT, 100)
    assert at_rest(engine, runner)
