"""Streaming with attention sinks: which tokens each request generates, whatever else happens."""

from __future__ import annotations

import random

import pytest

from fake_pages import FakePagedRunner
from fake_runner import FakeRunner
from hearth.backends.contract.events import Finished
from hearth.backends.engine.drafts import Speculating
from hearth.backends.engine.streaming import Streaming
from hearth.backends.errors import InvalidParameter
from speakers import at_rest, drain, engine_of, generation

RUNNERS = {"sequences": FakeRunner, "blocks": FakePagedRunner}
PAGE = {"sequences": 1, "blocks": 4}


def said(runner, prompt, count, streaming):
    """The output of `runner` when it sees only the tokens that `streaming` keeps."""
    tokens = list(prompt)
    for _ in range(count):
        kept = streaming.kept(tokens, streaming.dropped(len(tokens) - 1))
        tokens.append(int(runner.logits(kept).argmax()))
    return tokens[len(prompt) :]


def prompt_of(length, seed=1):
    return random.Random(seed).choices(range(97), k=length)


def test_what_is_forgotten_follows_from_how_much_is_computed():
    streaming = Streaming.of(6, 70, 4)
    assert (streaming.most, streaming.step) == (68, 12)
    assert [streaming.dropped(at) for at in (0, 67, 68, 79, 80, 92)] == [0, 0, 12, 12, 24, 36]
    tokens = list(range(80))
    assert streaming.kept(tokens, 12) == [*range(6), *range(18, 80)]
    states = dict(streaming.states(tokens, b""))
    assert list(states) == [12] and list(dict(streaming.states([*tokens, 80], b""))) == [24, 12]
    others = [*tokens[:10], 99, *tokens[11:]]
    assert dict(streaming.states(others, b""))[12] != states[12], "it depends on what is forgotten"
    assert dict(streaming.states([*tokens[:30], 99, *tokens[31:]], b"")) == states
    with pytest.raises(InvalidParameter, match="80"):
        Streaming.of(64, 79, 4)


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize(("sinks", "length", "drafts"), [(0, 5, 0), (4, 64, 3), (7, 300, 0)])
def test_a_sequence_sees_its_first_tokens_and_the_newest(kind, sinks, length, drafts):
    runner = RUNNERS[kind](context=64, pool=64, slots=2, vocab=5 if drafts else 97)
    streaming = Streaming.of(sinks, 64, PAGE[kind])
    prompt = [token % runner.info.vocab_size for token in prompt_of(length)]
    engine = engine_of(runner)
    made, heard = generation(1, prompt, runner, tokens=200, streaming=streaming)
    made.speculating = Speculating("ngram", drafts) if drafts else None
    engine.submit(made)
    while not heard.over:
        engine.run_once()
        engine.kv.check_integrity()
    assert heard.ids == said(runner, prompt, 200, streaming)
    assert heard.last.reason == "length" and "forgotten" in heard.last.notices[-1]
    drain(engine)
    assert at_rest(engine, runner)


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize("seed", range(6))
def test_many_in_a_small_pool_change_nothing(kind, seed):
    """They share prompts, are preempted, cancelled, and scheduled again."""
    rng = random.Random(seed)
    how = {"kept_while_running": 0, "most_offloaded": 100} if seed % 2 else {}
    runner = RUNNERS[kind](context=40, pool=96, slots=3, chunk=rng.choice([4, 16]), **how)
    engine = engine_of(runner)
    streaming = Streaming.of(rng.choice([0, 2, 4]), 40, PAGE[kind])
    expected = {}
    listeners = {}
    shared = prompt_of(70, seed)
    for ident in range(12):
        prompt = shared[: rng.randint(1, 70)] + prompt_of(rng.randint(1, 30), ident)
        streams = ident % 3 != 2
        prompt = prompt if streams else prompt[:20]
        tokens = rng.randint(1, 90) if streams else 19
        made, heard = generation(ident, prompt, runner, tokens=tokens, priority=rng.randint(0, 1))
        made.streaming = streaming if streams else None
        expected[ident] = (
            said(runner, prompt, tokens, streaming) if streams else runner.greedy(prompt, tokens)
        )
        listeners[ident] = heard
        engine.submit(made)
        for _ in range(rng.randint(0, 25)):
            engine.run_once()
            engine.kv.check_integrity()
        if rng.random() < 0.2:
            engine.cancel(ident)
    drain(engine)
    for ident, heard in listeners.items():
        assert isinstance(heard.last, Finished), heard.last
        assert heard.ids == expected[ident][: len(heard.ids)]
        assert heard.last.reason == "cancelled" or len(heard.ids) == len(expected[ident])
    assert at_rest(engine, runner)


@pytest.mark.parametrize("kind", RUNNERS)
def test_what_depends_on_forgotten_text_is_found_only_with_the_same_text(kind):
    runner = RUNNERS[kind](context=64, pool=256)
    streaming = Streaming.of(4, 64, PAGE[kind])
    engine = engine_of(runner)

    def cached(prompt, streaming=streaming):
        made, heard = generation(1, prompt, runner, tokens=2, streaming=streaming)
        engine.submit(made)
        drain(engine)
        return heard.last.usage.cached_tokens

    prompt = prompt_of(150)
    assert cached(prompt) == 0
    assert cached([*prompt, 1, 2, 3]) >= 150, "the next question of a chat"
    assert cached([*prompt[:10], 96 - prompt[10], *prompt[11:]]) <= 10
    left = streaming.kept(prompt, streaming.dropped(149))
    assert cached(left, None) <= 4, "other sequences do not find it"
