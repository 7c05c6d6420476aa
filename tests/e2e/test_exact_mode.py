"""Exact mode on the bundled model: host, worker and engine say what a bare loop says."""

import asyncio
import json
import re

import pytest

from async_tests import in_loop
from guide_forms import guide_path
from hearth.backends.contract.messages import Message
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.contract.sampling import SamplingParams
from hosts import attached, collect
from raw_loop import RawModel

EXACT = ModelSettings(kv_type="f32", flash_attention=False, threads=1, batch_threads=1)
TOKENS = 32
WORDS = "how what which where tell me a story about the model settings file quantize download and"
PROMPTS = [
    " ".join((WORDS.split() * 3)[start : start + length])
    for start, length in ((n % 16, 1 + n % 23) for n in range(42))
]
PROMPTS += [
    "\N{SEAT}",
    "\N{GRINNING FACE} ok \N{ROCKET}",
    "na\u00efve caf\u00e9",
    "\u4f60\u597d",
    "\n\n\t",
    "0 1 2 3",
    "A" * 80,
    "e\u0301",
]


def shown(text):
    """What a person sees of detokenized ids: control tokens are written out there, and not said."""
    return re.sub(r"<\|[a-z]+(_[0-9]+)?\|>", "", text)


def questions(count):
    path = guide_path().parent / "questions.jsonl"
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["q"] for line, _ in zip(lines, range(count), strict=False)]


def test_fifty_prompts_give_the_tokens_of_a_raw_loop(guide_f32, place):
    assert len(PROMPTS) == 50

    async def main():
        said = []
        async with attached(place) as host:
            backend = host.backend(ModelSpec(str(guide_f32), settings=EXACT))
            greedy = SamplingParams(temperature=0.0)
            for prompt in PROMPTS:
                request = Request(text=prompt, sampling=greedy, max_tokens=TOKENS, ignore_eos=True)
                ids = await backend.tokenize(prompt)
                text, said_ids, _ = await collect(backend.generate(request))
                assert text == shown(await backend.detokenize(said_ids))
                said.append((ids, said_ids))
        return said

    said = asyncio.run(main())
    raw = RawModel(guide_f32)
    try:
        ends = raw.end_ids()  # `ignore_eos` bans them.
        for prompt_ids, ids in said:
            assert ids == raw.greedy(prompt_ids, TOKENS, ends)
    finally:
        raw.close()


@in_loop
async def test_answers_are_those_of_the_torch_model_that_was_trained(guide_f32, place):
    """The shipped file through llama.cpp and through the training code: the same greedy text."""
    from hearth.assets.guide.sample import Sampler

    sampler = Sampler(guide_path())
    async with attached(place) as host:
        backend = host.backend(ModelSpec(str(guide_f32), settings=EXACT))
        for question in questions(6):
            request = Request(
                messages=(Message("user", question),),
                sampling=SamplingParams(temperature=0.0),
                max_tokens=80,
            )
            text, _, _ = await collect(backend.generate(request))
            assert text == sampler.answer([("user", question)], 80)


@pytest.mark.parametrize("temperature", [0.8, 5.0])
@in_loop
async def test_the_same_seed_gives_the_same_text_and_bytes_are_never_lost(
    guide_f32, place, temperature
):
    """At temperature 5 the model says nearly random bytes: cut and broken UTF-8 of every kind."""
    async with attached(place) as host:
        backend = host.backend(ModelSpec(str(guide_f32), settings=EXACT))
        texts = set()
        for seed in (1, 1, 2, 3):
            sampling = SamplingParams(
                temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=seed
            )
            request = Request(text="Once", sampling=sampling, max_tokens=120, ignore_eos=True)
            text, ids, _ = await collect(backend.generate(request))
            assert len(ids) == 120
            assert text == shown(await backend.detokenize(ids))
            texts.add(text)
        assert len(texts) == 3
