"""Quantizing GGUF files: exact sizes, and the same bytes as llama.cpp."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_builder import save, tiny_llama
from hearth.quant.errors import UnsupportedModel
from hearth.quant.ggml import Ggml
from hearth.quant.gguf import imatrix, preflight
from hearth.quant.gguf.errors import (
    CannotQuantize,
    NeedsImportanceMatrix,
)
from hearth.quant.gguf.mixes import mixes
from hearth.quant.gguf.quantize_file import manifest_path
from hearth.quant.gguf.quantize_run import run
from hearth.quant.gguf.types import NOT_WEIGHTS, TensorType
from hearth.quant.methods import UnknownMethod, methods
from llama_quantizer import Order, llama_quantize
from quantizing import (
    GUIDE,
    copy_pairs,
    importances,
    planned,
    save_imatrix,
    sha256,
    with_experts,
)

NUMBERS = {mix.name: mix.number for mix in mixes()}
SLOW_TYPES = (TensorType.IQ1_S, TensorType.IQ1_M, TensorType.IQ2_XS, TensorType.IQ2_S)
LOG_LINE = re.compile(r"\] *([\w.]+) +- .*? type = +(\w+), size = .*?(?:-> .*?\((\w+)\))?\n")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model whose rows consist of long blocks."""
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    return tiny_llama(path, dtype="bf16", hidden=256, layers=2, ffn=256, heads=8, kv_heads=2)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer, for types that take long."""
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    return tiny_llama(path, dtype="f32", hidden=256, layers=1, ffn=256, heads=8, kv_heads=2)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough layers for the rules about the first eighth to have an effect."""
    path = tmp_path_factory.mktemp("deep") / "deep.gguf"
    return tiny_llama(path, dtype="f16", hidden=256, layers=16, ffn=256, heads=8, kv_heads=2)


def test_guide_becomes_what_llama_cpp_makes_of_it(tmp_path: Path) -> None:
    names = ("Q4_K_M", "Q8_0", "Q6_K", "IQ4_XS")
    theirs = {name: tmp_path / f"{name}.theirs.gguf" for name in names}
    orders = [Order(str(GUIDE), str(theirs[name]), NUMBERS[name]) for name in names]
    for name, (ok, log) in zip(names, llama_quantize(orders), strict=True):
        assert ok, log
        made = run(planned(GUIDE, name), tmp_path / f"{name}.gguf")
        assert made.size_bytes == made.path.stat().st_size == planned(GUIDE, name).size_bytes
        assert made.path.read_bytes() == theirs[name].read_bytes()
        assert made.sha256 == sha256(made.path)


def test_every_mix_that_needs_no_matrix_gives_the_bytes_of_llama_cpp(
    tmp_path: Path, small: Path
) -> None:
    names = []
    for mix in mixes():
        try:
            planned(small, mix.name)
        except (NeedsImportanceMatrix, CannotQuantize):
            continue
        names.append(mix.name)
    assert len(names) > 20
    orders = [Order(str(small), str(tmp_path / f"{n}.theirs"), NUMBERS[n]) for n in names]
    for name, (ok, log) in zip(names, llama_quantize(orders), strict=True):
        assert ok, log
        made = run(planned(small, name), tmp_path / f"{name}.gguf", threads=3)
        assert made.path.read_bytes() == (tmp_path / f"{name}.theirs").read_bytes(), name


