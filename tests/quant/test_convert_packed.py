"""`hearth convert`: packed matrices in another format represent the same values, bit for bit;
anything that a format cannot store is refused by name, before anything is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gguf_folder import write_folder
from hearth.app.library.quantize_methods import method_named
from hearth.quant.checkpoints.config import read_checkpoint
from hearth.quant.checkpoints.reading import read_quantized
from hearth.quant.checkpoints.scheme import QuantizedTensor
from hearth.quant.errors import HearthError, UnsupportedModel
from hearth.quant.gguf import preflight
from hearth.quant.gguf.errors import BadRecipe, CannotQuantize
from hearth.quant.gguf.quantize_file import unfinished_in
from hearth.quant.json_fields import read_fields
from hearth.quant.methods import Quantized as Made
from hearth.quant.safetensors import SafetensorsFolder
from loaded_weights import load_folder, load_gguf
from native_decoders import logits_of
from quantized_checkpoints import (
    Quantize,
    Quantized,
    awq,
    awq_config,
    fp8,
    fp8_config,
    gptq,
    gptq_config,
    int8,
    int8_config,
    nf4,
    nf4_config,
    packed,
    packed_config,
    quantize_folder,
)
from quantizing import GUIDE, Stopped, stop_after
from tiny_checkpoints import tiny_checkpoint
from tiny_folders import tiny_folder

TEXT = torch.randint(3, 270, (24,), generator=torch.Generator().manual_seed(1)).tolist()
FORMATS = ("compressed-tensors", "gptq", "awq", "gguf")
WEIGHTS = "model.safetensors"
Config = dict[str, Any]


def made(
    source: Path,
    target: Path,
    method: str = "convert",
    check: Callable[[], None] = lambda: None,
    notes: list[str] | None = None,
    **options: Any,
) -> Made:
    way = method_named(method)
    return way.run(
        way.plan(source, method, {name.replace("_", "-"): one for name, one in options.items()}),
        target,
        threads=1,
        replace=False,
        on_progress=lambda done, total, tensor: None,
        on_note=(notes if notes is not None else []).append,
        check=check,
    )


def converted(source: Path, target: Path, kind: str) -> Path:
    """Convert and check that the size is as planned, and that no other file is left."""
    plan = method_named("convert").plan(source, "convert", {"format": kind})
    result = made(source, target, format=kind)
    written = target if kind == "gguf" else target / WEIGHTS
    assert written.stat().st_size == plan.size_bytes == result.size_bytes
    assert not unfinished_in(target.parent)
    return target


def assert_same(one: Path, other: Path) -> None:
    """Compare every matrix, every plain tensor, and a model's logits with them."""
    files = [
        SafetensorsFolder(folder, read_checkpoint(read_fields(folder / "config.json")))
        for folder in (one, other)
    ]
    assert files[0].stored.keys() == files[1].stored.keys()
    count = 0
    for name in files[0].stored:
        found = []
        for file in files:
            tensor = file.stored[name]
            if isinstance(tensor, QuantizedTensor):
                count += 1
                found.append(read_quantized(tensor, file.read).unpacked(torch.float32))
            else:
                found.append(file.read(name))
        assert found[0].dtype == found[1].dtype and torch.equal(*found), name
    assert count >= 2 * 7
    logits = [logits_of(load_folder(folder, exact=True)[0], TEXT) for folder in (one, other)]
    assert torch.isfinite(logits[0]).all() and torch.equal(*logits)


def assert_same_file(folder: Path, path: Path) -> None:
    """Compare with the model of a GGUF file: every parameter of the decoder, and its logits."""
    decoders = [
        load_folder(folder, packed=frozenset())[0],
        load_gguf(path, packed=frozenset())[0],
    ]
    parameters = [dict(one.named_parameters()) for one in decoders]
    assert parameters[0].keys() == parameters[1].keys()
    for name, one in parameters[0].items():
        assert torch.equal(one, parameters[1][name]), name
    logits = [logits_of(decoder, TEXT) for decoder in decoders]
    assert torch.isfinite(logits[0]).all() and torch.equal(*logits)


def wide_scales(weight: Tensor, generator: torch.Generator) -> Quantized:
    """A matrix with scales that float16 cannot represent."""
    found = packed(4, 32)(weight, generator)
    found.tensors[".weight_scale"] = found.tensors[".weight_scale"].float() * 1.0001
    return found


def no_number(weight: Tensor, generator: torch.Generator) -> Quantized:
    found = packed(4, 32)(weight, generator)
    found.tensors[".weight_scale"][3, 0] = torch.nan
    return found


