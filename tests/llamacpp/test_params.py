"""Settings that llama.cpp would answer with an abort are refused by name, and nothing is cut
silently."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gguf_builder import tiny_llama
from hearth.backends.contract import ModelSettings, ModelSpec
from hearth.backends.errors import DoesNotFit, HearthError, InvalidParameter
from hearth.backends.llamacpp.lib import load_library, set_fields
from hearth.backends.llamacpp.load import Loaded, open_model
from hearth.backends.llamacpp.params import check_settings, gpu_layers, plan_context

Load = Callable[..., Loaded]
GIB = 1 << 30


class Header:
    """What a GGUF header says; 1 KiB of KV a token."""

    architecture = "llama"

    def __init__(self, trained: int = 32768, head: int = 64) -> None:
        self.context_length = trained
        self._values = {"llama.attention.key_length": head, "llama.attention.value_length": head}

    def value(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def kv_bytes_per_token(self, type_k: str, type_v: str) -> int:
        return 1024


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context", 0),
        ("context", -1),
        ("context", 1 << 30),
        ("context", 2.5),
        ("threads", 0),
        ("threads", 513),
        ("batch_threads", 0),
        ("gpu_layers", -1),
        ("chunk_tokens", 0),
        ("chunk_tokens", 1 << 20),
        ("max_sessions", 0),
        ("max_sessions", 257),
        ("kv_type", "q5_0"),
    ],
)
def test_a_bad_setting_is_refused_by_name(f32_model: Path, name: str, value: object) -> None:
    settings = ModelSettings(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter) as caught:
        open_model(ModelSpec(str(f32_model), settings=settings))
    assert caught.value.param == name


def test_a_quantized_cache_needs_flash_attention() -> None:
    with pytest.raises(InvalidParameter) as caught:
        check_settings(ModelSettings(kv_type="q8_0", flash_attention=False), 256)
    assert caught.value.param == "flash_attention"


def test_a_quantized_cache_needs_heads_of_whole_blocks(f32_model: Path) -> None:
    with pytest.raises(InvalidParameter) as caught:
        open_model(ModelSpec(str(f32_model), settings=ModelSettings(kv_type="q8_0")))
    assert caught.value.param == "kv_type"
    assert "16" in caught.value.message


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0", "f16"])
def test_a_quantized_cache_works_where_heads_allow_it(
    load: Load, models: Path, kv_type: str
) -> None:
    path = tiny_llama(models / f"wide-{kv_type}.gguf", hidden=128)
    loaded = load(path, kv_type=kv_type, flash_attention=None)
    assert loaded.info.kv_type == kv_type


def test_more_sessions_than_chunk_tokens_is_no_assertion(load: Load, f32_model: Path) -> None:
    loaded = load(f32_model, chunk_tokens=2, max_sessions=8)
    assert loaded.runner.info.chunk_tokens == 2
    assert loaded.runner.info.max_sequences == 8


def test_gpu_layers_need_a_gpu() -> None:
    with pytest.raises(InvalidParameter):
        gpu_layers(ModelSettings(gpu_layers=4), supports_gpu=False)
    assert gpu_layers(ModelSettings(), supports_gpu=False) == 0
    assert gpu_layers(ModelSettings(), supports_gpu=True) == -1


def test_context_is_what_the_model_was_trained_for_where_it_fits() -> None:
    plan = plan_context(ModelSettings(), Header(), weight_bytes=GIB, available_bytes=8 * GIB)
    assert plan.context == 32768
    assert plan.pool_tokens == 4 * 32768
    assert plan.notices == ()


def test_a_context_cut_to_what_fits_is_said() -> None:
    plan = plan_context(ModelSettings(), Header(1 << 20), weight_bytes=GIB, available_bytes=2 * GIB)
    assert plan.context < 1 << 20
    assert plan.context == plan.pool_tokens
    assert plan.context * 1024 * 1.5 + GIB < 2 * GIB
    assert f"{plan.context:,}" in plan.notices[0]


def test_an_asked_context_beyond_memory_does_not_fit() -> None:
    settings = ModelSettings(context=4_000_000)
    with pytest.raises(DoesNotFit) as caught:
        plan_context(settings, Header(), weight_bytes=GIB, available_bytes=3 * GIB)
    data = caught.value.data
    assert isinstance(data["needed_bytes"], int) and isinstance(data["available_bytes"], int)
    assert data["needed_bytes"] > data["available_bytes"]
    assert f"--ctx {data['fitting_context']}" in caught.value.hint


def test_weights_beyond_memory_do_not_fit() -> None:
    with pytest.raises(DoesNotFit):
        plan_context(ModelSettings(), Header(), weight_bytes=4 * GIB, available_bytes=3 * GIB)


def test_a_context_beyond_training_is_honoured_and_said() -> None:
    settings = ModelSettings(context=40000)
    plan = plan_context(settings, Header(), weight_bytes=GIB, available_bytes=8 * GIB)
    assert plan.context == 40000
    assert "32,768" in plan.notices[0]


def test_unknown_struct_fields_are_refused() -> None:
    params = load_library().api.llama_model_default_params()
    with pytest.raises(HearthError, match="use_mlock"):
        set_fields(params, use_mlock=True)
