"""Which device a model is loaded on, and that a model that does not fit there is refused before
weights are read, over simulated cards.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.errors import DoesNotFit, InvalidParameter
from hearth.backends.native import load
from hearth.backends.native.load import open_model
from hearth.backends.native.plan import plan_memory
from hearth.backends.native.workspace import Workspace
from native_runners import llama_8b
from tiny_folders import tiny_folder

MIB = 1 << 20


class Cards:
    """Two Hopper cards, with memory set by the tests."""

    def __init__(self) -> None:
        self.free = [80 << 30, 40 << 30]
        self.read: list[torch.device] = []
        self.used: list[torch.device] = []

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        self.read.append(device)
        return self.free[device.index], 80 << 30


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Cards:
    cards = Cards()
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "current_device": lambda: 0,
        "get_device_name": lambda device: f"Card {device.index}",
        "get_device_capability": lambda device=None: (9, 0),
        "mem_get_info": cards.mem_get_info,
        "memory_reserved": lambda device: 0,
        "memory_allocated": lambda device: 0,
        "set_device": cards.used.append,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(load, "has_triton", lambda kind: True)

    def never(*arguments: Any, **options: Any) -> None:
        raise AssertionError("it is loaded")

    monkeypatch.setattr(load, "Decoder", never)
    return cards


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_folder("llama3", tmp_path / "model")


@pytest.mark.parametrize(("device", "number"), [(None, 0), ("cuda", 0), ("cuda:1", 1)])
def test_what_does_not_fit_on_the_card_is_refused_before_weights_are_read(
    device: str | None, number: int, cards: Cards, folder: Path
) -> None:
    cards.free[number] = 200 * MIB
    settings = ModelSettings(context=64, device=device)
    with pytest.raises(DoesNotFit) as refused:
        open_model(ModelSpec(str(folder), settings=settings))
    assert set(cards.read) == set(cards.used) == {torch.device("cuda", number)}
    data = refused.value.data
    assert data["available_bytes"] == int(200 * MIB * 0.9) < data["needed_bytes"]
    names = ("weights", "keys_and_values", "workspace", "cuda_graphs")
    parts = [data[f"{name}_bytes"] for name in names]
    assert min(parts) > 0 and sum(parts) == data["needed_bytes"]
    assert f"CUDA graphs {parts[-1] / 1e9:.2f}" in refused.value.message
    cards.free[number] = int(data["needed_bytes"] / 0.9) + 1
    with pytest.raises(AssertionError, match="it is loaded"):
        open_model(ModelSpec(str(folder), settings=settings))


def test_a_device_that_is_not_there_is_refused_with_those_that_are(
    cards: Cards, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(device: str) -> str:
        with pytest.raises(InvalidParameter) as refused:
            open_model(ModelSpec(str(folder), settings=ModelSettings(device=device)))
        return refused.value.message

    said = refusal("cuda:2")
    assert "no cuda:2" in said and "cuda:0 (Card 0, 85.9 GB free)" in said
    assert "cuda:1 (Card 1, 42.9 GB free)" in said and "cpu (processor" in said
    assert "no mps" in refusal("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no cuda:0" in refusal("cuda:0")
    for name in ("gpu", "cuda:", "cuda:-1", "cuda:0x1", "xpu", "CUDA:0"):
        assert repr(name) in refusal(name)


@pytest.mark.parametrize(("device", "layers"), [("cpu", 3), ("cuda:0", 0)])
def test_a_device_and_layers_that_contradict_each_other(
    device: str, layers: int, folder: Path
) -> None:
    settings = ModelSettings(device=device, gpu_layers=layers)
    with pytest.raises(InvalidParameter, match="contradict"):
        open_model(ModelSpec(str(folder), settings=settings))
    assert ModelSettings(device="cpu").is_on_processor and ModelSettings(device="cuda:1").card == 1


def test_graphs_are_planned_with_the_rest() -> None:
    settings = ModelSettings(max_sessions=8)
    config = llama_8b()

    def plan(free: int, **how: bool) -> Any:
        return plan_memory(
            settings,
            config,
            device=torch.device("cuda", 0),
            dtype=torch.bfloat16,
            compute_dtype=torch.bfloat16,
            weight_bytes=5 << 30,
            available_bytes=free,
            triton=True,
            **how,
        )

    without, planned = plan(12 << 30), plan(12 << 30, graphs=True)
    assert planned.graphs and not without.graphs
    graphs = Workspace(config, settings, graphs=True).graph_bytes
    assert 150 * MIB < graphs < 512 * MIB
    fewer = (without.pool_tokens - planned.pool_tokens) * planned.kv_bytes_per_token
    # While a pool grows, a part of it exists twice, and a step with more tokens takes more memory.
    assert 0.3 * graphs < fewer < graphs + 2 * without.page * planned.kv_bytes_per_token
    deterministic = replace(settings, deterministic=True)
    for changed in (deterministic, replace(settings, flash_attention=False)):
        settings = changed
        assert not plan(30 << 30, graphs=True).graphs
