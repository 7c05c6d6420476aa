"""The bundled model, taken apart into a folder of safetensors and converted back."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import save_file

from converting import converted
from hearth.assets.guide import tokenizer as guide_tokenizer
from hearth.assets.guide.export import read_gguf, to_halves
from quantizing import GUIDE
from tiny_folders import write_json

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# That the end of a text ends a turn as well goes without saying.
_SAID_TWICE = "tokenizer.ggml.eot_token_id"


def test_guide_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = guide_folder(tmp_path / "guide")
    ours = gguf.GGUFReader(converted(folder, tmp_path / "guide.gguf"))
    theirs = gguf.GGUFReader(GUIDE)
    for key, field in theirs.fields.items():
        if key.startswith(("tokenizer.", "llama.")) and key != _SAID_TWICE:
            found = ours.fields[key].contents()
            assert found == field.contents() or found == pytest.approx(field.contents()), key
    assert {tensor.name for tensor in ours.tensors} == {tensor.name for tensor in theirs.tensors}
    stored = {tensor.name: tensor for tensor in ours.tensors}
    for tensor in theirs.tensors:
        found = stored[tensor.name]
        assert found.tensor_type == tensor.tensor_type, tensor.name
        assert found.data.tobytes() == tensor.data.tobytes(), tensor.name


def guide_folder(folder: Path) -> Path:
    """guide as transformers would store it, matrices in F16."""
    folder.mkdir()
    weights, vocabulary, config = read_gguf(GUIDE)
    tokenizer = guide_tokenizer.from_vocabulary(vocabulary)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    heads = {"attn_q": config.heads, "attn_k": config.kv_heads}
    stored = {}
    for name, weight in weights.items():
        part = name.split(".")[2] if name.startswith("blk.") else ""
        rows = to_halves(weight, heads[part]) if part in heads else weight
        hf = names.get(name) or f"model.layers.{name.split('.')[1]}.{_NAMES[part]}.weight"
        tensor = torch.from_numpy(rows.copy())
        stored[hf] = tensor.half() if tensor.dim() > 1 else tensor
    save_file(stored, folder / "model.safetensors")
    write_json(
        folder / "config.json",
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": config.vocab,
            "hidden_size": config.hidden,
            "num_hidden_layers": config.layers,
            "intermediate_size": config.ffn,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "max_position_embeddings": config.context,
            "rope_theta": config.rope_base,
            "rms_norm_eps": config.norm_eps,
            "tie_word_embeddings": True,
            "eos_token_id": guide_tokenizer.END,
        },
    )
    write_json(
        folder / "tokenizer_config.json",
        {
            "eos_token": "<|end|>",
            "pad_token": "<|pad|>",
            "add_bos_token": False,
            "chat_template": guide_tokenizer.CHAT_TEMPLATE,
        },
    )
    return folder
