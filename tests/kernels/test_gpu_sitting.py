"""The benchmark of `make gpu`, as far as it can be tested on a processor: its parts, that each line
is written when it is measured, and that missing packages are named and do not stop it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", minversion="3.9")

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="there is a card: `make gpu`"
)
MODULES = ("kernels_cuda", "native_beside_transformers", "native_cuda")


class Untimed:
    """Replaces a card: calls are made once, and take a millisecond."""

    device = torch.device("cpu")

    def seconds(self, call: Callable[[], object]) -> float:
        call()
        return 1e-3

    def allocated_bytes(self) -> int:
        return 0


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script with small shapes and float16, which triton's interpreter multiplies correctly."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import kernels_cuda
    import native_cuda

    small = {
        "DTYPE": torch.float16,
        "MATRICES": {"small": (48, 256)},
        "KINDS": {"Q4_K": {}, "INT4": {"group": 128}},
        "ROWS": (1, 17),
        "TEXTS": ((1, 512), (3, 256)),
        "PROMPTS": ((40, 40), (20, 300)),
        "KV_HEADS": 2,
        "HEADS": 4,
        "SIZE": 32,
        "CACHE_BYTES": 1,
        "bandwidth": lambda card: 1e9,
    }
    for name, value in small.items():
        monkeypatch.setattr(kernels_cuda, name, value)
    shape = native_cuda.SHAPE
    layer = replace(shape.layers[0], rope=replace(shape.layers[0].rope, dimensions=64))
    small = {
        "DTYPE": torch.float32,
        "MOST": 3,
        "TOKENS": 4,
        "SHORT": 5,
        "LONG": 40,
        "ROUNDS": 1,
        "FEW": (2,),
        "LENGTHS": range(9, 11),
        "COMPARED_LAYERS": 1,
        "_give_back": lambda device: None,
        "OPTIONS": {"INT4": {"group": 64}, "FP8": {"group": 0}},
        "SHAPE": replace(
            shape,
            vocab_size=512,
            width=256,
            heads=4,
            kv_heads=2,
            head_dim=64,
            feed_forward=256,
            layers=(layer,) * 3,
            context=128,
        ),
    }
    for name, value in small.items():
        monkeypatch.setattr(native_cuda, name, value)
    yield native_cuda
    for name in MODULES:
        sys.modules.pop(name, None)


def read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("part", "compared"), [("gemv", 4 + 6), ("attention", 4)])
def test_each_line_is_written_when_it_is_measured(
    part: str, compared: int, benchmark: ModuleType, tmp_path: Path
) -> None:
    results = tmp_path / "results.jsonl"
    count = benchmark.run(part, Untimed(), results, 60.0)
    lines = read(results)
    assert len(lines) == count and {one["part"] for one in lines} == {part}
    errors = {one["by"]: one["error"] for one in lines if one.get("error") is not None}
    assert sum(one.get("error") is not None for one in lines) == compared
    ours = [error for by, error in errors.items() if "torch" not in by]
    assert ours and max(ours) < 1e-5 and max(errors.values()) < 2e-2
    missing = {one["by"] for one in lines if "ModuleNotFoundError" in one.get("why", "")}
    assert missing == ({"INT4, gemlite", "INT4, Marlin"} if part == "gemv" else set())
    # When the time is up, the measured lines are there.
    assert benchmark.run(part, Untimed(), results, 0.0) == 1
    assert len(read(results)) == count + 1


def test_libraries_that_are_installed_are_measured(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins for gemlite and Marlin, with their documented interfaces."""
    torch.manual_seed(0)  # With few random numbers errors vary by a half.

    class GemLiteLinear(torch.nn.Module):
        def __init__(self, bits: int, **how: Any) -> None:
            super().__init__()
            assert bits == 4 and how["input_dtype"] == how["output_dtype"] == "f16"
            self.group = how["group_size"]

        def pack(self, codes: Any, scales: Any, zeros: Any, bias: None) -> None:
            groups = codes.view(len(codes), -1, self.group).float() - zeros[..., None].float()
            self.plain = (groups * scales[..., None].float()).view(codes.shape)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.plain.half().T

    class Layer(torch.nn.Module):
        def __init__(self, inputs: int, outputs: int, groupsize: int) -> None:
            super().__init__()
            self.shape = inputs // groupsize, outputs

        def pack(self, linear: torch.nn.Linear, scales: torch.Tensor) -> None:
            assert scales.shape == self.shape and scales.dtype == torch.half
            self.plain = linear.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.plain.T

    core = SimpleNamespace(GemLiteLinear=GemLiteLinear, DType=SimpleNamespace(FP16="f16"))
    monkeypatch.setitem(sys.modules, "gemlite", SimpleNamespace(core=core))
    monkeypatch.setitem(sys.modules, "gemlite.core", core)
    monkeypatch.setitem(sys.modules, "marlin", SimpleNamespace(Layer=Layer))
    lines = list(benchmark.PARTS["gemv"](Untimed(), 1e9))
    for by in ("INT4, gemlite", "INT4, Marlin"):
        found = [one for one in lines if one.by == by]
        assert len(found) == 2 and all(0 < one.error < 2e-2 for one in found)


class Batching:
    """Replaces transformers."""

    def batcher(self, prompts: list[list[int]], count: int, *, is_sized: bool) -> float:
        assert len(prompts) == 3 and count == 4 and is_sized
        return 1e3


def test_streams_are_held_against_what_they_are_to_reach(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "theirs_of", lambda config, device: Batching())
    results = tmp_path / "results.jsonl"
    assert benchmark.run("end", Untimed(), results, 600.0) > 20
    lines = read(results)
    assert [one for one in lines if "why" in one] == []
    held = {(one["what"], one["by"]): one for one in lines if one["wanted"]}
    wanted = [
        *(("decode × 1", kind) for kind in ("bf16", "FP8", "INT4", "Q4_K_M")),
        *((f"decode × {sessions} by bf16", "INT4") for sessions in (1, 2)),
        ("prefill 40 by bf16", "FP8"),
        ("3 sessions by transformers", "bf16"),
        ("memory of weights by their file", "Q4_K_M"),
        *(("greedy tokens as unpacked, f32", kind) for kind in ("INT4", "Q4_K_M", "FP8")),
    ]
    assert set(held) == set(wanted)
    assert held["3 sessions by transformers", "bf16"]["is_met"]
    # On a processor these figures meet the targets for a card.
    assert held["memory of weights by their file", "Q4_K_M"]["value"] < 1.3


def test_what_fails_is_a_line_and_stops_no_other(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(benchmark, "Model", broken)
    lines = list(benchmark.measure_end(Untimed(), 1e9))
    assert len(lines) == 7 and all(one.why == "RuntimeError: out of order" for one in lines)
    assert all("not measured" in benchmark.shown(one) for one in lines)
    monkeypatch.undo()


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", "gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_make_gpu_has_these_parts_and_no_others_and_ends_in_time() -> None:
    for part, runs in (
        ("tests", "pytest -v -m cuda"),
        *((part, "native_cuda.py $part") for part in ("gemv", "attention", "end")),
    ):
        assert runs in make("-n", f"PART={part}").stdout
    refused = make("PART=all")
    assert refused.returncode == 2 and "none of tests, gemv, attention and end" in refused.stderr
    limits = [int(one) for one in re.findall(r"timeout (\d+)", make("-n").stdout)]
    assert len(limits) == 4 and max(limits) <= 8 * 60 and sum(limits) <= 24 * 60
