"""RoPE scaling set by the user: both runners compute the same as transformers and as llama.cpp with
its own parameters, and refuse unsupported settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from driven import Driven
from gguf_builder import tiny_llama
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.contract.rope import RopeChange
from hearth.backends.errors import InvalidParameter, UnsupportedParameter
from hearth.backends.llamacpp.footprint import plan_for
from hearth.backends.llamacpp.load import Loaded
from hearth.backends.native import load as native
from hearth.quant.families.config import Rope, RopeScaling
from hearth.quant.gguf.preflight import check
from hearth.quant.json_fields import read_fields
from native_decoders import decoder_of, family_and_config, logits_of
from native_runners import advance
from raw_loop import RawModel
from tiny_checkpoints import VOCABULARY, tiny_model
from tiny_folders import tiny_folder
from tiny_ggufs import write_gguf

YARN = {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_context": 64}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "linear": (
        {"rope_factor": 4.0},
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
        {"rope_scaling_type": 1, "rope_freq_scale": 0.25},
    ),
    "yarn": (
        YARN,
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "rope_theta": 1e4,
            "original_max_position_embeddings": 64,
        },
        {"rope_scaling_type": 2, "rope_freq_scale": 0.25, "yarn_orig_ctx": 64},
    ),
    "base": (
        {"rope_base": 3e5},
        {"rope_type": "default", "rope_theta": 3e5},
        {"rope_freq_base": 3e5},
    ),
}
"""Hearth's settings, transformers' `rope_parameters`, and fields of `llama_context_params`."""


def text_of(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()


@pytest.mark.parametrize("name", CHANGES)
def test_native_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    settings, theirs, _ = CHANGES[name]
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    folder = tiny_folder("llama2", tmp_path, **plain)
    exact = ModelSettings(dtype="f32", kv_type="f32", **settings)
    loaded = native.open_model(ModelSpec(str(folder), settings=exact))
    try:
        text = text_of(100)
        with torch.no_grad():
            expected = tiny_model("llama2", rope_parameters=theirs)(torch.tensor([text])).logits[0]
        assert (logits_of(loaded.runner.decoder, text) - expected).abs().max() < 1e-4
        unscaled = tiny_model("llama2", **plain)(torch.tensor([text])).logits[0]
        assert (unscaled - expected).abs().max() > 1e-2
    finally:
        loaded.runner.close()


@pytest.mark.parametrize("name", CHANGES)
def test_both_runners_write_what_llama_cpp_does_with_its_own_parameters(
    name: str, f32_model: Path, load: Callable[..., Loaded]
) -> None:
    settings, _, params = CHANGES[name]
    prompt, count = list(range(20, 50)), 200
    reference = RawModel(f32_model, 512, **params)
    expected = reference.greedy(prompt, count)
    reference.close()
    opened = native.open_model(
        ModelSpec(str(f32_model), settings=ModelSettings(dtype="f32", kv_type="f32", **settings))
    )
    ours = replace(opened, runner=Driven(opened.runner))
    for loaded in (load(f32_model, **settings), ours):
        written: list[int] = []
        pending = prompt
        for _ in range(count):
            pending = [int(advance(loaded.runner, 0, pending)[-1].argmax())]
            written += pending
        assert written == expected, loaded.info.backend
    ours.runner.close()


def test_a_stretched_context_is_the_one_that_is_planned(tmp_path: Path) -> None:
    header = check(tiny_llama(tmp_path / "tiny.gguf", context=512))
    assert plan_for(header, ModelSettings(**YARN)).context == 256
    settings = ModelSettings(rope_scaling="yarn", rope_factor=4.0)
    assert plan_for(header, settings).context == 2048
    assert plan_for(header, replace(settings, context=1024)).notices == ()


OWN = Rope(1e4, 64, RopeScaling("yarn", 2.0, 1000, attention_factor=1.5))


def test_what_the_file_says_is_replaced_in_parts() -> None:
    factor = RopeChange(factor=4.0).applied(OWN, 2000)
    assert factor[1] == 4000
    scaling = factor[0].scaling
    assert scaling is not None
    assert (scaling.kind, scaling.factor, scaling.original_context) == ("yarn", 4.0, 1000)
    assert RopeChange("none").applied(OWN, 2000) == (Rope(1e4, 64), 1000)
    assert RopeChange(base=5e5).applied(OWN, 2000) == (replace(OWN, theta=5e5), 2000)
    linear = Rope(1e4, 64, RopeScaling("linear", 2.0))
    assert RopeChange(factor=8.0).applied(linear, 2000)[1] == 8000


@pytest.mark.parametrize(
    ("change", "rope", "named"),
    [
        (RopeChange("yarn"), Rope(1e4, 64), "rope_factor"),
        (RopeChange("none", factor=2.0), Rope(1e4, 64), "rope_factor"),
        (RopeChange("linear", 2.0, original_context=64), Rope(1e4, 64), "rope_original_context"),
        (RopeChange(factor=2.0), Rope(1e4, 64, RopeScaling("llama3", 8.0)), "rope_scaling"),
        (RopeChange("none"), Rope(1e4, 64, RopeScaling("longrope")), "rope_scaling"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: RopeChange, rope: Rope, named: str) -> None:
    with pytest.raises((InvalidParameter, UnsupportedParameter)) as raised:
        change.applied(rope, 512)
    assert raised.value.param == named


def test_windows_that_share_positions_are_refused(window_model: Path, tmp_path: Path) -> None:
    settings = ModelSettings(rope_factor=2.0)
    assert plan_for(check(window_model), settings).context == 16384  # Gemma 3's do not share them.
    folder = tiny_folder("gemma2", tmp_path / "gemma2")
    family, _ = family_and_config(read_fields(folder / "config.json"))
    path = write_gguf(tmp_path / "gemma2.gguf", "gemma2", family, decoder_of(folder))
    with pytest.raises(UnsupportedParameter, match="sliding window"):
        plan_for(check(path), settings)
    with pytest.raises(UnsupportedParameter, match="sliding window"):
        native.open_model(ModelSpec(str(folder), settings=settings))
