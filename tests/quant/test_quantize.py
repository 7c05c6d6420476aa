"""Quantizing GGUF files: exact sizes, the bytes that llama.cpp writes, and no broken file ever."""

from __future__ import annotations

import hashlib
import json
import random
import re
import struct
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from gguf_builder import mutate, tiny_llama
from hearth.quant.errors import CorruptFile, HearthError, UnsupportedModel
from hearth.quant.ggml import Ggml
from hearth.quant.gguf import imatrix, preflight
from hearth.quant.gguf.errors import (
    CannotQuantize,
    NeedsImportanceMatrix,
    NoSpace,
    TargetExists,
)
from hearth.quant.gguf.mixes import mixes, read_recipe
from hearth.quant.gguf.quantize import QuantizePlan, plan
from hearth.quant.gguf.quantize_file import new_file, remove_stale
from hearth.quant.gguf.quantize_run import manifest_path, run
from hearth.quant.gguf.types import TensorType
from hearth.quant.methods import UnknownMethod, methods
from llama_quantizer import Order, llama_quantize

GUIDE = Path(str(files("hearth.assets"))) / "guide" / "guide.f16.gguf"
NUMBERS = {mix.name: mix.number for mix in mixes()}
LOG_LINE = re.compile(r"\] *([\w.]+) +- .*? type = +(\w+), size = .*?(?:-> .*?\((\w+)\))?\n")


