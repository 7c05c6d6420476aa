"""Weights of half precision on processors that have no instructions for it: packed beside the first
steps, and the same model all the while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from driven import Driven
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.native import half_packing, load
from hearth.backends.native.half_packing import HalfPacking
from hearth.backends.native.load import is_halved
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.models.half_linear import HalfLinear
from hearth.backends.native.models.packed import PackedLinear
from hearth.backends.native.models.parts import Matrix
from hearth.kernels import device as devices
from hearth.kernels.half_matrix import HalfRows, has_half_matrices
from loaded_weights import CPU, load_folder, load_gguf
from model_shapes import SHAPES
from native_decoders import logits_of
from native_runners import advance
from random_models import write_model
from tiny_checkpoints import FAMILIES, tiny_checkpoint
from tiny_folders import Tensors, rewrite, tiny_folder

pytestmark = pytest.mark.skipif(not has_half_matrices(), reason="PyTorch has no FBGEMM here")
TEXT = torch.randint(3, 270, (24,), generator=torch.Generator().manual_seed(1)).tolist()
EMBEDDING = "model.embed_tokens.weight"
LONG_S = 60.0
Pack = Callable[[Tensor], HalfRows]


@pytest.fixture(autouse=True)
def few_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices have several parts."""
    monkeypatch.setattr(half_packing, "NUMBERS_OF_A_PART", 1500)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Packing waits until it is set, and longer than a test takes after steps."""
    opened = threading.Event()
    pack: Pack = half_packing.pack

    def waiting(rows: Tensor) -> HalfRows:
        assert opened.wait(LONG_S)
        return pack(rows)

    monkeypatch.setattr(half_packing, "pack", waiting)
    yield opened
    opened.set()


def in_bfloat16(stored: Tensors) -> None:
    stored.update({name: one.bfloat16() for name, one in stored.items() if one.is_floating_point()})


def loaded(folder: Path) -> Decoder:
    """With activations as a processor has them."""
    return load_folder(folder, torch.bfloat16, activations=torch.float32)[0]


def packed(decoder: Decoder) -> Decoder:
    assert HalfPacking(decoder, 2).settle(LONG_S)
    return decoder


def kinds(decoder: nn.Module) -> set[type]:
    """Of its matrices."""
    found = {type(one) for one in decoder.modules()}
    return found & {HalfLinear, Matrix, PackedLinear}


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_with_the_numbers_that_are_stored(
    family: str, tmp_path: Path
) -> None:
    folder = rewrite(tiny_checkpoint(family, tmp_path), in_bfloat16)
    expected = logits_of(load_folder(folder)[0], TEXT)
    decoder = packed(loaded(folder))
    assert kinds(decoder) == {HalfLinear}
    assert apart(logits_of(decoder, TEXT), expected) < 1e-4


def test_what_is_packed_already_stays(tmp_path: Path) -> None:
    path = write_model(SHAPES["tiny-llama"], "q8_0", tmp_path / "made.gguf")
    decoder, _ = load_gguf(path, torch.bfloat16, activations=torch.float32)
    before = logits_of(decoder, TEXT)
    assert kinds(packed(decoder)) == {PackedLinear}
    assert torch.equal(logits_of(decoder, TEXT), before)


@pytest.mark.parametrize("name", ["layers.1.down", "output"])
def test_a_matrix_that_float16_does_not_hold_stays_as_it_is(name: str, tmp_path: Path) -> None:
    stored = {"layers.1.down": "model.layers.1.mlp.down_proj.weight", "output": EMBEDDING}[name]
    folder = tiny_checkpoint("qwen2", tmp_path)

    def enlarge(tensors: Tensors) -> None:
        in_bfloat16(tensors)
        tensors[stored][3, 4] = 1e6

    decoder = packed(loaded(rewrite(folder, enlarge)))
    if name == "output":
        assert decoder.output is None and kinds(decoder) == {HalfLinear}
    else:
        assert isinstance(decoder.get_submodule(name), Matrix)
        assert sum(isinstance(one, Matrix) for one in decoder.modules()) == 1
    assert torch.isfinite(logits_of(decoder, TEXT)).all()


def test_nothing_is_packed_while_a_step_runs(tmp_path: Path, gate: threading.Event) -> None:
    decoder = loaded(rewrite(tiny_checkpoint("qwen3", tmp_path), in_bfloat16))
    packing = HalfPacking(decoder, 2)
    gate.set()
    with packing.step():
        before = kinds(decoder), sum(isinstance(one, HalfLinear) for one in decoder.modules())
        assert not packing.settle(0.1)
        after = kinds(decoder), sum(isinstance(one, HalfLinear) for one in decoder.modules())
        assert after == before
    assert packing.settle(LONG_S)
    assert kinds(decoder) == {HalfLinear}


def test_it_makes_way_for_those_who_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two of its rounds there is time for steps, of which several were waiting."""
    monkeypatch.setattr(half_packing, "_REST", 1e9)
    decoder = loaded(rewrite(tiny_checkpoint("qwen3", tmp_path), in_bfloat16))
    packing = HalfPacking(decoder, 1)
    with packing.step():
        pass
    assert not packing.settle(0.1), "it rests"
    began = time.monotonic()
    packing.close()
    assert time.monotonic() - began < LONG_S / 2
    assert Matrix in kinds(decoder)