@pytest.mark.parametrize(
    "names",
    [
        ("IQ2_XXS", "Q2_K_S", "Q4_0", "Q4_K_M", "Q8_0"),
        pytest.param(
            ("IQ1_S", "IQ1_M", "IQ2_M", "IQ2_S", "IQ3_XXS"),
            marks=[pytest.mark.slow, pytest.mark.timeout(600)],
        ),
    ],
)
def test_with_a_matrix_the_bytes_are_those_of_llama_cpp(
    tmp_path: Path, small: Path, names: tuple[str, ...]
) -> None:
    values = importances(small)
    matrix = imatrix.read(save_imatrix(tmp_path / "im.gguf", values))
    pairs: dict[str, str | int] = {
        "quantize.imatrix.file": "im.gguf",
        "quantize.imatrix.dataset": "some text.txt",
        "quantize.imatrix.entries_count": len(values),
        "quantize.imatrix.chunks_count": 12,
    }
    given = {name: rows.reshape(-1).tolist() for name, rows in values.items()}
    orders = [
        Order(str(small), str(tmp_path / f"{n}.theirs"), NUMBERS[n], given, pairs=pairs)
        for n in names
    ]
    for name, (ok, log) in zip(names, llama_quantize(orders), strict=True):
        assert ok, log
        made = run(planned(small, name, matrix=matrix), tmp_path / f"{name}.gguf")
        assert made.path.read_bytes() == (tmp_path / f"{name}.theirs").read_bytes(), name


def test_the_rules_know_that_there_is_a_matrix(tmp_path: Path, deep: Path) -> None:
    values = importances(deep)
    matrix = imatrix.read(save_imatrix(tmp_path / "im.gguf", values))
    given = {name: rows.reshape(-1).tolist() for name, rows in values.items()}
    names = [mix.name for mix in mixes() if not mix.keeps_numbers and mix.name != "Q1_0"]
    orders = [Order(str(deep), "nowhere", NUMBERS[n], given, dry_run=True) for n in names]
    for name, (ok, log) in zip(names, llama_quantize(orders), strict=True):
        assert ok, log
        theirs = {found[1]: found[3] or found[2] for found in LOG_LINE.finditer(log)}
        ours = {
            tensor.name: tensor.type.name.lower()
            for tensor in planned(deep, name, matrix=matrix).tensors
        }
        assert {key: kind.lower() for key, kind in theirs.items()} == ours, name


def test_experts_get_the_importances_of_their_own(tmp_path: Path, small: Path) -> None:
    source = with_experts(small, tmp_path / "experts.gguf")
    rng = np.random.default_rng(1)
    values = {
        name: np.exp2(rng.integers(-3, 4, (4, 256))).astype(np.float32)
        for name in (f"blk.0.ffn_{part}_exps.weight" for part in ("gate", "up", "down"))
    }
    given = {name: rows.reshape(-1).tolist() for name, rows in values.items()}
    matrix = imatrix.read(save_imatrix(tmp_path / "im.gguf", values))
    names = ("Q4_K_M", "Q4_0", "MXFP4_MOE")
    orders = [Order(str(source), str(tmp_path / f"{n}.theirs"), NUMBERS[n], given) for n in names]
    for name, (ok, log) in zip(names, llama_quantize(orders), strict=True):
        assert ok, log
        made = run(planned(source, name, matrix=matrix), tmp_path / f"{name}.gguf")
        ours, theirs = preflight.check(made.path), preflight.check(tmp_path / f"{name}.theirs")
        assert ours.tensors == theirs.tensors, name
        data = made.path.read_bytes()[ours.data_offset :]
        assert data == theirs.path.read_bytes()[theirs.data_offset :], name


def test_overrides_give_the_bytes_of_llama_cpp(tmp_path: Path, wide: Path) -> None:
    order = Order(
        str(wide),
        str(tmp_path / "theirs"),
        NUMBERS["Q4_K_M"],
        tensors=((r"blk\.1\.attn_v", int(TensorType.Q8_0)), ("ffn_down", int(TensorType.Q5_1))),
    )
    ((ok, log),) = llama_quantize([order])
    assert ok, log
    wish = planned(wide, "Q4_K_M", r"blk\.1\.attn_v=Q8_0", "ffn_down=Q5_1")
    made = run(wish, tmp_path / "ours.gguf")
    assert made.path.read_bytes() == (tmp_path / "theirs").read_bytes()
    assert made.facts["recipe"]["overrides"] == [r"blk\.1\.attn_v=Q8_0", "ffn_down=Q5_1"]


