"""`hearth list` and `show` of folders of safetensors, and `show --verify` of all models."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import tokenizer_folders
from model_folders import CONFIG, write_folder

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
VALUES = {**CONFIG, "vocab_size": 640}


@pytest.fixture
def folder(home: Path) -> Path:
    """A whole model, called Whole."""
    path = home / "data" / "models" / "Whole"
    config = {"tokenizer_config": {"chat_template": TEMPLATE}, "config": VALUES}
    tokenizer_folders.write_folder(path, tokenizer_folders.byte_level(), **config)
    return write_folder(path, shards=2, **VALUES)


def test_a_folder_is_listed_beside_files(hearth, folder) -> None:
    line = next(line for line in hearth("list").out.splitlines() if line.startswith("Whole"))
    assert line.split()[3:4] == ["BF16"] and line.split()[-2:] == ["llama", "library"]


def test_show_tells_what_headers_and_configuration_say(hearth, folder) -> None:
    facts = hearth("show", "whole", "--json", "--tensors").json
    assert facts["path"] == str(folder)
    assert (facts["architecture"], facts["quantization"], facts["files"]) == ("llama", "BF16", 2)
    assert (facts["context"], facts["vocabulary"], facts["bits_per_weight"]) == (512, 640, 16.0)
    assert facts["kv_bytes_per_token"] == {"f32": 512, "f16": 256, "q8_0": None, "q4_0": None}
    assert facts["tokenizer"] == "tokenizer.json" and len(facts["template_sha256"]) == 64
    assert len(facts["tensors"]) == facts["tensor_count"] == 21
    assert set(facts) == set(hearth("show", "tiny", "--json", "--tensors").json)
    text = hearth("show", str(folder)).out
    assert "BF16, 16.0 bits a weight" in text and "512 tokens" in text
    assert hearth("show", "whole", "--template").out == TEMPLATE + "\n"


@pytest.mark.parametrize("model", ["whole", "tiny"])
def test_a_sound_model_is_found_sound(hearth, folder, model) -> None:
    result = hearth("show", model, "--verify")
    assert result.code == 0
    assert "all numbers of 21 tensors are finite" in result.out


def test_numbers_that_are_none_are_found_wherever_they_are(hearth, folder) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    data = bytearray(path.read_bytes())
    data[-2:] = struct.pack("<H", 0x7FC0)  # NaN in bfloat16, at the end
    path.write_bytes(data)
    result = hearth("show", "whole", "--verify", "--json")
    assert result.code == 1
    found = result.json["verified"]
    assert not found["sound"] and found["tensors"] == 21 and len(found["not_finite"]) == 1
    assert "NaN or infinite numbers in" in hearth("show", "whole", "--verify").out


def test_what_does_not_fit_together_is_named(hearth, folder) -> None:
    write_folder(folder, shards=2, **{**VALUES, "num_hidden_layers": 3})
    (folder / "config.json").write_text((folder / "config.json").read_text().replace(": 3", ": 4"))
    result = hearth("show", "whole", "--verify")
    assert result.code == 1 and "layers.3" in result.err


def test_a_folder_without_a_tokenizer_does_not_pass(hearth, folder) -> None:
    (folder / "tokenizer.json").unlink()
    assert hearth("show", "whole").code == 0
    result = hearth("show", "whole", "--verify")
    assert result.code == 1 and "tokenizer.json" in result.err
