"""The bundled model under schemas, at temperature 1: its finished answers are valid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import pytest
from jsonschema import Draft202012Validator

from guide_forms import guide_path
from hearth.backends.contract.events import Finished
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.requests import Constraint
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.generation import Generation, Limits
from hearth.backends.engine.grammars import Grammars
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.sampler import Sampler
from hearth.backends.llamacpp.load import open_model
from hearth.backends.text.output.rules import content_rule
from schemas import Schema, two_hundred
from speakers import Listener, drain

MOST_TOKENS = 512
PROMPT = "<|user|>Give me an example as JSON.<|end|><|assistant|>"
PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
"""The model's own distribution under the grammar, without truncation: the hardest case."""
ALL = two_hundred()
SOME = [
    "person",
    "shapes by kind",
    "invoice",
    "tree of one",
    "latitude and longitude",
    "long enum",
]


@pytest.fixture(scope="module")
def guide() -> Iterator[Loaded]:
    loaded = open_model(ModelSpec(str(guide_path()), settings=ModelSettings(threads=1)))
    yield loaded
    loaded.runner.close()


@pytest.fixture(scope="module")
def grammars(guide: Loaded) -> Iterator[Grammars]:
    info = guide.runner.info
    made = Grammars(guide.tokenizer, info.vocab_size, info.end_ids)
    yield made
    made.close()


def answers(
    guide: Loaded, grammars: Grammars, schemas: dict[str, Schema], params: SamplingParams
) -> dict[str, Listener]:
    """The guide's answers to a request for an example under each schema."""
    engine = Engine(guide.runner)
    info, tokenizer = guide.runner.info, guide.tokenizer
    prompt = tokenizer.encode(PROMPT, special=True, add_bos=True)
    limits = Limits(MOST_TOKENS, 0, False, info.end_ids)
    heard: dict[str, Listener] = {}
    for number, (name, schema) in enumerate(schemas.items()):
        rule = content_rule(Constraint("json_schema", json.dumps(schema)), name)
        matcher = grammars.matcher(f"start: {rule}", name)
        heard[name] = Listener()
        piece, emit = tokenizer.piece, heard[name]
        sampler = Sampler(replace(params, seed=number))
        engine.submit(Generation(number, prompt, sampler, limits, (), piece, emit, matcher=matcher))
    drain(engine, 100_000)
    return heard


def unfinished(heard: dict[str, Listener]) -> dict[str, str]:
    """The answers that were cut off, with their ends; raises if another answer is invalid."""
    cut = {}
    for name, one in heard.items():
        assert isinstance(one.last, Finished), (name, one.last)
        if one.last.reason == "length":
            cut[name] = one.text[-60:]
        else:
            assert one.last.reason == "stop"
            # As decimals: in binary, 10.19 is not a multiple of 0.01 to jsonschema and others.
            schema = json.loads(json.dumps(ALL[name]), parse_float=Decimal)
            Draft202012Validator(schema).validate(json.loads(one.text, parse_float=Decimal))
    return cut


def test_some_schemas(guide: Loaded, grammars: Grammars) -> None:
    heard = answers(guide, grammars, {name: ALL[name] for name in SOME}, PLAIN)
    assert len(unfinished(heard)) <= 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_hundred_schemas(guide: Loaded, grammars: Grammars) -> None:
    """All finished outputs validate, and at least 95 % finish; the others are printed by name."""
    cut = unfinished(answers(guide, grammars, ALL, PLAIN))
    for name, end in cut.items():
        print(f"not finished within {MOST_TOKENS} tokens: {name}: ...{end!r}")
    assert len(ALL) == 200 and len(cut) <= 10
