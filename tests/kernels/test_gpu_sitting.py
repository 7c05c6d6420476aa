"""What `make gpu` runs on a card, as far as a processor can say: the parts that there are, and that
benchmarks of kernels write each line when it is measured.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("triton", minversion="3.9")

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="there is a card: `make gpu`"
)


class Untimed:
    """In the place of a card: calls are made once, and take a millisecond."""

    device = torch.device("cpu")

    def seconds(self, call: Callable[[], object]) -> float:
        call()
        return 1e-3


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with small shapes, and float16, which triton's interpreter multiplies rightly."""
    path = ROOT / "benchmarks" / "kernels_cuda.py"
    spec = importlib.util.spec_from_file_location("kernels_cuda", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "kernels_cuda", module)
    spec.loader.exec_module(module)
    small = {
        "DTYPE": torch.float16,
        "MATRICES": {"small": (48, 256)},
        "KINDS": {"Q4_K": {}, "INT4": {"group": 128}},
        "ROWS": (1, 17),
        "TEXTS": ((1, 512), (3, 256)),
        "KV_HEADS": 2,
        "HEADS": 4,
        "SIZE": 32,
        "bandwidth": lambda card: 1e9,
    }
    for name, value in small.items():
        monkeypatch.setattr(module, name, value)
    return module


@pytest.mark.parametrize(("part", "lines", "ours"), [("gemv", 6, 4), ("attention", 4, 2)])
def test_each_line_is_written_when_it_is_measured(
    part: str, lines: int, ours: int, benchmark: ModuleType, tmp_path: Path
) -> None:
    results = tmp_path / "results.jsonl"
    assert benchmark.run(part, Untimed(), results, 60.0) == lines
    read = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert len(read) == lines and {one["part"] for one in read} == {part}
    errors = [one["error"] for one in read if one["error"] is not None]
    assert len(errors) == ours and max(errors) < 1e-5
    # Cut off, what was measured is there.
    assert benchmark.run(part, Untimed(), results, 0.0) == 1
    assert len(results.read_text(encoding="utf-8").splitlines()) == lines + 1


def test_make_gpu_has_these_parts_and_no_others() -> None:
    def make(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--no-print-directory", "gpu", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    for part, runs in (("tests", "pytest -v -m cuda"), ("gemv", "kernels_cuda.py $part")):
        assert runs in make("-n", f"PART={part}").stdout
    refused = make("PART=all")
    assert refused.returncode == 2 and "none of tests, gemv, attention and end" in refused.stderr