SOURCES: dict[str, tuple[Quantize, Config]] = {
    "gptq": (gptq(), gptq_config()),
    "gptq, asymmetric": (gptq(sym=False), gptq_config(sym=False)),
    "gptq, second format": (gptq(sym=False, v2=True), gptq_config(sym=False, v2=True)),
    "gptq of rows": (gptq(group=-1), gptq_config(group=-1)),
    "gptq, act-order": (
        gptq(sym=False, order=True, v2=True),
        gptq_config(sym=False, order=True, v2=True),
    ),
    "gptq of 8 bits": (gptq(8, sym=False, v2=True), gptq_config(8, sym=False, v2=True)),
    "gptq of 8 bits, act-order": (gptq(8, order=True), gptq_config(8, order=True)),
    "gptq of 3 bits": (gptq(3), gptq_config(3)),
    "awq": (awq(), awq_config()),
    "compressed": (packed(4, 32), packed_config(4, 32)),
    "compressed, groups of 16": (packed(4, 16), packed_config(4, 16)),
    "compressed, asymmetric": (packed(4, 32, sym=False), packed_config(4, 32, sym=False)),
    "compressed, act-order": (packed(4, 16, order=True), packed_config(4, 16, order=True)),
    "compressed, wide scales": (wide_scales, packed_config(4, 32)),
    "compressed, 6 bits": (packed(6, 32, sym=False), packed_config(6, 32, sym=False)),
    "compressed, 6 bits, symmetric": (packed(6, 32), packed_config(6, 32)),
    "compressed, 8 bits": (packed(8), packed_config(8)),
    "int8": (int8("channel"), int8_config("channel")),
    "int8, asymmetric": (int8("tensor", sym=False), int8_config("tensor", sym=False)),
    "fp8": (fp8(), fp8_config()),
    "nf4": (nf4(), nf4_config()),
    "a scale that is no number": (no_number, packed_config(4, 32)),
}
ZEROS = {"gguf": "zero points, which Q4_0 and Q8_0 lack"}
UNORDERED = ("compressed-tensors", "awq", "gguf")
OTHERS = ("gptq", "awq", "gguf")
REFUSED: dict[str, dict[str, str]] = {
    "gptq, asymmetric": ZEROS,
    "gptq, second format": ZEROS,
    "gptq, act-order": dict.fromkeys(UNORDERED, "activation order (g_idx)"),
    "gptq of 8 bits": {"awq": "codes of 8 bits, and AWQ has those of 4"} | ZEROS,
    "gptq of 8 bits, act-order": dict.fromkeys(UNORDERED, "activation order")
    | {"awq": "codes of 8 bits"},
    "gptq of 3 bits": dict.fromkeys(FORMATS, "codes of 3 bits. No format"),
    "awq": ZEROS,
    "compressed, asymmetric": ZEROS,
    "compressed, act-order": dict.fromkeys(UNORDERED, "Convert to gptq."),
    "compressed, wide scales": dict.fromkeys(OTHERS, "no numbers of float16"),
    "compressed, 6 bits": dict.fromkeys(OTHERS, "Convert to compressed-tensors."),
    "compressed, 6 bits, symmetric": dict.fromkeys(OTHERS, "codes of 6 bits"),
    "compressed, 8 bits": {"awq": "Convert to compressed-tensors or gptq."},
    "compressed, groups of 16": {"gguf": "groups of 16 inputs, no multiple of 32"},
    "int8": {"awq": "codes of 8 bits"},
    "int8, asymmetric": {"awq": "codes of 8 bits"} | ZEROS,
    "fp8": dict.fromkeys(FORMATS, "weights in FP8"),
    "nf4": dict.fromkeys(FORMATS, "weights in NF4"),
    "a scale that is no number": dict.fromkeys(FORMATS, "not a finite number"),
}
"""Words that the message contains, by the format."""
SAME_FORMAT = {
    ("gptq, second format", "gptq"),
    ("gptq, act-order", "gptq"),
    ("gptq of 8 bits", "gptq"),
    ("awq", "awq"),
    ("compressed", "compressed-tensors"),
    ("compressed, 6 bits, symmetric", "compressed-tensors"),
}
"""Every stored tensor stays the same, except for the type of scales."""


def source_of(name: str, folder: Path, **changes: Any) -> Path:
    source = tiny_folder("llama2", folder, **changes)
    quantize_folder(source, *SOURCES[name])
    return source


def assert_refused(
    source: Path, target: Path, kind: str, said: str, error: type[HearthError] = CannotQuantize
) -> None:
    with pytest.raises(error) as caught:
        made(source, target, format=kind)
    assert said in str(caught.value)
    if error is CannotQuantize:
        assert str(caught.value.data["tensor"]) in caught.value.message
    assert not target.exists() and not unfinished_in(target.parent)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", SOURCES)
