"""What is known is not computed again, counted in tokens: through host and worker."""

import asyncio

from async_tests import in_loop
from hearth.backends.contract.messages import Message
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams
from hosts import attached, collect, worker_when

GREEDY = SamplingParams(temperature=0.0)


@in_loop
async def test_eight_requests_that_share_a_thousand_tokens_compute_them_once(guide, place):
    prefix = tuple((k * 7919) % 4000 + 20 for k in range(1000))
    spec = ModelSpec(str(guide), settings=ModelSettings(context=2048, max_sessions=8))
    async with attached(place) as host:
        backend = host.backend(spec)
        asked = [
            Request(
                token_ids=(*prefix, 5 + n, 6 + n, 7 + n),
                sampling=GREEDY,
                max_tokens=4,
                ignore_eos=True,
            )
            for n in range(8)
        ]
        answers = await asyncio.gather(*(collect(backend.generate(each)) for each in asked))
        ends = [last for _, _, last in answers]
        assert [end.usage.completion_tokens for end in ends] == [4] * 8
        assert sorted(end.usage.cached_tokens for end in ends) == [0] + [1000] * 7
        # The prefix once, three more tokens of each prompt, and all but the last token said.
        computed = 1000 + 8 * 3 + 8 * 3
        worker = await worker_when(host, lambda one: one.engine.computed_tokens == computed)
        assert worker.engine.live_tokens == 0


@in_loop
async def test_the_second_turn_of_a_chat_computes_only_what_is_new(guide, place):
    async with attached(place) as host:
        backend = host.backend(ModelSpec(str(guide)))
        question = Message("user", "How do I download a model?")
        first = Request(messages=(question,), sampling=GREEDY, max_tokens=40)
        text, ids, end = await collect(backend.generate(first))
        assert end.usage.cached_tokens == 0
        before = end.usage.prompt_tokens + len(ids)
        await worker_when(host, lambda one: one.engine.computed_tokens == before)
        chat = (question, Message("assistant", text), Message("user", "And where is it then?"))
        second = Request(messages=chat, sampling=GREEDY, max_tokens=1, ignore_eos=True)
        _, _, end = await collect(backend.generate(second))
        computed = end.usage.prompt_tokens - end.usage.cached_tokens
        after = before + computed
        await worker_when(host, lambda one: one.engine.computed_tokens == after)
        # All of the first question and its answer is found.
        assert end.usage.cached_tokens >= before - 1
        assert computed < 20
