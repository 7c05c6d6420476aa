"""`hearth quantize` of a folder of safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hearth.quant.gguf import preflight
from tiny_folders import tiny_folder


@pytest.fixture
def folder(home: Path) -> Path:
    """A model in the library, whose rows are made of long blocks."""
    shape = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    return tiny_folder("qwen3", home / "data" / "models" / "Tiny-Qwen3", **shape)


def test_a_folder_becomes_a_small_file_in_one_go(hearth, home, folder) -> None:
    plan = hearth("quantize", str(folder), "--to", "Q4_K_M", "--dry-run", "--json").json
    assert plan["source_type"] == "F32" and plan["type"] == "Q4_K_M"
    result = hearth("quantize", "Tiny-Qwen3", "Q4_K_M", "--no-check")
    assert result.code == 0, result.err
    made = home / "data" / "models" / "Tiny-Qwen3-Q4_K_M.gguf"
    assert plan["size_bytes"] == made.stat().st_size
    assert preflight.check(made).file_type_name == "Q4_K_M"
    manifest = json.loads(made.with_name(made.name + ".json").read_text())
    assert "model.safetensors" in {file["name"] for file in manifest["source"]["files"]}


def test_as_its_numbers_are_stored(hearth, home, folder) -> None:
    assert hearth("quantize", str(folder), "auto", "--no-check").code == 0
    made = preflight.check(home / "data" / "models" / "Tiny-Qwen3-F32.gguf")
    assert made.file_type_name == "F32" and made.value("general.name") == "Tiny-Qwen3"


def test_what_cannot_be_converted_is_said(hearth, folder) -> None:
    (folder / "tokenizer.json").unlink()
    result = hearth("quantize", str(folder), "Q8_0", "--no-check")
    assert result.code != 0 and "has no tokenizer.json" in result.err
