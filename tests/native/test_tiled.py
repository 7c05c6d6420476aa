"""Weights in half precision on processors without instructions for it: tiled for Hearth's kernels,
and used as they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from driven import Driven
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.native import load
from hearth.backends.native.embedder import _Pass
from hearth.backends.native.load import is_tiled
from hearth.backends.native.models.experts import Router
from hearth.backends.native.models.layers import Layer
from hearth.backends.native.models.packed import PackedLinear
from hearth.backends.native.page_kernels import LayersInC
from hearth.backends.native.routes import make_kernel_report
from hearth.backends.native.runner import NativeRunner
from hearth.kernels import device as devices
from hearth.kernels.cpu.layouts import FORCE
from hearth.kernels.cpu.library import cpu_library
from hearth.quant.stored import LOADED
from loaded_weights import CPU, load_folder
from native_decoders import logits_of
from native_runners import advance, runner_of, some_tokens
from tiny_checkpoints import FAMILIES, tiny_checkpoint
from tiny_folders import Tensors, rewrite, tiny_folder

TEXT = torch.randint(3, 270, (24,), generator=torch.Generator().manual_seed(1)).tolist()


def in_bfloat16(stored: Tensors) -> None:
    stored.update({name: one.bfloat16() for name, one in stored.items() if one.is_floating_point()})


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_with_the_numbers_that_are_stored(
    family: str, tmp_path: Path
) -> None:
    folder = rewrite(tiny_checkpoint(family, tmp_path), in_bfloat16)
    expected = logits_of(load_folder(folder)[0], TEXT)
    half = torch.bfloat16
    decoder, report = load_folder(folder, half, activations=torch.float32, tiled=True, exact=True)
    assert any(isinstance(one, PackedLinear) for one in decoder.modules())
    plain = [one for one in decoder.modules() if isinstance(one, torch.nn.Linear)]
    assert all(isinstance(one, Router) for one in plain)
    assert (logits_of(decoder, TEXT) - expected).abs().max() < 1e-4
    assert report.weight_bytes < 1.2 * load_folder(folder, half)[1].weight_bytes


@pytest.mark.parametrize(
    ("settings", "is_packed"),
    [({"dtype": "bf16"}, True), ({"dtype": "f32"}, False), ({"deterministic": True}, True)],
)
def test_a_loaded_model(
    settings: dict[str, object], is_packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "multiplies", lambda device, dtype: dtype == torch.float32)
    folder = rewrite(tiny_folder("qwen2", tmp_path / "tiny"), in_bfloat16)
    chosen = ModelSettings(threads=1, batch_threads=1, context=64, **settings)  # type: ignore[arg-type]
    threads = torch.get_num_threads()
    logits = []
    for kernels in ("", "off"):
        monkeypatch.setenv(FORCE, kernels)
        model = load.open_model(ModelSpec(str(folder), settings=chosen))
        try:
            logits.append(advance(Driven(model.runner), 0, TEXT))
            modules = model.runner.decoder.modules()  # type: ignore[attr-defined]
            found = any(isinstance(one, PackedLinear) for one in modules)
            assert found == (is_packed and not kernels)
            assert model.runner.embed([TEXT], "mean").shape[0] == 1
        finally:
            model.runner.close()
            torch.set_num_threads(threads)
    assert abs(logits[0] - logits[1]).max() < 0.05 * abs(logits[1]).max()


def test_what_is_reported_follows_the_kernels_that_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports = {}
    for forced in ("plain", "off", "sse"):
        monkeypatch.setenv(FORCE, forced)
        cpu_library.cache_clear()
        report = make_kernel_report()
        assert report.forced == forced and forced in report.reason
        assert report.instructions == ("plain" if forced == "plain" else "")
        reports[forced] = {(one.layout, one.case): one for one in report.routes}
    cpu_library.cache_clear()
    plain, off = reports["plain"], reports["off"]
    assert plain["Q4_K", "by default"].held == "Q4_K"
    assert plain["Q4_K", "by default"].rows[0].activations == "int8"
    assert [one.last for one in plain["NF4", "by default"].rows] == [128, None]
    assert off["Q4_K", "by default"].held == "bf16"
    by = {some.by.split(",")[0] for one in off.values() for some in one.rows}
    assert by == {"PyTorch"}
    assert off["F32", "by default"] == plain["F32", "by default"]
    assert {layout for layout, _ in off} == {layout for layout, _ in plain} == LOADED


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_in_c_compute_what_those_of_torch_do(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = rewrite(tiny_checkpoint(family, tmp_path), in_bfloat16)
    expected = logits_of(load_folder(folder)[0], TEXT).numpy()
    settings = ModelSettings(threads=1, batch_threads=1, context=64, kv_type="f32", max_sessions=2)
    runner = runner_of(folder, settings, dtype=torch.bfloat16, tiled=True)
    assert isinstance(runner.runner, NativeRunner)
    assert isinstance(runner.runner.decoder.fused, LayersInC)
    with monkeypatch.context() as patched:
        patched.setattr(Layer, "forward", None)
        patched.setattr(Layer, "add_feed_forward", None)
        found = [advance(runner, 0, TEXT[:3])]
        # Attention of more than 16 tokens is torch's, next to a row of one.
        for piece in (TEXT[3:20], TEXT[20:21], TEXT[21:]):
            found.append(advance(runner, 0, piece, runner.row(1, [7])))
        vectors = runner.embed([TEXT[:9], TEXT], "mean")
    np.testing.assert_allclose(np.concatenate(found), expected, atol=2e-4)
    runner.runner.decoder.fused = None
    np.testing.assert_allclose(runner.embed([TEXT[:9], TEXT], "mean"), vectors, atol=1e-4)


@pytest.mark.parametrize("family", ["llama3", "mixtral", "gemma3", "gpt_oss"])
def test_a_slice_of_a_long_text_may_end_between_two_heads(family: str, tmp_path: Path) -> None:
    folder = rewrite(tiny_checkpoint(family, tmp_path), in_bfloat16)
    settings = ModelSettings(
        threads=1, batch_threads=1, context=512, kv_type="f32", max_sessions=2, max_batch_tokens=32
    )
    runner = runner_of(folder, settings, dtype=torch.bfloat16, tiled=True)
    text = some_tokens(480)
    sliced = runner.begin_text(text, "mean", lambda: None)
    while sliced.computed < 448:
        assert sliced.compute(32, lambda: math.inf) is None
    seconds = count(0, -1)
    ends = [448]
    while (vector := sliced.compute(32, lambda: float(next(seconds)))) is None:
        ends.append(sliced.computed)
    assert isinstance(runner.runner, NativeRunner)
    windows = [layer.window for layer in runner.runner.decoder.config.layers]
    # Before and after attention; and two heads of keys, where attention is most of the work.
    parts = [4 if window is None else 2 for window in windows]
    assert len(ends) == sum(parts) and all(np.diff([*ends, 480]) > 0)
    np.testing.assert_array_equal(vector, runner.embed([text], "mean"))


def test_a_slice_ends_before_a_part_that_would_take_too_long() -> None:
    now = 0.0

    def layer() -> Iterator[float | Tensor]:
        nonlocal now
        for share, seconds in ((0.1, 0.5), (0.4, 40.0), (0.4, 40.0), (0.1, 1.0)):
            yield share
            now += seconds
        yield torch.zeros(1)

    found = _Pass(layer(), tokens=10, layers=1)
    ends = []
    while found.compute(10, lambda end=now + 45.0: end - now) is None:  # type: ignore[misc]
        ends.append((now, found.computed))
    # The first part says little about the second one, which tells how long the others may take.
    assert ends == [(40.5, 5), (80.5, 9)]


@pytest.mark.parametrize(
    ("torch_has", "kernels_have"), [(False, "avx2"), (True, "avx512"), (True, "amx")]
)
def test_they_are_for_processors_without_instructions_or_with_amx(
    torch_has: bool, kernels_have: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "instructions", lambda: kernels_have)
    monkeypatch.setattr(
        devices, "multiplies", lambda device, dtype: torch_has or dtype == torch.float32
    )
    for dtype in (torch.float16, torch.bfloat16):
        assert is_tiled(CPU, dtype) == (not torch_has or kernels_have == "amx")
        assert not is_tiled(torch.device("cuda"), dtype)
    assert not is_tiled(CPU, torch.float32)
    monkeypatch.setattr(load, "instructions", lambda: None)
    monkeypatch.setenv(FORCE, "off")
    assert not is_tiled(CPU, torch.float16)