def test_every_matrix_is_the_same_in_another_format(name: str, kind: str, tmp_path: Path) -> None:
    source = source_of(name, tmp_path / "source")
    if kind in REFUSED.get(name, {}):
        assert_refused(source, tmp_path / "made", kind, REFUSED[name][kind])
        return
    target = converted(source, tmp_path / "made", kind)
    if kind == "gguf":
        assert_same_file(source, target)
        return
    assert_same(source, target)
    if (name, kind) in SAME_FORMAT:
        before, after = (load_file(folder / WEIGHTS) for folder in (source, target))
        assert before.keys() == after.keys()
        for stored, tensor in before.items():
            assert torch.equal(after[stored].to(tensor.dtype), tensor), stored


@pytest.mark.parametrize("symmetry", ["sym", "asym"])
def test_around_all_formats_and_back(symmetry: str, tmp_path: Path) -> None:
    """Each matrix of `guide` and the logits stay the same, and the last file equals the first."""
    plain = write_folder(GUIDE, tmp_path / "plain", "f16")
    first = tmp_path / "first"
    made(plain, first, "int4", group=64, symmetry=symmetry, format="gptq")
    folder = first
    for number, kind in enumerate(("awq", "compressed-tensors", "gptq")):
        folder = converted(folder, tmp_path / f"{number}-{kind}", kind)
        assert_same(first, folder)
    for name in (WEIGHTS, "config.json", "tokenizer.json"):
        assert (folder / name).read_bytes() == (first / name).read_bytes()
    if symmetry == "sym":
        assert_same_file(first, converted(first, tmp_path / "made.gguf", "gguf"))


@pytest.mark.parametrize("kind", ["compressed-tensors", "gptq", "awq"])
def test_a_plain_matrix_between_packed_ones_stays(kind: str, tmp_path: Path) -> None:
    source = tiny_checkpoint("llama2", tmp_path / "source")
    plain = "model.layers.1.mlp.up_proj"
    quantize_folder(
        source,
        gptq(),
        gptq_config() | {"dynamic": {f"-:.*{plain}": {}}},
        is_quantized=lambda name: name.endswith("_proj.weight") and not name.startswith(plain),
    )
    target = converted(source, tmp_path / "made", kind)
    config = json.loads((target / "config.json").read_text())["quantization_config"]
    key = {"gptq": "dynamic", "awq": "modules_to_not_convert"}.get(kind, "ignore")
    assert any(plain in one.replace("\\", "") for one in config[key])
    file = SafetensorsFolder(target, read_checkpoint(read_fields(target / "config.json")))
    assert not isinstance(file.stored[f"{plain}.weight"], QuantizedTensor)
    logits = [logits_of(load_folder(one, exact=True)[0], TEXT) for one in (source, target)]
    assert torch.equal(*logits)


def test_several_kinds_of_matrices_are_for_compressed_tensors_alone(tmp_path: Path) -> None:
    source = tiny_folder("llama2", tmp_path / "source")
    wide = {r"+:.*\.mlp\.": {"bits": 8}}
    quantize_folder(source, gptq(8), {}, is_quantized=lambda name: ".mlp." in name)
    quantize_folder(
        source,
        gptq(),
        gptq_config() | {"dynamic": wide},
        is_quantized=lambda name: ".self_attn." in name,
    )
    assert_same(source, converted(source, tmp_path / "made", "compressed-tensors"))
    assert_same_file(source, converted(source, tmp_path / "made.gguf", "gguf"))
    types = {one.type.name for one in preflight.check(tmp_path / "made.gguf").tensors}
    assert {"Q4_0", "Q8_0", "F32"} == types
    assert_refused(source, tmp_path / "b", "gptq", "INT8 in groups of 32, and others INT4")
    assert_refused(source, tmp_path / "c", "awq", "codes of 8 bits")


