"""Many sessions over a real host and worker: choices, scores, vectors, queues, kept prefixes."""

import asyncio
import contextlib
import math
from dataclasses import replace

import pytest

from async_tests import in_loop
from gguf_builder import tiny_llama
from hearth.backends.contract.events import ChoiceFinished, Finished, Progress, Started, Token
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.errors import Busy, InvalidParameter, PromptTooLong
from hearth.backends.host.client import HostClient
from hosts import QUICK, attached, collect

PROMPT = "the quick hello and a long enough prompt that something of it can be kept"
SHORT = Request(
    text=PROMPT, sampling=SamplingParams(temperature=0.0), max_tokens=12, ignore_eos=True
)
SEEDED = replace(SHORT, sampling=SamplingParams(temperature=1.0, seed=5))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", context=8192)
    return ModelSpec(str(path), "tiny", settings=QUICK)


def ids_by_choice(events):
    found = {}
    for event in events:
        if isinstance(event, Token):
            found.setdefault(event.index, []).extend(event.ids)
    return found


@in_loop
async def test_choices_come_as_one_stream_and_the_first_is_what_comes_alone(model, place):
    async with attached(place) as host:
        backend = host.backend(model)
        _, alone, _ = await collect(backend.generate(SEEDED))
        events = [event async for event in backend.generate(replace(SEEDED, n=3))]
        assert isinstance(events[0], Started)
        assert sum(isinstance(event, Started) for event in events) == 1
        assert [e.done for e in events if isinstance(e, Progress)][-1] == events[0].prompt_tokens
        ids = ids_by_choice(events)
        assert ids[0] == alone and len({tuple(ids[index]) for index in range(3)}) == 3
        ended = [event.index for event in events if isinstance(event, ChoiceFinished)]
        assert sorted(ended) == [0, 1, 2]
        last = events[-1]
        assert isinstance(last, Finished) and last.usage.completion_tokens == 36
        assert last.usage.prompt_tokens == events[0].prompt_tokens


@in_loop
async def test_closing_a_stream_of_choices_ends_all_of_them(model, place):
    async with attached(place) as host:
        backend = host.backend(model)
        long = replace(SEEDED, n=4, max_tokens=4000)
        async with contextlib.aclosing(backend.generate(long)) as events:
            async for event in events:
                if isinstance(event, Token):
                    break
        _, ids, last = await collect(backend.generate(SHORT))
        assert isinstance(last, Finished) and len(ids) == 12
        engine = (await host.clear_cache(model)).running
        assert engine == 0


@in_loop
async def test_scores_are_the_log_probabilities_that_generation_reports(model, place):
    async with attached(place) as host:
        backend = host.backend(model)
        prompt = await backend.tokenize(PROMPT)
        asked = replace(SHORT, sampling=SamplingParams(temperature=0.0, logprobs=0))
        events = [event async for event in backend.generate(asked)]
        told = [item for e in events if isinstance(e, Token) for item in e.logprobs or ()]
        scores = await backend.score([*prompt, *(item.id for item in told)])
        assert len(scores.logprobs) == len(prompt) + len(told) - 1
        for score, item in zip(scores.logprobs[-len(told) :], told, strict=True):
            assert math.isclose(score, item.logprob, abs_tol=1e-3)
        with pytest.raises(InvalidParameter, match="one token"):
            await backend.score([1])
        with pytest.raises(PromptTooLong, match="8193"):
            await backend.score([1] * 8193)


@in_loop
async def test_vectors_have_length_one_and_tell_texts_apart(model, place):
    async with attached(place) as host:
        backend = host.backend(model)
        found = await backend.embed(["hello", "the and in", "hello"], pooling="mean")
        one, other, same = found.vectors
        assert all(math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-5) for vector in found.vectors)
        assert math.isclose(sum(a * b for a, b in zip(one, same, strict=True)), 1.0, abs_tol=1e-4)
        assert sum(a * b for a, b in zip(one, other, strict=True)) < 0.999
        assert found.prompt_tokens > 0
        with pytest.raises(InvalidParameter, match="empty"):
            await backend.embed([])


@in_loop
async def test_kept_prefixes_are_found_counted_and_forgotten(model, place):
    async with attached(place) as host:
        backend = host.backend(model)
        _, _, first = await collect(backend.generate(SHORT))
        _, _, second = await collect(backend.generate(SHORT))
        assert first.usage.cached_tokens == 0 < second.usage.cached_tokens
        [worker] = (await host.stats()).workers
        assert worker.engine.pool_tokens >= worker.engine.allocated_tokens > 0
        cleared = await host.clear_cache(model)
        assert cleared.kept_tokens == cleared.kept_prefixes == 0
        assert cleared.cached_tokens == second.usage.cached_tokens
        _, _, third = await collect(backend.generate(SHORT))
        assert third.usage.cached_tokens == 0


@in_loop
async def test_more_than_may_wait_are_refused_and_the_newest_limit_holds_without_a_reload(
    model, place
):
    one = replace(model, settings=replace(QUICK, max_sessions=1, max_waiting=0))
    two = replace(model, settings=replace(QUICK, max_sessions=1, max_waiting=1, keep_alive_s=9.0))
    async with attached(place) as host:
        pid = None
        long = replace(SHORT, max_tokens=4000)
        async with contextlib.aclosing(host.backend(one).generate(long)) as events:
            await anext(events)
            [worker] = (await host.stats()).workers
            pid = worker.pid
            for refused in (
                host.backend(one).tokenize("a"),
                host.backend(one).score([1, 2]),
                host.backend(one).embed(["a"]),
            ):
                with pytest.raises(Busy) as busy:
                    await refused
                assert busy.value.data["retry_after_s"] > 0
            waiting = asyncio.create_task(collect(host.backend(two).generate(SHORT)))
            await anext(events)
        assert isinstance((await waiting)[2], Finished)
        [worker] = (await host.stats()).workers
        assert worker.pid == pid


@in_loop
async def test_front_ends_take_turns_as_sessions_of_their_own(model, place):
    """One front end fills the queue; another's request does not wait for all of it."""
    single = replace(model, settings=replace(QUICK, max_sessions=2))
    async with attached(place) as greedy, HostClient.attach(place, start=False) as modest:
        order = []

        async def ask(host, name):
            await collect(host.backend(single).generate(replace(SHORT, max_tokens=40)))
            order.append(name)

        async with contextlib.aclosing(
            greedy.backend(single).generate(replace(SHORT, max_tokens=4000))
        ) as events:
            await anext(events)
            many = [asyncio.create_task(ask(greedy, "greedy")) for _ in range(8)]
            await greedy.stats()
            await ask(modest, "modest")
            await asyncio.gather(*many)
        assert order.index("modest") < len(order) - 1
