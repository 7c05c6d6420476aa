"""Folders of quantized safetensors: Hearth and transformers read them back as they were rounded,
and they are byte-identical after interruptions.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hearth.app.library.quantize_methods import all_methods
from hearth.kernels.dequantize_codes import MIDDLE
from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.checkpoints.config import read_checkpoint
from hearth.quant.checkpoints.reading import read_quantized
from hearth.quant.checkpoints.scheme import QuantizedTensor
from hearth.quant.errors import CorruptFile, HearthError, UnsupportedModel
from hearth.quant.folders.methods import FolderMethod
from hearth.quant.folders.plan import FolderPlan
from hearth.quant.gguf.errors import BadRecipe, CannotQuantize, TargetExists
from hearth.quant.gguf.quantize_file import manifest_path, unfinished_in
from hearth.quant.json_fields import read_fields
from hearth.quant.methods import Quantized, UnknownOption, methods, read_options
from hearth.quant.rounding.grid import Grid, round_plain
from hearth.quant.rounding.hqq import round_hqq
from hearth.quant.safetensors import SafetensorsFolder
from loaded_weights import load_folder
from native_decoders import logits_of
from quantizing import Stopped, stop_after
from tiny_checkpoints import tiny_checkpoint
from tiny_folders import add_vocabulary

TEXT = torch.randint(3, 270, (24,), generator=torch.Generator().manual_seed(1)).tolist()
Options = dict[str, Any]


def made(
    source: Path,
    target: Path,
    name: str,
    options: Options,
    *,
    replace: bool = False,
    check: Callable[[], None] = lambda: None,
    notes: list[str] | None = None,
    file_bytes: int = 10**9,
    told: list[tuple[int, int]] | None = None,
) -> Quantized:
    method = all_methods().named(name)
    plan = method.plan(source, name, options)
    assert isinstance(plan, FolderPlan)
    return method.run(
        dataclasses.replace(plan, file_bytes=file_bytes),
        target,
        threads=1,
        replace=replace,
        on_progress=lambda done, total, tensor: (told or []).append((done, total)),
        on_note=(notes if notes is not None else []).append,
        check=check,
    )


def opened(folder: Path) -> SafetensorsFolder:
    return SafetensorsFolder(folder, read_checkpoint(read_fields(folder / "config.json")))


CASES: dict[str, tuple[str, Options, Grid]] = {
    "int8": ("int8", {}, Grid(bits=8, scope="row", group=None)),
    "int8 of the whole matrix": (
        "int8",
        {"group": 0},
        Grid(bits=8, scope="tensor", group=None),
    ),
    "int8 in groups, asymmetric": (
        "int8",
        {"group": 32, "symmetry": "asym"},
        Grid(bits=8, group=32, symmetric=False),
    ),
    "fp8": ("fp8", {}, Grid("fp8", 8, None, "row")),
    "fp8 of the whole matrix": ("fp8", {"group": 0}, Grid("fp8", 8, None, "tensor")),
    "fp8 in blocks": ("fp8", {"group": 128}, Grid("fp8", 8, 128, "block")),
    "e5m2": ("fp8", {"e5m2": True}, Grid("fp8", 8, None, "row", e5m2=True)),
    "e5m2 in blocks": (
        "fp8",
        {"e5m2": True, "group": 128},
        Grid("fp8", 8, 128, "block", e5m2=True),
    ),
    "nf4": ("nf4", {"group": 32}, Grid("nf4", 4, 32)),
    "int4": ("int4", {"group": 32}, Grid(group=32)),
    "int4 in groups, asymmetric": (
        "int4",
        {"group": 32, "symmetry": "asym"},
        Grid(group=32, symmetric=False, scales=torch.float32),
    ),
    "int4 of rows, asymmetric": (
        "int4",
        {"group": -1, "symmetry": "asym"},
        Grid(group=None, scope="row", symmetric=False, scales=torch.float32),
    ),
    "int4 for GPTQ": ("int4", {"group": 32, "format": "gptq"}, Grid(group=32)),
    "int4 for GPTQ, asymmetric": (
        "int4",
        {"group": 32, "format": "gptq", "symmetry": "asym"},
        Grid(group=32, symmetric=False),
    ),
    "int8 for GPTQ": (
        "int4",
        {"bits": 8, "group": 32, "format": "gptq"},
        Grid(bits=8, group=32),
    ),
    "int6": ("int4", {"bits": 6, "group": 32}, Grid(bits=6, group=32)),
    "int6 in groups, asymmetric": (
        "int4",
        {"bits": 6, "group": 16, "symmetry": "asym"},
        Grid(bits=6, group=16, symmetric=False),
    ),
    "int4 for AWQ": ("int4", {"group": 32, "format": "awq"}, Grid(group=32)),
    "hqq": ("hqq", {"group": 32}, Grid(group=32, symmetric=False, scales=torch.float32)),
    "hqq for AWQ": ("hqq", {"group": 16, "format": "awq"}, Grid(group=16, symmetric=False)),
}


def is_same(one: PackedWeight, other: PackedWeight) -> bool:
    """Compares everything. One format may store the middle codes that the other omits."""
    assert one.scales is not None and other.scales is not None
    pairs = [(one.weight, other.weight), (one.scales, other.scales)]
    if one.zeros is not None and other.zeros is not None:
        pairs.append((one.zeros, other.zeros))
    middle = MIDDLE.get(one.packing)
    for zeros in (one.zeros, other.zeros):
        if (one.zeros is None) != (other.zeros is None) and zeros is not None:
            assert (zeros == middle).all()
    return one.packing == other.packing and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs
    )


@pytest.mark.parametrize("name", CASES)
def test_a_folder_is_read_back_as_it_was_rounded(name: str, tmp_path: Path) -> None:
    method, options, grid = CASES[name]
    if options.get("format") == "gptq":
        grid = dataclasses.replace(grid, scales=torch.float16)
    source = source_for(method, tmp_path / "model")
    plan = methods().named(method).plan(source, method, options)
    result = made(source, tmp_path / "made", method, options)
    assert result.path == tmp_path / "made" and result.size_bytes == plan.size_bytes
    assert (result.path / "model.safetensors").stat().st_size == plan.size_bytes
    assert json.loads(result.manifest.read_text())["result"]["sha256"] == result.sha256
    assert not unfinished_in(tmp_path)
    found, original = opened(result.path), SafetensorsFolder(source)
    round_one = round_hqq if method == "hqq" else round_plain
    count = 0
    for stored in original.stored:
        tensor = found.stored[stored]
        if isinstance(tensor, QuantizedTensor):
            read = read_quantized(tensor, found.read)
            assert is_same(read, round_one(original.read(stored), grid)), stored
            count += 1
        else:
            assert torch.equal(found.read(stored), original.read(stored)), stored
    assert count == 7 * 2
    decoder, report = load_folder(result.path, exact=True)
    assert not report.unknown and not report.skipped
    assert torch.isfinite(logits_of(decoder, TEXT)).all()


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_moe", "mixtral", "phi3", "gemma3"])
def test_every_family(family: str, tmp_path: Path) -> None:
    """INT8 changes logits little, whichever matrices a family has."""
    source = tiny_checkpoint(family, tmp_path / "model")
    folder = made(source, tmp_path / "made", "int8", {"group": 32}).path
    expected = logits_of(load_folder(source)[0], TEXT)
    found = logits_of(load_folder(folder, packed=frozenset())[0], TEXT)
    change = (found - expected).norm() / expected.norm()
    assert 0 < change < 0.05


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_a_model_with_a_vision_part(prefix: str, tmp_path: Path) -> None:
    """Its text model is quantized; transformers finds the quantized modules, which it names
    differently, and the files that it reads for images.
    """
    source = tiny_checkpoint("gemma3", tmp_path / "model")
    expected = made(source, tmp_path / "text", "int8", {"head": "8"}).path
    values = json.loads((source / "config.json").read_text())
    eyes = {"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}
    config = {"model_type": "gemma3", "text_config": values} | eyes
    (source / "config.json").write_text(json.dumps(config))
    tensors = load_file(source / "model.safetensors")
    tensors = {prefix + name.removeprefix("model."): one for name, one in tensors.items()}
    vision = "" if prefix.startswith("language_model") else "model."
    tensors[f"{vision}vision_tower.vision_model.layers.0.fc1.weight"] = torch.ones(32, 32)
    tensors[f"{vision}vision_tower.vision_model.layers.0.fc2.weight"] = torch.ones(32, 32)
    save_file(tensors, source / "model.safetensors")
    files = {"preprocessor_config.json", "processor_config.json", "modules.json"}
    for name in files:
        (source / name).write_text("{}")
    folder = made(source, tmp_path / "made", "int8", {"head": "8"}).path
    assert files < {path.name for path in folder.iterdir()}
    config = json.loads((folder / "config.json").read_text())["quantization_config"]

    def is_in(patterns: list[str], module: str) -> bool:
        marked = [one.removeprefix("re:") for one in patterns if one.startswith("re:")]
        return module in patterns or any(re.match(pattern, module) for pattern in marked)

    for module in ("vision_tower.vision_model.layers.0.fc1", "model.vision_tower.layers.0.fc1"):
        assert is_in(config["ignore"], module)
    assert not is_in(config["ignore"], "model.language_model.layers.0.mlp.up_proj")
    group = config["config_groups"]["group_1"]["targets"]
    assert is_in(group, "model.language_model.embed_tokens")
    ours, theirs = (logits_of(load_folder(one, exact=True)[0], TEXT) for one in (folder, expected))
    assert torch.equal(ours, theirs)


def source_for(method: str, folder: Path) -> Path:
    """A checkpoint; for FP8 its matrices end in the middle of a block."""
    wide = {"hidden_size": 192, "intermediate_size": 320} if method == "fp8" else {}
    return tiny_checkpoint("llama2", folder, tie_word_embeddings=False, **wide)


COMPRESSED = [
    name
    for name, (_, options, grid) in CASES.items()
    if "format" not in options and grid.kind != "nf4"
]


@pytest.mark.parametrize("name", COMPRESSED)
def test_transformers_computes_the_same(name: str, tmp_path: Path) -> None:
    """As configured by the folder's own config, in float32; and dequantized to bfloat16, which
    gives the same bits as here.
    """
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.quantization import QuantizationConfig
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    method, options, _ = CASES[name]
    source = source_for(method, tmp_path / "model")
    options = options | ({"head": "8"} if name == "int4" else {})
    folder = made(source, tmp_path / "made", method, options).path
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    checked = QuantizationConfig.model_validate(config).model_dump(mode="json")
    assert set(config) - set(checked) <= {"dequantize"}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.tensor([TEXT])).logits[0]
    ours = logits_of(load_folder(folder, packed=frozenset())[0], TEXT)
    assert (theirs - ours).abs().max() < 1e-3
    if options.get("head"):
        return  # Dequantized, its layout would be taken for that of the other matrices.
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.bfloat16,
        quantization_config=CompressedTensorsConfig(dequantize=True),
    )
    found, state = opened(folder), model.state_dict()
    for stored, tensor in found.stored.items():
        if isinstance(tensor, QuantizedTensor):
            expected = read_quantized(tensor, found.read).unpacked(torch.bfloat16)
            assert torch.equal(state[stored], expected), stored


@pytest.mark.parametrize(
    ("is_tied", "method", "options", "loads"),
    [
        (False, "int4", {"group": 32, "head": "8"}, True),
        (False, "int4", {"group": 32, "head": "6"}, True),
        (False, "fp8", {"head": "6"}, True),
        (False, "int8", {"head": "8", "embedding": "8"}, True),
        (True, "int8", {"head": "8"}, True),
        (True, "int4", {"group": 32, "head": "6"}, False),
        (False, "int4", {"group": 32, "embedding": "8", "head": "6"}, False),
        (False, "int4", {"group": 32, "symmetry": "asym", "head": "8"}, False),
    ],
)
def test_embedding_and_output_matrix(
    is_tied: bool, method: str, options: Options, loads: bool, tmp_path: Path
) -> None:
    """They are computed with as they are stored; transformers computes the same, or refuses."""
    source = tiny_checkpoint("llama2", tmp_path / "model", tie_word_embeddings=is_tied)
    folder = made(source, tmp_path / "made", method, options).path
    found, original = opened(folder), SafetensorsFolder(source)
    for which in {"head", "embedding"} & options.keys():
        name = "lm_head.weight"
        if is_tied or which == "embedding":
            name = "model.embed_tokens.weight"
        grid = Grid(bits=8, scope="row", group=None)
        if options[which] == "6":
            grid = Grid(bits=6, group=64)
        stored = found.stored[name]
        assert isinstance(stored, QuantizedTensor) and stored.packing == f"INT{grid.bits}"
        assert is_same(read_quantized(stored, found.read), round_plain(original.read(name), grid))
    ours = logits_of(load_folder(folder, exact=True)[0], TEXT)
    inside = {name: value for name, value in options.items() if name not in ("head", "embedding")}
    without = made(source, tmp_path / "without", method, inside).path
    others = logits_of(load_folder(without, exact=True)[0], TEXT)
    assert 0 < (ours - others).norm() < 0.1 * others.norm()
    pytest.importorskip("compressed_tensors")
    from transformers import AutoModelForCausalLM

    if not loads:
        with pytest.raises((AttributeError, RuntimeError)):
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        assert (model(torch.tensor([TEXT])).logits[0] - ours).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("method", "file_bytes"), [("int8", 10**9), ("int4", 10**9), ("int4", 30_000)]
)
def test_interruptions_change_no_byte(method: str, file_bytes: int, tmp_path: Path) -> None:
    """Stopped at every check, each time a little later; progress resumes where it was."""
    source = tiny_checkpoint("llama2", tmp_path / "model")
    options = {"group": 32}
    whole = made(source, tmp_path / "whole", method, options, file_bytes=file_bytes)
    target, at, notes = tmp_path / "made", 0, list[str]()
    while True:
        told = [(0, 0)]
        try:
            result = made(
                source,
                target,
                method,
                options,
                check=stop_after(at),
                notes=notes,
                file_bytes=file_bytes,
                told=told,
            )
            break
        except Stopped:
            assert not target.exists()
            assert [one.target for one in unfinished_in(tmp_path)] == [target]
            at += 7
    assert at > 20 and any("Resuming" in note for note in notes)
    assert told == sorted(told) and told[1][0] > 0 and told[-1][0] == told[-1][1]
    assert result.sha256 == whole.sha256
    names = sorted(path.name for path in target.iterdir())
    assert names == sorted(path.name for path in whole.path.iterdir())
    for name in names:
        assert (target / name).read_bytes() == (whole.path / name).read_bytes()
    assert not [path for path in tmp_path.iterdir() if "quantizing" in path.name]


def in_shards(folder: Path) -> None:
    """Split the tensors of a folder into three files, as transformers does."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {}
    for number in range(3):
        name = f"model-{number + 1:05d}-of-00003.safetensors"
        some = dict(list(tensors.items())[number::3])
        save_file(some, folder / name)
        places |= dict.fromkeys(some, name)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("method", ["int4", "fp8"])
