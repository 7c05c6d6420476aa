"""Folders of quantized safetensors: read back as they were rounded, by us and by transformers, and
the same to the byte after interruptions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hearth.kernels.packed import PackedWeight
from hearth.quant.checkpoints.config import read_checkpoint
from hearth.quant.checkpoints.reading import read_quantized
from hearth.quant.checkpoints.scheme import QuantizedTensor
from hearth.quant.errors import HearthError, UnsupportedModel
from hearth.quant.folders.methods import FolderMethod
from hearth.quant.gguf.errors import BadRecipe, CannotQuantize, TargetExists
from hearth.quant.gguf.quantize_file import manifest_path, unfinished_in
from hearth.quant.json_fields import read_fields
from hearth.quant.methods import Quantized, UnknownOption, methods, read_options
from hearth.quant.rounding.grid import Grid, round_plain
from hearth.quant.rounding.hqq import round_hqq
from hearth.quant.safetensors import SafetensorsFolder
from loaded_weights import load_folder
from native_decoders import logits_of
from tiny_checkpoints import tiny_checkpoint

TEXT = torch.randint(3, 270, (24,), generator=torch.Generator().manual_seed(1)).tolist()
Options = dict[str, Any]


class Interrupted(Exception):
    pass


def made(
    source: Path,
    target: Path,
    name: str,
    options: Options,
    *,
    replace: bool = False,
    check: Callable[[], None] = lambda: None,
    notes: list[str] | None = None,
) -> Quantized:
    method = methods().named(name)
    return method.run(
        method.plan(source, name, options),
        target,
        threads=1,
        replace=replace,
        on_progress=lambda done, total, tensor: None,
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
    "nf4": ("nf4", {"group": 32}, Grid("nf4", 4, 32)),
    "int4": ("int4", {"group": 32}, Grid(group=32)),
    "int4 of rows, asymmetric": (
        "int4",
        {"group": -1, "symmetry": "asym"},
        Grid(group=None, scope="row", symmetric=False),
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
    "int4 for AWQ": ("int4", {"group": 32, "format": "awq"}, Grid(group=32)),
    "hqq": ("hqq", {"group": 32}, Grid(group=32, symmetric=False)),
    "hqq for AWQ": ("hqq", {"group": 16, "format": "awq"}, Grid(group=16, symmetric=False)),
}


def is_same(one: PackedWeight, other: PackedWeight) -> bool:
    """All of it. A format may name the middle codes that the other leaves out."""
    assert one.scales is not None and other.scales is not None
    pairs = [(one.weight, other.weight), (one.scales, other.scales)]
    if one.zeros is not None and other.zeros is not None:
        pairs.append((one.zeros, other.zeros))
    middle = 128 if one.packing == "INT8" else 8
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
        grid = replace(grid, scales=torch.float16)
    wide = {"hidden_size": 192, "intermediate_size": 320} if method == "fp8" else {}
    source = tiny_checkpoint("llama2", tmp_path / "model", tie_word_embeddings=False, **wide)
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


@pytest.mark.parametrize(
    "name", ["int8", "fp8", "fp8 in blocks", "int4", "int8 of the whole matrix"]
)
def test_transformers_computes_the_same(name: str, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    from transformers import AutoModelForCausalLM

    method, options, _ = CASES[name]
    source = tiny_checkpoint("llama2", tmp_path / "model", tie_word_embeddings=False)
    options = options | ({"head": True} if method == "int4" else {})
    folder = made(source, tmp_path / "made", method, options).path
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        theirs = model(torch.tensor([TEXT])).logits[0]
    ours = logits_of(load_folder(folder, packed=frozenset())[0], TEXT)
    assert (theirs - ours).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("is_tied", "name", "method", "options"),
    [
        (False, "lm_head.weight", "int4", {"group": 32}),
        (True, "model.embed_tokens.weight", "int8", {}),
    ],
)
def test_an_output_matrix_in_eight_bits(
    is_tied: bool, name: str, method: str, options: Options, tmp_path: Path
) -> None:
    """It is computed with as it is stored, by transformers too."""
    source = tiny_checkpoint("llama2", tmp_path / "model", tie_word_embeddings=is_tied)
    folder = made(source, tmp_path / "made", method, options | {"head": True}).path
    head = opened(folder).stored[name]
    assert isinstance(head, QuantizedTensor) and head.packing == "INT8"
    if is_tied:
        with pytest.raises(CannotQuantize, match="is its embedding"):
            methods().named("int4").plan(source, "int4", {"group": 32, "head": True})
    ours = logits_of(load_folder(folder, exact=True)[0], TEXT)
    assert torch.isfinite(ours).all()
    without = made(source, tmp_path / "without", method, options).path
    others = logits_of(load_folder(without, exact=True)[0], TEXT)
    assert 0 < (ours - others).norm() < 0.05 * others.norm()
    pytest.importorskip("compressed_tensors")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        assert (model(torch.tensor([TEXT])).logits[0] - ours).abs().max() < 1e-3


@pytest.mark.parametrize("method", ["int8", "int4"])
def test_interruptions_change_no_byte(method: str, tmp_path: Path) -> None:
    """Stopped at every check, each time a little later."""
    source = tiny_checkpoint("llama2", tmp_path / "model")
    options = {"group": 32}
    whole = made(source, tmp_path / "whole", method, options)
    target, at, notes = tmp_path / "made", 1, list[str]()

    def stop_at(limit: int) -> Callable[[], None]:
        count = 0

        def check() -> None:
            nonlocal count
            count += 1
            if count == limit:
                raise Interrupted

        return check

    while True:
        try:
            result = made(source, target, method, options, check=stop_at(at), notes=notes)
            break
        except Interrupted:
            assert not target.exists()
            assert [one.target for one in unfinished_in(tmp_path)] == [target]
            at += 7
    assert at > 20 and any("Resuming" in note for note in notes)
    assert result.sha256 == whole.sha256
    names = sorted(path.name for path in target.iterdir())
    assert names == sorted(path.name for path in whole.path.iterdir())
    for name in names:
        assert (target / name).read_bytes() == (whole.path / name).read_bytes()
    assert not [path for path in tmp_path.iterdir() if "quantizing" in path.name]


def test_another_option_starts_over_and_a_folder_is_replaced_when_asked(tmp_path: Path) -> None:
    source = tiny_checkpoint("llama2", tmp_path / "model")
    target, left = tmp_path / "made", 12

    def check() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Interrupted

    with pytest.raises(Interrupted):
        made(source, target, "int4", {"group": 32}, check=check)
    notes: list[str] = []
    first = made(source, target, "int4", {"group": 16}, notes=notes)
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
        ("int4", {"group": 32, "format": "gptq", "head": True}, BadRecipe, "cannot say"),
        ("int4", {"group": 32, "bits": 8, "format": "awq"}, BadRecipe, "AWQ"),
    ],
)
def test_what_cannot_be_is_refused(
    method: str, options: Options, error: type[HearthError], said: str, tmp_path: Path
) -> None:
    source = tiny_checkpoint("llama2", tmp_path / "model")
    with pytest.raises(error) as caught:
        methods().named(method).plan(source, method, options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("method", "words", "wanted"),
    [
        ("int4", "asym group=64 head", {"symmetry": "asym", "group": 64, "head": True}),
        ("int4", "group=-1 format=gptq", {"group": -1, "format": "gptq"}),
        ("gguf", "imatrix=auto tensor=v=Q8_0", {"imatrix": "auto", "tensor": ["v=Q8_0"]}),
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


def test_a_weight_that_is_no_number_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = tiny_checkpoint("llama2", tmp_path / "model")
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][3, 5] = torch.inf
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(CannotQuantize, match="up_proj"):
        made(source, tmp_path / "made", "int4", {"group": 32})
    assert not (tmp_path / "made").exists() and not unfinished_in(tmp_path)
