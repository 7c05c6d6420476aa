"""A llama of a GGUF file as a folder of safetensors, as transformers would store it."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from hearth.quant.families.table import family_of_gguf
from hearth.quant.gguf.preflight import check
from loaded_weights import load_gguf
from tiny_folders import WEIGHTS, write_json


def llama_folder(gguf: Path, folder: Path) -> Path:
    """The weights in float32 and their config, with a tied embedding and no vocabulary."""
    folder.mkdir()
    decoder, _ = load_gguf(gguf, packed=frozenset())
    config, stored = decoder.config, {}
    parameters = dict(decoder.named_parameters())
    heights = {
        "q_proj": config.heads * config.head_dim,
        "k_proj": config.kv_heads * config.head_dim,
    }
    for name, source in family_of_gguf(check(gguf).architecture).names(config).items():
        rows = parameters[name]
        names = [part.names[0] for part in source.hf[0]]
        sizes = [heights.get(one.split(".")[-2], len(rows) // 2) for one in names]
        if "v_proj" in names[-1]:
            sizes[-1] = heights["k_proj"]
        for one, part in zip(names, rows.split(sizes) if len(names) > 1 else [rows], strict=True):
            stored[one] = part.clone()
    save_file(stored, folder / WEIGHTS)
    rope = config.layers[0].rope
    assert rope is not None
    values = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": len(config.layers),
        "intermediate_size": config.feed_forward,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context,
        "rope_theta": rope.theta,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": True,
    }
    write_json(folder / "config.json", values)
    return folder