def test_rows_that_blocks_do_not_divide(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "narrow.gguf", dtype="f32", hidden=96, heads=4, ffn=100)
    order = Order(str(source), str(tmp_path / "theirs"), NUMBERS["Q4_K_M"])
    ((ok, log),) = llama_quantize([order])
    assert ok, log
    wish = planned(source, "Q4_K_M")
    assert {tensor.type for tensor in wish.fallbacks} >= {TensorType.Q5_0, TensorType.F16}
    assert run(wish, tmp_path / "ours.gguf").path.read_bytes() == (tmp_path / "theirs").read_bytes()


def test_packing_again_only_when_asked(tmp_path: Path, wide: Path) -> None:
    first = run(planned(wide, "Q8_0"), tmp_path / "first.gguf").path
    with pytest.raises(CannotQuantize, match=r"quantized already \(Q8_0"):
        planned(first, "Q4_K_M")
    order = Order(str(first), str(tmp_path / "theirs"), NUMBERS["Q4_K_M"], requantize=True)
    ((ok, log),) = llama_quantize([order])
    assert ok, log
    made = run(planned(first, "Q4_K_M", requantize=True), tmp_path / "ours.gguf")
    assert made.path.read_bytes() == (tmp_path / "theirs").read_bytes()
    with pytest.raises(CannotQuantize, match="already: no tensor would change"):
        planned(made.path, "Q4_K_M", requantize=True)


@pytest.mark.parametrize(
    "kind",
    [
        # ggml computes large tables before it packs the first weight of some types.
        pytest.param(kind, marks=[pytest.mark.slow] if kind in SLOW_TYPES else [], id=kind.name)
        for kind in TensorType
        if kind.block_elements > 1 and kind not in NOT_WEIGHTS
    ],
)
def test_packed_weights_are_read_back(kind: TensorType) -> None:
    ggml = Ggml()
    rows = np.random.default_rng(0).standard_normal((2, 512)).astype(np.float32)
    weights = np.ones(512, dtype=np.float32)
    packed = ggml.quantize_chunk(kind, rows, weights)
    assert packed.size == 2 * 512 // kind.block_elements * kind.block_bytes
    back = ggml.to_float(kind, packed, 512)
    ratio = np.sqrt(((back - rows) ** 2).mean() / (rows**2).mean())
    assert ratio < 0.9 and np.isfinite(back).all()


def test_what_would_abort_the_process_is_refused() -> None:
    ggml = Ggml()
    rows = np.ones((2, 256), dtype=np.float32)
    with pytest.raises(NeedsImportanceMatrix):
        ggml.quantize_chunk(TensorType.IQ2_XXS, rows)
    with pytest.raises(CannotQuantize, match="multiple of 256"):
        ggml.quantize_chunk(TensorType.Q4_K, rows[:, :255])
    with pytest.raises(CannotQuantize, match="importance of 255"):
        ggml.quantize_chunk(TensorType.Q4_K, rows, np.ones(255, dtype=np.float32))
    with pytest.raises(CannotQuantize, match="no type for weights"):
        ggml.quantize_chunk(TensorType.Q8_K, rows)
    rows[1, 7] = np.nan
    with pytest.raises(CannotQuantize, match="no finite number"):
        ggml.quantize_chunk(TensorType.Q4_K, rows)


def test_a_mix_that_needs_a_matrix_says_so(wide: Path) -> None:
    with pytest.raises(NeedsImportanceMatrix, match="IQ2_XXS") as caught:
        planned(wide, "IQ2_XXS")
    assert "--imatrix" in caught.value.hint and caught.value.data["tensor"]
    with pytest.raises(NeedsImportanceMatrix, match=r"output\.weight"):
        planned(wide, "Q4_K_M", "^output=IQ2_XS")


def test_a_matrix_that_would_not_be_used_is_refused(tmp_path: Path, wide: Path) -> None:
    matrix = imatrix.read(save_imatrix(tmp_path / "im.gguf", importances(wide)))
    with pytest.raises(CannotQuantize, match="no importance matrix is used"):
        planned(wide, "F16", matrix=matrix)


