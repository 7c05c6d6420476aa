"""How the native runner's loader treats files that contradict their metadata, and its report on how
a model was loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from driven import Driven
from hearth.backends.contract.models import ModelSettings, ModelSpec
from hearth.backends.engine.loaded_model import Loaded
from hearth.backends.native import footprint, load
from hearth.backends.native.gguf_model import read_gguf_config
from hearth.backends.native.model_folder import read_model_folder, weight_bytes
from hearth.backends.native.notices import about_packing, about_positions
from hearth.backends.native.structure import check_structure
from hearth.kernels import device as devices
from hearth.kernels import linear
from hearth.kernels.cuda.packings import NO_GRAPHS
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.gemma import GEMMA2, GEMMA3
from hearth.quant.families.gpt_oss import GPT_OSS
from hearth.quant.families.llama import LLAMA
from hearth.quant.families.phi3 import PHI3
from hearth.quant.gguf import preflight
from hearth.quant.json_fields import read_fields
from hearth.quant.stored import CODES, STAYS_PACKED
from model_shapes import SHAPES
from native_runners import advance
from quantized_checkpoints import (
    Quantize,
    awq,
    awq_config,
    fp8,
    fp8_config,
    gptq,
    gptq_config,
    nf4,
    nf4_config,
    packed_config,
    plain_folder,
    quantize_folder,
)
from quantized_checkpoints import packed as packed_codes
from random_models import write_model
from tiny_checkpoints import VOCABULARY, tiny_checkpoint
from tiny_folders import Tensors, change_json, pack_experts, rewrite, tiny_folder

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
GIB = 1 << 30
TEXT = [5, 40, 17, 200, 33]
Open = Callable[..., Loaded]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens models, and closes them at the end."""
    runners = []

    def make(path: Path, **settings: object) -> Loaded:
        chosen = ModelSettings(threads=1, batch_threads=1, **{"context": 64, **settings})  # type: ignore[arg-type]
        loaded = load.open_model(ModelSpec(str(path), settings=chosen))
        runners.append(loaded.runner)
        return loaded

    threads = torch.get_num_threads()
    yield make
    for runner in runners:
        runner.close()
    torch.set_num_threads(threads)


