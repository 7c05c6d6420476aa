"""A card's guesses of the host's draws, compared with the draws."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.sampler import Sampler
from hearth.backends.native import steps_ahead
from hearth.backends.native.outputs import Columns
from hearth.backends.native.steps_ahead import _about
from hearth.kernels.cuda.elementwise import guess_tokens

DEVICES = (
    pytest.param(
        "cpu",
        marks=pytest.mark.skipif(
            os.environ.get("TRITON_INTERPRET") != "1", reason="there is a card"
        ),
    ),
    pytest.param("cuda", marks=pytest.mark.cuda),
)
USUAL = SamplingParams(seed=11)
CASES = {
    "usual": USUAL,
    "hot": replace(USUAL, temperature=1.5),
    "one of three": replace(USUAL, top_k=3, top_p=1.0, min_p=0.0),
    "no top-k": replace(USUAL, top_k=0, temperature=1.0),
    "min-p alone": replace(USUAL, top_k=0, top_p=1.0, min_p=0.02, seed=2**64 - 1),
    "top-p alone": replace(USUAL, top_k=0, top_p=0.6, min_p=0.0),
    "nearly greedy": replace(USUAL, temperature=1e-40),
    "greedy": replace(USUAL, temperature=0.0),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [300, 6000])
def test_guesses_are_what_is_drawn(size: int, device: str) -> None:
    generator = np.random.default_rng(0)
    samplers = [Sampler(params) for params in CASES.values()]
    missed = 0
    for position in (*range(12), 2**33):
        logits = generator.normal(0, 3, (len(samplers), size)).astype(np.float32)
        columns = Columns(torch.from_numpy(logits).to(device), 1024)
        assert columns.largest is not None
        specs = [sampler.shortlist(position) for sampler in samplers]
        races = [None if spec is None else spec.race for spec in specs]
        assert [race is None for race in races] == [name == "greedy" for name in CASES]
        about = torch.from_numpy(np.stack([_about(race) for race in races])).to(device)
        found = guess_tokens(*columns.largest, columns.peaks, about).tolist()
        rows = zip(samplers, logits, strict=True)
        drawn = [sampler.draw(row, position).id for sampler, row in rows]
        missed += sum(one != other for one, other in zip(found, drawn, strict=True))
    assert missed == 0


def test_a_device_that_guesses_others_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device, guesses = torch.device("cpu"), steps_ahead.guesses_on.__wrapped__
    assert not guesses(device)  # Without kernels.
    monkeypatch.setattr(steps_ahead, "has_triton", lambda device_type: True)
    monkeypatch.setattr(steps_ahead, "guess_tokens", lambda *some: torch.arange(8))
    assert not guesses(device) and "not [" in caplog.text

    def fails(*some: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(steps_ahead, "guess_tokens", fails)
    assert not guesses(device) and "no such instruction" in caplog.text
    if os.environ.get("TRITON_INTERPRET") == "1":
        monkeypatch.setattr(steps_ahead, "guess_tokens", guess_tokens)
        assert guesses(device)


def test_what_depends_on_more_is_not_guessed() -> None:
    for params in (
        *(replace(USUAL, typical_p=0.9), replace(USUAL, xtc_probability=0.5)),
        replace(USUAL, logit_bias={3: 1.0}),
    ):
        spec = Sampler(params).shortlist(4)
        assert spec is not None and spec.race is None
    spec = Sampler(USUAL).shortlist(4, banned=(1,))
    assert spec is not None and spec.race is None and spec.ids.tolist() == [1]