def test_a_matrix_of_another_model_is_refused(tmp_path: Path, wide: Path) -> None:
    other = {"blk.0.attn_q.weight": np.ones((1, 64), dtype=np.float32)}
    matrix = imatrix.read(save_imatrix(tmp_path / "a.gguf", other))
    with pytest.raises(CannotQuantize, match="64 values"):
        planned(wide, "Q4_K_M", matrix=matrix)
    strange = {"something.else": np.ones((1, 256), dtype=np.float32)}
    matrix = imatrix.read(save_imatrix(tmp_path / "b.gguf", strange))
    with pytest.raises(CannotQuantize, match="knows no tensor"):
        planned(wide, "Q4_K_M", matrix=matrix)


def test_a_model_in_parts_becomes_one_file(tmp_path: Path, wide: Path) -> None:
    whole = run(planned(wide, "Q4_K_M"), tmp_path / "whole.gguf").path
    reader = gguf.GGUFReader(wide)
    cut = len(reader.tensors) // 2
    for index, part in enumerate((reader.tensors[:cut], reader.tensors[cut:])):
        path = tmp_path / f"model-{index + 1:05d}-of-00002.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        if index == 0:
            copy_pairs(reader, writer)
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in part:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        save(writer)
    made = run(planned(tmp_path / "model-00001-of-00002.gguf", "Q4_K_M"), tmp_path / "one.gguf")
    one, other = preflight.check(made.path), preflight.check(whole)
    assert one.tensors == other.tensors and "split.count" not in one.metadata
    assert made.path.read_bytes()[one.data_offset :] == whole.read_bytes()[other.data_offset :]
    assert len(made.facts["source"]["files"]) == 2


def test_the_manifest_says_where_a_file_comes_from(tmp_path: Path, wide: Path) -> None:
    matrix = save_imatrix(tmp_path / "im.gguf", importances(wide))
    wish = planned(wide, "Q4_K_M", matrix=imatrix.read(matrix))
    made = run(wish, tmp_path / "out.gguf")
    facts = json.loads(manifest_path(made.path).read_text())
    assert facts == made.facts
    assert facts["source"]["files"] == [
        {"name": "wide.gguf", "size_bytes": wide.stat().st_size, "sha256": sha256(wide)}
    ]
    assert facts["recipe"]["imatrix"]["sha256"] == sha256(matrix)
    assert facts["result"]["sha256"] == sha256(made.path)
    assert facts["result"]["size_bytes"] == made.path.stat().st_size
    header = preflight.check(made.path)
    assert header.value("quantize.imatrix.file") == "im.gguf"
    assert header.file_type_name == "Q4_K_M"


def test_progress_ends_with_all_of_it(tmp_path: Path, wide: Path) -> None:
    told: list[tuple[int, int, str]] = []
    run(
        planned(wide, "Q8_0"),
        tmp_path / "out.gguf",
        on_progress=lambda *values: told.append(values),
    )
    done = [values[0] for values in told]
    assert done == sorted(done) and told[-1][0] == told[-1][1]
    assert {values[2] for values in told} == {t.name for t in preflight.check(wide).tensors}


def test_methods_are_offered_by_being_registered(tmp_path: Path, wide: Path) -> None:
    registry = methods()
    method, name = registry.making("q4km", wide)
    assert (method.name, name) == ("gguf", "Q4_K_M")
    assert [target.name for target in method.targets()] == [mix.name for mix in mixes()]
    with pytest.raises(ValueError, match="already"):
        registry.register(method)
    with pytest.raises(UnknownMethod, match="gptq"):
        registry.named("gptq")
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(UnsupportedModel):
        registry.making("Q4_K_M", tmp_path / "notes.txt")
    wish = method.plan(wide, name, {"tensor": ["attn_v=F16"]})
    assert wish.facts(tensors=True)["overrides"] == ["attn_v=F16"]
    assert (
        wish.memory_bytes(100) - wish.memory_bytes(0)
        == 100 * preflight.check(wide).kv_bytes_per_token()
    )