def with_head(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    """A tied checkpoint that also stores its output matrix: `change` of the embedding."""
    return rewrite(folder, lambda stored: stored.update({HEAD: change(stored[EMBEDDING])}))


def config_of(folder: Path, family: object) -> ModelConfig:
    made: ModelConfig = family.from_hf(read_fields(folder / "config.json"))  # type: ignore[attr-defined]
    return made


def test_a_head_that_differs_from_the_embedding_is_told(opened: Open, tmp_path: Path) -> None:
    folder = with_head(tiny_folder("qwen2", tmp_path / "apart"), lambda matrix: matrix.flip(0))
    copy = with_head(tiny_folder("qwen2", tmp_path / "alike"), torch.clone)
    apart, alike = opened(folder), opened(copy)
    assert any("tie_word_embeddings" in notice for notice in apart.info.notices)
    assert not any("tie_word_embeddings" in notice for notice in alike.info.notices)
    assert apart.info.parameters > alike.info.parameters
    assert check_structure(folder).skipped == ()
    assert check_structure(copy).skipped == (HEAD,)
    assert footprint.needed_bytes(folder, ModelSettings()) >= apart.info.size_bytes


def test_ends_that_the_output_has_no_row_for_end_nothing(opened: Open, tmp_path: Path) -> None:
    folder = tiny_folder("qwen2", tmp_path / "tiny")
    change_json(folder / "generation_config.json", eos_token_id=[7, VOCABULARY, 10**6])
    loaded = opened(folder)
    assert 7 in loaded.runner.info.end_ids
    assert max(loaded.runner.info.end_ids) < loaded.info.vocab_size == VOCABULARY


def test_what_grows_beyond_float16_is_computed_in_float32(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma's norms after each part of a layer multiply by 50,000, on cards without bfloat16."""

    def enlarge(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            if name.endswith("post_feedforward_layernorm.weight"):
                tensor.fill_(50_000.0)

    folder = rewrite(tiny_folder("gemma3", tmp_path / "tiny"), enlarge)
    monkeypatch.setattr(devices, "multiplies", lambda device, dtype: True)
    runner = opened(folder, dtype="f16").runner
    assert np.isfinite(advance(Driven(runner), 0, TEXT)).all()
    plain = tiny_checkpoint("llama2", tmp_path / "llama")
    assert config_of(folder, GEMMA3).overflows_f16
    assert config_of(tiny_checkpoint("gemma2", tmp_path / "two"), GEMMA2).overflows_f16
    assert not config_of(plain, LLAMA).overflows_f16


@pytest.mark.parametrize("packed", [False, True])
def test_experts_of_gpt_oss_exceed_float16(
    packed: bool, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enlarge(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            if name.endswith("gate_up_proj_bias"):
                tensor.fill_(10.0)
            elif name.endswith("down_proj"):
                tensor.mul_(500.0 / tensor.std())
            elif name.endswith("down_proj_scales"):
                tensor.fill_(127 + 7)

    folder = tiny_folder("gpt_oss", tmp_path / "tiny")
    rewrite(pack_experts(folder) if packed else folder, enlarge)
    monkeypatch.setattr(footprint, "stays_packed", lambda *_, **__: packed)
    exact = advance(Driven(opened(folder, dtype="f32").runner), 0, TEXT)
    monkeypatch.setattr(devices, "multiplies", lambda device, dtype: True)
    monkeypatch.setattr(linear, "multiplies", lambda device, dtype: True)
    runner = opened(folder, dtype="f16").runner
    found = advance(Driven(runner), 0, TEXT)
    assert np.abs(found - exact).max() < 0.02 * np.abs(exact).max()
    assert config_of(folder, GPT_OSS).overflows_f16


@pytest.mark.parametrize(
    ("quantize", "config", "label"),
    [
        (gptq(4, 16, order=True), gptq_config(4, 16, order=True), "GPTQ 4-bit"),
        (awq(), awq_config(), "AWQ 4-bit"),
        (packed_codes(4, 32), packed_config(4, 32), "INT4"),
        (fp8(), fp8_config(), "FP8"),
        (nf4(nested=True), nf4_config(), "NF4"),
    ],
)
def test_a_quantized_checkpoint_answers_as_its_numbers_do(
    quantize: Quantize, config: dict[str, Any], label: str, opened: Open, tmp_path: Path
) -> None:
    folder = tiny_folder("qwen2", tmp_path / "model")
    tensors = quantize_folder(folder, quantize, config)
    plain = opened(plain_folder(folder, tensors, tmp_path / "plain"), dtype="f32", kv_type="f32")
    loaded = opened(folder, dtype="f32", kv_type="f32")
    assert loaded.info.quantization == label
    assert any("activations" in one for one in loaded.info.notices) == (label == "FP8")
    assert not any("not known" in one for one in loaded.info.notices)
    found, expected = (advance(Driven(one.runner), 0, TEXT) for one in (loaded, plain))
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    assert np.array_equal(found.argmax(1), expected.argmax(1))
    assert footprint.needed_bytes(folder, ModelSettings(context=64)) > 0
    structure = check_structure(folder)
    assert not structure.unknown and not structure.skipped


@pytest.mark.parametrize("kind", ["checkpoint", "gguf"])
def test_a_gpu_unpacks_what_fits_with_a_context(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "checkpoint":
        path = tiny_folder("qwen2", tmp_path / "model")
        quantize_folder(path, gptq(), gptq_config())
        read = read_model_folder(path)
        config, stored, dtype, codes = read.config, read.tensors, read.dtype, CODES
    else:
        path = write_model(SHAPES["tiny-llama"], "q8_0", tmp_path / "made.gguf")
        header = preflight.check(path)
        stored = [tensor.stored for tensor in header.all_tensors]
        (_, config), dtype, codes = read_gguf_config(header), "bf16", STAYS_PACKED
    packed, unpacked = (weight_bytes(stored, dtype, packed=kept) for kept in (codes, set()))
    settings = ModelSettings(context=64, memory_fraction=0.5)
    beside = footprint.least_bytes(config, settings)
    monkeypatch.setattr(footprint, "has_cuda", lambda: True)
    monkeypatch.setattr(footprint, "is_installed", lambda: False)

    def needed(free_bytes: int) -> int:
        monkeypatch.setattr(footprint, "card_free_bytes", lambda number: free_bytes)
        return footprint.needed_bytes(path, settings)

    enough = 2 * (unpacked + beside)
    assert unpacked > packed and needed(enough) - needed(enough - 2) == unpacked - packed
    if kind == "checkpoint":
        few = needed(enough - 2)
        monkeypatch.setattr(footprint, "is_installed", lambda: True)
        monkeypatch.setenv(NO_GRAPHS, "off")
        assert needed(enough) == few, "there are kernels for them"


def test_a_window_lasts_beyond_the_trained_context(opened: Open, tmp_path: Path) -> None:
    folder = tiny_folder("mistral", tmp_path / "tiny", sliding_window=32)
    change_json(folder / "config.json", max_position_embeddings=32)
    beyond, within = opened(folder), opened(folder, context=32)
    assert beyond.info.context == 64 and beyond.runner.info.window_pool_bytes > 0
    assert within.info.context == 32 and within.runner.info.window_pool_bytes == 0
    cut = _in_two_steps(beyond)
    change_json(folder / "config.json", sliding_window=64)
    whole = _in_two_steps(opened(folder))
    assert np.allclose(cut[0], whole[0], atol=1e-4)
    assert not np.allclose(cut[1], whole[1], atol=1e-3)


def _in_two_steps(loaded: Loaded) -> list[NDArray[np.float32]]:
    """The logits of 60 tokens, computed in two steps."""
    runner = Driven(loaded.runner)
    return [advance(runner, 0, [5 + at * 7 % 200 for at in range(at, at + 30)]) for at in (0, 30)]


def test_factors_for_long_texts_are_told(opened: Open, tmp_path: Path) -> None:
    folder = tiny_folder("phi3", tmp_path / "tiny")
    assert any("context (--ctx) of 32" in notice for notice in opened(folder).info.notices)
    config = config_of(folder, PHI3)
    assert about_positions(config, 32) == ()
    assert len(about_positions(config, 33)) == 1


def test_unpacking_is_told_where_it_takes_much() -> None:
    def told(packed_bytes: int, unpacked_bytes: int, *, on_gpu: bool = False) -> tuple[str, ...]:
        return about_packing(packed_bytes, unpacked_bytes, 64 * GIB, packed=False, on_gpu=on_gpu)

    assert told(4 * GIB, 4 * GIB + 10) == ()
    (notice,) = told(4 * GIB, 16 * GIB)
    assert "17.2 GB instead of 4.3 GB" in notice and "--memory-fraction" in notice
    (notice,) = told(4 * GIB, 16 * GIB, on_gpu=True)
    assert "17.2 GB instead of 4.3 GB" in notice and "--memory-fraction" not in notice


def test_a_gpu_that_unpacks_in_each_step_is_told() -> None:
    def told(unpacked_bytes: int, *, on_gpu: bool) -> tuple[str, ...]:
        return about_packing(4 * GIB, unpacked_bytes, 8 * GIB, packed=True, on_gpu=on_gpu)

    assert told(16 * GIB, on_gpu=False) == told(4 * GIB, on_gpu=True) == ()
    (notice,) = told(16 * GIB, on_gpu=True)
    assert "17.2 GB of the 8.6 GB" in notice and "--backend llamacpp" in notice


@pytest.mark.parametrize("free", [40, 64, 1000])
def test_the_memory_fraction_that_is_named_keeps_weights_packed(free: int) -> None:
    def packed(fraction: float) -> bool:
        settings = ModelSettings(memory_fraction=fraction)
        return footprint.stays_packed(16 * GIB, settings, free_bytes=free * GIB)

    assert not packed(0.9)
    (notice,) = about_packing(4 * GIB, 16 * GIB, free * GIB, packed=False, on_gpu=False)
    fraction = float(notice.split("(--memory-fraction) of ")[1].split()[0])
    assert packed(fraction)
    assert fraction * free > 16, "and there is room beside them"


def test_a_fingerprint_is_of_what_keys_and_values_depend_on(opened: Open, tmp_path: Path) -> None:
    def fingerprint(folder: Path, **settings: object) -> bytes:
        plan = opened(folder, **settings).runner.plan  # type: ignore[attr-defined]
        return load._fingerprint(load._open_source(folder), plan)

    folder, other = (tiny_folder("qwen2", tmp_path / name) for name in ("one", "two"))
    before = fingerprint(folder)
    assert fingerprint(folder) == fingerprint(other) == before
    assert fingerprint(folder, kv_type="f32") != before
    assert fingerprint(folder, dtype="f32", deterministic=True) != before
    rewrite(folder, lambda stored: stored[EMBEDDING].neg_())
    assert fingerprint(folder) != before, "an edited file under the same name"
    quantize_folder(other, gptq(sym=False), gptq_config(sym=False))
    before = fingerprint(other)
    change_json(other / "config.json", quantization_config=gptq_config(sym=False, v2=True))
    assert fingerprint(other) != before, "the same codes, which mean something else"


def test_longrope_has_a_fingerprint_for_each_of_its_factors(opened: Open, tmp_path: Path) -> None:
    folder = tiny_folder("phi3", tmp_path / "tiny")  # With factors for more than 32 tokens.
    source = load._open_source(folder)
    plan = opened(folder).runner.plan  # type: ignore[attr-defined]
    contexts = (16, 32, 33, 64)
    found = [load._fingerprint(source, replace(plan, context=context)) for context in contexts]
    assert found[0] == found[1] != found[2] == found[3]
