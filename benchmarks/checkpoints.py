"""The cost of loading a packed model: time, and the peak of anonymous memory beyond what the
process had before.

    python benchmarks/checkpoints.py [--width 2048] [--layers 8] [--dir DIR] [--only NF4]
        [--model MODEL]

A llama of random codes is written in each format, unless MODEL names a file or folder. It is opened
as a worker opens it, in a process of its own with a context of 256 tokens, twice; the second time
counts, so that the file is in the page cache. With "own" weights all of them are read into memory,
as they are where half of the free memory is enough for them; "mapped" weights stay backed by the
file where possible. "peak" is the peak while weights are loaded, and "other" is the memory that the
process used before that: header, vocabulary. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SUPPORT = Path(__file__).resolve().parent.parent / "tests" / "support"
sys.path.append(str(SUPPORT))

import quantized_checkpoints as made  # noqa: E402
from hearth.backends.machine.process import with_huge_pages  # noqa: E402
from tiny_folders import add_vocabulary  # noqa: E402

VOCABULARY, HEADS, KV_HEADS = 32_000, 16, 4
FORMATS = {
    "GPTQ 4-bit": (made.gptq(4, 128), made.gptq_config(4, 128)),
    "GPTQ 4-bit, in order": (
        made.gptq(4, 128, sym=False, order=True),
        made.gptq_config(4, 128, sym=False, order=True),
    ),
    "GPTQ 8-bit": (made.gptq(8, 128), made.gptq_config(8, 128)),
    "GPTQ 3-bit": (made.gptq(3, 128), made.gptq_config(3, 128)),
    "GPTQ 3-bit, in order": (
        made.gptq(3, 128, sym=False, order=True),
        made.gptq_config(3, 128, sym=False, order=True),
    ),
    "GPTQ 2-bit": (made.gptq(2, 128), made.gptq_config(2, 128)),
    "AWQ 4-bit": (made.awq(128), made.awq_config(128)),
    "INT4": (made.packed(4, 128), made.packed_config(4, 128)),
    "INT6": (made.packed(6, 128), made.packed_config(6, 128)),
    "INT8": (made.int8("channel"), made.int8_config("channel")),
    "FP8": (made.fp8(), made.fp8_config()),
    "NF4": (made.nf4(nested=True), made.nf4_config()),
}


def write(folder: Path, name: str, width: int, layers: int) -> None:
    """Write a checkpoint of identical layers, since their values do not matter here."""
    quantize, config = FORMATS[name]
    generator = torch.Generator().manual_seed(0)
    hidden, keys = 4 * width, width // HEADS * KV_HEADS
    shapes = {
        **{f"self_attn.{one}_proj": (width, width) for one in "qo"},
        **{f"self_attn.{one}_proj": (keys, width) for one in "kv"},
        **{f"mlp.{one}_proj": (hidden, width) for one in ("gate", "up")},
        "mlp.down_proj": (width, hidden),
    }
    table = torch.randn((VOCABULARY, width), generator=generator).half()
    tensors = {"model.embed_tokens.weight": table, "lm_head.weight": table.clone()}
    tensors["model.norm.weight"] = torch.ones(width).half()
    for short, shape in shapes.items():
        found = quantize(torch.randn(shape, generator=generator) / width, generator)
        for layer in range(layers):
            for leaf, tensor in found.tensors.items():
                tensors[f"model.layers.{layer}.{short}{leaf}"] = tensor.clone()
    for layer in range(layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = torch.ones(width).half()
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
        "quantization_config": config,
    }
    (folder / "config.json").write_text(json.dumps(values))


def measure(path: Path, *, mapped: bool) -> dict[str, Any]:
    """Load the model in this process and return the figures."""
    from memory_account import HighWater, anonymous_bytes

    from hearth.backends.contract.models import ModelSettings, ModelSpec
    from hearth.backends.native import load
    from hearth.backends.native.weights import LoadReport

    other = 0
    load_weights = load.load_weights

    def watched(*given: Any, **options: Any) -> LoadReport:
        nonlocal other
        other = anonymous_bytes() - before
        return load_weights(*given, **options)

    load.load_weights, load.is_mapped = watched, lambda weight_bytes: mapped
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    settings = ModelSettings(context=256, max_sessions=1, threads=torch.get_num_threads())
    before, most = anonymous_bytes(), HighWater()
    most.start()
    started = time.perf_counter()
    model = load.open_model(ModelSpec(str(path), settings=settings))
    seconds = time.perf_counter() - started
    return {
        "file": sum(file.stat().st_size for file in files),
        "held": model.info.size_bytes,
        "peak": most.stop() - before - other,
        "other": other,
        "seconds": seconds,
    }


def show(name: str, path: Path) -> None:
    """Measure both ways of loading and print the row."""
    for way in ("own", "mapped"):
        command = [sys.executable, __file__, "--measure", way, "--model", str(path)]
        environment = with_huge_pages(os.environ)
        for _ in range(2):
            done = subprocess.run(
                command, check=True, capture_output=True, text=True, env=environment
            )
        found = json.loads(done.stdout)
        sizes = [found[key] / 1e6 for key in ("file", "held", "peak", "other")]
        numbers = "".join(f"{size:9.0f}" for size in sizes)
        share, seconds = found["peak"] / found["file"], found["seconds"]
        print(f"{name:24}{way:>8}{numbers}{share:9.0%}{seconds:6.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--dir", type=Path, help="for the files; else a temporary folder")
    parser.add_argument("--only", choices=FORMATS)
    parser.add_argument("--model", type=Path, help="a file or folder to load instead")
    parser.add_argument("--measure", choices=("own", "mapped"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.model, mapped=options.measure == "mapped")))
        return
    names = "".join(f"{name:>9}" for name in ("file", "held", "peak", "other", "of file"))
    print(f"{'model':24}{'weights':>8}{names}{'time':>8}")
    if options.model is not None:
        show(options.model.stem, options.model)
    else:
        with tempfile.TemporaryDirectory(dir=options.dir) as place:
            for name in FORMATS if options.only is None else [options.only]:
                folder = Path(place) / "model"
                write(folder, name, options.width, options.layers)
                add_vocabulary(folder)
                show(name, folder)
                shutil.rmtree(folder)
    print("MB; the most anonymous memory while it is loaded, beyond that of the process before")


if __name__ == "__main__":
    main()
