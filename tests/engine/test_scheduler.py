"""Which requests run, wait or are preempted: over a runner without a model, whose text would change
if anything were computed after a wrong prefix.
"""

from itertools import pairwise

import pytest

from fake_runner import FakeRunner
from hearth.backends.contract.events import Failed, Finished, Progress, Started
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine import background
from hearth.backends.engine import engine as engine_module
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.kv import offload
from speakers import Listener, ask, at_rest, drain, engine_of, generation

KINDS = ["full", "recurrent", "sliding"]
OLD = [k % 89 for k in range(200)]


def run_all(runner, prompts, tokens, **how):
    """The answers to `prompts`, all submitted at once, and the engine that generated them."""
    engine = engine_of(runner)
    heard = ask(engine, runner, prompts, tokens=tokens, **how)
    drain(engine, 100_000)
    return [listener.ids for listener in heard], engine


@pytest.mark.parametrize("can_save", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_twelve_requests_in_a_pool_for_three_all_finish_with_their_own_words(kind, can_save):
    runner = FakeRunner(
        context=2048, pool=2048, slots=12, chunk=128, kind=kind, can_save=can_save, vocab=501
    )
    prompts = [[(31 * n + k * k) % 501 for k in range(500)] for n in range(12)]
    said, engine = run_all(runner, prompts, 200)
    assert said == [runner.greedy(prompt, 200) for prompt in prompts]
    assert engine.stats().preemptions > 0
    assert at_rest(engine, runner)


def test_who_came_last_makes_way_and_the_first_is_never_put_aside():
    runner = FakeRunner(context=200, pool=200, slots=3, chunk=64)
    engine = engine_of(runner)
    heard = ask(engine, runner, [[i] * 40 for i in range(3)], tokens=60)
    ended = []
    while engine.run_once():
        ended += [i for i, h in enumerate(heard) if h.over and i not in ended]
    assert ended == [0, 1, 2]
    assert engine.stats().preemptions >= 1
    assert all(len([e for e in h.events if isinstance(e, Started)]) == 1 for h in heard)


def test_a_seeded_draw_is_the_same_after_preemption():
    params = SamplingParams(seed=11, temperature=1.0)
    prompts = [[n, n + 1] * 20 for n in range(4)]
    wide, _ = run_all(FakeRunner(context=600, pool=600, slots=4), prompts, 70, params=params)
    tight_runner = FakeRunner(context=200, pool=200, slots=4)
    tight, engine = run_all(tight_runner, prompts, 70, params=params)
    assert engine.stats().preemptions > 0
    assert tight == wide


def test_a_higher_priority_is_admitted_first():
    runner = FakeRunner(slots=1)
    engine = engine_of(runner)
    order = []
    for ident, priority in [(0, 0), (1, 0), (2, 5)]:

        def note(event, i=ident):
            if isinstance(event, Started):
                order.append(i)

        made, _ = generation(ident, [ident + 1], runner, tokens=2, priority=priority, emit=note)
        engine.submit(made)
    drain(engine)
    assert order == [2, 0, 1]


def test_a_higher_priority_takes_a_slot_and_gives_it_back():
    runner = FakeRunner(slots=2)
    engine = engine_of(runner)
    low = ask(engine, runner, [[i] * 5 for i in range(2)], tokens=40)
    for _ in range(8):
        engine.run_once()
    made, urgent = generation(7, [77] * 5, runner, tokens=10, priority=1)
    engine.submit(made)
    while not urgent.over:
        engine.run_once()
    assert not low[0].over and not low[1].over
    drain(engine)
    assert urgent.ids == runner.greedy([77] * 5, 10)
    assert [heard.ids for heard in low] == [runner.greedy([i] * 5, 40) for i in range(2)]
    assert at_rest(engine, runner)


def test_sessions_take_turns_where_requests_wait():
    runner = FakeRunner(slots=2)
    engine = engine_of(runner)
    order = []
    asked = [("busy", n) for n in range(6)] + [("quiet", 6)]
    for session, ident in asked:

        def note(event, i=ident):
            if isinstance(event, Started):
                order.append(i)

        made, _ = generation(ident, [ident + 1] * 3, runner, tokens=5, session=session, emit=note)
        engine.submit(made)
    drain(engine)
    assert order[0] == 0
    assert order[1] == 6, "the session that has nobody running goes before the next of the other"


@pytest.mark.parametrize("urgent", [False, True])
def test_a_session_with_something_running_does_not_starve_behind_newcomers(urgent):
    runner = FakeRunner(slots=2)
    engine = engine_of(runner)
    started = []

    def ask(ident, session, tokens, priority=0):
        def note(event):
            if isinstance(event, Started):
                started.append(ident)

        how = {"session": session, "priority": priority, "emit": note}
        engine.submit(generation(ident, [ident % 97] * 3, runner, tokens=tokens, **how)[0])

    ask(900, "busy", 200)
    engine.run_once()
    ask(0, "newcomer 0", 3)
    ask(901, "busy", 3)
    for ident in range(1, 40):
        ask(ident, f"newcomer {ident}", 3)
        if urgent and ident % 3 == 0:  # Each priority has its own order.
            ask(1000 + ident, "urgent", 1, priority=1)
        engine.run_once()
        engine.run_once()
    assert 901 in started, "it starved"
    newcomers = [ident for ident in started[: started.index(901)] if ident < 40]
    assert newcomers == [0, 1], "one newcomer may pass it, then it is its turn"


def test_of_busy_sessions_and_newcomers_each_has_every_other_turn():
    runner = FakeRunner(slots=2)
    engine = engine_of(runner)
    order = []

    def ask(ident, session, tokens):
        def note(event):
            if isinstance(event, Started):
                order.append(session)

        how = {"session": session, "emit": note}
        engine.submit(generation(ident, [ident % 97] * 3, runner, tokens=tokens, **how)[0])

    ask(0, "busy", 240)
    engine.run_once()
    for ident in range(1, 31):
        ask(ident, "busy", 2)
        ask(100 + ident, f"newcomer {ident}", 2)
    drain(engine)
    assert order[0] == "busy"
    for most in range(2, 61):
        busy = order[1:most].count("busy")
        assert busy <= most / 2, "newcomers are not held up by a session that asks a lot"
    assert len(order) == 61


def test_prefill_is_shared_out_and_the_short_one_is_not_held_up_by_the_long():
    runner = FakeRunner(context=2000, pool=4000, slots=2, chunk=64)
    engine = engine_of(runner)
    long, heard_long = generation(1, [k % 97 for k in range(1500)], runner)
    short, heard_short = generation(2, [5] * 20, runner, tokens=3)
    engine.submit(long)
    engine.submit(short)
    turns = 0
    while not heard_short.over:
        engine.run_once()
        turns += 1
    assert turns < 10
    assert not heard_long.over
    drain(engine)
    assert heard_long.ids == runner.greedy([k % 97 for k in range(1500)], 10)


def test_of_equal_prompts_one_is_done_after_the_other():
    runner = FakeRunner(context=200, pool=800, slots=4, chunk=32)
    engine = engine_of(runner)
    heard = ask(engine, runner, [[i] * 64 for i in range(4)], tokens=8)
    for _ in range(3):
        engine.run_once()
    assert [len(listener.ids) > 0 for listener in heard] == [True, False, False, False]
    drain(engine)


def test_the_first_is_not_starved_by_shorter_ones_that_keep_coming():
    runner = FakeRunner(context=600, pool=2400, slots=4, chunk=16)
    engine = engine_of(runner)
    first, heard = generation(0, [k % 97 for k in range(400)], runner, tokens=4)
    engine.submit(first)
    for turn in range(60):
        engine.submit(generation(1 + turn, [turn % 97] * 40, runner, tokens=1)[0])
        engine.run_once()
    assert heard.ids, "half of each step is its own"
    drain(engine, 10_000)


def test_mixed_steps_are_whole_tiles_and_not_too_large():
    runner = FakeRunner(context=600, pool=1800, slots=3, chunk=256, tile=16, mixed_tokens=48)
    engine = Engine(runner, clock=lambda: 0.0)
    for ident in range(2):
        engine.submit(generation(ident, [ident] * 20, runner, tokens=40)[0])
        engine.run_once()
    long, heard = generation(7, [k % 97 for k in range(150)], runner, tokens=4)
    engine.submit(long)
    while not heard.ids:
        engine.run_once()
    mixed = [plan.tokens for plan in runner.tape if len(plan.rows) == 3 and plan.tokens > 3]
    assert mixed and all(tokens % 16 == 0 and tokens <= 48 for tokens in mixed[:-1])
    drain(engine)
    assert heard.ids == runner.greedy([k % 97 for k in range(150)], 4)


class Costs:
    """A clock by which a step takes 20 ms, plus 3 ms per token, plus `cell_s` for each token before
    it.
    """

    def __init__(self, runner, cell_s=0.0):
        self.runner = runner
        self.cell_s = cell_s

    def step_s(self, plan):
        cells = sum(len(row.tokens) * row.start for row in plan.rows)
        return 0.02 + 0.003 * plan.tokens + self.cell_s * cells

    def __call__(self):
        return sum(map(self.step_s, self.runner.tape))


def decoded(plan):
    return sum(len(row.tokens) == 1 for row in plan.rows)


def prompt_of(ident, tokens=100):
    return [(ident * 31 + k * k) % 97 for k in range(tokens)]


def test_prompts_that_arrive_together_are_computed_together():
    """In as many steps as their tokens need, alternating with steps for the requests that already
    stream.
    """
    runner = FakeRunner(context=600, pool=4800, slots=8, chunk=256, tile=16, mixed_tokens=48)
    engine = Engine(runner, clock=Costs(runner))
    heard = ask(engine, runner, map(prompt_of, range(8)), tokens=20)
    engine.run_once()
    while not all(listener.ids for listener in heard):
        engine.run_once()
    assert len(runner.tape) <= 10
    waited = [not decoded(plan) for plan in runner.tape[1:]]
    assert any(waited) and not any(a and b for a, b in pairwise(waited))
    drain(engine)
    assert [one.ids for one in heard] == [runner.greedy(prompt_of(i), 20) for i in range(8)]


@pytest.mark.parametrize(
    ("streams", "tokens", "priority"), [(3, 100, 0), (1, 2000, 0), (1, 100, -1)]
)
def test_who_streams_waits_for_no_step(streams, tokens, priority):
    """Not for fewer prompts than there are streams, a long prompt, or a lower priority."""
    runner = FakeRunner(context=4096, pool=8192, slots=8, chunk=256, tile=16, mixed_tokens=48)
    engine = Engine(runner, clock=Costs(runner))
    for ident in range(streams):
        engine.submit(generation(ident, prompt_of(ident, 10), runner, tokens=400)[0])
        engine.run_once()
    for _ in range(10):
        engine.run_once()
    late, heard = generation(9, prompt_of(9, tokens), runner, tokens=5, priority=priority)
    engine.submit(late)
    before = len(runner.tape)
    while not heard.ids:
        engine.run_once()
    assert all(decoded(plan) == streams for plan in runner.tape[before:-1])


@pytest.mark.parametrize("before", [1000, 8000])
def test_a_question_behind_a_long_conversation_holds_up_no_stream(before):
    """Costs like those of llama.cpp's flash attention on two cores: 85 ms for a row after 20,000
    tokens.
    """
    runner = FakeRunner(context=9000, pool=18_000, slots=3, chunk=512, tile=16, mixed_tokens=48)
    costs = Costs(runner, cell_s=4e-6)
    engine = Engine(runner, clock=costs)
    talk, _ = generation(0, [k % 97 for k in range(before)], runner, tokens=2)
    engine.submit(talk)
    drain(engine)
    engine.submit(generation(1, [5, 6, 7], runner, tokens=400)[0])
    for _ in range(10):
        engine.run_once()
    question = [*talk.tokens, *range(40)]
    again, heard = generation(2, question, runner, tokens=2)
    engine.submit(again)
    steps = len(runner.tape)
    while not heard.ids:
        engine.run_once()
    took = [costs.step_s(plan) for plan in runner.tape[steps:]]
    assert max(took) <= 2 * 0.023 + 0.05
    assert heard.ids == runner.greedy(question, 1)


@pytest.mark.parametrize("kind", ["full", "sliding"])
def test_eight_that_share_a_prefix_compute_it_once(kind):
    runner = FakeRunner(context=2048, pool=8192, slots=8, chunk=128, kind=kind)
    prefix = [(k * 7) % 97 for k in range(1000)]
    prompts = [[*prefix, n, n + 1, n + 2] for n in range(8)]
    said, engine = run_all(runner, prompts, 5)
    assert said == [runner.greedy(prompt, 5) for prompt in prompts]
    if kind == "full":
        # The prefix once, the rest of each prompt, and each output except its last token.
        assert runner.computed_tokens == 1000 + 8 * 3 + 8 * 4
        assert engine.stats().cached_tokens == 7 * 1000
    assert at_rest(engine, runner)


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_turn_of_a_chat_computes_only_what_is_new(kind):
    runner = FakeRunner(context=1000, pool=2000, chunk=64, kind=kind)
    engine = engine_of(runner)
    first, heard = generation(1, list(range(90)) * 2, runner, tokens=20)
    engine.submit(first)
    drain(engine)
    before = runner.computed_tokens
    question = [3, 1, 4, 1, 5]
    prompt = list(range(90)) * 2 + heard.ids + question
    second, heard = generation(2, prompt, runner, tokens=1)
    engine.submit(second)
    drain(engine)
    assert heard.ids == runner.greedy(prompt, 1)
    # The last token that was drawn had not been computed.
    assert runner.computed_tokens - before == 1 + len(question)
    assert heard.last.usage.cached_tokens == len(prompt) - 1 - len(question)


@pytest.mark.parametrize("kind", KINDS)
def test_asking_the_same_again_computes_one_token(kind):
    runner = FakeRunner(context=1000, pool=2000, chunk=64, kind=kind)
    engine = engine_of(runner)
    prompt = [(k * k) % 97 for k in range(150)]
    for ident in range(3):
        before = runner.computed_tokens
        made, heard = generation(ident, prompt, runner, tokens=8)
        engine.submit(made)
        drain(engine)
        assert heard.ids == runner.greedy(prompt, 8)
        if ident:
            assert runner.computed_tokens - before == 8
            assert heard.last.usage.cached_tokens == 149


def test_a_donor_that_is_cancelled_holds_nobody_up():
    runner = FakeRunner(context=1000, pool=2000, chunk=16)
    engine = engine_of(runner)
    prefix = [k % 97 for k in range(300)]
    first, heard_first = generation(1, [*prefix, 1], runner)
    second, heard_second = generation(2, [*prefix, 2], runner)
    engine.submit(first)
    engine.submit(second)
    for _ in range(5):
        engine.run_once()
    engine.cancel(1)
    drain(engine)
    assert heard_first.last.reason == "cancelled"
    assert heard_second.ids == runner.greedy([*prefix, 2], 10)
    assert runner.computed_tokens < 2 * 300
    assert at_rest(engine, runner)


def test_what_does_not_fit_into_what_memory_is_left_fails_and_others_go_on():
    runner = FakeRunner(context=256, pool=256)
    engine = engine_of(runner)
    engine.kv.limit(100)
    large, heard_large = generation(1, list(range(97)) * 2, runner)
    small, heard_small = generation(2, [4, 5, 6], runner)
    engine.submit(large)
    engine.submit(small)
    drain(engine)
    assert isinstance(heard_large.last, Failed)
    assert heard_large.last.error.code == "does_not_fit"
    assert heard_large.last.error.data == {"tokens": 194, "pool_tokens": 256}
    assert isinstance(heard_small.last, Finished)
    assert heard_small.ids == runner.greedy([4, 5, 6], 10)


def test_cancelling_many_at_any_moment_leaves_nothing_held():
    runner = FakeRunner(context=400, pool=600, slots=5, chunk=32)
    engine = engine_of(runner)
    heard = []
    for ident in range(60):
        made, listener = generation(ident, [ident % 7] * (5 + ident), runner, tokens=30)
        engine.submit(made)
        heard.append(listener)
        for _ in range(ident % 4):
            engine.run_once()
        if ident % 3:
            engine.cancel(ident - ident % 5)
    for ident in range(0, 60, 2):
        engine.cancel(ident)
    drain(engine)
    assert all(isinstance(listener.last, Finished) for listener in heard)
    assert at_rest(engine, runner)
    engine.clear_cache(Listener())
    engine.run_once()
    assert engine.stats().kept_tokens == 0


def test_progress_never_goes_back():
    runner = FakeRunner(context=200, pool=200, slots=2, chunk=16, can_save=False)
    engine = engine_of(runner)
    made, heard = generation(1, [k % 97 for k in range(150)], runner, tokens=5)
    engine.submit(made)
    for _ in range(5):
        engine.run_once()
    urgent, heard_urgent = generation(2, [7] * 150, runner, tokens=5, priority=1)
    engine.submit(urgent)
    drain(engine)
    assert isinstance(heard_urgent.last, Finished)
    assert engine.stats().preemptions == 1
    done = [event.done for event in heard.events if isinstance(event, Progress)]
    assert done == sorted(set(done)) and done[-1] == 150


class Copies:
    """A clock that advances with every part that is copied."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.now = 0.0
        self.out = []
        """(sequence, start, end) of each part."""

    def __call__(self, tokens):
        self.now += self.seconds

    def watch(self, runner):
        save = runner.store.save_part

        def noted(sequence, start, end):
            self.out.append(tuple(runner.store.tokens(sequence)[:end]))
            return save(sequence, start, end)

        runner.store.save_part = noted


def copying_runner(copies, **changes):
    made = {"context": 512, "pool": 512, "slots": 3, "chunk": 64, "most_offloaded": 2048, **changes}
    runner = FakeRunner(on_copy=copies, clock=lambda: copies.now, **made)
    copies.watch(runner)
    return runner


def with_an_offloaded_chat(**changes):
    """A runner, its engine, and the listener to a stream during which `OLD` was offloaded."""
    runner = copying_runner(Copies(0.015), kept_while_running=0, pool=1024, **changes)
    engine = engine_of(runner)
    ask(engine, runner, [OLD], tokens=2)
    drain(engine)
    stream, listener = generation(9, [5] * 20, runner, tokens=100)
    engine.submit(stream)
    while engine.kv.stats().offloaded_tokens < 201:
        engine.run_once()
    return runner, engine, listener


def test_preemption_copies_every_token_once():
    copies = Copies(0.001)
    runner = copying_runner(copies, kept_while_running=0)
    prompts = [[n] * 120 for n in range(3)]
    said, engine = run_all(runner, prompts, 120)
    assert said == [runner.greedy(prompt, 120) for prompt in prompts]
    assert engine.stats().preemptions > 0
    assert copies.out and len(copies.out) == len(set(copies.out))
    # All prompts and all answers once, except the tokens that nothing came after; nothing twice.
    assert runner.computed_tokens == 3 * (120 + 119)
    assert at_rest(engine, runner)


def test_a_preemption_takes_no_longer_than_copies_may_between_two_steps():
    copies = Copies(0.015)
    runner = copying_runner(copies)
    engine = engine_of(runner)
    heard = ask(engine, runner, [[i] * 120 for i in range(3)], tokens=120)
    most = 0.0
    while True:
        before, streaming = copies.now, engine.stats().running > 1
        if not engine.run_once():
            break
        if streaming:
            most = max(most, copies.now - before)
    assert engine.stats().preemptions > 0
    assert most <= 0.03, "a part, and one more where a turn was begun twice"
    # A sequence that ran for a while before it was preempted was copied in advance.
    assert runner.computed_tokens <= 3 * (120 + 119) + 64
    assert [listener.ids for listener in heard] == [runner.greedy([i] * 120, 120) for i in range(3)]


def test_a_conversation_comes_back_in_parts_while_others_stream():
    runner, engine, listener = with_an_offloaded_chat()
    computed, said = runner.computed_tokens, len(listener.ids)
    again, heard = generation(3, [*OLD, 7, 8], runner, tokens=3)
    engine.submit(again)
    turns = 0
    while not heard.ids:
        engine.run_once()
        turns += 1
        assert len(listener.ids) == said + turns, "a token in each turn"
    assert turns >= 200 // 16
    drain(engine)
    assert heard.ids == runner.greedy([*OLD, 7, 8], 3)
    assert listener.ids == runner.greedy([5] * 20, 100)
    assert heard.last.usage.cached_tokens == 200
    assert runner.computed_tokens - computed == (100 - said) + 2 + 2
    started = [event for event in heard.events if isinstance(event, Started)]
    assert [event.cached_tokens for event in started] == [200]


def test_what_does_not_come_back_is_not_counted_as_cached():
    runner, engine, _ = with_an_offloaded_chat()
    again, heard = generation(3, [*OLD, 7, 8], runner, tokens=3)
    engine.submit(again)
    for _ in range(4):
        engine.run_once()
    engine.clear_cache(Listener())
    drain(engine)
    assert heard.ids == runner.greedy([*OLD, 7, 8], 3)
    assert heard.last.usage.cached_tokens == 4 * 16 == engine.stats().cached_tokens


def test_all_comes_back_at_once_where_nobody_streams():
    runner, engine, _ = with_an_offloaded_chat()
    drain(engine)
    assert engine.stats().kept_tokens < 200 < engine.stats().offloaded_tokens
    again, heard = generation(3, [*OLD, 7, 8], runner, tokens=3)
    engine.submit(again)
    engine.run_once()
    assert heard.ids == runner.greedy([*OLD, 7, 8], 1)
    drain(engine)


def test_every_preempted_sequence_of_a_recurrent_model_is_saved():
    runner = FakeRunner(
        context=512,
        pool=512,
        slots=3,
        chunk=64,
        kind="recurrent",
        state_bytes=100,
        kept_sequences=0,
    )
    engine = engine_of(runner)
    low = ask(engine, runner, [[i] * 100 for i in range(3)], tokens=60)
    for _ in range(16):
        engine.run_once()
    urgent, heard = generation(9, [9] * 500, runner, tokens=5, priority=1)
    engine.submit(urgent)
    drain(engine)
    assert engine.stats().preemptions == 3
    assert heard.ids == runner.greedy([9] * 500, 5)
    assert [heard.ids for heard in low] == [runner.greedy([i] * 100, 60) for i in range(3)]
    assert runner.computed_tokens == 3 * (100 + 59) + 500 + 4, "nothing twice"
    assert at_rest(engine, runner)


def test_what_can_only_be_copied_as_a_whole_and_is_large_is_computed_again(monkeypatch):
    monkeypatch.setattr(offload, "MOST_WHOLE_BYTES", 8 * 200)
    runner = FakeRunner(context=512, pool=512, slots=2, chunk=64, kind="sliding", kept_sequences=0)
    saved = []
    save = runner.store.save
    runner.store.save = lambda sequence: saved.append(sequence) or save(sequence)
    engine = engine_of(runner)
    for round_, (tokens, count) in enumerate([(100, 1), (300, 0)]):
        made, heard = generation(round_, [round_] * tokens, runner, tokens=40)
        engine.submit(made)
        while not heard.ids:
            engine.run_once()
        urgent, _ = generation(10 + round_, [9] * 480, runner, tokens=5, priority=1)
        engine.submit(urgent)
        drain(engine)
        assert heard.ids == runner.greedy([round_] * tokens, 40)
        assert len(saved) == count
        saved.clear()


def test_every_byte_for_keys_and_values_is_in_the_account(monkeypatch):
    monkeypatch.setattr(background, "WORTH_STEPS", 0)
    runner = FakeRunner(context=600, pool=1200, slots=3, chunk=64, kept_while_running=0, beside=5)
    engine = engine_of(runner)
    engine.submit(generation(1, [k % 89 for k in range(100)], runner, tokens=2)[0])
    drain(engine)
    engine.submit(generation(2, [5] * 20, runner, tokens=30)[0])
    for _ in range(5):
        engine.run_once()
    engine.submit(generation(3, [7] * 500, runner, tokens=2)[0])
    engine.run_once()
    stats = engine._count()
    assert stats.allocated_bytes == 1200 * 8
    assert stats.offloaded_bytes == 101 * 8
    assert stats.beside_bytes == 499 * 8
    assert stats.taken_bytes == (1200 + 101 + 499) * 8
    drain(engine)
    assert engine.stats().beside_bytes == 0


@pytest.mark.parametrize("free", [10_000, 2_000, 0])
def test_saved_states_are_in_the_account_and_dropped_where_memory_is_short(free):
    left = [10_000]
    copies = Copies(0.0)
    runner = FakeRunner(
        context=512,
        pool=512,
        slots=3,
        chunk=64,
        kind="recurrent",
        state_bytes=1_000,
        kept_sequences=0,
        available_bytes=lambda: left[0],
        clock=lambda: copies.now,
    )
    engine = engine_of(runner)
    low = ask(engine, runner, [[i] * 100 for i in range(3)], tokens=60)
    for _ in range(16):
        engine.run_once()
    urgent, heard = generation(9, [9] * 500, runner, tokens=12, priority=1)
    engine.submit(urgent)
    engine.run_once()
    stats = engine._count()
    assert (stats.state_bytes, stats.offloaded_bytes) == (3_000, 3_000)
    assert stats.taken_bytes == stats.allocated_bytes + 6_000
    left[0] = free
    copies.now += 2
    engine.run_once()
    assert engine._count().offloaded_bytes == min(3_000, (free + 3_000) // 2_000 * 1_000)
    drain(engine)
    assert heard.ids == runner.greedy([9] * 500, 12)
    assert [heard.ids for heard in low] == [runner.greedy([i] * 100, 60) for i in range(3)]
    assert at_rest(engine, runner)


def test_an_engine_at_rest_notices_that_memory_is_short(monkeypatch):
    monkeypatch.setattr(engine_module, "_LOOK_EVERY_S", 0.0)
    free, copies = [1 << 20], Copies(0.0)
    runner = copying_runner(copies, kept_while_running=0, available_bytes=lambda: free[0])
    engine = engine_of(runner)
    engine.submit(generation(1, [k % 89 for k in range(100)], runner, tokens=2)[0])
    drain(engine)
    engine.submit(generation(2, [5] * 20, runner, tokens=30)[0])
    drain(engine)
    assert engine.stats().offloaded_bytes == 101 * 8
    free[0] = 0
    copies.now += 1
    engine._rest()  # Otherwise it would wait for a request.
    assert not engine.run_once()
    assert 0 < engine.stats().offloaded_bytes <= 101 * 4


def test_a_conversation_that_several_go_on_with_comes_back_once():
    runner, engine, _ = with_an_offloaded_chat(slots=5)
    restored = []
    restore = runner.store.restore_part
    runner.store.restore_part = lambda *how: restored.append(how[2]) or restore(*how)
    heard = ask(engine, runner, [[*OLD, n] for n in range(3)], tokens=4)
    drain(engine)
    said = [runner.greedy([*OLD, ident], 4) for ident in range(3)]
    assert [listener.ids for listener in heard] == said
    assert restored == list(range(0, 200, 16))
    assert [listener.last.usage.cached_tokens for listener in heard] == [200] * 3