def planned(source: Path, name: str, *overrides: str, **options: Any) -> QuantizePlan:
    return plan(preflight.check(source), read_recipe(name, overrides), **options)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save_imatrix(path: Path, values: dict[str, np.ndarray], counts: float = 4.0) -> Path:
    """Values as a GGUF importance matrix. `values`: [experts, columns] by tensor."""
    writer = gguf.GGUFWriter(path, "")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["some text.txt"])
    writer.add_uint32("imatrix.chunk_count", 12)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, rows in values.items():
        writer.add_tensor(f"{name}.in_sum2", (rows * counts).astype(np.float32))
        writer.add_tensor(f"{name}.counts", np.full((rows.shape[0], 1), counts, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def importances(source: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """[1, columns] powers of two and a half, which no order of arithmetic rounds, by tensor."""
    rng = np.random.default_rng(seed)
    return {
        tensor.name: np.exp2(rng.integers(-3, 4, (1, tensor.shape[0]))).astype(np.float32)
        for tensor in preflight.check(source).all_tensors
        if len(tensor.shape) == 2 and tensor.name not in ("token_embd.weight", "output.weight")
    }


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model whose rows are made of long blocks."""
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    return tiny_llama(path, dtype="bf16", hidden=256, layers=2, ffn=512)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough layers that the rules for the first eighth mean something."""
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
    tmp_path: Path, wide: Path
) -> None:
    names = []
    for mix in mixes():
        try:
            planned(wide, mix.name)
        except (NeedsImportanceMatrix, CannotQuantize):
            continue
        names.append(mix.name)
    assert len(names) > 20
    orders = [Order(str(wide), str(tmp_path / f"{n}.theirs"), NUMBERS[n]) for n in names]
    for name, (ok, log) in zip(names, llama_quantize(orders), strict=True):
        assert ok, log
        made = run(planned(wide, name), tmp_path / f"{name}.gguf", threads=3)
        assert made.path.read_bytes() == (tmp_path / f"{name}.theirs").read_bytes(), name


def test_with_a_matrix_the_bytes_are_those_of_llama_cpp(tmp_path: Path, wide: Path) -> None:
    values = importances(wide)
    matrix = imatrix.read(save_imatrix(tmp_path / "im.gguf", values))
    pairs: dict[str, str | int] = {
        "quantize.imatrix.file": "im.gguf",
        "quantize.imatrix.dataset": "some text.txt",
        "quantize.imatrix.entries_count": len(values),
        "quantize.imatrix.chunks_count": 12,
    }
    given = {name: rows.reshape(-1).tolist() for name, rows in values.items()}
    names = ("IQ2_XXS", "IQ1_M", "IQ3_XXS", "Q2_K_S", "Q4_0", "Q4_K_M", "IQ2_M")
    orders = [
        Order(str(wide), str(tmp_path / f"{n}.theirs"), NUMBERS[n], given, pairs=pairs)
        for n in names
    ]
    for name, (ok, log) in zip(names, llama_quantize(orders), strict=True):
        assert ok, log
        made = run(planned(wide, name, matrix=matrix), tmp_path / f"{name}.gguf")
        assert made.path.read_bytes() == (tmp_path / f"{name}.theirs").read_bytes(), name


def test_the_rules_know_that_there_is_a_matrix(tmp_path: Path, deep: Path) -> None:
    values = importances(deep)
    matrix = imatrix.read(save_imatrix(tmp_path / "im.gguf", values))
    given = {name: rows.reshape(-1).tolist() for name, rows in values.items()}
    names = [mix.name for mix in mixes() if mix.name not in ("F16", "Q1_0")]
    orders = [Order(str(deep), "nowhere", NUMBERS[n], given, dry_run=True) for n in names]
    for name, (ok, log) in zip(names, llama_quantize(orders), strict=True):
        assert ok, log
        theirs = {found[1]: found[3] or found[2] for found in LOG_LINE.finditer(log)}
        ours = {
            tensor.name: tensor.type.name.lower()
            for tensor in planned(deep, name, matrix=matrix).tensors
        }
        assert {key: kind.lower() for key, kind in theirs.items()} == ours, name


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


@pytest.mark.parametrize("kind", [kind for kind in TensorType if kind.block_elements > 1])
def test_packed_weights_are_read_back(kind: TensorType) -> None:
    if kind in (TensorType.Q8_1, TensorType.Q8_K):
        pytest.skip("ggml packs activations into it, not weights")
    ggml = Ggml()
    rows = np.random.default_rng(0).standard_normal((2, 512)).astype(np.float32)
    weights = np.ones(512, dtype=np.float32)
    packed = ggml.quantize_chunk(kind, rows, weights)
    assert packed.size == 2 * 512 // kind.block_elements * kind.block_bytes
    back = ggml.to_float(kind, packed, 512)
    ratio = np.sqrt(((back - rows) ** 2).mean() / (rows**2).mean())
    assert ratio < 0.7 and np.isfinite(back).all()


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


def test_a_matrix_of_another_model_is_refused(tmp_path: Path, wide: Path) -> None:
    other = {"blk.0.attn_q.weight": np.ones((1, 64), dtype=np.float32)}
    matrix = imatrix.read(save_imatrix(tmp_path / "a.gguf", other))
    with pytest.raises(CannotQuantize, match="64 values"):
        planned(wide, "Q4_K_M", matrix=matrix)
    strange = {"something.else": np.ones((1, 256), dtype=np.float32)}
    matrix = imatrix.read(save_imatrix(tmp_path / "b.gguf", strange))
    with pytest.raises(CannotQuantize, match="knows no tensor"):
        planned(wide, "Q4_K_M", matrix=matrix)


def legacy(values: dict[str, list[float]], calls: int, dataset: str = "old.txt") -> bytes:
    out = struct.pack("<i", len(values))
    for name, numbers in values.items():
        out += struct.pack("<i", len(name)) + name.encode()
        out += struct.pack("<ii", calls, len(numbers)) + struct.pack(f"<{len(numbers)}f", *numbers)
    return out + struct.pack("<ii", 9, len(dataset)) + dataset.encode()


def test_both_forms_of_a_matrix_are_read(tmp_path: Path) -> None:
    rows = np.array([[1.0, 2.0, 4.0], [8.0, 0.5, 0.0]], dtype=np.float32)
    new = imatrix.read(save_imatrix(tmp_path / "im.gguf", {"a": rows}))
    assert new.columns("a").tolist() == rows.reshape(-1).tolist()
    assert (new.dataset, new.chunks) == ("some text.txt", 12)
    assert new.columns("b") is None
    (tmp_path / "im.dat").write_bytes(legacy({"a": [4.0, 8.0], "b": [2.0]}, calls=4))
    old = imatrix.read(tmp_path / "im.dat")
    assert old.columns("a").tolist() == [1.0, 2.0]
    assert (old.dataset, old.chunks, len(old.entries)) == ("old.txt", 9, 2)


def test_an_expert_that_saw_nothing_counts_all_columns_alike(tmp_path: Path) -> None:
    rows = np.zeros((2, 3), dtype=np.float32)
    path = save_imatrix(tmp_path / "im.gguf", {"a": rows}, counts=0.0)
    assert imatrix.read(path).columns("a").tolist() == [1.0] * 6


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_matrix_with_impossible_values_is_refused(tmp_path: Path, bad: float) -> None:
    (tmp_path / "im.dat").write_bytes(legacy({"a": [1.0, bad]}, calls=1))
    with pytest.raises(CorruptFile, match="negative or no finite"):
        imatrix.read(tmp_path / "im.dat").columns("a")


def test_damaged_matrices_are_refused_and_never_crash(tmp_path: Path) -> None:
    rng = random.Random(5)
    new = save_imatrix(tmp_path / "im.gguf", {"a": np.ones((2, 64), np.float32)}).read_bytes()
    old = legacy({f"blk.{i}.x": [1.0] * 20 for i in range(5)}, calls=3)
    for _ in range(300):
        path = tmp_path / "damaged"
        path.write_bytes(mutate(rng.choice((new, old)), rng))
        try:
            found = imatrix.read(path)
            for name in found.entries:
                found.columns(name)
        except (CorruptFile, UnsupportedModel):
            continue


def test_damaged_sources_are_refused(tmp_path: Path, wide: Path) -> None:
    rng = random.Random(6)
    data = wide.read_bytes()
    damaged = tmp_path / "damaged.gguf"
    target = tmp_path / "out.gguf"
    refused = 0
    for _ in range(60):
        damaged.write_bytes(mutate(data, rng))
        try:
            wish = planned(damaged, "Q8_0")
            run(wish, target, replace=True)
        except (HearthError, RecursionError) as error:
            assert isinstance(error, HearthError)
            refused += 1
            continue
        assert preflight.check(target).size_bytes == wish.size_bytes
    assert refused > 30
    assert not list(tmp_path.glob(".*")), "no temporary is left"


def test_a_weight_that_is_no_number_is_told_by_name(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "tiny.gguf", dtype="f16")
    header = preflight.check(source)
    bad = next(t for t in header.tensors if t.name == "blk.1.ffn_up.weight")
    data = bytearray(source.read_bytes())
    data[header.data_offset + bad.offset + 100 :][:2] = b""
    struct.pack_into("<e", data, header.data_offset + bad.offset + 100, float("nan"))
    source.write_bytes(data)
    with pytest.raises(CannotQuantize, match=r"blk\.1\.ffn_up\.weight"):
        run(planned(source, "Q8_0"), tmp_path / "out.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_model_in_parts_becomes_one_file(tmp_path: Path, wide: Path) -> None:
    whole = run(planned(wide, "Q4_K_M"), tmp_path / "whole.gguf").path
    reader = gguf.GGUFReader(wide)
    cut = len(reader.tensors) // 2
    for index, part in enumerate((reader.tensors[:cut], reader.tensors[cut:])):
        path = tmp_path / f"model-{index + 1:05d}-of-00002.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        if index == 0:
            for name, field in reader.fields.items():
                if not name.startswith(("GGUF.", "general.architecture")):
                    sub = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
                    writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub)
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in part:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
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


class Enough(Exception):
    pass


def test_cancelling_leaves_nothing(tmp_path: Path, wide: Path) -> None:
    for most in range(0, 20, 3):
        left = iter(range(most))

        def check(left: Any = left) -> None:
            if next(left, None) is None:
                raise Enough

        with pytest.raises(Enough):
            run(planned(wide, "Q8_0"), tmp_path / "out.gguf", check=check)
        assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_replaced_only_when_asked(tmp_path: Path, wide: Path) -> None:
    target = tmp_path / "out.gguf"
    target.write_bytes(b"mine")
    with pytest.raises(TargetExists):
        run(planned(wide, "Q8_0"), target)
    assert target.read_bytes() == b"mine"
    run(planned(wide, "Q8_0"), target, replace=True)
    assert preflight.check(target).file_type_name == "Q8_0"
    with pytest.raises(CannotQuantize, match="source itself"):
        run(planned(target, "Q6_K", requantize=True), target, replace=True)


def test_a_source_that_changes_meanwhile_is_noticed(tmp_path: Path, wide: Path) -> None:
    source = tmp_path / "source.gguf"
    source.write_bytes(wide.read_bytes())

    def touch(done: int, total: int, name: str) -> None:
        if done == total:
            data = bytearray(source.read_bytes())
            data[-1] ^= 1
            source.write_bytes(data)

    with pytest.raises(CorruptFile, match="changed while"):
        run(planned(source, "Q8_0"), tmp_path / "out.gguf", on_progress=touch)
    assert not (tmp_path / "out.gguf").exists()


def test_a_full_disk_is_told_before_and_while_writing(
    tmp_path: Path, wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = planned(wide, "Q8_0")
    with pytest.raises(NoSpace) as caught, new_file(tmp_path / "out", 1 << 60):
        raise AssertionError("it was opened")
    assert caught.value.data["needed"] == 1 << 60
    with pytest.raises(NoSpace), new_file(tmp_path / "out", wish.size_bytes):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_only_what_nobody_writes_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".a.gguf.quantizing-00000000.part"
    left.write_bytes(b"left behind")
    (tmp_path / "b.gguf").write_bytes(b"mine")
    with new_file(tmp_path / "c.gguf", 1) as stream:
        stream.write(b"x")
        assert not left.exists(), "the next one cleans up"
        assert remove_stale(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.gguf", "c.gguf"]


def kill_at_random(folder: Path, times: int, seed: int) -> None:
    """Quantize guide in a real process and kill it, `times` times; then once to the end."""
    target = folder / "guide-Q4_K_M.gguf"
    expected = planned(GUIDE, "Q4_K_M")
    question = json.dumps(
        {"method": "gguf", "source": str(GUIDE), "type": "Q4_K_M", "target": str(target)}
        | {"options": {}, "threads": 2, "replace": True}
    )
    rng = random.Random(seed)
    hashes: set[str] = set()
    killed = 0
    for _ in range(times):
        process = subprocess.Popen(
            [sys.executable, "-m", "hearth.app.library.quantize_job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        process.stdin.write(question.encode() + b"\n")
        process.stdin.flush()
        try:
            process.wait(timeout=rng.uniform(0.2, 2.0))
        except subprocess.TimeoutExpired:
            process.kill()
            killed += 1
        process.wait()
        process.stdin.close()
        if target.exists():
            assert target.stat().st_size == expected.size_bytes
            hashes.add(sha256(target))
            target.unlink()
    assert killed
    made = run(expected, target, replace=True)
    assert hashes <= {made.sha256}
    assert not list(folder.glob(".*")), "what was left behind is cleaned up"
    assert sorted(path.name for path in folder.iterdir()) == [target.name, f"{target.name}.json"]


def test_killed_at_any_point_it_leaves_no_broken_file(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 5, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_fifty_points_it_leaves_no_broken_file(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 50, seed=2)


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
