"""Log probabilities of given tokens, and vectors of texts, computed while others stream."""

from functools import partial
from itertools import count

import numpy as np
import pytest

from fake_runner import FakeRunner
from hearth.backends.contract.events import Embeddings, Failed, Finished, Ranks, Scores
from hearth.backends.engine.embedding import TextJob
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.scoring import Scoring
from hearth.backends.errors import InternalError
from speakers import Listener, at_rest, drain, generation, piece


def expected(runner, tokens):
    found = []
    for at in range(1, len(tokens)):
        logits = runner.logits(tokens[:at]).astype(np.float64)
        found.append(logits[tokens[at]] - np.log(np.exp(logits).sum()))
    return found


@pytest.mark.parametrize("chunk", [8, 16, 64])
@pytest.mark.parametrize("max_outputs", [4, 5, 64])
def test_scores_are_those_of_the_tokens_one_by_one(chunk, max_outputs):
    runner = FakeRunner(chunk=chunk, max_outputs=max_outputs)
    engine = Engine(runner)
    tokens = [(k * 11) % 97 for k in range(50)]
    heard = Listener()
    engine.submit(Scoring(1, tokens, heard))
    drain(engine)
    [scores] = heard.events
    assert isinstance(scores, Scores)
    assert scores.logprobs == pytest.approx(expected(runner, tokens), abs=1e-5)
    assert at_rest(engine, runner)


@pytest.mark.parametrize("chunk", [5, 64])
def test_the_likeliest_in_the_place_of_each_token_are_told(chunk):
    runner = FakeRunner(chunk=chunk)
    engine = Engine(runner)
    tokens = [(k * 11) % 97 for k in range(20)]
    heard = Listener()
    engine.submit(Scoring(1, tokens, heard, top=3, piece=piece))
    drain(engine)
    [scores] = heard.events
    assert [told.id for told in scores.tokens] == tokens[1:]
    assert tuple(told.logprob for told in scores.tokens) == scores.logprobs
    for at, told in enumerate(scores.tokens, start=1):
        logits = runner.logits(tokens[:at]).astype(np.float64)
        logprobs = logits - np.log(np.exp(logits).sum())
        best = np.argsort(-logprobs, kind="stable")[:3].tolist()
        assert told.text == piece(told.id).decode()
        assert [ident for ident, _, _ in told.top] == best
        assert [text for _, text, _ in told.top] == [piece(ident).decode() for ident in best]
        values = [value for _, _, value in told.top]
        assert values == pytest.approx(logprobs[best].tolist(), abs=1e-5)


def test_no_likeliest_are_told_where_none_are_asked_for():
    runner = FakeRunner()
    engine = Engine(runner)
    heard = Listener()
    engine.submit(Scoring(1, [1, 2, 3], heard, piece=piece))
    drain(engine)
    assert heard.last.tokens == ()
    with pytest.raises(InternalError, match="texts"):
        Scoring(2, [1, 2], heard, top=1)


def test_scoring_what_is_cached_still_scores_all_of_it():
    runner = FakeRunner()
    engine = Engine(runner)
    tokens = [(k * 11) % 97 for k in range(50)]
    made, _ = generation(1, tokens, runner, tokens=4)
    engine.submit(made)
    drain(engine)
    heard = Listener()
    engine.submit(Scoring(2, tokens, heard))
    drain(engine)
    assert heard.last.logprobs == pytest.approx(expected(runner, tokens), abs=1e-5)


def test_scoring_and_generating_share_steps_and_do_not_change_each_other():
    runner = FakeRunner(context=400, pool=400, slots=3, chunk=16, max_outputs=8)
    engine = Engine(runner)
    made, heard = generation(1, [1, 2, 3], runner, tokens=40)
    engine.submit(made)
    tokens = [(k * 11) % 97 for k in range(60)]
    scored = Listener()
    engine.submit(Scoring(2, tokens, scored))
    drain(engine)
    assert heard.ids == runner.greedy([1, 2, 3], 40)
    assert scored.last.logprobs == pytest.approx(expected(runner, tokens), abs=1e-5)


@pytest.mark.parametrize("can_save", [True, False])
def test_a_score_that_was_put_aside_goes_on_where_it_was(can_save):
    runner = FakeRunner(context=100, pool=100, slots=1, chunk=8, can_save=can_save)
    engine = Engine(runner)
    tokens = [(k * 11) % 97 for k in range(80)]
    heard = Listener()
    engine.submit(Scoring(1, tokens, heard))
    for _ in range(5):
        engine.run_once()
    urgent, heard_urgent = generation(2, [7] * 60, runner, tokens=30, priority=1)
    engine.submit(urgent)
    drain(engine)
    assert heard_urgent.ids == runner.greedy([7] * 60, 30)
    assert heard.last.logprobs == pytest.approx(expected(runner, tokens), abs=1e-5)
    assert engine.stats().preemptions == 1


def test_a_cancelled_score_says_so_once():
    runner = FakeRunner(chunk=4)
    engine = Engine(runner)
    heard = Listener()
    engine.submit(Scoring(1, list(range(60)), heard))
    engine.run_once()
    engine.cancel(1)
    drain(engine)
    assert heard.events == [Finished("cancelled")]


