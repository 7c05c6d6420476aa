"""Packed files on the native runner: near what llama.cpp computes with them, packed or unpacked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import model_shapes
from driven import Driven
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.engine.runner import Row, StepPlan
from hearth.backends.native import footprint, load
from hearth.quant.gguf import quantize_run
from model_shapes import Shape
from quantizing import planned
from random_models import write_model
from raw_loop import RawModel

SETTINGS = ModelSettings(kv_type="f32", threads=1, batch_threads=1, dtype="f32", context=256)
SHAPE = Shape(
    architecture="llama",
    layers=2,
    width=256,
    heads=4,
    kv_heads=2,
    head_length=64,
    feed_forward=512,
    context=512,
    rope_base=1e4,
)
TOKENS = [(37 * n + n * n) % 200 + 20 for n in range(40)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        # llama.cpp rounds activations to eight bits, which sharp attention makes much of.
        patched.setattr(model_shapes, "_ATTENTION_GAIN", 1.0)
        return write_model(SHAPE, "f16", tmp_path_factory.mktemp("models") / "source.gguf")


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "unpacked"])
@pytest.mark.parametrize("kind", ["Q4_K_M", "Q6_K", "Q8_0", "IQ4_XS"])
def test_logits_are_near_those_of_llama_cpp(
    kind: str, packed: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / f"{kind}.gguf"
    quantize_run.run(planned(source, kind), made)
    if not packed:
        monkeypatch.setenv("HEARTH_CPU_KERNELS", "off")
    monkeypatch.setattr(footprint, "stays_packed", lambda *_, **__: packed)
    runner = Driven(load.open_model(ModelSpec(str(made), settings=SETTINGS)).runner)
    raw = RawModel(made, context=256)
    try:
        assert runner.cache.reserve(0, len(TOKENS))
        found = runner.step(StepPlan((Row(0, 0, TOKENS, 8),))).logits[0]
        places = range(len(TOKENS) - 8 + 1, len(TOKENS) + 1)
        wanted = np.stack([raw.after(TOKENS[:place]) for place in places])
        assert np.square(found - wanted).sum() / np.square(wanted).sum() < 1e-3
    finally:
        raw.close()
        runner.close()
        torch.set_num_threads(2)
