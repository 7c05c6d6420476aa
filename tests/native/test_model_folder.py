"""Facts about a folder of safetensors, from its headers: without weights, and without torch."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_builder import tiny_llama
from hearth.backends.contract.models import ModelSettings
from hearth.backends.errors import (
    CorruptFile,
    DoesNotFit,
    InvalidParameter,
    ModelNotFound,
    UnsupportedModel,
)
from hearth.backends.native.footprint import needed_bytes
from hearth.backends.native.gguf_model import read_gguf_config
from hearth.backends.native.model_folder import read_model_folder, weight_bytes
from hearth.backends.native.workspace import Workspace
from hearth.quant.gguf import preflight
from hearth.quant.stored import CODES, STAYS_PACKED
from model_folders import write_folder
from quantized_checkpoints import gptq, gptq_config, quantize_folder
from tiny_folders import pack_experts, tiny_folder

TOKEN = 2 * 2 * 16 * 2 * 2
"""Bytes: keys and values, 2 heads of 16, 2 layers, f16."""


@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_says_what_it_holds(shards: int, tmp_path: Path) -> None:
    found = read_model_folder(write_folder(tmp_path / "model", shards))
    assert (found.architecture, found.stored, found.dtype) == ("llama", "BF16", "bf16")
    assert found.config.context == 512
    numbers = 2 * 300 * 64 + 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64 + 2 * 64)
    assert found.parameters == numbers
    assert found.weight_bytes("bf16") == 2 * numbers and found.weight_bytes("f32") == 4 * numbers
    assert found.kv_bytes_per_token("f16") == TOKEN
    files = (tmp_path / "model").glob("*.safetensors")
    assert found.size_bytes == sum(file.stat().st_size for file in files)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        read_model_folder(tmp_path)
    with pytest.raises(UnsupportedModel, match="'whisper'"):
        read_model_folder(write_folder(tmp_path / "whisper", model_type="whisper"))
    broken = write_folder(tmp_path / "broken", shards=2)
    (broken / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CorruptFile, match="missing"):
        read_model_folder(broken)


def test_what_a_folder_needs_is_weights_workspace_and_one_context(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "model")
    weights = read_model_folder(path).weight_bytes("bf16")

    def pool(**settings: object) -> int:
        wanted = ModelSettings(**settings)  # type: ignore[arg-type]
        config = read_model_folder(path).config
        tokens = (wanted.max_sessions if wanted.kv_pool == "static" else 1) * (
            -(-(wanted.context or 512) // 16) * 16
        )
        if wanted.kv_budget_bytes is not None:
            tokens = wanted.kv_budget_bytes // TOKEN // 16 * 16
        workspace = Workspace(config, wanted)
        return needed_bytes(path, wanted) - workspace.bytes(tokens) - weights

    assert pool() == 512 * TOKEN
    assert pool(context=100) == 112 * TOKEN, "whole pages"
    assert pool(kv_type="f32") == 512 * 2 * TOKEN == 4 * pool(kv_type="fp8")
    assert pool(kv_pool="static", max_sessions=3) == 3 * 512 * TOKEN
    assert pool(kv_budget_bytes=10_000) == 10_000 // (16 * TOKEN) * 16 * TOKEN
    assert pool(dtype="f32") == 512 * TOKEN + weights
    with pytest.raises(InvalidParameter, match="multiple of 32"):
        pool(kv_type="q8_0")
    with pytest.raises(InvalidParameter, match="q4_0") as caught:
        pool(kv_type_v="q4_0")
    assert caught.value.param == "kv_type_v"
    with pytest.raises(DoesNotFit):
        pool(context=512, kv_budget_bytes=10_000)


def test_a_gguf_is_counted_as_it_will_be_held(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "tiny.gguf")
    header = preflight.check(path)
    numbers = 4 * header.parameter_count
    pool = header.context_length * header.kv_bytes_per_token()
    settings = ModelSettings(dtype="f32")
    workspace = Workspace(read_gguf_config(header)[1], settings)
    need = needed_bytes(path, settings)
    assert need == workspace.bytes(header.context_length) + numbers + pool


def test_it_is_told_without_torch(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "model")
    code = (
        "import sys\n"
        "from hearth.backends.contract.models import ModelSpec\n"
        "from hearth.backends.worker.footprint import Footprints\n"
        "assert Footprints().of(ModelSpec(sys.argv[1]))\n"
        "print([name for name in ('torch', 'numpy', 'llama_cpp') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_packed_experts_are_counted_as_they_are_held(tmp_path: Path) -> None:
    folder = pack_experts(tiny_folder("gpt_oss", tmp_path / "tiny"))
    found = read_model_folder(folder)
    packed = {one.name: one for one in found.tensors if one.kind == "U8"}
    blocks = sum(one.nbytes for name, one in packed.items() if name.endswith("_blocks"))
    plain = sum(2 * math.prod(one.shape) for one in found.tensors if one.name not in packed)
    held = sum(one.nbytes for one in packed.values())
    assert weight_bytes(found.tensors, "bf16", packed=STAYS_PACKED) == plain + held
    assert weight_bytes(found.tensors, "bf16", packed=frozenset()) == plain + 2 * 2 * blocks


@pytest.mark.parametrize(("bits", "more"), [(2, 2), (3, 1), (4, 0)])
def test_codes_take_more_bits_on_a_gpu(bits: int, more: int, tmp_path: Path) -> None:
    folder = tiny_folder("llama2", tmp_path / "tiny")
    quantize_folder(folder, gptq(bits), gptq_config(bits))
    stored = read_model_folder(folder).tensors
    codes = sum(math.prod(one.shape) for one in stored if one.kind == f"INT{bits}")
    here, on_gpu = (
        weight_bytes(stored, "bf16", packed=CODES, on_gpu=is_gpu) for is_gpu in (False, True)
    )
    assert codes and on_gpu - here == codes * more // 8
