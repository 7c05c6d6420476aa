"""An answer is the same whether its tokens are drawn from shortlists or from whole rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

# Not on every machine with a card.
pytest.importorskip("llguidance")
pytest.importorskip("msgspec")

from guide_forms import guide_path
from hearth.backends.contract.events import Event, Failed, Timings
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.requests import Constraint, Request
from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.contract.wire import Score
from hearth.backends.engine.engine import Engine
from hearth.backends.engine.grammars import Grammars
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.engine.sequence import Clock
from hearth.backends.native import load, outputs
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.plan import NativePlan, plan_memory
from hearth.backends.worker.preparer import Preparer
from speakers import Listener, at_rest, drain

OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
QUESTION = "<|user|>How do I download a model?<|end|><|assistant|>"
USUAL = Request(text=QUESTION, sampling=SamplingParams(seed=1), max_tokens=40)
GREEDY = replace(USUAL, sampling=SamplingParams(temperature=0.0))
REQUESTS = {
    "greedy": GREEDY,
    "usual": USUAL,
    "wide": replace(USUAL, sampling=replace(OFF, seed=2)),
    "logprobs": replace(USUAL, sampling=SamplingParams(seed=3, logprobs=5), n=2),
    "several": replace(USUAL, sampling=replace(OFF, seed=4, temperature=1.3), n=4),
    "penalties": replace(
        USUAL,
        sampling=replace(
            OFF,
            seed=5,
            repetition_penalty=1.2,
            repetition_window=-1,
            frequency_penalty=0.3,
            presence_penalty=0.2,
            dry_multiplier=0.8,
            xtc_probability=0.5,
            typical_p=0.95,
            logit_bias={70: 2.0, 71: -100.0},
        ),
    ),
    "grammar": replace(
        USUAL,
        sampling=replace(OFF, seed=6, logprobs=2),
        constraint=Constraint("json_schema", json.dumps(SCHEMA)),
        max_tokens=60,
    ),
    "greedy grammar": replace(GREEDY, constraint=Constraint("regex", "[a-z]{4,9}[0-9]")),
    "no end": replace(USUAL, sampling=replace(OFF, seed=7), ignore_eos=True, max_tokens=60),
}


@contextmanager
def opened(device: str, *, has_shortlists: bool) -> Iterator[Loaded]:
    """The guide model, with the shortlists of its plan switched on or off."""

    def planned(*args: object, **kwargs: object) -> NativePlan:
        return replace(plan_memory(*args, **kwargs), has_shortlists=has_shortlists)  # type: ignore[arg-type]

    settings = ModelSettings(
        kv_type="f32",
        dtype="f32",
        context=512,
        threads=1,
        batch_threads=1,
        gpu_layers=0 if device == "cpu" else None,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(load, "plan_memory", planned)
        loaded = load.open_model(ModelSpec(str(guide_path()), settings=settings))
    assert loaded.runner.info.has_shortlists == has_shortlists
    yield loaded
    loaded.runner.close()


class Answers:
    """Sends requests to one loaded model."""

    def __init__(self, loaded: Loaded) -> None:
        self.runner = loaded.runner
        info = loaded.runner.info
        self._grammars = Grammars(loaded.tokenizer, info.vocab_size, info.end_ids)
        self._preparer = Preparer(
            "guide", info, loaded.tokenizer, {}, None, self._grammars  # type: ignore[arg-type]
        )  # fmt: skip

    def close(self) -> None:
        self._grammars.close()

    def scored(self, ids: list[int]) -> list[Event]:
        """The scores of each of `ids`, computed while an answer is drawn."""
        engine, heard = Engine(self.runner, clock=lambda: 0.0), Listener()
        engine.submit(*self._preparer.generations(0, USUAL, Listener(), Clock()))
        engine.submit(self._preparer.scoring(1, Score(tuple(ids), top=3), heard, Clock()))
        drain(engine)
        return heard.events

    def of(self, *requests: Request) -> list[list[Event]]:
        """The events of each of `requests`, asked together."""
        # Time stands still, so that prompts are divided equally in every run.
        engine = Engine(self.runner, clock=lambda: 0.0)
        heard = [Listener() for _ in requests]
        for ident, (request, listener) in enumerate(zip(requests, heard, strict=True)):
            engine.submit(*self._preparer.generations(ident, request, listener, Clock()))
        drain(engine)
        assert at_rest(engine, self.runner)
        return [listener.events for listener in heard]


def plain(value: object, *, near: bool = False) -> object:
    """`value` without timings; with `near`, numbers that are nearly the same become equal."""
    if isinstance(value, Timings):
        return None
    if isinstance(value, float) and near:
        return pytest.approx(value, abs=1e-4)
    if isinstance(value, (tuple, list)):
        return [plain(one, near=near) for one in value]
    if names := getattr(type(value), "__match_args__", ()):  # A dataclass or a struct.
        return [type(value), *(plain(getattr(value, name), near=near) for name in names)]
    return value


def assert_same(found: Sequence[Sequence[Event]], wanted: Sequence[Sequence[Event]]) -> None:
    for some, others in zip(found, wanted, strict=True):
        assert not isinstance(some[-1], Failed)
        assert plain(some) == plain(others, near=True)


DEVICES = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)], scope="module"
)


@pytest.fixture(scope="module")
def both(device: str) -> Iterator[tuple[Answers, Answers]]:
    """Answers with and without shortlists."""
    with opened(device, has_shortlists=True) as there, opened(device, has_shortlists=False) as here:
        pair = Answers(there), Answers(here)
        yield pair
        for answers in pair:
            answers.close()


@DEVICES
@pytest.mark.parametrize("kind", REQUESTS)
def test_an_answer_is_the_same_with_shortlists(both: tuple[Answers, Answers], kind: str) -> None:
    there, here = both
    assert_same(there.of(REQUESTS[kind]), here.of(REQUESTS[kind]))


@DEVICES
def test_so_are_all_of_them_asked_together(both: tuple[Answers, Answers]) -> None:
    there, here = both
    assert_same(there.of(*REQUESTS.values()), here.of(*REQUESTS.values()))


@DEVICES
def test_a_request_that_bans_all_that_may_come_ends_alone(both: tuple[Answers, Answers]) -> None:
    there, here = both
    bans = dict.fromkeys(range(3, 1000), -100.0)
    letters = Constraint("regex", "[a-z]")
    banned = replace(GREEDY, sampling=replace(OFF, logit_bias=bans), constraint=letters)
    good, bad = there.of(GREEDY, banned)
    assert_same([good], here.of(GREEDY))
    assert isinstance(bad[-1], Failed)
    assert plain(bad) == plain(here.of(banned)[0])


@DEVICES
@pytest.mark.parametrize("sampling", [GREEDY.sampling, USUAL.sampling], ids=["greedy", "usual"])
def test_logits_that_are_not_numbers_end_one_answer_alone(
    both: tuple[Answers, Answers], sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = both
    request = replace(USUAL, sampling=sampling)
    wanted = here.of(request)
    logits_of = Decoder.logits

    def damaged(self: Decoder, hidden: Tensor) -> Tensor:
        logits = logits_of(self, hidden)
        if len(logits) > 1:
            logits[-1, 17] = torch.nan
        return logits

    monkeypatch.setattr(Decoder, "logits", damaged)
    good, bad = there.of(request, request)
    assert_same([good], wanted)
    assert isinstance(bad[-1], Failed)
    assert "not finite" in bad[-1].error.message


@DEVICES
def test_logits_stay_on_the_device_unless_somebody_needs_them(
    both: tuple[Answers, Answers], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, _ = both
    fetched: list[int] = []
    fetch_row = outputs.fetch_row

    def noted(logits: Tensor, row: int) -> NDArray[np.float32]:
        fetched.append(row)
        return fetch_row(logits, row)

    monkeypatch.setattr(outputs, "fetch_row", noted)
    there.of(REQUESTS["usual"], REQUESTS["greedy"], REQUESTS["logprobs"])
    assert not fetched
    there.of(REQUESTS["greedy grammar"])
    assert fetched


@DEVICES
def test_texts_are_scored_as_ever(both: tuple[Answers, Answers]) -> None:
    there, here = both
    assert_same([there.scored(list(range(30, 90)))], [here.scored(list(range(30, 90)))])