@pytest.mark.parametrize("name", ["gptq, asymmetric", "several kinds", "int8, asymmetric"])
def test_transformers_computes_the_same(name: str, tmp_path: Path) -> None:
    """Packed zero points, a group of the config for each kind of matrix, and scales in bf16."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.quantization import QuantizationConfig
    from transformers import AutoModelForCausalLM

    changes = {"tie_word_embeddings": False}
    if name == "several kinds":
        source = tiny_checkpoint("llama2", tmp_path / "source", **changes)
        quantize_folder(source, gptq(8), {}, is_quantized=lambda name: ".mlp." in name)
        config = gptq_config() | {"dynamic": {r"+:.*\.mlp\.": {"bits": 8}}}
        quantize_folder(source, gptq(), config, is_quantized=lambda name: ".self_attn." in name)
    else:
        source = source_of(name, tmp_path / "source", **changes)
    folder = converted(source, tmp_path / "made", "compressed-tensors")
    QuantizationConfig.model_validate(
        json.loads((folder / "config.json").read_text())["quantization_config"]
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.tensor([TEXT])).logits[0]
    ours = logits_of(load_folder(source, packed=frozenset())[0], TEXT)
    assert (theirs - ours).abs().max() < 1e-3


def test_what_is_no_source(tmp_path: Path) -> None:
    source = tiny_checkpoint("llama2", tmp_path / "source")
    said = "no folder of safetensors with packed matrices"
    assert_refused(source, tmp_path / "made", "gptq", said, UnsupportedModel)
    assert_refused(tmp_path / "none", tmp_path / "made", "gptq", said, UnsupportedModel)
    for options, wrong in ({}, "format is missing"), ({"format": "gguf", "file-mb": 1}, "one file"):
        with pytest.raises(BadRecipe, match=wrong):
            method_named("convert").plan(source, "convert", options)
    quantize_folder(source, gptq(), gptq_config(), is_quantized=lambda name: False)
    assert_refused(source, tmp_path / "made", "awq", "no matrix is packed", UnsupportedModel)


def test_packed_matrices_outside_of_blocks(tmp_path: Path) -> None:
    """An output matrix: compressed-tensors and GGUF can store it, GPTQ and AWQ cannot."""
    source = tiny_folder("llama2", tmp_path / "source", tie_word_embeddings=False)
    quantize_folder(
        source,
        packed(4, 32),
        packed_config(4, 32),
        is_quantized=lambda name: name.endswith(("_proj.weight", "lm_head.weight")),
    )
    folder = converted(source, tmp_path / "made", "compressed-tensors")
    assert_same(source, folder)
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert config["config_groups"]["group_1"]["targets"] == ["re:lm_head$"]
    assert_same_file(source, converted(source, tmp_path / "made.gguf", "gguf"))
    for kind in ("gptq", "awq"):
        assert_refused(source, tmp_path / "b", kind, "lm_head.weight has packed weights outside")


def test_shapes_that_words_of_columns_do_not_hold(tmp_path: Path) -> None:
    plain = tiny_checkpoint("llama2", tmp_path / "plain", intermediate_size=100)
    source = made(plain, tmp_path / "source", "int4", group=-1).path
    for kind in ("gptq", "awq"):
        assert_refused(source, tmp_path / "made", kind, "100 outputs, no multiple of 8")


def test_a_matrix_that_the_family_does_not_have_is_refused(tmp_path: Path) -> None:
    source = source_of("gptq", tmp_path / "source")
    tensors = load_file(source / WEIGHTS)
    for leaf in (".qweight", ".qzeros", ".scales", ".g_idx"):
        tensors[f"vision.proj{leaf}"] = tensors[f"model.layers.0.mlp.up_proj{leaf}"].clone()
    save_file(tensors, source / WEIGHTS)
    assert_refused(source, tmp_path / "made", "awq", "vision.proj.weight has a name that no matrix")


def test_notices_of_the_source_are_passed_on(tmp_path: Path) -> None:
    plan = method_named("convert").plan(
        source_of("int8", tmp_path / "source"), "convert", {"format": "gptq"}
    )
    assert "activations in INT8" in plan.facts()["notices"][0]


@pytest.mark.parametrize("kind", ["compressed-tensors", "gguf"])
def test_interruptions_change_no_byte(kind: str, tmp_path: Path) -> None:
    """Stopped at every check, each time later; the remaining files say how to resume."""
    source = source_of("gptq", tmp_path / "source")
    whole = made(source, tmp_path / "whole", format=kind)
    target, at, notes = tmp_path / "made", 0, list[str]()
    while not target.exists():
        try:
            made(source, target, "convert", stop_after(at), notes, format=kind)
        except Stopped:
            (left,) = unfinished_in(tmp_path)
            assert left.target == target and left.request["method"] == "convert"
            assert left.request["options"] == {"format": kind}
            at += 7
    assert at > 20 and any("Resuming" in note for note in notes)
    paths = [whole.path] if kind == "gguf" else list(whole.path.iterdir())
    for path in paths:
        other = target if kind == "gguf" else target / path.name
        assert other.read_bytes() == path.read_bytes()
    assert not [path for path in tmp_path.iterdir() if "quantizing" in path.name]
