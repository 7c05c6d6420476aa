"""`hearth list` and `show` of folders of safetensors, and `show --verify` of all models."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

import tokenizer_folders
from gguf_builder import tiny_llama
from hearth.backends.worker import choice
from hearth.backends.worker.choice import Machine
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
    assert facts["kv_bytes_per_token"] == {
        "f32": 512,
        "f16": 256,
        "q8_0": None,
        "q4_0": None,
        "fp8": 128,
    }
    assert facts["tokenizer"] == "tokenizer.json" and len(facts["template_sha256"]) == 64
    assert len(facts["tensors"]) == facts["tensor_count"] == 21
    assert set(facts) == set(hearth("show", "tiny", "--json", "--tensors").json)
    text = hearth("show", str(folder)).out
    assert "BF16, 16.0 bits a weight" in text and "512 tokens" in text
    assert hearth("show", "whole", "--template").out == TEMPLATE + "\n"


def test_show_tells_what_windows_take_beside(hearth, folder) -> None:
    windowed = {"sliding_window": 64, "sliding_window_pattern": 2, "head_dim": 16}
    gemma = {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
    write_folder(folder, shards=2, **{**VALUES, **gemma, **windowed})
    facts = hearth("show", "whole", "--json").json
    assert facts["kv_bytes_per_token"]["f16"] == 128, "of the one layer that sees everything"
    assert facts["kv_window_bytes"] == {
        "f32": 16_384,
        "f16": 8192,
        "q8_0": None,
        "q4_0": None,
        "fp8": 4096,
    }
    assert "f16 128" in hearth("show", "whole").out
    assert "and f16 8.2 kB for windows" in hearth("show", "whole").out


def test_show_tells_how_its_makers_sample_and_where_it_ends(hearth, folder) -> None:
    generation = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 4]}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "additional_chat_templates").mkdir()
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    facts = hearth("show", "whole", "--json").json
    assert facts["sampling_defaults"] == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    ends = {token["id"]: token["text"] for token in facts["end_tokens"]}
    assert ends.items() >= {1: "</s>", 4: "<|im_end|>"}.items()
    assert facts["templates"] == ["default", "tool_use"]
    text = hearth("show", "whole").out
    assert "temperature 0.6, top_k 20, top_p 0.95 (recommended in its files)" in text
    assert "</s> (1), " in text and "<|im_end|> (4)" in text and "; also tool_use" in text
    (folder / "tokenizer.json").unlink()
    found = hearth("show", "whole", "--json").json["end_tokens"]
    assert found == [{"id": 1, "text": None}, {"id": 4, "text": None}]
    assert "1, 4" in hearth("show", "whole").out


def test_show_tells_the_same_of_a_gguf(hearth, home) -> None:
    extra = {"general.sampling.temp": 0.5, "tokenizer.chat_template.tool_use": "{{ tools }}"}
    tiny_llama(home / "data" / "models" / "wise.gguf", extra=extra)
    facts = hearth("show", "wise", "--json").json
    assert facts["sampling_defaults"] == {"temperature": 0.5}
    assert facts["end_tokens"] == [{"id": 269, "text": "<|end|>"}]
    assert facts["templates"] == ["default", "tool_use"]
    text = hearth("show", "wise").out
    assert "temperature 0.5 (recommended" in text and "<|end|> (269)" in text
    assert "recommended" not in hearth("show", "tiny").out


def test_show_tells_what_runs_it_and_why(hearth, home, folder, monkeypatch) -> None:
    card = Machine(False, True, True, True, card_free_bytes=80 * 10**9)
    monkeypatch.setattr(choice, "this_machine", lambda: card)
    assert "native: only it reads safetensors" in hearth("show", "whole").out
    assert hearth("show", "tiny", "--json").json["backend"]["runner"] == "native"
    extra = {"llama.attention.temperature_scale": 0.1}
    tiny_llama(home / "data" / "models" / "odd.gguf", extra=extra)
    line = next(one for one in hearth("show", "odd").out.splitlines() if "backend" in one)
    assert "llama.cpp: " in line and "attention.temperature_scale" in line
    monkeypatch.setenv("HEARTH_GPU_LAYERS", "1")
    assert "llama.cpp: only it has gpu_layers 1" in hearth("show", "tiny").out
    monkeypatch.setenv("HEARTH_BACKEND", "llamacpp")
    found = hearth("show", "whole", "--json").json["backend"]
    assert found["runner"] is None and "llama.cpp does not read" in found["reason"]


@pytest.mark.parametrize("model", ["whole", "tiny"])
def test_a_sound_model_is_found_sound(hearth, folder, model) -> None:
    result = hearth("show", model, "--verify")
    assert result.code == 0
    assert "all numbers of 21 tensors are finite" in result.out


@pytest.mark.usefixtures("one_process")
def test_a_gguf_that_only_llama_cpp_runs_is_read_too(hearth, home) -> None:
    extra = {"llama.attention.temperature_scale": 0.1}
    tiny_llama(home / "data" / "models" / "odd.gguf", extra=extra)
    result = hearth("show", "odd", "--verify")
    assert result.code == 0
    assert "tensors are finite" in result.out and "llama.cpp may" in result.out


@pytest.mark.usefixtures("one_process")
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
