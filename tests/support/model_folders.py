"""Folders of safetensors like downloaded ones, written byte by byte: small llamas whose weights are
zeros, or small random numbers.
"""

from __future__ import annotations

import json
import math
import random
from array import array
from pathlib import Path
from typing import Any

BYTES = {"F32": 4, "F16": 2, "BF16": 2}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "vocab_size": 300,
}


def write_folder(
    folder: Path, shards: int = 1, dtype: str = "BF16", *, seed: int | None = None, **config: Any
) -> Path:
    """A folder with `config.json` and the weights of a llama in `shards` files.

    Args:
        seed: of random weights, in F32; None: zeros.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values = {**CONFIG, **config}
    (folder / "config.json").write_text(json.dumps(values))
    tensors = list(_shapes(values).items())
    if shards == 1:
        write_safetensors(folder / "model.safetensors", dict(tensors), dtype, seed)
        return folder
    places = {}
    for index in range(shards):
        name = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        own = dict(tensors[index::shards])
        write_safetensors(folder / name, own, dtype, seed)
        places.update(dict.fromkeys(own, name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def write_safetensors(
    path: Path,
    shapes: dict[str, tuple[int, ...]],
    dtype: str = "BF16",
    seed: int | None = None,
) -> Path:
    """A file of zeros; or, in F32, of random numbers."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    weights = bytes(end)
    if seed is not None:
        assert dtype == "F32"
        stream = random.Random(seed)
        weights = array("f", [stream.gauss(0.0, 0.1) for _ in range(end // 4)]).tobytes()
    path.write_bytes(len(text).to_bytes(8, "little") + text + weights)
    return path


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    width, hidden = config["hidden_size"], config["intermediate_size"]
    keys = width // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], width),
        "model.norm.weight": (width,),
        "lm_head.weight": (config["vocab_size"], width),
    }
    for layer in range(config["num_hidden_layers"]):
        own = {
            "self_attn.q_proj": (width, width),
            "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (hidden, width),
            "mlp.up_proj": (hidden, width),
            "mlp.down_proj": (width, hidden),
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in own.items()}
    return shapes
