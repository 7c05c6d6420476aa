"""transformers beside the engine: the same tokens, its pace, and what cannot be measured so."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hearth.backends.bench import reference_room, tune
from hearth.backends.bench.cases import Case, cases
from hearth.backends.bench.job import Job, Measured, Setup
from hearth.backends.bench.measure import random_prompts
from hearth.backends.bench.model_facts import read_facts
from hearth.backends.bench.session import opened, run_tests
from hearth.backends.bench.transformers_side import BatchingSide, GenerateSide, tok_per_s
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.errors import (
    BackendUnavailable,
    DoesNotFit,
    HearthError,
    InvalidParameter,
    UnsupportedModel,
)
from tiny_folders import tiny_folder

pytest.importorskip("transformers")

EXACT = ModelSettings(kv_type="f32", flash_attention=False, threads=1, batch_threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder("qwen3", tmp_path_factory.mktemp("reference") / "qwen3")


@pytest.fixture
def beside(job: Callable[..., Job], folder: Path) -> Callable[..., Job]:
    """`beside(tests=..., ...)`: a job for the tiny folder, beside transformers."""

    def make(path: Path = folder, settings: ModelSettings = EXACT, **changes: object) -> Job:
        spec = ModelSpec(str(path), "tiny", "native", settings)
        return job(spec=spec, reference="transformers", **changes)

    return make


def case_of(job: Job, kind: str) -> Case:
    return [case for case in cases(job) if case.kind == kind][-1]


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_all_sides_draw_the_same_tokens(
    beside: Callable[..., Job], tmp_path: Path, family: str
) -> None:
    job = beside(tiny_folder(family, tmp_path / family))
    case = case_of(job, "sessions")
    with opened(job, read_facts(job), [case]) as bench:
        generate, batching = bench.beside["generate"], bench.beside["batching"]
        assert isinstance(generate, GenerateSide) and isinstance(batching, BatchingSide)
        prompts = random_prompts(case, bench.engine.usable_tokens)
        histories = bench.engine.start(prompts, case.tokens(2))
        sides = (bench.engine, generate, batching)
        generate.start(histories, 0)
        batching.start(histories, 0)
        for steps in (3, 2):
            assert all(side.decode(steps) > 0 for side in sides)
            drawn = bench.engine.histories()
            assert generate._ids.tolist() == drawn and batching._histories == drawn


def test_every_kind_of_test_is_made_by_all_sides(beside: Callable[..., Job]) -> None:
    before = torch.get_num_threads()
    job = beside(repeats=1, sessions=(3,))
    setup, *found = (one for one in run_tests(job) if isinstance(one, Setup | Measured))
    torch.set_num_threads(before)
    assert isinstance(setup, Setup) and setup.beside == ("generate", "batching")
    assert [one.test for one in found if isinstance(one, Measured)] == [
        *("pp8", "tg4", "tg4 @ d16", "tg2 × 3", "tg2 × 3 shared"),
    ]
    for one in found:
        assert isinstance(one, Measured)
        assert list(one.beside) == ["generate", "batching"]
        assert all(len(rates) == 1 and min(rates) > 0 for rates in one.beside.values())
        assert one.ratio("batching").median == one.engine[0] / one.beside["batching"][0]


def test_the_runner_keeps_its_threads(beside: Callable[..., Job]) -> None:
    job = beside(settings=replace(EXACT, threads=1, batch_threads=2))
    case = case_of(job, "pp")
    before = torch.get_num_threads()
    with opened(job, read_facts(job), [case]) as bench:
        torch.set_num_threads(1)
        for side in bench.beside.values():
            assert side.prefill([5, 6, 7]) > 0
            assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


def test_the_pace_is_that_of_the_time_in_which_all_decode() -> None:
    first = [0.0, 1.0, 2.0, 3.0, 4.0]
    second = [2.0, 3.0, 4.0, 5.0, 6.0]
    assert tok_per_s([first, second]) == pytest.approx(4 / 2.0)


def test_sessions_that_never_decode_together_are_taken_as_a_whole() -> None:
    assert tok_per_s([[0.0, 1.0], [1.0, 2.0]]) == pytest.approx(3 / 2.0)


def refusal(job: Job) -> HearthError:
    with pytest.raises(HearthError) as refused:
        list(run_tests(job))
    return refused.value


def test_other_runners_and_files_are_refused(job: Callable[..., Job], tiny_model: Path) -> None:
    gguf = ModelSpec(str(tiny_model), "tiny", "llamacpp", EXACT)
    error = refusal(job(spec=gguf, reference="transformers"))
    assert isinstance(error, InvalidParameter) and error.param == "reference"
    assert "llamacpp" in error.message and "--reference" in error.hint
    error = refusal(job(spec=replace(gguf, backend="native"), reference="transformers"))
    assert isinstance(error, UnsupportedModel) and "folder of safetensors" in error.message


def test_without_transformers_the_extra_is_named(
    beside: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> object:
        return None if name == "transformers" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    error = refusal(beside())
    assert isinstance(error, BackendUnavailable) and "hearth-llm[bench]" in error.hint


def test_a_transformers_that_does_not_import_is_no_crash(
    beside: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: object())
    monkeypatch.setitem(sys.modules, "transformers", None)
    error = refusal(beside(tests=("pp",)))
    assert isinstance(error, BackendUnavailable) and "hearth-llm[bench]" in error.hint


def test_weights_that_do_not_fit_twice_are_refused_before_they_are_loaded(
    beside: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_room, "available_bytes", lambda: 100_000_000)
    error = refusal(beside())
    assert isinstance(error, DoesNotFit) and "twice" in error.message
    assert error.data["needed_bytes"] > error.data["available_bytes"]


def test_what_transformers_does_not_load_is_refused(
    beside: Callable[..., Job], tmp_path: Path
) -> None:
    # The config's own padding token is beyond this small vocabulary, which only transformers minds.
    error = refusal(beside(tiny_folder("phi3", tmp_path / "phi3"), tests=("pp",)))
    assert isinstance(error, UnsupportedModel) and "cannot load" in error.message


def test_on_a_gpu_the_native_runner_has_no_threads_to_tune(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = ModelSpec("model", backend="native")
    monkeypatch.setattr(tune, "candidates", lambda *_: [4, 2, 3])
    monkeypatch.setattr(tune, "has_cuda", lambda: True)
    assert tune.thread_counts(spec) == [4]
    on_processor = replace(spec, settings=ModelSettings(gpu_layers=0))
    assert tune.thread_counts(on_processor) == [4, 2, 3]
    assert tune.thread_counts(replace(spec, backend="llamacpp")) == [4, 2, 3]