@pytest.mark.parametrize("pooling", ["mean", None])
def test_vectors_and_ranks_come_in_order_and_beside_streams(pooling):
    runner = FakeRunner(chunk=16, context=400, pool=400)
    engine = Engine(runner)
    made, heard = generation(1, [1, 2, 3], runner, tokens=40)
    engine.submit(made)
    texts = [[n + 1] * (n + 3) for n in range(12)]
    got = Listener()
    engine.submit(TextJob(2, texts, pooling, got, session="a"))
    drain(engine)
    [answer] = got.events
    assert answer.prompt_tokens == sum(map(len, texts))
    if pooling is None:
        assert isinstance(answer, Ranks)
        assert answer.scores == tuple(float(runner.rank([text])[0]) for text in texts)
    else:
        assert isinstance(answer, Embeddings)
        one_by_one = [runner.embed([text], pooling)[0] for text in texts]
        np.testing.assert_allclose(answer.vectors, one_by_one, rtol=1e-6)
    assert heard.ids == runner.greedy([1, 2, 3], 40)
    assert engine.stats().waiting == 0


def test_vectors_that_cannot_be_had_fail_alone():
    class NoVectors(FakeRunner):
        def embed(self, texts, pooling):
            raise RuntimeError("no")

    runner = NoVectors()
    engine = Engine(runner)
    got = Listener()
    engine.submit(TextJob(1, [[1, 2]], "mean", got))
    made, heard = generation(2, [1, 2, 3], runner)
    engine.submit(made)
    drain(engine)
    assert isinstance(got.last, Failed)
    assert heard.ids == runner.greedy([1, 2, 3], 10)


def test_ranks_that_cannot_be_had_fail_alone_and_can_be_cancelled():
    runner = FakeRunner(chunk=16)
    engine = Engine(runner)
    failed, cancelled, fine = Listener(), Listener(), Listener()
    engine.submit(TextJob(1, [[1] * 17], None, failed))
    engine.submit(TextJob(2, [[1, 2]], None, cancelled))
    engine.submit(TextJob(3, [[1, 2]], None, fine))
    engine.cancel(2)
    drain(engine)
    assert isinstance(failed.last, Failed) and failed.last.error.code == "prompt_too_long"
    assert cancelled.events == [Finished("cancelled")]
    assert isinstance(fine.last, Ranks)


def test_the_first_score_and_the_shortest_share_what_a_step_has_of_outputs():
    runner = FakeRunner(context=200, pool=600, slots=3, chunk=64, max_outputs=4)
    engine = Engine(runner)
    heard = [Listener() for _ in range(3)]
    for ident, length in enumerate([150, 40, 41]):
        tokens = [(k * (ident + 3)) % 97 for k in range(length)]
        engine.submit(Scoring(ident, tokens, heard[ident]))
    for _ in range(4):
        engine.run_once()
    assert [[row.outputs for row in plan.rows] for plan in runner.tape] == [[2, 2]] * 4
    drain(engine)
    assert all(isinstance(listener.last, Scores) for listener in heard)


def test_many_texts_do_not_hold_up_a_few():
    runner = FakeRunner(chunk=8)
    engine = Engine(runner)
    many, few = Listener(), Listener()
    engine.submit(TextJob(1, [[n % 97] * 8 for n in range(100)], "mean", many))
    engine.submit(TextJob(2, [[1, 2], [3, 4]], "mean", few))
    turns = 0
    while not few.events:
        engine.run_once()
        turns += 1
    assert turns <= 3
    drain(engine)
    assert isinstance(many.last, Embeddings) and len(many.last.vectors) == 100


def test_texts_and_prefill_together_take_what_prefill_may():
    class Noting(FakeRunner):
        def embed(self, texts, pooling):
            self.embedded.append(sum(map(len, texts)))
            return super().embed(texts, pooling)

    runner = Noting(context=2000, pool=4000, chunk=256)
    runner.embedded = []
    engine = Engine(runner, clock=count().__next__)
    streaming, _ = generation(1, [1, 2], runner, tokens=30)
    engine.submit(streaming)
    engine.run_once()
    long, _ = generation(2, [k % 97 for k in range(1500)], runner, tokens=2)
    texts = Listener()
    engine.submit(long, TextJob(3, [[n] * 4 for n in range(50)], "mean", texts))
    engine.run_once()
    prefill = runner.tape[-1].tokens - 1
    assert 1 <= prefill <= 32
    assert runner.embedded == [4], "one text, or they would never come to an end"
    drain(engine)
    assert isinstance(texts.last, Embeddings)


def test_sessions_take_turns_with_their_vectors():
    runner = FakeRunner(chunk=8)
    engine = Engine(runner)
    order = []
    for ident, session in enumerate(["busy"] * 4 + ["quiet"]):
        texts = [[ident + 1] * 8 for _ in range(3)]
        note = partial(lambda ident, answer: order.append(ident), ident)
        engine.submit(TextJob(ident, texts, "mean", note, session=session))
    drain(engine)
    assert order[0] == 4, "three turns of its own, while the other session has three in all"
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert engine._last_turn == {}


def test_a_session_with_many_texts_is_not_behind_every_newcomer():
    runner = FakeRunner(chunk=8)
    engine = Engine(runner)
    order = []

    def submit(ident, session, texts):
        note = partial(lambda ident, answer: order.append(ident), ident)
        engine.submit(TextJob(ident, [[1] * 8] * texts, "mean", note, session=session))

    submit(0, "patient", 5)
    engine.run_once()
    for ident in range(1, 30):
        submit(ident, f"newcomer {ident}", 1)
        submit(100 + ident, f"newcomer {100 + ident}", 1)
        engine.run_once()
    assert 0 in order
    drain(engine)
