"""Converting a folder can be resumed after any interruption, and memory use stays flat."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from converting import planned_of
from hearth.quant.errors import CorruptFile, HearthError
from hearth.quant.gguf.quantize_run import run
from quantizing import Stopped, stop_after
from tiny_folders import WEIGHTS, add_vocabulary, tiny_folder, write_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder("qwen3_moe", tmp_path_factory.mktemp("source") / "tiny")


def test_stopped_at_any_tensor_the_result_is_the_same(tmp_path: Path, folder: Path) -> None:
    whole = run(planned_of(folder, "Q8_0"), tmp_path / "whole.gguf").sha256
    for most in range(1, 30, 5):
        with pytest.raises(Stopped):
            run(planned_of(folder, "Q8_0"), tmp_path / "out.gguf", check=stop_after(most))
        assert not (tmp_path / "out.gguf").exists()
    assert run(planned_of(folder, "Q8_0"), tmp_path / "out.gguf").sha256 == whole


KILLED = """
import os, signal, sys
from pathlib import Path
from hearth.quant.gguf.quantize_run import run
from hearth.quant.methods import methods

def end(done, total, name):
    if done * 2 > total:
        os.kill(os.getpid(), signal.SIGKILL)

method = methods().named('gguf')
run(method.plan(Path(sys.argv[1]), "F16", {}), Path(sys.argv[2]), on_progress=end)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_killed_in_the_middle_it_goes_on(tmp_path: Path, folder: Path) -> None:
    target = tmp_path / "tiny.gguf"
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(target)], timeout=100)
    assert done.returncode < 0
    assert not target.exists() and list(tmp_path.glob(".*.part"))
    notes: list[str] = []
    made = run(planned_of(folder, "F16"), target, on_note=notes.append)
    assert "Resuming" in notes[0]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["tiny.gguf", "tiny.gguf.json"]
    assert made.sha256 == run(planned_of(folder, "F16"), tmp_path / "whole.gguf").sha256


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_a_source_that_changes_meanwhile_is_noticed(tmp_path: Path, name: str) -> None:
    source = tiny_folder("llama2", tmp_path / "tiny")

    def touch(done: int, total: int, tensor: str) -> None:
        if done == total:
            (source / name).write_bytes((source / name).read_bytes())

    with pytest.raises(CorruptFile, match="tiny changed while"):
        run(planned_of(source, "Q8_0"), tmp_path / "out.gguf", on_progress=touch)
    assert not (tmp_path / "out.gguf").exists()


def test_a_shard_that_shrank_since_it_was_planned(tmp_path: Path) -> None:
    source = tiny_folder("llama2", tmp_path / "tiny")
    plan = planned_of(source)
    data = (source / WEIGHTS).read_bytes()
    (source / WEIGHTS).write_bytes(data[:-4])
    with pytest.raises(HearthError, match=r"had .* bytes and has"):
        run(plan, tmp_path / "out.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


PEAK = """
import resource, sys
from pathlib import Path
import torch
from hearth.quant.gguf.quantize_run import run
from hearth.quant.methods import methods

def megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

method = methods().named('gguf')
small, large, target = map(Path, sys.argv[1:])
run(method.plan(small, "Q4_0", {}), target)
before = megabytes()
run(method.plan(large, "Q4_0", {}), target, replace=True)
print(megabytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts in kilobytes there")
def test_memory_stays_flat(tmp_path: Path, folder: Path) -> None:
    """Of 200 MB in tensors of 4 MB, only a few are in memory at a time."""
    large = hollow_folder(tmp_path / "large", layers=8)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(folder), str(large), str(tmp_path / "out.gguf")],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 60


def hollow_folder(folder: Path, layers: int) -> Path:
    """A model in BF16, all zeros, that takes no space on the disk."""
    folder.mkdir()
    width, wide, rows = 1024, 2560, 300
    config = {
        "model_type": "llama",
        "vocab_size": rows,
        "hidden_size": width,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    shapes = {"model.embed_tokens.weight": (rows, width), "model.norm.weight": (width,)}
    for layer in range(layers):
        stem = f"model.layers.{layer}."
        shapes |= {f"{stem}self_attn.{part}_proj.weight": (width, width) for part in "qkvo"}
        shapes |= {f"{stem}mlp.{part}_proj.weight": (wide, width) for part in ("gate", "up")}
        shapes[f"{stem}mlp.down_proj.weight"] = (width, wide)
        shapes |= {
            f"{stem}{name}.weight": (width,)
            for name in ("input_layernorm", "post_attention_layernorm")
        }
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with (folder / WEIGHTS).open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end)
    write_json(folder / "config.json", config)
    add_vocabulary(folder)
    return folder
