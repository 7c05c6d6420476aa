"""Sizes of keys and values: windows are counted as windows, and all callers get the same sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hearth.app.library.fit import Room, fit_of_folder
from hearth.backends.contract.models import ModelSettings
from hearth.backends.errors import DoesNotFit
from hearth.backends.native.footprint import PAGE, needed_bytes
from hearth.backends.native.kv_sizes import KvSizes, kv_sizes
from hearth.backends.native.model_folder import read_model_folder
from hearth.backends.native.plan import NativePlan, plan_memory
from hearth.backends.native.workspace import Workspace
from hearth.quant.families.config import LayerConfig, ModelConfig, Rope
from model_folders import write_folder

CPU = torch.device("cpu")
GEMMA = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "head_dim": 16,
    "sliding_window": 64,
    "sliding_window_pattern": 2,
    "max_position_embeddings": 4096,
}
MISTRAL = {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "sliding_window": 64,
    "max_position_embeddings": 4096,
}
KINDS: dict[str, dict[str, Any]] = {
    "no window": {"max_position_embeddings": 4096},
    "some windows": GEMMA,
    "windows alone": MISTRAL,
}
SETTINGS = [
    ModelSettings(),
    ModelSettings(context=1000),
    ModelSettings(max_sessions=1),
    ModelSettings(max_sessions=3, max_batch_tokens=64, kv_type="f32"),
    ModelSettings(kv_pool="static", max_sessions=2),
    ModelSettings(kv_budget_bytes=1 << 20),
]


def gemma3_4b() -> ModelConfig:
    """The config values of Google's checkpoint that determine the size of keys and values."""
    layers = tuple(
        LayerConfig(Rope(1e6, 256), None if (layer + 1) % 6 == 0 else 1024) for layer in range(34)
    )
    return ModelConfig(
        "gemma3",
        vocab_size=262_208,
        width=2560,
        heads=8,
        kv_heads=4,
        head_dim=256,
        feed_forward=10_240,
        layers=layers,
        context=131_072,
        norm_eps=1e-6,
        tied=True,
    )


def planned(
    config: ModelConfig,
    settings: ModelSettings,
    available_bytes: int,
    *,
    weight_bytes: int = 0,
    device: str = "cpu",
) -> NativePlan:
    return plan_memory(
        settings,
        config,
        device=torch.device(device),
        dtype=torch.bfloat16,
        compute_dtype=torch.float32,
        weight_bytes=weight_bytes,
        available_bytes=available_bytes,
    )


def test_a_long_context_costs_what_the_layers_keep_that_see_all_of_it() -> None:
    one = ModelSettings(max_sessions=1)
    sizes = kv_sizes(gemma3_4b(), one, page=PAGE)
    assert sizes.bytes_per_token == 5 * 2 * 4 * 256 * 2
    packed = kv_sizes(gemma3_4b(), replace(one, kv_type="q8_0"), page=PAGE)
    assert packed.bytes_per_token == 5 * 2 * 4 * 256 * 34 // 32
    mixed = kv_sizes(gemma3_4b(), replace(one, kv_type_v="q8_0"), page=PAGE)
    assert 2 * mixed.bytes_per_token == sizes.bytes_per_token + packed.bytes_per_token
    assert 2.9e9 < sizes.pool_bytes(131_072) < 3.2e9
    plan = planned(gemma3_4b(), ModelSettings(), 20 << 30, weight_bytes=9 << 30)
    assert plan.context == 131_072 and plan.notices == ()
    assert plan.kv_bytes_per_token == sizes.bytes_per_token
    taken = plan.pool_tokens * plan.kv_bytes_per_token + plan.window_pool_bytes
    workspace = Workspace(gemma3_4b(), ModelSettings())
    room = int((20 << 30) * 0.9) - (9 << 30) - workspace.bytes(plan.pool_tokens)
    assert room * 0.99 < taken <= room


