"""Beam search on both runners: hypotheses of transformers, and those of an exhaustive search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from beam_reference import brute_force
from hearth.backends.contract.events import Token
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.requests import BeamSearch
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.beams import Search
from hearth.backends.engine.choices import ChoiceGroup
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.runner import Runner
from hearth.backends.engine.sampler import Sampler
from hearth.backends.llamacpp import load as llamacpp
from hearth.backends.native import load as native
from native_decoders import logits_of
from quantizing import GUIDE
from speakers import Listener, drain
from tiny_checkpoints import VOCABULARY, tiny_model
from tiny_folders import tiny_folder

OURS = ModelSettings(dtype="f32", kv_type="f32", threads=1, batch_threads=1, context=128)
EXACT = ModelSettings(kv_type="f32", flash_attention=False, threads=1, batch_threads=1, context=256)


def searched(
    runner: Runner, prompt: Sequence[int], beams: BeamSearch, most: int, ends: frozenset[int]
) -> list[list[int]]:
    """The tokens of all hypotheses, the best first."""
    heard, engine = Listener(), Engine(runner)
    group = ChoiceGroup(heard, beams.width)
    params = SamplingParams(temperature=0.0)
    answers = [
        Generation(
            1,
            list(prompt),
            Sampler(params),
            Limits(most, 0, False, ends),
            (),
            lambda token, *, special=False: b"x",
            group.emitter(index),
            index=index,
        )
        for index in range(beams.width)
    ]
    engine.submit(*Search(beams, answers).beams)
    drain(engine)
    tokens = [event for event in heard.events if isinstance(event, Token)]
    return [[i for e in tokens if e.index == n for i in e.ids] for n in range(beams.width)]


def text_of(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()


@pytest.mark.parametrize(("early", "count"), [(False, 20), (True, 5), ("never", 5)])
def test_beams_are_those_of_transformers(early: Any, count: int, tmp_path: Path) -> None:
    folder = tiny_folder("qwen3", tmp_path)
    model = tiny_model("qwen3")
    runner = native.open_model(ModelSpec(str(folder), settings=OURS)).runner
    ends = frozenset({5, 9, 30, 31})
    try:
        for seed in range(count):
            prompt = text_of(12, seed)
            with torch.no_grad():
                theirs = model.generate(
                    torch.tensor([prompt]),
                    max_new_tokens=10,
                    do_sample=False,
                    num_beams=4,
                    num_return_sequences=4,
                    length_penalty=0.7,
                    early_stopping=early,
                    eos_token_id=sorted(ends),
                    pad_token_id=0,
                )[:, len(prompt) :].tolist()
            expected = [
                row[: next((at for at, token in enumerate(row) if token in ends), len(row))]
                for row in theirs
            ]
            assert searched(runner, prompt, BeamSearch(4, 0.7, early), 10, ends) == expected
    finally:
        runner.close()


def test_guide_writes_what_an_exhaustive_search_finds() -> None:
    spec = ModelSpec(str(GUIDE), settings=OURS)
    opened = native.open_model(spec)
    other = llamacpp.open_model(ModelSpec(str(GUIDE), settings=EXACT))
    words = ("How", "What is", "Where do I find", "The model", "A file of")
    more = (
        "",
        " a setting",
        " the library",
        " quantization",
        " memory",
        " it",
        " two",
        " do",
        "s",
        " GPU",
    )
    ends = opened.runner.info.end_ids
    try:
        prompts = [
            opened.tokenizer.encode(one + two, special=False, add_bos=True)
            for one in words
            for two in more
        ]
        assert len(prompts) == 50
        for number, prompt in enumerate(prompts):
            expected = brute_force(
                lambda texts: [
                    logits_of(opened.runner.decoder, text)[-1].numpy() for text in texts
                ],
                prompt,
                4,
                8,
                ends=ends,
            )
            assert searched(opened.runner, prompt, BeamSearch(4), 8, ends) == expected
            if number < 10:
                assert searched(other.runner, prompt, BeamSearch(4), 8, ends) == expected
    finally:
        opened.runner.close()
        other.runner.close()


@pytest.mark.parametrize("backend", [native, llamacpp], ids=["native", "llama.cpp"])
def test_choices_and_beams_hold_a_long_prompt_once(backend: Any) -> None:
    """In memory for keys and values, once all have their first token."""
    settings = ModelSettings(threads=1, batch_threads=1, context=2048, max_sessions=8)
    opened = backend.open_model(ModelSpec(str(GUIDE), settings=settings))
    runner = opened.runner
    prompt = [1 + at * 7 % 900 for at in range(2000)]
    limits = Limits(8, 0, True, frozenset())

    def held(count: int, beams: BeamSearch | None = None) -> int:
        heard, engine = Listener(), Engine(runner)
        group = ChoiceGroup(heard, count)
        answers = [
            Generation(
                *(1, [*prompt], Sampler(SamplingParams(temperature=1.0, seed=index)), limits, ()),
                *(opened.tokenizer.piece, group.emitter(index)),
                index=index,
            )
            for index in range(1 if beams else count)
        ]
        work: list[Any] = list(Search(beams, answers).beams) if beams else answers
        engine.submit(*work)
        while not all(one.total > len(prompt) for one in work):
            engine.run_once()
        tokens = engine.kv.stats().live_tokens
        drain(engine)
        engine.clear_cache(lambda _: None)
        engine.run_once()
        return tokens

    try:
        alone = held(1)
        assert alone >= 2000
        assert held(8) <= 1.1 * alone
        assert held(1, BeamSearch(4)) <= 1.1 * alone
    finally:
        runner.close()
