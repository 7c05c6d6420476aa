"""The native runner needs few packages besides PyTorch, and so do the tests of `make gpu`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from guide_forms import guide_path

ROOT = Path(__file__).resolve().parents[2]
ABSENT = (
    "click",
    "gguf",
    "h11",
    "httpx2",
    "llama_cpp",
    "llguidance",
    "msgspec",
    "platformdirs",
    "psutil",
    "starlette",
    "textual",
    "tomlkit",
    "uvicorn",
    "xxhash",
)
"""Packages that a machine with a card and its own PyTorch may lack."""
ABSENT_TOO = ("huggingface_hub", "jinja2", "safetensors", "transformers", "triton")
"""Packages that the tests need, and that the runner needs only on a card."""
FOR_CARDS = {
    f"hearth.kernels.cuda.{name}"
    for name in (
        "codes",
        "decode_attention",
        "draw",
        "fused",
        "products",
        "prompt_attention",
        "turns",
    )
}
"""Modules that import triton."""
WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
RUNS = """
import importlib, pkgutil

for room in ("backends.native", "backends.engine", "quant", "kernels"):
    root = importlib.import_module("hearth." + room)
    for module in pkgutil.walk_packages(root.__path__, root.__name__ + "."):
        if module.name not in {for_cards}:
            importlib.import_module(module.name)

from hearth.backends.bench.engine_side import EngineSide
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.native.load import open_model

settings = ModelSettings(context=128, threads=1, batch_threads=1, gpu_layers=0)
loaded = open_model(ModelSpec(sys.argv[1], settings=settings))
side = EngineSide(loaded)
prompt = loaded.tokenizer.encode("A question", special=False, add_bos=True)
side.start([prompt], 64)
side.decode(4)
assert len(side.histories()[0]) == len(prompt) + 5
"""
COLLECTS = """
import pytest

sys.exit(pytest.main(sys.argv[1:]))
"""


def run(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_all_of_the_native_runner_is_there_and_runs_without_what_others_need() -> None:
    runs = RUNS.replace("{for_cards}", repr(FOR_CARDS))
    run(WITHOUT.format(names=set(ABSENT + ABSENT_TOO)) + runs, str(guide_path()))


def test_benchmarks_for_cards_are_imported_without_what_others_need() -> None:
    paths = f"sys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
    found = "import few_rows_cuda, native_cuda\nprint(*native_cuda.PARTS)"
    listed = run(WITHOUT.format(names=set(ABSENT + ABSENT_TOO)) + paths + found)
    assert listed.split() == ["gemv", "attention", "end"]


def test_tests_for_cards_are_found_without_what_others_need() -> None:
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if re.search(r"pytest\.mark\.cuda", path.read_text(encoding="utf-8"))
    ]
    found = run(
        WITHOUT.format(names=set(ABSENT)) + COLLECTS,
        *("-p", "pytest_timeout", "-p", "no:cacheprovider", "--collect-only", "-q", "-m", "cuda"),
        *files,
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
    )
    for name in ("native/test_cuda.py", "kernels/test_cuda.py"):
        assert f"tests/{name}::" in found
