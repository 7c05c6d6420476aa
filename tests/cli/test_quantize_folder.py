"""`hearth quantize` of a folder of safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hearth.app.exit_codes import ExitCode
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


@pytest.mark.usefixtures("one_process")
def test_as_its_numbers_are_stored(hearth, home, folder) -> None:
    assert hearth("quantize", str(folder), "auto", "--no-check").code == 0
    made = preflight.check(home / "data" / "models" / "Tiny-Qwen3-F32.gguf")
    assert made.file_type_name == "F32" and made.value("general.name") == "Tiny-Qwen3"


@pytest.mark.usefixtures("one_process")
def test_packed_weights_in_another_format(hearth, home, folder) -> None:
    models = home / "data" / "models"
    packed = ("int4", "--group", "64", "--format", "gptq", "-o", str(models / "packed"))
    assert hearth("quantize", str(folder), *packed, "--no-check").code == 0
    command = ("convert", "packed", "--format", "awq")
    plan = hearth(*command, "--dry-run", "--json").json
    assert plan["format"] == "AWQ" and plan["target"] == str(models / "packed-awq")
    kinds = {one["name"]: (one["source_type"], one["type"]) for one in plan["tensors"]}
    assert kinds["model.layers.0.mlp.down_proj.weight"] == ("INT4", "INT4")
    assert "bits a weight" in hearth(*command, "--dry-run").out
    assert not list(models.glob("*awq*"))
    result = hearth(*command)
    assert result.code == 0 and "the same weights in awq" in result.err
    made = models / "packed-awq"
    assert (made / "model.safetensors").stat().st_size == plan["size_bytes"]
    manifest = json.loads((models / "packed-awq.json").read_text())
    assert manifest["method"] == "convert" and manifest["source"]["name"] == "packed"
    again = hearth(*command)
    assert again.code == ExitCode.FAILED and "--yes" in again.err
    result = hearth(*command, "--yes", "--json").json
    assert result["result"]["size_bytes"] == result["plan"]["size_bytes"]
    assert hearth("convert", "packed", "--format", "gguf", "-o", str(models)).code == 0
    assert preflight.check(models / "packed-Q4_0.gguf").file_type_name == "Q4_0"
    listed = {one["name"]: one for one in hearth("list", "--json").json["models"]}
    assert listed["packed-awq"]["file_type"] == "AWQ 4-bit"
    assert listed["packed"]["file_type"] == "GPTQ 4-bit"


@pytest.mark.usefixtures("one_process")
def test_what_cannot_be_carried_over_is_said(hearth, home, folder) -> None:
    models = home / "data" / "models"
    plain = hearth("convert", str(folder), "--format", "awq")
    assert plain.code == ExitCode.FAILED and "no folder of safetensors with packed" in plain.err
    packed = ("int8", "-o", str(models / "packed"))
    assert hearth("quantize", str(folder), *packed, "--no-check").code == 0
    for options in ((), ("--dry-run",)):
        refused = hearth("convert", "packed", "--format", "awq", *options, "--json")
        assert refused.json["error"]["code"] == "cannot_quantize"
        assert refused.json["error"]["data"]["tensor"] == "model.layers.0.self_attn.q_proj.weight"
    assert not list(models.glob("*awq*")) and not list(models.glob(".*"))


@pytest.mark.usefixtures("one_process")
def test_what_cannot_be_converted_is_said(hearth, folder) -> None:
    (folder / "tokenizer.json").unlink()
    result = hearth("quantize", str(folder), "Q8_0", "--no-check")
    assert result.code != 0 and "has no tokenizer.json" in result.err
