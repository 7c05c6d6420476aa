"""Attention by the kernels for NVIDIA cards, which triton interprets here, and of single tokens by
the kernels for Apple GPUs: the logits equal those of attention over gathered pages.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("triton", minversion="3.9")

from hearth.backends.contract.models import KvType, ModelSettings
from hearth.backends.native import (
    card_attention,
    kv_pool,
    paged_attention,
    runner,
    split_attention,
)
from hearth.backends.native.kv_rows import FP8, Q8_0
from hearth.backends.native.model_folder import read_config
from hearth.backends.native.models import layers, parts
from hearth.backends.native.split_attention import splits_rows
from hearth.kernels.metal import shaders
from metal_on_cpu import ShaderOnCpu
from native_runners import advance, runner_of
from tiny_checkpoints import SLIDING_FIRST, VOCABULARY, tiny_checkpoint

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="there is a card, see test_cuda.py"
)
FAMILIES = ("llama3", "gemma2", "gemma3", "gpt_oss")
SETTINGS = ModelSettings(kv_type="f32", context=128, max_sessions=4)


@pytest.mark.parametrize(
    ("family", "kv_types", "gpu"),
    [
        *((family, ("f32",), "cuda") for family in FAMILIES),
        ("gemma3", ("fp8", "q8_0"), "cuda"),
        *((family, ("f32",), "metal") for family in ("gemma3", "gpt_oss")),
    ],
)
def test_logits_are_those_of_attention_over_gathered_pages(
    family: str,
    kv_types: Sequence[KvType],
    gpu: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Apple's kernels, too, compiled for a processor from their source."""
    # Gemma 3 has two layers of each kind; one of each is enough.
    layers_of = {"gemma3": {"num_hidden_layers": 2, "layer_types": SLIDING_FIRST}}
    tiny_checkpoint(family, tmp_path, **layers_of.get(family, {}))
    calls: list[int] = []

    place = {"cuda": card_attention, "metal": shaders}[gpu]
    attend = place.attend_decode

    def counted(query, *arguments, **options):  # type: ignore[no-untyped-def]
        calls.append(len(query))
        return attend(query, *arguments, **options)

    monkeypatch.setattr(place, "attend_decode", counted)
    monkeypatch.setattr(torch.mps, "compile_shader", ShaderOnCpu)
    settings = replace(SETTINGS, kv_type=kv_types[0], kv_type_v=kv_types[-1])
    runners = [runner_of(tmp_path, settings, triton=triton) for triton in (True, False)]
    found, wanted = runners
    tokens = np.random.default_rng(0).integers(3, VOCABULARY, 60).tolist()
    assert found.plan.splits_decode and not wanted.plan.splits_decode
    count = len(found.decoder.config.layers)
    vectors: list[NDArray[np.float32]] = []
    # Values that differ in the last bit may be rounded to another code.
    limit = 1e-4 if kv_types == ("f32",) else 1e-3
    # With gathered pages, the first tokens of a text see each other as they were before packing.
    begins = [(0, 23)] if kv_types == ("f32",) else [(0, 1), (1, 23)]
    for start, end in (*begins, (23, 24), (24, 36), (36, 37)):
        results = []
        for one in (wanted, found):
            is_here = {f"has_{name}": False for name in ("triton", "metal")}
            is_here["has_metal" if gpu == "metal" else "has_triton"] = one is found
            for module, name in (
                *((of, "has_triton") for of in (kv_pool, layers, paged_attention, parts, runner)),
                *((of, "has_metal") for of in (layers, split_attention)),
            ):
                monkeypatch.setattr(module, name, lambda _, yes=is_here[name]: yes)
            others = [one.row(slot, tokens[start:][:more]) for slot, more in ((1, 1), (2, 3))]
            results.append(advance(one, 0, tokens[start:end], *others))
            if kv_types == ("f32",) and start == 23:
                vectors.append(one.embed([tokens[:17], tokens[5:23]], "mean"))
        largest = float(np.abs(results[0]).max())
        np.testing.assert_allclose(results[1], results[0], rtol=limit, atol=limit * largest)
    if vectors:
        np.testing.assert_allclose(*vectors, rtol=1e-3, atol=1e-5)
    # On NVIDIA cards rows of few tokens are computed token by token.
    of_steps = [1, 2, 1, 2] if gpu == "metal" else [4, 5, 16, 5]
    assert calls == [
        tokens for tokens in [*[5][: len(begins) - 1], *of_steps] for _ in range(count)
    ]
    alone = [advance(one, 0, [7]) for one in (wanted, found)]
    np.testing.assert_allclose(*alone, rtol=limit, atol=limit * float(np.abs(alone[0]).max()))
    assert calls[-count:] == count * [1]


def test_what_the_kernels_are_not_for(tmp_path: Path) -> None:
    """Deterministic and exact modes, and keys of another dtype than queries, except packed ones; on
    Apple GPUs packed keys too, and heads that are too long for their memory.
    """
    tiny_checkpoint("llama3", tmp_path)
    for changes in ({"deterministic": True}, {"flash_attention": False}, {"kv_type": "f16"}):
        settings = ModelSettings(**{"kv_type": "f32", "context": 128, **changes})
        assert not runner_of(tmp_path, settings, triton=True).plan.splits_decode
    config = read_config(tmp_path).config
    half, mps, cuda = torch.float16, torch.device("mps"), torch.device("cuda")
    assert splits_rows(config, cuda, (Q8_0, half), half) and splits_rows(
        config, mps, (half,) * 2, half
    )
    for device, kv, size, dtype in (
        (mps, (half, Q8_0), 64, half),
        (mps, (half, half), 512, half),
        (cuda, (half, torch.bfloat16), 64, half),
        (cuda, (torch.float32, FP8), 256, torch.float32),
    ):
        assert not splits_rows(replace(config, head_dim=size), device, kv, dtype)
