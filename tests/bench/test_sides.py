"""Both sides of a measurement compute the same thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tokenizer_folders
from hearth.backends.bench.cases import cases
from hearth.backends.bench.job import Job, Measured, Setup
from hearth.backends.bench.measure import measure, random_prompts
from hearth.backends.bench.model_facts import read_facts
from hearth.backends.bench.raw_llama import RawLoop
from hearth.backends.bench.session import Bench, opened, run_tests
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.errors import InvalidParameter
from model_folders import write_folder
from raw_loop import RawModel

PROMPT = [5, 9, 200, 17, 42, 8, 100]


@pytest.fixture
def bench(job: Callable[..., Job]) -> Iterator[Bench]:
    """The tiny model in exact mode, with room for every test."""
    with opened(job(), read_facts(job()), list(cases(job()))) as found:
        yield found


def raw_of(bench: Bench) -> RawLoop:
    raw = bench.beside["raw"]
    assert isinstance(raw, RawLoop)
    return raw


def drawn_by(raw: RawLoop, steps: int) -> list[list[int]]:
    """The tokens of each session in the next steps."""
    drawn = []
    for _ in range(steps):
        raw.decode(1)
        drawn.append(raw._pending)
    return [row.tolist() for row in np.stack(drawn, axis=1)]


def test_the_raw_loop_draws_what_the_reference_draws(bench: Bench, tiny_model: Path) -> None:
    reference = RawModel(tiny_model)
    expected = reference.greedy(PROMPT, 6)
    reference.close()
    raw = raw_of(bench)
    raw.start([[*PROMPT, expected[0]]], 0)
    assert drawn_by(raw, 5) == [expected[1:]]


@pytest.mark.parametrize("kind", ["sessions", "shared"])
def test_engine_and_raw_loop_draw_the_same_tokens(
    bench: Bench, job: Callable[..., Job], kind: str
) -> None:
    case = list(cases(job(tests=(kind,))))[-1]
    prompts = random_prompts(case, bench.engine.usable_tokens)
    histories = bench.engine.start(prompts, case.tokens(2))
    assert [len(one) for one in histories] == [case.prompt_tokens + 1] * len(prompts)
    raw = raw_of(bench)
    raw.start(histories, case.shared_tokens)
    bench.engine.decode(4)
    drawn = drawn_by(raw, 4)
    assert [
        tokens[len(history) :]
        for tokens, history in zip(bench.engine.histories(), histories, strict=True)
    ] == drawn


def test_the_engine_computes_a_shared_prefix_once(bench: Bench, job: Callable[..., Job]) -> None:
    own, shared = (case for case in cases(job(tests=("sessions", "shared"))) if case.sessions == 3)
    measured = {case.kind: measure(case, bench.engine, bench.beside, 2) for case in (own, shared)}
    assert measured["sessions"].cached_tokens == 0
    assert measured["shared"].cached_tokens == 2 * 14


def test_every_kind_of_test_gives_a_rate_for_each_pair(
    bench: Bench, job: Callable[..., Job]
) -> None:
    found = [measure(case, bench.engine, bench.beside, 2) for case in cases(job())]
    assert all(len(one.engine) == len(one.beside["raw"]) == 2 for one in found)
    assert all(rate > 0 for one in found for rate in (*one.engine, *one.beside["raw"]))
    assert [(one.test, one.depth, one.tokens) for one in found] == [
        ("pp8", 0, 8),
        ("tg4", 0, 4),
        ("tg4 @ d16", 16, 4),
        ("tg2 × 1", 16, 2),
        ("tg2 × 3", 16, 6),
        ("tg2 × 3 shared", 16, 6),
    ]


def test_nothing_is_held_after_a_test(bench: Bench, job: Callable[..., Job]) -> None:
    for case in cases(job()):
        assert isinstance(measure(case, bench.engine, bench.beside, 2), Measured)
        held = bench.engine._engine.kv.stats()
        assert (held.live_tokens, held.kept_tokens) == (0, 0)


def test_a_prompt_longer_than_a_batch_goes_through_in_parts(
    bench: Bench, job: Callable[..., Job]
) -> None:
    small = job(prompt_tokens=40)
    settings = replace(small.spec.settings, max_batch_tokens=16)
    small = replace(small, spec=replace(small.spec, settings=settings))
    case = next(cases(small))
    with opened(small, read_facts(small), [case]) as parts:
        assert parts.setup.batch < 40
        assert measure(case, parts.engine, parts.beside, 2).tokens == 40


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_a_runner_without_a_raw_loop_is_measured_alone(
    job: Callable[..., Job], tiny_model: Path, tmp_path: Path, kind: str
) -> None:
    path = tiny_model
    if kind == "safetensors":
        path = tmp_path / "model"
        tokenizer_folders.write_folder(path, tokenizer_folders.byte_level())
        write_folder(path, vocab_size=640)
    spec = ModelSpec(str(path), "tiny", "native", ModelSettings(threads=1))
    setup, *found = (one for one in run_tests(job(spec=spec)) if isinstance(one, Setup | Measured))
    assert isinstance(setup, Setup) and setup.info.backend == "native" and setup.beside == ()
    assert [one.test for one in found if isinstance(one, Measured)][:2] == ["pp8", "tg4"]
    for one in found:
        assert isinstance(one, Measured)
        assert len(one.engine) == 2 and min(one.engine) > 0 and one.beside == {}


def test_a_kv_type_that_a_runner_does_not_have_is_refused(
    job: Callable[..., Job], tiny_model: Path
) -> None:
    settings = ModelSettings(kv_type="q8_0")
    spec = ModelSpec(str(tiny_model), backend="native", settings=settings)
    with pytest.raises(InvalidParameter, match="q8_0"):
        list(run_tests(job(spec=spec)))
