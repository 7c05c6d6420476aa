"""Layers whose norms, sums and gates are fused into products, which run on a processor here,
compared with the separate layers.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from card_on_processor import OnProcessor, on_processor
from decode_reference import reference_decode
from driven import Driven
from hearth.backends.contract.models import ModelSettings
from hearth.backends.engine.runner import StepPlan
from hearth.backends.native import split_attention
from hearth.backends.native.card_layers import CardLayers
from hearth.backends.native.models import layers, parts
from hearth.backends.native.models.packed import PackedLinear
from hearth.kernels.cuda import elementwise, matrix
from hearth.kernels.cuda.elementwise import round_rows
from hearth.kernels.cuda.matrix import TritonMatrix, has_scaled_products
from native_runners import runner_of
from random_weights import random_weight
from tiny_checkpoints import tiny_checkpoint

SETTINGS = ModelSettings(context=64, max_sessions=12)


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OnProcessor:
    monkeypatch.setattr(split_attention, "attend_decode", reference_decode)
    return on_processor(tmp_path, monkeypatch)


def of_family(family: str, folder: Path) -> Driven:
    tiny_checkpoint(family, folder)
    return runner_of(folder, SETTINGS, dtype=torch.bfloat16, triton=True)


def logits_of(driven: Driven, rows: int) -> np.ndarray:  # type: ignore[type-arg]
    """Logits after more tokens of each of `rows` sessions, after a prompt."""
    for slot in range(12):
        driven.cache.release(slot, keep=False)
    found = []
    for count, outputs in ((4, 1), (1, 1), (1, 1)):
        plan = []
        for slot in range(rows):
            first = slot * 7 + driven.cache.length(slot)
            tokens = [3 + (first + at) % 50 for at in range(count)]
            plan.append(driven.row(slot, tokens, outputs))
        result = driven.step(StepPlan(tuple(plan)))
        found.append(np.concatenate([result.logits[slot] for slot in range(rows)]))
    return np.stack(found)


@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3", "phi3"])
def test_logits_are_those_of_the_layers(family: str, tmp_path: Path, card: OnProcessor) -> None:
    driven = of_family(family, tmp_path)
    assert isinstance(driven.decoder.fused, CardLayers)
    layer = driven.decoder.layers[-1]
    inputs, outputs = layer.down.weight.shape[::-1]
    weight = random_weight("INT8", outputs, inputs, group=0)
    layer.down = PackedLinear(TritonMatrix([weight]))
    for rows in (3, 12):
        card.calls.clear()
        found = logits_of(driven, rows)
        ends = [one["END"] for one in card.calls]
        # The prompts of three sessions are twelve tokens; those of twelve are more than the kernel
        # takes.
        steps = 3 if rows == 3 else 2
        assert ends.count("GATE") == steps * len(driven.decoder.layers)
        assert sum(one["HAS_NEXT"] for one in card.calls) == 2 * ends.count("GATE") - steps
        fused, driven.decoder.fused = driven.decoder.fused, None
        wanted = logits_of(driven, rows)
        driven.decoder.fused = fused
        off = np.square(found - wanted).sum() / np.square(wanted).sum()
        assert off < 1e-3
        # A row has the same bits, whatever other rows there are.
        if rows == 3:
            assert np.array_equal(logits_of(driven, 2), found[:, :2])


@pytest.mark.parametrize("family", ["gemma3", "mixtral", "gpt_oss"])
def test_other_layers_are_left_to_themselves(
    family: str, tmp_path: Path, card: OnProcessor
) -> None:
    assert of_family(family, tmp_path).decoder.fused is None


def test_matrices_that_the_kernel_does_not_multiply(tmp_path: Path, card: OnProcessor) -> None:
    driven = of_family("llama3", tmp_path)
    card.calls.clear()
    driven.decoder.layers[0].out.weight.data = driven.decoder.layers[0].out.weight.data.float()
    driven.decoder.weights_version += 1
    hidden = torch.zeros(2, driven.decoder.config.width, dtype=torch.bfloat16)
    assert driven.decoder.fused is not None
    attend = split_attention.SplitAttention
    assert driven.decoder.fused(hidden, {}, attend) is None  # type: ignore[arg-type]
    assert driven.decoder.fused(hidden[:0], {}, attend) is None  # type: ignore[arg-type]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="there is a card")
def test_many_rows_are_rounded_by_what_gives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The norms and the gate do the rounding that FP8 matrices would do in any case, unless a hook
    observes their inputs.
    """
    tiny_checkpoint("llama3", tmp_path, hidden_size=128, intermediate_size=128, head_dim=32)
    layer = runner_of(tmp_path, SETTINGS, dtype=torch.float16).decoder.layers[0]
    for module in (layers, parts):
        monkeypatch.setattr(module, "has_triton", lambda device_type: True)
    has_scaled_products.cache_clear()
    for seed, name in enumerate(("gate_up", "down")):
        outputs, inputs = getattr(layer, name).weight.shape
        weight = random_weight("FP8", outputs, inputs, group=0, seed=seed)
        setattr(layer, name, PackedLinear(TritonMatrix([weight])))
    rounds = []
    monkeypatch.setattr(
        elementwise, "round_rows", lambda *some, **how: rounds.append(1) or round_rows(*some, **how)
    )
    monkeypatch.setattr(matrix, "round_rows", elementwise.round_rows)
    hidden = torch.randn(70, 128, generator=torch.Generator().manual_seed(0)).half()
    kept = hidden.clone()
    found = layer.add_feed_forward(kept)
    assert not rounds
    hooks = [one.register_forward_pre_hook(lambda *_: None) for one in (layer.gate_up, layer.down)]
    wanted = layer.add_feed_forward(hidden.clone())
    assert len(rounds) == 2
    assert (found - wanted).square().mean() < 1e-3 * (wanted - hidden).square().mean()
    for hook in hooks:
        hook.remove()
    # Few rows are not rounded.
    layer.add_feed_forward(hidden[:64].clone())
    assert len(rounds) == 2
    has_scaled_products.cache_clear()
