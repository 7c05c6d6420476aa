"""Folders of safetensors become GGUF files: types, sizes, and refusals by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from converting import converted, planned_of
from hearth.quant.errors import CorruptFile, HearthError, UnsupportedModel
from hearth.quant.gguf.errors import BadRecipe, CannotQuantize, GgmlUnavailable
from hearth.quant.gguf.preflight import check
from hearth.quant.gguf.quantize_method import GgufMethod
from hearth.quant.gguf.quantize_run import run
from hearth.quant.gguf.types import TensorType
from hearth.quant.methods import methods
from hearth.quant.mxfp4 import pack_mxfp4
from native_decoders import decoder_of, decoder_of_gguf
from quantizing import planned, sha256
from tiny_folders import (
    WEIGHTS,
    Tensors,
    change_json,
    pack_experts,
    rewrite,
    tiny_folder,
)

FIRST = "model.layers.0.self_attn.q_proj.weight"


def cast(dtype: torch.dtype) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({k: v.to(dtype) for k, v in tensors.items()})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small model in BF16."""
    return rewrite(tiny_folder("llama3", tmp_path / "tiny"), cast(torch.bfloat16))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in BF16 whose rows consist of long blocks."""
    shape = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    made = tiny_folder("qwen3", tmp_path_factory.mktemp("wide") / "wide", **shape)
    return rewrite(made, cast(torch.bfloat16))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.bfloat16, "BF16"), (torch.float16, "F16"), (torch.float32, "F32")],
)
def test_numbers_stay_as_they_are_stored(dtype: torch.dtype, name: str, tmp_path: Path) -> None:
    folder = rewrite(tiny_folder("gemma2", tmp_path / "tiny"), cast(dtype))
    plan = planned_of(folder)
    path = converted(folder, tmp_path / "tiny.gguf")
    made = check(path)
    assert plan.recipe.mix.name == made.file_type_name == name
    assert plan.size_bytes == made.size_bytes == path.stat().st_size
    for tensor in made.tensors:
        assert tensor.type.name == (name if len(tensor.shape) > 1 else "F32"), tensor.name
    stored = load_file(folder / WEIGHTS)
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    up = stored["model.layers.1.mlp.up_proj.weight"]
    assert found["blk.1.ffn_up.weight"].tobytes() == up.view(torch.uint8).numpy().tobytes()
    norm = stored["model.norm.weight"].float() + 1.0
    assert torch.equal(torch.from_numpy(found["output_norm.weight"].copy()), norm)


@pytest.mark.parametrize("name", ["F32", "F16", "Q8_0", "Q4_K_M", "Q6_K", "IQ4_XS"])
def test_one_go_gives_the_bytes_of_two(name: str, wide: Path, tmp_path: Path) -> None:
    plan = planned_of(wide, name)
    made = run(plan, tmp_path / "one.gguf", threads=2)
    assert made.size_bytes == plan.size_bytes == made.path.stat().st_size
    stored = converted(wide, tmp_path / "stored.gguf")
    second = run(planned(stored, name), tmp_path / "two.gguf")
    assert made.path.read_bytes() == second.path.read_bytes()


def test_facts_and_manifest(wide: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    plan = planned_of(wide, "q4km", tensor=["attn_v=Q8_0"])
    made = run(plan, tmp_path / "x.gguf", on_progress=lambda *one: told.append(one))
    facts = plan.facts()
    assert facts["source"] == str(wide) and facts["source_type"] == "BF16"
    assert facts["bits_per_weight"] < 8 < facts["source_bits_per_weight"] < 17
    assert told[-1][0] == told[-1][1] and {name for _, _, name in told} >= {"token_embd.weight"}
    manifest = json.loads(made.manifest.read_text())
    assert manifest["source"]["type"] == "BF16"
    files = {file["name"]: file for file in manifest["source"]["files"]}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= files.keys()
    assert files["model.safetensors"]["sha256"] == sha256(wide / WEIGHTS)
    assert manifest["recipe"] == {
        "type": "Q4_K_M",
        "overrides": ["attn_v=Q8_0"],
        "imatrix": None,
    }
    assert manifest["result"]["sha256"] == sha256(made.path)


def test_the_menu_takes_folders(folder: Path, tmp_path: Path) -> None:
    method = methods().named("gguf")
    assert method.takes(folder) and method.takes(folder / WEIGHTS)
    assert not method.takes(tmp_path) and not method.takes(tmp_path / "nowhere")
    assert methods().making("auto", folder)[1] == "BF16"
    assert methods().making("q4_k", folder)[1] == "Q4_K_M"
    with pytest.raises(BadRecipe):
        methods().making("auto", converted(folder, tmp_path / "tiny.gguf"))
    plan = method.plan(folder / WEIGHTS, "Q8_0", {})
    assert plan.source_bytes > (folder / WEIGHTS).stat().st_size


def test_a_folder_is_read_again_when_it_changes(folder: Path) -> None:
    method = GgufMethod()
    assert method.plan(folder, "F16", {}).source is method.plan(folder, "BF16", {}).source
    change_json(folder / "config.json", vocab_size=299)
    with pytest.raises(CorruptFile, match=r"embedding.weight: the config asks for \(299, 64\)"):
        method.plan(folder, "F16", {})


def test_shards_in_any_order(folder: Path, tmp_path: Path) -> None:
    expected = sha256(converted(folder, tmp_path / "one.gguf"))
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors, key=lambda name: name[::-1])
    places = {}
    for number in range(3):
        file = f"model-{number + 1:05d}-of-00003.safetensors"
        part = names[number::3]
        save_file({name: tensors[name] for name in part}, folder / file)
        places |= dict.fromkeys(part, file)
    index = json.dumps({"metadata": {}, "weight_map": places})
    (folder / "model.safetensors.index.json").write_text(index)
    assert sha256(converted(folder, tmp_path / "three.gguf")) == expected


def test_what_is_not_needed_is_left_out(folder: Path, tmp_path: Path) -> None:
    expected = sha256(converted(folder, tmp_path / "one.gguf"))

    def add(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
        tensors["model.layers.2.mlp.up_proj.weight"] = torch.ones(2, 2)
        tensors["vision_tower.layer.weight"] = torch.ones(2, 2)

    rewrite(folder, add)
    assert sha256(converted(folder, tmp_path / "two.gguf")) == expected


@pytest.mark.parametrize("kept", ["embed", "head", "both", "bare"])
def test_tied_matrices_in_every_way_of_storing_them(kept: str, tmp_path: Path) -> None:
    folder = tiny_folder("qwen2", tmp_path / "tiny")
    expected = sha256(converted(folder, tmp_path / "expected.gguf"))

    def change(tensors: Tensors) -> None:
        table = tensors.pop("model.embed_tokens.weight")
        if kept != "head":
            tensors["model.embed_tokens.weight"] = table
        if kept in ("head", "both"):
            tensors["lm_head.weight"] = table.clone()
        if kept == "bare":
            for name in list(tensors):
                tensors[name.removeprefix("model.")] = tensors.pop(name)

    rewrite(folder, change)
    if kept == "bare":
        values = {"architectures": ["Qwen2Model"], "tie_word_embeddings": False}
        change_json(folder / "config.json", **values)
    assert sha256(converted(folder, tmp_path / "tiny.gguf")) == expected


def with_another_head(tensors: Tensors) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()


def test_a_tied_config_over_an_output_that_differs(tmp_path: Path) -> None:
    """The result is the same as with an untied config."""
    folder = rewrite(tiny_folder("qwen2", tmp_path / "tiny"), with_another_head)
    made = converted(folder, tmp_path / "one.gguf")
    data = {tensor.name: tensor.data for tensor in gguf.GGUFReader(made).tensors}
    stored = load_file(folder / WEIGHTS)
    assert (data["output.weight"] == stored["lm_head.weight"].numpy()).all()
    assert (data["token_embd.weight"] == stored["model.embed_tokens.weight"].numpy()).all()
    change_json(folder / "config.json", tie_word_embeddings=False)
    assert sha256(converted(folder, tmp_path / "two.gguf")) == sha256(made)


def test_an_output_that_llama_cpp_has_no_place_for(tmp_path: Path) -> None:
    folder = rewrite(tiny_folder("gemma2", tmp_path / "tiny"), with_another_head)
    with pytest.raises(UnsupportedModel, match=r"lm_head\.weight.*gemma2"):
        planned_of(folder)


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_rope_scaling_beside_rope_parameters(family: str, tmp_path: Path) -> None:
    """Added by hand, as users do: it takes effect, as in transformers."""
    folder = tiny_folder(family, tmp_path / "tiny")
    scaling = {"rope_type": "linear", "factor": 3.0, "rope_theta": 5e5}
    values = json.loads((folder / "config.json").read_text())["rope_parameters"]
    change_json(folder / "config.json", rope_scaling=scaling)
    added = sha256(converted(folder, tmp_path / "added.gguf"))
    alone = {**values, "full_attention": scaling} if family == "gemma3" else scaling
    change_json(folder / "config.json", rope_scaling=None, rope_parameters=alone)
    assert sha256(converted(folder, tmp_path / "alone.gguf")) == added


def test_wide_numbers_become_f32(folder: Path, tmp_path: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({FIRST: tensors[FIRST].double()}))
    path = converted(folder, tmp_path / "tiny.gguf")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert (kinds["blk.0.attn_q.weight"], kinds["blk.0.attn_k.weight"]) == ("BF16", "BF16")
    ours = decoder_of_gguf(converted(folder, tmp_path / "f32.gguf", "F32"))
    assert torch.equal(ours.layers[0].qkv.weight, decoder_of(folder).layers[0].qkv.weight)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_experts_stacked_in_two_tensors(family: str, tmp_path: Path) -> None:
    folder = tiny_folder(family, tmp_path / "tiny")
    expected = sha256(converted(folder, tmp_path / "each.gguf"))
    gate, up, down = (
        ("w1", "w3", "w2") if family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    )

    def stack(tensors: Tensors) -> None:
        for layer in range(2):
            stem = next(
                name.split("experts.0.")[0]
                for name in tensors
                if name.startswith(f"model.layers.{layer}.") and "experts.0." in name
            )
            count = sum(f"{stem}experts." in name and f".{gate}." in name for name in tensors)
            parts = {
                part: torch.stack(
                    [tensors.pop(f"{stem}experts.{one}.{part}.weight") for one in range(count)]
                )
                for part in (gate, up, down)
            }
            both = torch.cat((parts[gate], parts[up]), dim=1)
            tensors[f"{stem}experts.gate_up_proj"] = both
            tensors[f"{stem}experts.down_proj"] = parts[down]

    rewrite(folder, stack)
    assert sha256(converted(folder, tmp_path / "stacked.gguf")) == expected


def test_experts_in_mxfp4_stay_as_they_are(tmp_path: Path) -> None:
    folder = pack_experts(tiny_folder("gpt_oss", tmp_path / "tiny"))
    rewrite(
        folder,
        lambda tensors: tensors.update(
            {k: v.bfloat16() for k, v in tensors.items() if v.is_floating_point()}
        ),
    )
    stored = load_file(folder / WEIGHTS)
    name = "model.layers.1.mlp.experts."
    down = pack_mxfp4(stored[f"{name}down_proj_blocks"], stored[f"{name}down_proj_scales"])
    both = [stored[f"{name}gate_up_proj_{part}"] for part in ("blocks", "scales")]
    for kind, plain in (("auto", "BF16"), ("F32", "F32"), ("MXFP4_MOE", "Q8_0")):
        path = converted(folder, tmp_path / f"{kind}.gguf", kind)
        found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
        assert found["blk.1.attn_q.weight"].tensor_type.name == plain
        experts = found["blk.1.ffn_down_exps.weight"]
        assert experts.tensor_type.name == "MXFP4"
        assert experts.data.tobytes() == down.numpy().tobytes()
        for first, part in enumerate(("gate", "up")):
            rows = pack_mxfp4(*(one[:, first::2] for one in both))
            data = found[f"blk.1.ffn_{part}_exps.weight"].data
            assert data.tobytes() == rows.numpy().tobytes()
            bias = stored[f"{name}gate_up_proj_bias"][:, first::2].float()
            data = found[f"blk.1.ffn_{part}_exps.bias"].data
            assert torch.equal(torch.from_numpy(data.copy()), bias)
    with pytest.raises(CannotQuantize, match="quantized already") as raised:
        planned_of(folder, "Q4_K_M")
    assert "BF16 and MXFP4_MOE keep" in raised.value.hint
    types = planned_of(folder, "Q8_0", requantize=True).types
    assert types[TensorType.MXFP4] == 0


def test_a_folder_of_the_hub_has_the_name_of_its_repository(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "models--org--Tiny-1B" / "snapshots" / "0123abcd"
    place.parent.mkdir(parents=True)
    folder.rename(place)
    assert planned_of(place).source.header.value("general.name") == "Tiny-1B"


def test_planning_is_light(folder: Path) -> None:
    """A front end makes plans, and must import neither torch nor numpy for it."""
    script = (
        "import sys; from pathlib import Path; from hearth.quant.methods import methods; "
        "method = methods().named('gguf'); plan = method.plan(Path(sys.argv[1]), 'Q8_0', {}); "
        "plan.facts(tensors=True); print(sorted({'torch', 'numpy', 'gguf'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("family", "changes", "field"),
    [
        ("llama2", {"hidden_act": "relu"}, "hidden_act"),
        ("llama2", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "GPTQ 4-bit"),
        ("llama2", {"rope_parameters": {"rope_type": "dynamic"}}, "rope_parameters.rope_type"),
        ("llama2", {"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type"),
        ("qwen2", {"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters.rope_type"),
        ("qwen3", {"rope_parameters": {"rope_type": "yarn", "beta_fast": 8.0}}, "beta_fast"),
        ("llama2", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen2", {"head_dim": 32}, "head_dim"),
        ("qwen3", {"attention_bias": True}, "attention_bias"),
        ("qwen3_moe", {"norm_topk_prob": False}, "norm_topk_prob"),
        ("gemma2", {"tie_word_embeddings": False}, "tie_word_embeddings"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("smollm3", {"no_rope_layers": [1, 1, 0, 1]}, "no_rope_layers"),
        ("phi3", {"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.rope_type"),
    ],
)
def test_variants_that_are_refused_by_name(
    family: str, changes: dict[str, Any], field: str, tmp_path: Path
) -> None:
    folder = tiny_folder(family, tmp_path / "tiny")
    change_json(folder / "config.json", **changes)
    with pytest.raises(HearthError, match=field) as raised:
        planned_of(folder)
    assert "config.json" in raised.value.message and raised.value.hint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(FIRST), f"no tensor '{FIRST}'"),
        (
            lambda tensors: tensors.update({FIRST: torch.zeros(4, 64)}),
            rf"{FIRST}' \(4, 64\).*layers.0.qkv.weight: the config asks for \(128, 64\) and",
        ),
        (
            lambda tensors: tensors.update({FIRST: tensors[FIRST].to(torch.float8_e4m3fn)}),
            rf"{FIRST}' is of type F8_E4M3",
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.mlp.extra": torch.zeros(2)}),
            r"no llama model of its config has: 'model.layers.0.mlp.extra'",
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.mlp.up_proj.qweight": torch.zeros(2)}),
            "quantized in a way that is not known here.*qweight",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    change: Callable[[Tensors], object], message: str, folder: Path
) -> None:
    rewrite(folder, change)
    with pytest.raises((CorruptFile, UnsupportedModel), match=message) as raised:
        planned_of(folder)
    assert raised.value.hint


def test_folders_without_weights(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match=r"pickles only \(pytorch_model.bin\)"):
        planned_of(folder)


def test_numbers_that_are_none_are_told_by_name(folder: Path, tmp_path: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")

    rewrite(folder, spoil)
    for name in ("BF16", "Q8_0"):
        with pytest.raises(CannotQuantize, match=r"blk\.1\.ffn_up\.weight of model\.safetensors"):
            converted(folder, tmp_path / "x.gguf", name)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_without_ggml_it_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(GgmlUnavailable):
        converted(folder, tmp_path / "x.gguf")