def test_closing_leaves_a_model_that_computes(tmp_path: Path, gate: threading.Event) -> None:
    decoder = loaded(rewrite(tiny_checkpoint("mixtral", tmp_path), in_bfloat16))
    expected = logits_of(decoder, TEXT)
    packing = HalfPacking(decoder, 2)
    threading.Timer(0.05, gate.set).start()
    packing.close()
    assert packing.settle(0)
    assert apart(logits_of(decoder, TEXT), expected) < 0.05 * float(expected.abs().max())


def test_no_memory_for_more_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pack: Pack = half_packing.pack
    calls = iter(range(10**6))

    def failing(rows: Tensor) -> HalfRows:
        if next(calls) > 20:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return pack(rows)

    monkeypatch.setattr(half_packing, "pack", failing)
    decoder = packed(loaded(rewrite(tiny_checkpoint("qwen3", tmp_path), in_bfloat16)))
    assert kinds(decoder) == {HalfLinear, Matrix}
    assert "can't allocate" in caplog.text
    assert torch.isfinite(logits_of(decoder, TEXT)).all()


@pytest.mark.parametrize(
    ("settings", "is_packed"),
    [({"dtype": "bf16"}, True), ({"dtype": "f32"}, False), ({"deterministic": True}, False)],
)
def test_a_loaded_model_is_packed_while_it_answers(
    settings: dict[str, object], is_packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "multiplies", lambda device, dtype: dtype == torch.float32)
    monkeypatch.setattr(load, "_PACKING_S", 0.0)
    folder = rewrite(tiny_folder("qwen2", tmp_path / "tiny"), in_bfloat16)
    chosen = ModelSettings(threads=1, batch_threads=1, context=64, **settings)  # type: ignore[arg-type]
    threads = torch.get_num_threads()
    model = load.open_model(ModelSpec(str(folder), settings=chosen))
    try:
        driven = Driven(model.runner)
        first = advance(driven, 0, TEXT)
        model.settle()
        again = advance(driven, 1, TEXT)
        assert (kinds(model.runner._decoder) == {HalfLinear}) == is_packed  # type: ignore[attr-defined]
        assert abs(first - again).max() < 0.05 * abs(first).max()
        assert model.runner.embed([TEXT], "mean").shape[0] == 1
    finally:
        model.runner.close()
        torch.set_num_threads(threads)


def test_where_memory_is_short_nothing_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "multiplies", lambda device, dtype: dtype == torch.float32)
    monkeypatch.setattr(load, "is_mapped", lambda *_, **__: True)
    path = write_model(SHAPES["tiny-llama"], "f16", tmp_path / "made.gguf")
    threads = torch.get_num_threads()
    model = load.open_model(ModelSpec(str(path), settings=ModelSettings(context=64, threads=1)))
    try:
        assert model.runner._packing is None  # type: ignore[attr-defined]
        model.settle()
    finally:
        model.runner.close()
        torch.set_num_threads(threads)


@pytest.mark.parametrize("has_instructions", [False, True])
def test_they_are_for_processors_without_instructions(
    has_instructions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        devices, "multiplies", lambda device, dtype: has_instructions or dtype == torch.float32
    )
    monkeypatch.setattr(load, "has_half_matrices", lambda: True)
    for dtype in (torch.float16, torch.bfloat16):
        assert is_halved(CPU, dtype) != has_instructions
        assert not is_halved(torch.device("cuda"), dtype)
    assert not is_halved(CPU, torch.float32)
    monkeypatch.setattr(load, "has_half_matrices", lambda: False)
    assert not is_halved(CPU, torch.float16)