def test_models_in_several_files(method: str, tmp_path: Path) -> None:
    """Reading and writing several files: the values are those of one file, and no file is larger
    than requested, except with one matrix.
    """
    from transformers import AutoModelForCausalLM

    source = tiny_checkpoint("llama2", tmp_path / "model", tie_word_embeddings=False)
    options = {"group": 32} if method == "int4" else {}
    one = made(source, tmp_path / "one", method, options)
    in_shards(source)
    several = made(source, tmp_path / "several", method, options, file_bytes=30_000)
    sizes = {path.name: path.stat().st_size for path in several.path.glob("*.safetensors")}
    assert sum(sizes.values()) == several.size_bytes and len(sizes) > 3
    index = json.loads((several.path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == sizes.keys()
    total = 0
    for name in sizes:
        tensors = load_file(several.path / name)
        size = sum(tensor.nbytes for tensor in tensors.values())
        matrices = {stored.rpartition(".")[0] for stored in tensors}
        assert size <= 30_000 or len(matrices) == 1
        total += size
    assert index["metadata"]["total_size"] == total
    found, expected = opened(several.path), opened(one.path)
    for stored, tensor in expected.stored.items():
        if isinstance(tensor, QuantizedTensor):
            other = found.stored[stored]
            assert isinstance(other, QuantizedTensor)
            assert is_same(read_quantized(other, found.read), read_quantized(tensor, expected.read))
    ours = logits_of(load_folder(several.path, packed=frozenset())[0], TEXT)
    assert torch.equal(ours, logits_of(load_folder(one.path, packed=frozenset())[0], TEXT))
    assert manifest_path(several.path).is_file()
    made(source, several.path, method, options, replace=True)
    assert not list(several.path.glob("*index.json"))
    if importlib.util.find_spec("compressed_tensors"):
        folder = made(source, tmp_path / "again", method, options, file_bytes=30_000).path
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            assert (model(torch.tensor([TEXT])).logits[0] - ours).abs().max() < 1e-3


HARD: dict[str, Callable[[torch.Tensor], Any]] = {
    "model.layers.0.self_attn.q_proj.weight": lambda w: w[:8].zero_(),
    "model.layers.0.mlp.up_proj.weight": lambda w: w[3, 5].fill_(3.0),
    "model.layers.1.self_attn.k_proj.weight": lambda w: w.fill_(0.03),
    "model.layers.1.mlp.down_proj.weight": lambda w: w.mul_(1e-41),
}
"""Zero rows, an outlier, equal groups, denormals: special values that are set in matrices."""


def everything(name: str) -> tuple[str, Options]:
    """A method and its options: from `CASES`, or one that calibrates."""
    if name in CASES:
        return CASES[name][:2]
    return name, {"group": 32, "samples": 2, "seq-len": 16}


EVERYTHING = [*CASES, "gptq", "awq", "best"]


@pytest.mark.parametrize("name", EVERYTHING)
def test_hard_matrices(name: str, tmp_path: Path) -> None:
    method, options = everything(name)
    source = source_for(method, tmp_path / "model")
    add_vocabulary(source)
    tensors = load_file(source / "model.safetensors")
    for stored, change in HARD.items():
        change(tensors[stored])
    save_file(tensors, source / "model.safetensors")
    folder = made(source, tmp_path / "made", method, options).path
    found = opened(folder)
    grid_steps = 254 if CASES.get(name, ("",))[0] == "int8" else 14
    for stored in HARD:
        tensor = found.stored[stored]
        assert isinstance(tensor, QuantizedTensor)
        weight = read_quantized(tensor, found.read).unpacked(torch.float32)
        assert torch.isfinite(weight).all()
        # Calibrated methods scale matrices by activations, and move errors: logits are compared
        # below.
        if name in CASES:
            off = (weight - tensors[stored]).abs().max()
            # Scales in float16 are zero for values that are that small.
            assert off <= 2.1 * tensors[stored].abs().max() / grid_steps + 1e-41, stored
    name_of_zeros = "model.layers.0.self_attn.q_proj.weight"
    zeros = found.stored[name_of_zeros]
    assert isinstance(zeros, QuantizedTensor)
    assert not read_quantized(zeros, found.read).unpacked(torch.float32)[:8].any()
    ours, expected = (
        logits_of(load_folder(one, packed=frozenset())[0], TEXT) for one in (folder, source)
    )
    assert (ours - expected).norm() / expected.norm() < 0.6


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_tied_embedding_is_copied(name: str, tmp_path: Path) -> None:
    """It is not quantized, no output matrix is written, and transformers reads it so."""
    method, options = everything(name)
    wide = {"hidden_size": 192, "intermediate_size": 320} if method == "fp8" else {}
    source = tiny_checkpoint("smollm2", tmp_path / "model", **wide)
    if name not in CASES:
        add_vocabulary(source)
    folder = made(source, tmp_path / "made", method, options).path
    embedding = "model.embed_tokens.weight"
    found = opened(folder).stored
    assert not [stored for stored in found if "lm_head" in stored]
    assert torch.equal(opened(folder).read(embedding), SafetensorsFolder(source).read(embedding))
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"]
    ours = logits_of(load_folder(folder, packed=frozenset())[0], TEXT)
    expected = logits_of(load_folder(source)[0], TEXT)
    assert 0 < (ours - expected).norm() / expected.norm() < 0.6
    is_compressed = config["quantization_config"]["quant_method"] == "compressed-tensors"
    if is_compressed and importlib.util.find_spec("compressed_tensors"):
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.no_grad():
            assert (model(torch.tensor([TEXT])).logits[0] - ours).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("method", "options"), [("int4", {"group": 32}), ("hqq", {"group": 16, "symmetry": "asym"})]
)
def test_other_choices_start_over_and_a_folder_is_replaced_when_asked(
    method: str, options: Options, tmp_path: Path
) -> None:
    source = tiny_checkpoint("llama2", tmp_path / "model")
    target = tmp_path / "made"
    with pytest.raises(Stopped):
        made(source, target, method, options, check=stop_after(11))
    notes: list[str] = []
    first = made(source, target, "int4", {"group": 16, "symmetry": "asym"}, notes=notes)
    assert "Starting over" in notes[0]
    with pytest.raises(TargetExists):
        made(source, target, "int4", {"group": 32})
    second = made(source, target, "int4", {"group": 32}, replace=True)
    assert second.size_bytes < first.size_bytes
    assert json.loads(manifest_path(target).read_text())["recipe"]["group"] == 32
    (tmp_path / "other").mkdir()
    with pytest.raises(TargetExists):
        made(source, tmp_path / "other", "int4", {"group": 32}, replace=True)


@pytest.mark.parametrize(
    ("method", "options", "error", "said"),
    [
        ("int4", {"group": 128}, CannotQuantize, "no multiple of the group of 128"),
        ("int4", {"bits": 3, "group": 32}, BadRecipe, "INT3"),
        ("fp8", {"group": 64}, BadRecipe, "128 × 128"),
        ("int4", {"group": 32, "imatrix": "x"}, UnknownOption, "no option imatrix"),
        ("int4", {"group": 0}, BadRecipe, "each tensor"),
        ("int4", {"group": 32, "format": "gptq", "head": "8"}, BadRecipe, "cannot say"),
        ("int4", {"group": 32, "bits": 8, "format": "awq"}, BadRecipe, "AWQ"),
        ("int4", {"group": 32, "file-mb": 0}, BadRecipe, "from 1 on"),
        ("int4", {"group": 32, "symmetry": "half"}, BadRecipe, "sym or asym"),
        ("nf4", {"group": 128}, CannotQuantize, "no multiple of the group of 128"),
        ("int4", {"group": 4}, BadRecipe, "a multiple of 8"),
        ("nf4", {"group": 16}, BadRecipe, "32, 64"),
        ("hqq", {"group": 0, "bits": 8}, BadRecipe, "whole matrix"),
    ],
)
def test_what_cannot_be_is_refused(
    method: str, options: Options, error: type[HearthError], said: str, tmp_path: Path
) -> None:
    source = tiny_checkpoint("llama2", tmp_path / "model")
    with pytest.raises(error) as caught:
        methods().named(method).plan(source, method, options)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", [one.name for one in all_methods() if not one.suffix])
def test_whatever_is_planned_can_be_rounded(name: str, tmp_path: Path) -> None:
    source = tiny_checkpoint("llama2", tmp_path / "model", intermediate_size=96)
    method = all_methods().named(name)
    bits = (4, 6, 8) if any(one.name == "bits" for one in method.options) else (None,)
    planned = set()
    for group in (-1, 0, 2, 4, 8, 12, 16, 32):
        for number in bits:
            try:
                plan = method.plan(source, name, {"group": group, "bits": number})
            except (BadRecipe, CannotQuantize):
                continue
            assert isinstance(plan, FolderPlan)
            weight = torch.randn(32, 64)
            (round_hqq if name == "hqq" else round_plain)(weight, plan.storage.grid)
            planned.add(group)
    assert planned


@pytest.mark.parametrize(
    ("width", "name", "options", "said"),
    [
        (97, "int4", {"group": -1}, "an odd number of inputs"),
        (97, "int8", {}, "an odd number of inputs"),
        (97, "fp8", {}, ""),
        (97, "fp8", {"group": 128}, ""),
        (100, "int4", {"group": -1, "format": "gptq"}, "100 outputs, no multiple of 8"),
        (100, "int4", {"group": -1, "format": "awq"}, "100 outputs, no multiple of 8"),
        (100, "int4", {"group": -1, "bits": 8, "format": "gptq"}, ""),
        (100, "int4", {"group": -1, "symmetry": "asym"}, ""),
        (98, "int4", {"group": -1}, ""),
        (98, "int8", {"symmetry": "asym"}, ""),
    ],
)
def test_odd_shapes(width: int, name: str, options: Options, said: str, tmp_path: Path) -> None:
    """Outputs of gate and up, and inputs of down, that are no multiple of 8: the logits of the
    rounded matrices, or an error that names the tensor.
    """
    source = tiny_checkpoint("llama2", tmp_path / "model", intermediate_size=width)
    if said:
        with pytest.raises(CannotQuantize, match=said) as caught:
            made(source, tmp_path / "made", name, options)
        assert "mlp." in caught.value.data["tensor"]
        return
    folder = made(source, tmp_path / "made", name, options).path
    ours = logits_of(load_folder(folder, packed=frozenset())[0], TEXT)
    expected = logits_of(load_folder(source)[0], TEXT)
    assert 0 < (ours - expected).norm() / expected.norm() < 0.6


def stack_experts(source: Path, matrices: tuple[str, str, str], block: str) -> None:
    """Store the matrices of all experts of a layer in one tensor, gate and up together."""
    tensors = load_file(source / "model.safetensors")
    gate, up, down = matrices
    for place in {name[: name.index(block) + len(block)] for name in tensors if block in name}:
        count = sum(name.startswith(place) and f".{down}." in name for name in tensors)
        own = [
            {one: tensors.pop(f"{place}{number}.{one}.weight") for one in matrices}
            for number in range(count)
        ]
        tensors[f"{place}gate_up_proj"] = torch.stack([torch.cat((e[gate], e[up])) for e in own])
        tensors[f"{place}down_proj"] = torch.stack([one[down] for one in own])
    save_file(tensors, source / "model.safetensors")


@pytest.mark.parametrize("method", ["int8", "gptq"])
@pytest.mark.parametrize(
    ("family", "matrices", "block"),
    [
        ("qwen3_moe", ("gate_proj", "up_proj", "down_proj"), ".mlp.experts."),
        ("mixtral", ("w1", "w3", "w2"), ".block_sparse_moe.experts."),
    ],
)
def test_stacked_experts_are_written_one_by_one(
    method: str, family: str, matrices: tuple[str, str, str], block: str, tmp_path: Path
) -> None:
    """The same bytes as for a checkpoint that stores each expert's matrices separately."""
    source = tiny_checkpoint(family, tmp_path / "model")
    add_vocabulary(source)
    options: Options = {"group": 32}
    if method == "gptq":
        options |= {"samples": 2, "seq-len": 16}
    expected = made(source, tmp_path / "made", method, options)
    stack_experts(source, matrices, block)
    plan = methods(all_methods().named("gptq").runner).named(method).plan(source, method, options)
    result = made(source, tmp_path / "stacked", method, options)
    names = ("model.safetensors", "config.json")
    assert result.size_bytes == plan.size_bytes == expected.size_bytes
    for name in names:
        assert (result.path / name).read_bytes() == (expected.path / name).read_bytes()
    facts = plan.facts(tensors=True)
    assert sum(row["size_bytes"] for row in facts["tensors"]) == pytest.approx(
        plan.size_bytes, rel=0.2
    )


def test_stacked_experts_in_another_order_are_refused_by_name(tmp_path: Path) -> None:
    source = tiny_checkpoint("gpt_oss", tmp_path / "model")
    with pytest.raises(UnsupportedModel, match="matrices of all experts") as caught:
        methods().named("int8").plan(source, "int8", {})
    assert "experts.gate_up_proj" in caught.value.data["field"]


@pytest.mark.parametrize(
    ("method", "words", "wanted"),
    [
        ("int4", "asym group=64 head=6", {"symmetry": "asym", "group": 64, "head": "6"}),
        ("int4", "group=-1 format=gptq", {"group": -1, "format": "gptq"}),
        ("gguf", "imatrix=auto tensor=v=Q8_0", {"imatrix": "auto", "tensor": ["v=Q8_0"]}),
        ("gguf", "tensor=v=Q8_0 tensor=k=Q6_K", {"tensor": ["v=Q8_0", "k=Q6_K"]}),
        ("gguf", "llamacpp off", {"backend": "llamacpp", "imatrix": "off"}),
        ("int8", "asyn", None),
        ("int8", "group=many", None),
        ("int4", "symmetry=even", None),
        ("int4", "head=yes", None),
        ("gguf", "imatrix", None),
    ],
)
def test_options_in_words(method: str, words: str, wanted: Options | None) -> None:
    """As `hearth eval --methods` has them; None: refused."""
    if wanted is not None:
        assert read_options(methods().named(method), words.split()) == wanted
        return
    with pytest.raises(UnknownOption):
        read_options(methods().named(method), words.split())


def test_sources_that_are_refused(tmp_path: Path) -> None:
    source = tiny_checkpoint("llama2", tmp_path / "model")
    folder = made(source, tmp_path / "made", "int8", {}).path
    with pytest.raises(UnsupportedModel, match="quantized already"):
        methods().named("int8").plan(folder, "int8", {})
    gguf = tmp_path / "a.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(UnsupportedModel, match="made of a folder"):
        methods().making("int4", gguf)
    assert isinstance(methods().making("INT4", source)[0], FolderMethod)
    with pytest.raises(UnknownOption):
        methods().named("gguf").plan(source, "Q8_0", {"bits": 4})


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("method", ["int4", "hqq", "gptq"])
def test_a_weight_that_is_no_number_is_named(method: str, value: float, tmp_path: Path) -> None:
    source = tiny_checkpoint("llama2", tmp_path / "model")
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][3, 5] = value
    save_file(tensors, source / "model.safetensors")
    options: Options = {"group": 32}
    if method == "gptq":
        add_vocabulary(source)
        options |= {"samples": 2, "seq-len": 16}
    with pytest.raises((CannotQuantize, CorruptFile), match="up_proj"):
        made(source, tmp_path / "made", method, options)
    assert not (tmp_path / "made").exists() and not unfinished_in(tmp_path)