def test_windows_take_what_sessions_can_see_in_a_step_and_some_kept_prefixes_need() -> None:
    sizes = KvSizes((None, 64), (10, 100), page=16, slots=4, step_tokens=32)
    running, kept = 4 * ((64 + 32 - 2) // 16 + 2), 2 * ((64 - 2) // 16 + 2)
    assert sizes.blocks(10_000) == (625, running + kept)
    assert sizes.blocks(131_072)[1] == sizes.blocks(10_000)[1]
    assert sizes.blocks(262_144)[1] == running + 2 * kept, "a large pool keeps more prefixes"
    assert sizes.blocks(160) == (10, 10), "never more than all"
    assert sizes.pool_bytes(160) == 160 * 110
    assert sizes.pool_bytes(10_000) == 10_000 * 10 + sizes.window_bytes(10_000)
    assert sizes.window_bytes(10_000) == (running + kept) * 16 * 100
    assert sizes.seen_window_bytes(10_000) == 64 * 100 and sizes.seen_window_bytes(9) == 900


def test_the_largest_pool_is_found() -> None:
    sizes = KvSizes((None, 64), (10, 100), page=16, slots=4, step_tokens=32)
    for tokens in (16, 160, 5008, 100_000, 262_144):
        room = sizes.pool_bytes(tokens)
        assert sizes.tokens_in(room, 1 << 20) == tokens
        assert sizes.tokens_in(room - 1, 1 << 20) == tokens - 16
        assert sizes.tokens_in(1 << 50, tokens - 3) == tokens
    assert sizes.tokens_in(-1, 100) == sizes.tokens_in(16 * 110 - 1, 100) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_with_what_it_needs_it_is_planned_in_full_and_with_less_it_is_not(
    kind: str, settings: ModelSettings, tmp_path: Path
) -> None:
    path = write_folder(tmp_path / "model", **KINDS[kind])
    settings = replace(settings, memory_fraction=1.0)
    folder = read_model_folder(path)
    weights = folder.weight_bytes(folder.dtype)

    def plan(settings: ModelSettings, available_bytes: int) -> NativePlan:
        return planned(folder.config, settings, available_bytes, weight_bytes=weights)

    needed = needed_bytes(path, settings)
    full, most = plan(settings, needed), plan(settings, 1 << 50)
    assert full.context == most.context
    if settings.kv_pool == "static":
        assert full.pool_tokens == most.pool_tokens
    held = full.pool_tokens * full.kv_bytes_per_token + full.window_pool_bytes
    workspace = Workspace(folder.config, settings)
    assert held <= needed - weights - workspace.bytes(full.pool_tokens)
    less = plan(replace(settings, context=None), needed - (held // 3))
    assert less.pool_tokens < full.pool_tokens and less.context <= full.context


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_context_needs_is_said_where_it_does_not_fit(kind: str, tmp_path: Path) -> None:
    path = write_folder(tmp_path / "model", **KINDS[kind])
    settings = ModelSettings(context=2000, max_sessions=2, memory_fraction=1.0)
    folder = read_model_folder(path)
    weights = folder.weight_bytes(folder.dtype)
    needed = needed_bytes(path, settings)
    with pytest.raises(DoesNotFit) as caught:
        planned(folder.config, settings, needed - 1, weight_bytes=weights)
    assert caught.value.data["needed_bytes"] == needed
    assert ("--max-sessions" in caught.value.hint) == (kind != "no window")
    fitting = int(str(caught.value.data["fitting_context"]))
    assert 0 < fitting < 2000
    smaller = replace(settings, context=fitting)
    assert planned(folder.config, smaller, needed - 1, weight_bytes=weights).context == fitting
    sizes = kv_sizes(folder.config, settings, page=PAGE)
    for budget in (sizes.pool_bytes(2000), sizes.pool_bytes(2000) - 1):
        limited = replace(settings, kv_budget_bytes=budget)
        if budget == sizes.pool_bytes(2000):
            assert planned(folder.config, limited, 1 << 40).context == 2000
            continue
        with pytest.raises(DoesNotFit) as caught:
            planned(folder.config, limited, 1 << 40)
        assert caught.value.data["needed_bytes"] == sizes.pool_bytes(2000)


@pytest.mark.parametrize("kind", KINDS)
def test_fit_says_the_same(kind: str, tmp_path: Path) -> None:
    path = write_folder(tmp_path / "model", **KINDS[kind])
    folder = read_model_folder(path)
    settings = ModelSettings(context=4096, memory_fraction=1.0)
    needed = needed_bytes(path, settings)
    room = Room(free_bytes=needed, total_bytes=1 << 40)
    fit = fit_of_folder(folder, settings, room)
    of_worker = needed_bytes(path, settings, scores=False)
    assert fit.use.kv + fit.use.weights + fit.use.compute == of_worker
    without_disk = needed_bytes(path, replace(settings, kv_disk_budget_bytes=0), scores=False)
    assert (without_disk < of_worker) == (kind != "windows alone")
    assert of_worker <= without_disk + fit.use.kv // 2
    assert fit.use.weights == folder.weight_bytes(folder.dtype)
    assert fit.largest_context == 4096
    less = fit_of_folder(folder, settings, replace(room, free_bytes=needed - fit.use.kv // 3))
    assert less.state == "cannot" and 0 < less.largest_context < 4096


def test_a_pool_that_grows_starts_with_nothing_on_a_processor_and_small_elsewhere() -> None:
    grows, static = ModelSettings(), ModelSettings(kv_pool="static", kv_budget_bytes=4 << 30)
    config = gemma3_4b()
    assert planned(config, grows, 1 << 36).start_blocks == (0, 0)
    elsewhere = planned(config, grows, 1 << 36, device="meta")
    assert elsewhere.start_blocks == (256, 256) and min(elsewhere.blocks) > 256
    plan = planned(config, static, 1 << 36)
    assert plan.start_blocks == plan.blocks
